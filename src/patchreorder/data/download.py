"""One file from the web, within limits on its size, its time and its rate. Standard library only."""

from __future__ import annotations

import base64
import http.client
import io
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any
from urllib.parse import unquote, urlsplit

WAIT_SECONDS = 5.0  # to connect, and for every wait after that
WHOLE_SECONDS = 1800.0  # for one file
RATE_SECONDS = 20.0  # in each such period,
LEAST_RATE = 8_000  # so many bytes a second must arrive


def download(url: str, most: int) -> bytes:
    """The first `most` bytes of a file.

    Args:
        url: https, http or file; redirects are followed to https only. A user and a password in it are sent to its own
            host only.
        most: bytes.

    Raises:
        OSError: there is no such file, the server does not answer, or it is too slow.
    """
    paced = partial(_PacedResponse, pace=Pace())
    opener = urllib.request.build_opener(_HttpsRedirects, _Http(paced), _Https(paced))
    found = bytearray()
    with opener.open(_request(url), timeout=WAIT_SECONDS) as response:
        # Not `read`, which waits until all bytes are there.
        while len(found) < most and (part := response.read1(min(most - len(found), 1 << 16))):
            found += part
    return bytes(found)


def _request(url: str) -> urllib.request.Request:
    """A request for a URL; urllib does not understand a user and a password in it."""
    user, at, host = urlsplit(url).netloc.rpartition("@")
    request = urllib.request.Request(url.replace(f"{user}{at}{host}", host, 1) if at else url)
    if at:
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(unquote(user).encode()).decode()}")
    return request


def verify(content: bytes, digits: str) -> None:
    """Raise ValueError unless the SHA-256 of `content` begins with these digits."""
    found = sha256(content).hexdigest()
    if not digits or not found.startswith(digits):
        raise ValueError(f"its SHA-256 is {found}, expected {digits}")


class Pace:
    """Raises TimeoutError if a transfer takes too long, or its rate is too low."""

    def __init__(self) -> None:
        self._start = self._since = time.monotonic()
        self._bytes = 0

    def count(self, more: int) -> None:
        """Take note that so many bytes have arrived."""
        now = time.monotonic()
        self._bytes += more
        if now - self._start > WHOLE_SECONDS:
            raise TimeoutError(f"it takes longer than {WHOLE_SECONDS:g} seconds")
        if now - self._since > RATE_SECONDS:
            if self._bytes < LEAST_RATE * RATE_SECONDS:
                rate = self._bytes / (now - self._since)
                raise TimeoutError(f"it is too slow: {rate:.0f} bytes a second, {LEAST_RATE} are the least")
            self._since, self._bytes = now, 0


class _PacedStream(io.RawIOBase):
    """A stream whose every read is counted, headers and body."""

    def __init__(self, stream: io.RawIOBase, pace: Pace) -> None:
        self._stream, self._pace = stream, pace

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        count = self._stream.readinto(buffer)  # its timeout is that of the socket
        self._pace.count(count or 0)
        return count

    def close(self) -> None:
        self._stream.close()
        super().close()


class _PacedResponse(http.client.HTTPResponse):
    def __init__(self, *args: Any, pace: Pace, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fp = io.BufferedReader(_PacedStream(self.fp.detach(), pace))


class _Http(urllib.request.HTTPHandler):
    def __init__(self, response: Callable[..., Any]) -> None:
        super().__init__()
        self._response = response

    def http_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(partial(_connect, http.client.HTTPConnection, self._response), request)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, response: Callable[..., Any]) -> None:
        super().__init__()
        self._response = response

    def https_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(partial(_connect, http.client.HTTPSConnection, self._response), request)


def _connect(kind: type[http.client.HTTPConnection], response: Callable[..., Any], *args: Any, **options: Any) -> Any:
    connection = kind(*args, **options)
    connection.response_class = response  # type: ignore[assignment]
    return connection


class _HttpsRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *details: Any) -> urllib.request.Request | None:
        _, response, *_, url = details
        if not url.startswith("https://"):
            response.close()
            raise OSError(f"it redirects to {url}, which is not https")
        return super().redirect_request(*details)
