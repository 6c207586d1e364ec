"""`patchreorder index DIR... --out INDEX`: describe every image of one or several folders, to search in them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from patchreorder.search import DEFAULT_MODEL
from patchreorder.untrusted import clean

from .console import open_console
from .values import Advanced, File, Folder, Shown

SHOWN = 5  # files to list by name


def index(
    folders: Annotated[list[Path], Positional, arg(metavar="FOLDER ...")],
    *,
    out: Folder,
    store: Annotated[str | None, Shown("ADDRESS")] = None,
    model: Advanced[str] = DEFAULT_MODEL,
    weights: Advanced[File | None] = None,
    part: Advanced[Annotated[str | None, Shown("K/N")]] = None,
    workers: Advanced[int | None] = None,
) -> None:
    """Make an index of the images in folders, or update it; `search` and `duplicates` use it.

    Only new and changed images are described; deleted images are removed from the index. After an interruption the
    same command continues. It also repairs a damaged index.

    Examples:
        patchreorder index photos --out photos.index
        patchreorder index photos --out photos.index --store postgresql://localhost/db

    Args:
        folders: hold images, also in subfolders; other files are ignored.
        out: folder of the index, a new one or one that was made of the same folders.
        model: the network that describes images, such as efficientnet_lite0/gap, alexnet/ranked:quantiles=16,
            alexnet@conv1+conv5/gap (of several layers) or torchvision:resnet18@layer4/ranked; a wrong name lists all.
        weights: file with its weights (.safetensors, .pt, .pth); without it they are downloaded once.
        store: postgresql://[USER@]HOST[:PORT]/DATABASE (PostgreSQL with pgvector) or qdrant://HOST[:PORT]/COLLECTION to
            search on a server, local to search here; by default the store of the last update.
        part: such as 3/16: describe only the third of sixteen parts, on any machine, with the same --out and --store;
            at the end the command without --part makes the index of all parts.
        workers: processes that decode images; by default all cores.
    """
    from patchreorder.data.loader import processors
    from patchreorder.engine.memory import keep_freed_memory
    from patchreorder.engine.progress import Terminal
    from patchreorder.search.descriptors import open_descriptor
    from patchreorder.search.parts import Part, describe_part
    from patchreorder.search.update import update

    if not folders:
        raise ValueError("name a folder of images, or several")
    chosen = Part.parse(part) if part else None
    keep_freed_memory()
    workers = processors() if workers is None else workers
    with contextlib.closing(Terminal(open_console())) as screen:
        try:
            descriptor = open_descriptor(model, weights=weights, say=screen.say)
            if chosen:
                done = describe_part(folders, out, descriptor, part=chosen, store=store, workers=workers, screen=screen)
            else:
                done = update(folders, out, descriptor, weights=weights, store=store, workers=workers, screen=screen)
        except KeyboardInterrupt:
            screen.say("stopped; the same command continues from there")
            raise
    for lines, what in (
        ([file.reason for file in done.unreadable], "images are left out until they change"),
        ([clean(name) for name in done.ignored], "files are not images"),
    ):
        if lines:
            more = f"; and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
            screen.say(f"{len(lines)} {what}: {'; '.join(lines[:SHOWN])}{more}")
    state = f"{done.described} described now, {done.removed} removed" if done.changed else "nothing has changed"
    shown = clean(str(out))
    if chosen:
        screen.say(f"Part {chosen} of {shown}: {done.images} images ({done.described} described now).")
        screen.say("Next: the other parts, on any machine; then the same command without --part makes the index.")
        return
    screen.say(f"Index: {shown}, {done.images} images ({state}).")
    screen.say(
        f"Next: `patchreorder search {shown} IMAGE` finds images that look like another, "
        f"`patchreorder duplicates {shown}` images that are there more than once."
    )
