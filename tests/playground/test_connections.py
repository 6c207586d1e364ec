"""Connections that hold on: requests that never end, responses that nobody reads, hundreds of both."""

import contextlib
import resource
import socket
import time
import urllib.request

import pytest

pytest.importorskip("uvicorn", reason="the playground needs the extra `play`")
connections = pytest.importorskip("patchreorder.playground.connections")

UNFINISHED = (b"", b"G", b"GET / HTTP/1.1\r\nhost: localhost\r\nx-more: ")
HEAD = b"POST /api/answer HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
NO_BODY = (HEAD + b"content-length: 90\r\n\r\n{", HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n{")


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    monkeypatch.setattr(connections, "HEADER_SECONDS", 1.0)
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 2.0)
    monkeypatch.setattr(connections, "FLUSH_SECONDS", 0.5)


def connect(address, content: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=10)
    connection.sendall(content)
    return connection


def is_closed(connection: socket.socket, *, within: float) -> bool:
    """Whether the server closes a connection within so many seconds, without an answer or after one."""
    connection.settimeout(within)
    try:
        while connection.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def works(address) -> bool:
    with urllib.request.urlopen(f"{address}/api/about", timeout=10) as answer:
        return answer.status == 200


@pytest.mark.parametrize("content", UNFINISHED)
def test_headers_that_never_end_are_given_up(address, content):
    with connect(address, content) as unfinished:
        assert not is_closed(unfinished, within=0.3)
        assert is_closed(unfinished, within=5)


def test_headers_that_drip_are_given_up(address):
    with connect(address, b"GET / HTTP/1.1\r\nhost: localhost\r\nx: ") as dripping:
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - began < 10:
                dripping.sendall(b"x")
                time.sleep(0.05)
        assert time.monotonic() - began < 5


def test_a_second_request_has_the_same_limits_as_the_first(address):
    whole = b"GET /page.css HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with connect(address, whole) as kept:
        assert kept.recv(10).startswith(b"HTTP/1.1 2")
        time.sleep(0.3)
        kept.sendall(b"GET /page.css HTTP/1.1\r\nhost: ")
        assert is_closed(kept, within=5)
    with connect(address, whole + whole) as pipelined:
        found = b""
        while found.count(b"HTTP/1.1 200") < 2:
            found += pipelined.recv(1 << 16)
        assert is_closed(pipelined, within=5)


@pytest.mark.parametrize("content", [*UNFINISHED, *NO_BODY])
def test_hundreds_of_unfinished_requests_keep_nobody_out(address, content, monkeypatch):
    monkeypatch.setattr(connections, "HEADER_SECONDS", 60.0)
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 60.0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1200:
        pytest.skip(f"only {hard} files can be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    with contextlib.ExitStack() as opened:
        for _ in range(300):
            with contextlib.suppress(ConnectionError):
                opened.enter_context(connect(address, content))
            time.sleep(0.01)  # so that the server has read what was sent when the next one connects
        assert works(address)
    assert works(address)


def test_a_body_that_drips_and_a_response_that_nobody_reads_end(address):
    with connect(address, b"POST /api/answer HTTP/1.1\r\nhost: localhost\r\ncontent-length: 90\r\n") as dripping:
        dripping.sendall(b"content-type: application/json\r\n\r\n{")
        assert not is_closed(dripping, within=0.5)
        assert is_closed(dripping, within=10)
    unread = socket.socket()
    unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    unread.settimeout(10)
    with unread:
        unread.connect(("127.0.0.1", int(address.rpartition(":")[2])))
        with pytest.raises(ConnectionError):  # and no TimeoutError
            unread.sendall(b"GET /main.js HTTP/1.1\r\nhost: localhost\r\n\r\n" * 100_000)
    assert works(address)


@pytest.mark.parametrize("request_", ["POST /api/answer", "POST /api/nothing", "HEAD /index.html"])
def test_a_body_that_is_no_http_is_answered_once(address, request_, caplog):
    """uvicorn answers it. An application that answers too, at once, would log an error for every such request."""
    head = f"{request_} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    for _ in range(5):
        with connect(address, head + b"no chunk\r\n") as connection:
            received = b"".join(iter(lambda open_=connection: open_.recv(1 << 16), b""))
        assert received.startswith(b"HTTP/1.1 400 ")
        assert received.count(b"HTTP/1.1") == 1
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
