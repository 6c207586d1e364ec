"""`patchreorder play`: the playground, a page on this machine that shows reordering at work."""

from __future__ import annotations

import socket

from patchreorder.untrusted import clean_lines

from .console import open_console
from .values import Advanced, File, Folder


def play(
    *,
    port: int = 8028,
    browser: bool = True,
    fetch: bool = False,
    host: Advanced[str] = "127.0.0.1",
    expose: Advanced[bool] = False,
    weights: Advanced[File | None] = None,
    data: Advanced[Folder | None] = None,
) -> None:
    """Open a page that shows reordering at work: rotate and shift digits, compare five networks, try photographs.

    Examples:
        patchreorder play --fetch
        patchreorder play --port 9000 --no-browser

    Args:
        port: port to listen on; 0 takes any free one.
        host: address to listen on; any but this machine's own needs --expose.
        expose: let other machines in. There is no password, and this process sees what they send.
        browser: open the page in a browser, if there is one; --no-browser leaves that to you.
        fetch: download MNIST, AlexNet's trained convolutions and EfficientNet-lite0 if they are not cached.
        weights: file with AlexNet's convolutions (.safetensors, .pt, .pth) by torchvision's names.
        data: folder with the four files of MNIST.
    """
    if not 0 <= port <= 65535:
        raise ValueError(f"port ({port}) must be from 0 to 65535")
    from patchreorder.playground import app, server

    exposed = not server.is_loopback(host)
    if exposed and not expose:
        raise ValueError(f"host ({host}) would let other machines in: add --expose if you want that")
    app.need_fastapi()
    from patchreorder.playground.digits import Mnist
    from patchreorder.playground.photographs import Photographs

    console = open_console()

    def say(text: str) -> None:
        console.print(clean_lines(text), markup=False, soft_wrap=True)

    listening = server.listen(host, port)
    with console.status("loading the networks"):
        playground = app.create_app(
            mnist=Mnist(folder=data, fetch=fetch, say=say),
            photos=Photographs(weights=weights, fetch=fetch, say=say),
            hosts=[socket.gethostname(), socket.getfqdn(), host] if exposed else (),
            any_address=exposed,
        )
    if exposed:
        console.print(
            f"[bold yellow]Warning:[/] listening on {host}: everybody who can reach this machine can use the page, "
            "without a password and without encryption.",
            soft_wrap=True,
        )
    address = server.address_of(listening, host)
    say(f"The playground is at {address}\nNext: open it in a browser; Ctrl-C ends it.")
    if browser:
        server.open_browser(address)
    server.serve(playground, listening)
