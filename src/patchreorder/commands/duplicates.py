"""`patchreorder duplicates INDEX`: pictures of the same thing, also in other poses."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text
from tyro.conf import Positional

from patchreorder.untrusted import clean


def duplicates(index: Positional[Path], *, threshold: float | None = None, html: Path | None = None) -> None:
    """List groups of pictures that show the same thing, perhaps turned, shifted or from another side.

    Pictures that are nearer to each other than the threshold are in one group, and so is what is near to any of them.

    Args:
        index: folder that `patchreorder index` made.
        threshold: distance, from 0 (the same picture) to 2; by default a part of the usual distance of two pictures.
        html: write a page with thumbnails.
    """
    if threshold is not None and not threshold >= 0:
        raise ValueError(f"threshold ({threshold}) must be a distance, 0 or more")
    console = Console(highlight=False)
    from patchreorder.engine.progress import Terminal
    from patchreorder.search import page
    from patchreorder.search.duplicates import RELATIVE, groups, usual_distance
    from patchreorder.search.index import Index

    if html:
        page.need_jinja()
    screen = Terminal(console)
    with console.status("opening the index"):
        opened = Index(index)
        usual = usual_distance(opened)
    limit = RELATIVE * usual if threshold is None else threshold
    try:
        found = groups(opened, threshold=limit, screen=screen)
    finally:
        screen.close()
    table = Table("group", "nearest", "file")
    for number, group in enumerate(found, 1):
        for place, member in enumerate(group):
            name = Text(clean(member.name), overflow="fold")
            table.add_row("" if place else str(number), f"{member.distance:.3f}", name, end_section=member == group[-1])
    if found:
        console.print(table)
    chosen = f"{RELATIVE} of the usual distance here, {usual:.3f}" if threshold is None else "as asked"
    screen.say(
        f"{len(found)} groups with {sum(map(len, found))} of {len(opened)} pictures are nearer than {limit:.3f} "
        f"({chosen}). Files are in {clean(str(opened.root))}."
    )
    if html:
        rows = [
            page.Row(
                f"Group {number}",
                [page.Tile(opened.root / member.name, member.name, [f"{member.distance:.3f}"]) for member in group],
            )
            for number, group in enumerate(found, 1)
        ]
        about = [
            f"Pictures of {opened.root} nearer than {limit:.3f}; with each, the distance of the nearest other one."
        ]
        with console.status("drawing the page"):
            page.write(html, rows, title="What is there more than once", about=about)
        screen.say(f"Page: {clean(str(html))}.\nNext: open it in a browser.")
    else:
        screen.say(
            "Next: the same with `--html FILE` shows the pictures, with another `--threshold` finds more or fewer."
        )
