"""`patchreorder shard DIR OUT`: many pictures in few files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from tyro.conf import Positional

if TYPE_CHECKING:
    from patchreorder.data.folders import Listing  # torch is imported when the command is run


def shard(
    folder: Positional[Path],
    out: Positional[Path],
    *,
    size: int = 1000,
    workers: int | None = None,
    skip_unreadable: bool = False,
) -> None:
    """Check the pictures of class folders and write them into shards, which are read faster than many files.

    Stopped, the same command goes on. With both folders the same, other people's WebDataset tars there get an index.

    Args:
        folder: holds train/CLASS/*.jpg and val/CLASS/*.jpg, or CLASS/*.jpg.
        out: a new folder for the shards.
        size: pictures in a shard.
        workers: processes; by default one for every core.
        skip_unreadable: leave out pictures that cannot be read, and list them in skipped.txt.
    """
    from patchreorder.data import folders, shards

    console = Console(highlight=False)

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    apart = folders.has_splits(folder)
    parts = ("train", "val") if apart else ("",)
    if folder.resolve() == out.resolve():
        for part in parts:
            with _bar(console, f"reading {folder / part}") as progress:
                say(f"Index: {shards.index_foreign(folder / part, progress=progress)}")
    else:
        if folder.resolve() in out.resolve().parents:
            raise ValueError(f"out ({out}) must not be in {folder}: it would count as a class")
        unreadable = []
        classes = None
        for part in parts:
            with console.status(f"listing {folder / part}"):
                listing = folders.list_images(folder / part, classes=classes)
            classes = listing.classes
            _about(listing, say)
            try:
                with _bar(console, f"writing {out / part}") as progress:
                    written = shards.write(
                        listing,
                        out / part,
                        size=size,
                        workers=_cores() if workers is None else workers,
                        skip_unreadable=skip_unreadable,
                        say=say,
                        progress=progress,
                    )
            except shards.Unreadable as error:
                unreadable.append(f"{folder / part}: {error}")
                continue
            skipped = f", {len(written.skipped)} unreadable are in skipped.txt" if written.skipped else ""
            say(f"{out / part}: {written.images} pictures in {written.shards} shards{skipped}.")
        if unreadable:
            raise ValueError("; ".join(unreadable))
    say(f"Written to {out}.\nNext: `patchreorder run table2 --data {out}` trains on it.")


def _about(listing: Listing, say: Callable[[str], None]) -> None:
    for names, what in (
        (listing.ignored, "files are no pictures and are left out"),
        (listing.missing, "classes have no picture"),
    ):
        if names:
            more = ", ..." if len(names) > 5 else ""
            say(f"{listing.root}: {len(names)} {what}: {', '.join(names[:5])}{more}")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _bar(console: Console, title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar that takes the number of things done, and of all; nothing where there is no terminal."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
