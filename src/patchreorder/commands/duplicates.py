"""`patchreorder duplicates INDEX`: images of the same thing, also in other poses."""

from __future__ import annotations

import contextlib
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text
from tyro.conf import Positional

from patchreorder.untrusted import clean


def duplicates(index: Positional[Path], *, threshold: float | None = None, html: Path | None = None) -> None:
    """List groups of images that show the same thing, perhaps rotated, shifted or from another side.

    An image is in a group if its distance to any image of the group is at most the threshold.

    Args:
        index: folder that `patchreorder index` made.
        threshold: distance, from 0 (the same image) to 2; by default half the median distance of two images.
        html: write a page with thumbnails.
    """
    console = Console(highlight=False)
    from patchreorder.engine.progress import Terminal
    from patchreorder.search import page
    from patchreorder.search.duplicates import RELATIVE, find_groups, median_distance
    from patchreorder.search.index import Index

    if html:
        page.need_jinja()
    screen = Terminal(console)
    with console.status("opening the index"):
        opened = Index(index)
        median = median_distance(opened)
    chosen = "as given"
    if threshold is None:
        threshold, chosen = RELATIVE * median, f"{RELATIVE} of the median distance, {median:.3f}"
    with contextlib.closing(screen):
        groups = find_groups(opened, threshold=threshold, screen=screen)
    table = Table("group", "nearest", "file")
    for number, group in enumerate(groups, 1):
        for hit in group:
            name = Text(clean(hit.name), overflow="fold")
            first, last = hit is group[0], hit is group[-1]
            table.add_row(str(number) if first else "", f"{hit.distance:.3f}", name, end_section=last)
    if groups:
        console.print(table)
    screen.say(
        f"{len(groups)} groups with {sum(map(len, groups))} of {len(opened)} images; threshold {threshold:.3f} "
        f"({chosen}). Files are in {clean(str(opened.root))}."
    )
    if html:
        sections = [
            page.Section(f"Group {number}", [page.Thumbnail.of(hit, opened.root) for hit in group])
            for number, group in enumerate(groups, 1)
        ]
        about = f"Images of {opened.root} at most {threshold:.3f} apart, each with its distance to the nearest other."
        with console.status("writing the page"):
            page.write(html, sections, title="Duplicates", about=[about])
        screen.say(f"Page: {clean(str(html))}.\nNext: open it in a browser.")
    else:
        screen.say("Next: `--html FILE` also shows the images, another `--threshold` finds more or fewer.")
