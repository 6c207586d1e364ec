"""`patchreorder shard DIR OUT`: many images in few files."""

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
    from patchreorder.data.folders import Listing  # torch is imported when the command runs


def shard(
    folder: Positional[Path],
    out: Positional[Path],
    *,
    size: int = 1000,
    workers: int | None = None,
    skip_unreadable: bool = False,
) -> None:
    """Check the images of class folders and write them into shards, which are read faster than many files.

    Run the same command again to continue after a stop. If both folders are the same, the WebDataset tars in it get an
    index.

    Args:
        folder: holds train/CLASS/*.jpg and val/CLASS/*.jpg, or CLASS/*.jpg.
        out: a new folder for the shards.
        size: images in a shard.
        workers: processes; by default one for every core.
        skip_unreadable: leave out images that cannot be read, and list them in skipped.txt.
    """
    from patchreorder.data import folders, shard_writer, webdataset

    console = Console(highlight=False)

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    splits = ("train", "val") if folders.has_splits(folder) else ("",)
    if folder.resolve() == out.resolve():
        for split in splits:
            with _bar(console, f"reading {folder / split}") as progress:
                say(f"Index: {webdataset.index_tars(folder / split, progress=progress)}")
    else:
        if folder.resolve() in out.resolve().parents:
            raise ValueError(f"out ({out}) must not be in {folder}: it would count as a class")
        unreadable = []
        classes = None
        for split in splits:
            with console.status(f"listing {folder / split}"):
                listing = folders.list_images(folder / split, classes=classes)
            classes = listing.classes
            _report_ignored(listing, say)
            try:
                with _bar(console, f"writing {out / split}") as progress:
                    written = shard_writer.write(
                        listing,
                        out / split,
                        size=size,
                        workers=_cores() if workers is None else workers,
                        skip_unreadable=skip_unreadable,
                        say=say,
                        progress=progress,
                    )
            except shard_writer.Unreadable as error:
                unreadable.append(f"{folder / split}: {error}")
                continue
            skipped = f", {len(written.skipped)} unreadable ones are in skipped.txt" if written.skipped else ""
            say(f"{out / split}: {written.images} images in {written.shards} shards{skipped}.")
        if unreadable:
            raise ValueError("; ".join(unreadable))
    say(f"Written to {out}.\nNext: `patchreorder run table2 --data {out}` trains on it.")


def _report_ignored(listing: Listing, say: Callable[[str], None]) -> None:
    for names, what in (
        (listing.ignored, "files are no images and are left out"),
        (listing.missing, "classes have no image"),
    ):
        if names:
            more = ", ..." if len(names) > 5 else ""
            say(f"{listing.root}: {len(names)} {what}: {', '.join(names[:5])}{more}")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _bar(console: Console, title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, updated by (done, total)."""
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
