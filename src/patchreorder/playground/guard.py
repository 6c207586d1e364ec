"""What stands before the page: whose requests are answered, how long and large they may be, what a browser may do.

The server listens on this machine only, but every web page that its user opens could send requests to it. A name that
leads here is refused (DNS rebinding), and so are requests that another site's page makes. Bodies are read here, whole,
up to a limit and within a time: neither a header nor a slow sender decides how much memory or time they take.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

UPLOAD = "/api/photos"
MAX_UPLOAD, MAX_BODY = 10_000_000, 64_000  # bytes
UPLOADS = 4  # that are read at the same time
REQUESTS = 64  # of all kinds that are answered at the same time
SECONDS = 20.0  # for a body to arrive
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


class _Problem(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


class Guard:
    """An ASGI application around another one.

    Args:
        app: gets the requests that are in order.
        names: of hosts that lead here, besides localhost.
        numbers: whether an address in numbers leads here too, whichever it is: for a server that others may reach. No
            name has to be looked up for it, so it cannot be rebound.
        seconds: for a body to arrive.
    """

    def __init__(
        self, app: App, *, names: Collection[str] = (), numbers: bool = False, seconds: float = SECONDS
    ) -> None:
        self._app = app
        self._names = {"localhost", "127.0.0.1", "::1", *(name.lower() for name in names)}
        self._numbers, self._seconds = numbers, seconds
        self._requests = self._uploads = 0

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no web sockets: the server closes the connection
        upload = scope["method"] == "POST" and scope["path"] == UPLOAD

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", ()), *own]
            await send(message)

        busy = _Problem(503, "the server is busy: try again in a moment")
        self._uploads += upload
        try:
            self._check(scope)
            if upload and self._uploads > UPLOADS:
                raise busy
            body = await self._body(scope, receive, MAX_UPLOAD if upload else MAX_BODY)
            # Only now: those who send slowly take nobody's place.
            if self._requests >= REQUESTS:
                raise busy
            self._requests += 1
            try:
                await self._app(scope, _replayed(body, receive), guarded)
            finally:
                self._requests -= 1
        except _Problem as problem:
            await _answer(guarded, problem)
        except _Left:
            pass
        finally:
            self._uploads -= upload

    def _check(self, scope: MutableMapping[str, Any]) -> None:
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "")
        if not self._is_ours(_without_port(host)):
            raise _Problem(421, f"this server is not {host[:100]!r}: open it by the address that it printed")
        origin = headers.get(b"origin")
        if origin is not None and origin.partition("://")[2] != host:
            raise _Problem(403, f"requests of other sites ({origin[:100]}) are not answered")
        if scope["method"] not in ("GET", "HEAD", "POST"):
            raise _Problem(405, f"method {scope['method'][:20]} is not known here")

    def _is_ours(self, name: str) -> bool:
        if name.lower() in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return self._numbers

    async def _body(self, scope: MutableMapping[str, Any], receive: Receive, most: int) -> bytes:
        too_large = _Problem(413, f"the request is larger than {most} bytes")
        for name, value in scope["headers"]:
            if name.lower() == b"content-length" and value.isdigit() and int(value[:12]) > most:
                raise too_large  # they say so themselves; those who do not are counted
        parts: list[bytes] = []
        size = 0

        async def read() -> bytes:
            nonlocal size
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _Left
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > most:
                    raise too_large
                if not message.get("more_body"):
                    return b"".join(parts)

        try:
            return await asyncio.wait_for(read(), self._seconds)
        except asyncio.TimeoutError:
            raise _Problem(408, f"the request did not arrive within {self._seconds:g} seconds") from None


class _Left(Exception):
    """The sender went away before the request was whole."""


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Gives the body once; from then on what comes is what really comes: that the sender went away."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _answer(send: Send, problem: _Problem) -> None:
    content = json.dumps({"error": problem.text}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    headers.append((b"cache-control", b"no-store"))
    if problem.status in (408, 413):
        headers.append((b"connection", b"close"))  # what was not read yet must not pass for the next request
    if problem.status == 503:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
