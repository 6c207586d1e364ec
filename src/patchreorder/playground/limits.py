"""Which requests are answered, how large and slow they may be, and what the browser may do with the page.

The server listens on this machine only, but every web page that the user opens could send requests to it. Requests to
another host name (DNS rebinding) and from another origin are rejected. Bodies are read here, completely, up to a size
and within a time: neither a header nor a slow client decides how much memory or time they take.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastapi.responses import JSONResponse

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

UPLOAD = "/api/photos"
MAX_UPLOAD, MAX_BODY = 10_000_000, 64_000  # bytes
MAX_UPLOADS = 4  # read at the same time
MAX_REQUESTS = 64  # of all kinds, answered at the same time
SECONDS = 20.0  # for a body to arrive
BUSY = "the server is busy: try again in a moment"
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class _Rejected(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


class _Disconnected(Exception):
    """The client disconnected before the request was complete."""


def error_response(status: int, text: str) -> JSONResponse:
    """Return a response whose body is a JSON object with `error`."""
    from fastapi.responses import JSONResponse

    headers = {"cache-control": "no-store"}
    if status in (408, 413):
        headers["connection"] = "close"  # the unread rest of the body must not be taken for the next request
    if status == 503:
        headers["retry-after"] = "1"
    return JSONResponse({"error": text}, status, headers=headers)


class LimitedApp:
    """An ASGI application that passes acceptable requests on to another one.

    Args:
        app: the application that answers them.
        hosts: host names of this server, besides localhost.
        any_address: also accept every IP address as host, for a server that other machines may reach. DNS rebinding
            needs a name, so this is safe.
        seconds: time for a body to arrive.
    """

    def __init__(
        self, app: App, *, hosts: Collection[str] = (), any_address: bool = False, seconds: float = SECONDS
    ) -> None:
        self._app = app
        self._hosts = {"localhost", "127.0.0.1", "::1", *(host.lower() for host in hosts)}
        self._any_address, self._seconds = any_address, seconds
        self._requests = self._uploads = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no web sockets: the server closes the connection
        upload = scope["method"] == "POST" and scope["path"] == UPLOAD

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", ()), *added]
            await send(message)

        self._uploads += upload
        try:
            self._check(scope)
            if upload and self._uploads > MAX_UPLOADS:
                raise _Rejected(503, BUSY)
            body = await self._body(scope, receive, MAX_UPLOAD if upload else MAX_BODY)
            # Counted only from here on: slow clients do not use up the limit.
            if self._requests >= MAX_REQUESTS:
                raise _Rejected(503, BUSY)
            self._requests += 1
            try:
                await self._app(scope, _replay(body, receive), send_with_headers)
            finally:
                self._requests -= 1
        except _Rejected as problem:
            await error_response(problem.status, problem.text)(scope, receive, send_with_headers)
        except _Disconnected:
            pass
        finally:
            self._uploads -= upload

    def _check(self, scope: Scope) -> None:
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "")
        if not self._is_accepted(_without_port(host)):
            raise _Rejected(421, f"this server is not {host[:100]!r}: open the address that it printed")
        origin = headers.get(b"origin")
        if origin is not None and origin.partition("://")[2] != host:
            raise _Rejected(403, f"requests from other sites ({origin[:100]}) are not answered")
        if scope["method"] not in ("GET", "HEAD", "POST"):
            raise _Rejected(405, f"method {scope['method'][:20]} is not supported")

    def _is_accepted(self, host: str) -> bool:
        if host.lower() in self._hosts:
            return True
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return self._any_address

    async def _body(self, scope: Scope, receive: Receive, most: int) -> bytes:
        too_large = _Rejected(413, f"the request is larger than {most} bytes")
        for name, value in scope["headers"]:
            if name.lower() == b"content-length" and value.isdigit() and int(value[:12]) > most:
                raise too_large

        async def read() -> bytes:
            body = bytearray()
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _Disconnected
                body += message.get("body", b"")
                if len(body) > most:  # whatever content-length says
                    raise too_large
                if not message.get("more_body"):
                    return bytes(body)

        try:
            return await asyncio.wait_for(read(), self._seconds)
        except asyncio.TimeoutError:
            raise _Rejected(408, f"the request did not arrive within {self._seconds:g} seconds") from None


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body first, then what the client sends: that it disconnects."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
