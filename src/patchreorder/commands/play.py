"""`patchreorder play`: the playground, a page on this machine that shows reordering at work."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
import threading
import webbrowser
from pathlib import Path

from rich.console import Console


def play(
    *,
    port: int = 8028,
    host: str = "127.0.0.1",
    expose: bool = False,
    browser: bool = True,
    fetch: bool = False,
    weights: Path | None = None,
    data: Path | None = None,
) -> None:
    """Open a page that shows reordering at work: digits to turn and shift, three networks, the layer, your photographs.

    Args:
        port: to listen on; 0 takes any that is free.
        host: address to listen on; any but this machine's own needs --expose.
        expose: let other machines in. There is no password, and what they send is seen by this process.
        browser: open the page, where there is a browser.
        fetch: fetch MNIST and AlexNet's trained convolutions if they are not cached.
        weights: file with AlexNet's convolutions (.safetensors, .pt, .pth) by torchvision's names.
        data: folder with the four files of MNIST.
    """
    if not 0 <= port <= 65535:
        raise ValueError(f"port ({port}) must be from 0 to 65535")
    public = not _is_loopback(host)
    if public and not expose:
        raise ValueError(f"host ({host}) would let other machines in: add --expose if that is meant")
    console = Console(highlight=False)
    from patchreorder.playground import app as playground

    playground.need_fastapi()
    import uvicorn

    from patchreorder.playground.digits import Mnist
    from patchreorder.playground.photographs import Photographs

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    listening = _listen(host, port)
    with console.status("loading the networks"):
        playground.use_one_thread_each()
        app = playground.create_app(
            mnist=Mnist(folder=data, fetch=fetch, say=say),
            photographs=Photographs(weights=weights, fetch=fetch, say=say),
            names=[socket.gethostname(), socket.getfqdn(), host] if public else (),
            numbers=public,
        )
    shown = "localhost" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listening.getsockname()[1]}/"
    if public:
        console.print(
            f"[bold yellow]Warning:[/] listening on {host}: everybody who can reach this machine can use the page, "
            "without a password and without encryption.",
            soft_wrap=True,
        )
    say(f"The playground is at {address}\nNext: open it in a browser; Ctrl-C ends it.")
    if browser and _has_browser():
        # The socket listens already: the page comes as soon as the server runs.
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        limit_concurrency=256,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=3,
        h11_max_incomplete_event_size=32_768,
    )
    try:
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        listening.close()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    listening = None
    try:
        kind, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # asyncio sends without delay only on sockets that say that they are TCP: else an answer waits for 40 ms.
        listening = socket.socket(kind, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        if os.name != "nt":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(place)
        listening.listen(128)
    except OSError as error:
        if listening is not None:
            listening.close()
        raise OSError(
            f"cannot listen on {host}, port {port} ({error.strerror or error}): choose another with --port, "
            "or --port 0 for any that is free"
        ) from None
    return listening


def _has_browser() -> bool:
    """Whether there is a screen to open one on: a browser in the terminal would take it away from us."""
    if sys.platform in ("win32", "darwin"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
