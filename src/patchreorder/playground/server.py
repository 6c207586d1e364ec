"""The socket that the playground listens on, and the web server."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
import threading
import webbrowser
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import uvicorn


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. The error of a taken port says what to do."""
    listening = None
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # asyncio sets TCP_NODELAY only on sockets that say that they are TCP; without it a response takes 40 ms more.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        if os.name != "nt":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)
    except OSError as error:
        if listening is not None:
            listening.close()
        raise OSError(
            f"cannot listen on {host}, port {port} ({error.strerror or error}): choose another port with --port, "
            "or --port 0 for any free one"
        ) from None
    return listening


def address_of(listening: socket.socket, host: str) -> str:
    """Return the address of the page for a browser on this machine."""
    name = "localhost" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    return f"http://{name}:{listening.getsockname()[1]}/"


def open_browser(address: str) -> None:
    """Open the page if there is a screen. A browser inside the terminal would take the terminal away from us."""
    if sys.platform in ("win32", "darwin") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        # The socket listens already: the page comes as soon as the server runs.
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()


def configuration(app: Any) -> uvicorn.Config:
    """The configuration of the web server."""
    import uvicorn

    from .connections import LimitedConnection

    return uvicorn.Config(
        app,
        http=LimitedConnection,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        limit_concurrency=256,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=3,
        h11_max_incomplete_event_size=32_768,
    )


def serve(app: Any, listening: socket.socket) -> None:
    """Answer requests until Ctrl-C."""
    import uvicorn

    torch.set_num_threads(1)  # requests run side by side, each on one core
    try:
        uvicorn.Server(configuration(app)).run(sockets=[listening])
    finally:
        listening.close()
