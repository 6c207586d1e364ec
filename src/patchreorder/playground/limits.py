"""Which requests are answered, how large and slow they may be, and what the browser may do with the page.

The server listens on this machine only, but every web page that the user opens could send requests to it. Requests to
another host name (DNS rebinding) and from another origin are rejected. Bodies are read up to a size and within a time:
neither a header nor a slow client decides how much memory or time they take.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from .requests import RequestError

if TYPE_CHECKING:
    from fastapi import Request
    from fastapi.responses import JSONResponse
    from starlette.datastructures import Headers
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_UPLOAD, MAX_BODY = 10_000_000, 64_000  # bytes
SECONDS = 20.0  # for a body to arrive
HOST = re.compile(r"([a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")  # and a port; anything else is no host
NO_STORE = {"cache-control": "no-store"}
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


def error_response(error: RequestError) -> JSONResponse:
    """Return a response whose body is a JSON object with `error`."""
    from fastapi.responses import JSONResponse

    headers = dict(NO_STORE)
    if error.status in (408, 413):
        headers["connection"] = "close"  # the unread rest of the body must not be taken for the next request
    if error.status == 503:
        headers["retry-after"] = "1"
    return JSONResponse({"error": str(error)}, error.status, headers=headers)


class LimitedApp:
    """An ASGI application that passes acceptable requests on to another one, and adds HEADERS to every response.

    Its host names are localhost and `hosts`. With `any_address`, for a server that other machines may reach, every IP
    address is accepted too: DNS rebinding needs a name, so this is safe.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str] = (), any_address: bool = False) -> None:
        self._app, self._any_address = app, any_address
        self._hosts = {"localhost", "127.0.0.1", "::1", *(host.lower() for host in hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.datastructures import Headers, MutableHeaders

        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            return None  # no web sockets: the server closes the connection

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        app = self._app
        try:
            self._check(scope["method"], Headers(scope=scope))
        except RequestError as error:
            app = error_response(error)
        return await app(scope, receive, send_with_headers)

    def _check(self, method: str, headers: Headers) -> None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._is_accepted(host):
            raise RequestError(421, f"this server is not {host[:100]!r}: open the address that it printed")
        if origin is not None and origin.partition("://")[2] != host:
            raise RequestError(403, f"requests from other sites ({origin[:100]}) are not answered")
        if method not in ("GET", "HEAD", "POST"):
            raise RequestError(405, f"method {method[:20]} is not supported")

    def _is_accepted(self, host: str) -> bool:
        found = HOST.fullmatch(host.lower())
        if not found:
            return False
        name = found[1].strip("[]")
        try:
            return name in self._hosts or (self._any_address and ipaddress.ip_address(name) is not None)
        except ValueError:  # neither a name nor an address
            return False


async def read_body(request: Request, most: int) -> bytes:
    """Return the body of a request, at most so many bytes."""
    too_large = RequestError(413, f"the request is larger than {most} bytes")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:12]) > most:
        raise too_large

    async def read() -> bytes:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > most:  # whatever content-length says
                raise too_large
        return bytes(body)

    try:
        return await asyncio.wait_for(read(), SECONDS)
    except asyncio.TimeoutError:
        raise RequestError(408, f"the request did not arrive within {SECONDS:g} seconds") from None
