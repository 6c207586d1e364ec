"""`patchreorder search INDEX IMAGE`: the pictures that show what is on a picture."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.table import Table
from rich.text import Text
from tyro.conf import Positional, arg

from patchreorder.untrusted import clean


def search(
    index: Positional[Path],
    image: Positional[Path],
    *,
    k: Annotated[int, arg(aliases=["-k"])] = 4,
    poses: bool = False,
    html: Path | None = None,
    model: str | None = None,
    weights: Path | None = None,
    workers: int | None = None,
) -> None:
    """Find the pictures of an index that are nearest to a picture, or to every picture of a folder.

    Args:
        index: folder that `patchreorder index` made.
        image: a picture, or a folder of them.
        k: how many to find.
        poses: try the picture turned (every 45 degrees) and shifted (by a fifth, four ways) too: twelve times the work.
        html: write a page with thumbnails.
        model: the network that describes pictures; another one than that of the index is refused.
        weights: file with its weights; by default that of the index.
        workers: processes that decode pictures; by default all cores.
    """
    if k < 1:
        raise ValueError(f"k ({k}) must be 1 or more")
    if not image.exists():
        raise ValueError(f"{clean(str(image))} is no picture and no folder")
    console = Console(highlight=False)
    from patchreorder.engine.memory import keep_freed_memory
    from patchreorder.engine.progress import Terminal
    from patchreorder.search import page
    from patchreorder.search.describe import fingerprint, open_descriptor
    from patchreorder.search.index import Index, ask

    if html:
        page.need_jinja()
    keep_freed_memory()
    screen = Terminal(console)
    with console.status("opening the index"):
        opened = Index(index)
    noted = opened.manifest.weights
    descriptor = open_descriptor(
        model or opened.manifest.maker.model, weights=weights or (Path(noted) if noted else None), say=screen.say
    )
    try:
        answers, bad = ask(
            opened,
            descriptor,
            image,
            fingerprint=fingerprint(descriptor),
            k=k,
            poses=poses,
            workers=(os.cpu_count() or 1) if workers is None else workers,
            screen=screen,
        )
    finally:
        screen.close()
    if not answers:
        raise ValueError("; ".join(bad))
    many = image.is_dir()
    table = Table(*(["query"] if many else []), "rank", "distance", "file", *(["query's pose"] if poses else []))
    for answer in answers:
        for rank, hit in enumerate(answer.hits, 1):
            asked = [Text(clean(answer.query) if rank == 1 else "")] if many else []
            pose = [hit.pose or "upright"] if poses else []
            table.add_row(*asked, str(rank), f"{hit.distance:.3f}", Text(clean(hit.name), overflow="fold"), *pose)
    console.print(table)
    if not len(opened):
        screen.say(f"{clean(str(index))} holds no picture that can be found.")
    for reason in bad:
        screen.say(reason)
    screen.say(f"Files are in {clean(str(opened.root))}; distances are from 0 (the same) to 2.")
    if html:
        root = image if many else image.parent
        rows = [
            page.Row(
                answer.query,
                [
                    page.Tile(
                        opened.root / hit.name, hit.name, [f"{hit.distance:.3f}", *([hit.pose] if hit.pose else [])]
                    )
                    for hit in answer.hits
                ],
                page.Tile(root / answer.query, answer.query, ["asked"]),
            )
            for answer in answers
        ]
        about = [f"The {k} nearest of {len(opened)} pictures in {opened.root}, by {opened.manifest.maker}.", *bad]
        with console.status("drawing the page"):
            page.write(html, rows, title="What looks like it", about=about)
        screen.say(f"Page: {clean(str(html))}.\nNext: open it in a browser.")
    else:
        screen.say(
            "Next: the same with `--html FILE` shows the pictures, with `--poses` also finds what is turned far."
        )
