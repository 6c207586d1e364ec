"""`patchreorder index DIR --out INDEX`: describe every picture of a folder, to search in it."""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console
from tyro.conf import Positional

from patchreorder.search import DEFAULT_MODEL
from patchreorder.untrusted import clean

SHOWN = 5  # files that are listed by name


def index(
    folder: Positional[Path],
    *,
    out: Path,
    model: str = DEFAULT_MODEL,
    weights: Path | None = None,
    store: str | None = None,
    workers: int | None = None,
) -> None:
    """Make an index of the pictures in a folder, or bring it up to date; `search` and `duplicates` ask it.

    Only new and changed pictures are described; pictures that are gone are removed from the index. Stopped, the same
    command goes on; a damaged index is repaired by it.

    Args:
        folder: holds pictures, also in folders within it; other files do not matter.
        out: folder of the index, a new one or one that was made of the same folder.
        model: the network that describes pictures, such as alexnet/ranked, alexnet/ranked:quantiles=16,
            alexnet@conv1+conv5/gap (of several layers) or torchvision:resnet18@layer4/ranked; a wrong name lists all.
        weights: file with its weights (.safetensors, .pt, .pth); fetched once and cached without it.
        store: qdrant://HOST[:PORT]/COLLECTION to search on a Qdrant server, local to search here; as before without it.
        workers: processes that decode pictures; by default all cores.
    """
    console = Console(highlight=False)
    from patchreorder.engine.memory import keep_freed_memory
    from patchreorder.engine.progress import Terminal
    from patchreorder.search.describe import fingerprint, open_descriptor
    from patchreorder.search.index import update

    keep_freed_memory()
    screen = Terminal(console)
    try:
        descriptor = open_descriptor(model, weights=weights, say=screen.say)
        done = update(
            folder,
            out,
            descriptor,
            fingerprint=fingerprint(descriptor),
            weights=weights,
            store=store,
            workers=(os.cpu_count() or 1) if workers is None else workers,
            screen=screen,
        )
    except KeyboardInterrupt:
        screen.say("stopped; the same command goes on from there")
        raise
    finally:
        screen.close()
    for lines, what in (
        ([file.reason for file in done.unreadable], "pictures are left out until they change"),
        ([clean(name) for name in done.ignored], "files are no pictures"),
    ):
        if lines:
            more = f"; and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
            screen.say(f"{len(lines)} {what}: {'; '.join(lines[:SHOWN])}{more}")
    state = f"{done.described} described now, {done.removed} removed" if done.changed else "nothing has changed"
    shown = clean(str(out))
    screen.say(f"Index: {shown}, {done.images} pictures ({state}).")
    screen.say(
        f"Next: `patchreorder search {shown} IMAGE` finds what looks like a picture, `patchreorder duplicates {shown}` "
        "what is there more than once."
    )
