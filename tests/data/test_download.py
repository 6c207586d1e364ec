"""Downloads end: servers that send too slowly or for too long are given up, in headers and in bodies."""

import contextlib
import socket
import threading
import time

import pytest

from patchreorder.data import download as module
from patchreorder.data.download import download
from patchreorder.data.origins import Mirror
from patchreorder.data.sources import fetch

from .toy_source import CONTENTS, Shelf, files_in, toy

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@contextlib.contextmanager
def serve(first: bytes, drip: bytes, wait: float):
    """A server that answers with `first` at once, then with `drip` every `wait` seconds, for ever; yields its URL."""
    over = threading.Event()

    def answer(connection):
        with connection, contextlib.suppress(OSError):
            connection.recv(10_000)
            connection.sendall(first)
            while not over.wait(wait):
                connection.sendall(drip)

    def accept():
        with contextlib.suppress(OSError):
            while not over.is_set():
                threading.Thread(target=answer, args=[listening.accept()[0]], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        over.set()
        listening.shutdown(socket.SHUT_RDWR)


@pytest.fixture(autouse=True)
def limits(monkeypatch, empty_cache):
    monkeypatch.setattr(module, "RATE_SECONDS", 0.4)
    monkeypatch.setattr(module, "WHOLE_SECONDS", 2.0)


@pytest.mark.parametrize(
    ("first", "drip"),
    [
        (HEAD, b"x"),  # a body, byte by byte
        (CHUNKED, b"1\r\nx\r\n"),
        (b"", b"H"),  # a status line
        (b"HTTP/1.1 200 OK\r\n", b"X-More: 1\r\n"),  # headers
        (b"HTTP/1.1 200 OK\r\nX-Long: ", b"x"),
    ],
)
def test_a_mirror_that_drips_is_left_for_the_next_origin(first, drip, empty_cache):
    said, start = [], time.monotonic()
    with serve(first, drip, 0.02) as url:
        fetch(toy(Mirror(url), Shelf()), say=said.append)
    assert time.monotonic() - start < 10
    assert "it is too slow" in said[1]
    assert files_in(empty_cache / "toy") == CONTENTS


def test_a_rate_that_is_just_enough_ends_with_the_limit_on_the_whole():
    with (
        serve(HEAD.replace(b"100000", b"9" * 9), bytes(20_000), 0.05) as url,
        pytest.raises(TimeoutError, match="it takes longer than 2 seconds"),
    ):
        download(url, 10**9)


def test_a_file_that_is_fast_is_read_whole_or_to_the_bound(server):
    content = bytes(range(256)) * 4000
    server.pages["/file"] = content
    assert download(server.url + "/file", len(content) + 1) == content
    assert download(server.url + "/file", 1000) == content[:1000]
    with serve(CHUNKED + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", b"", 1.0) as url:
        assert download(url, 100) == b"abcde"
