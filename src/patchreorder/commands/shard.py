"""`patchreorder shard DIR OUT`: many images in few files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from .console import open_console
from .values import Advanced


def shard(
    folder: Annotated[Path, Positional, arg(metavar="FOLDER")],
    out: Annotated[Path, Positional, arg(metavar="OUT")],
    *,
    skip_unreadable: bool = False,
    size: int = 1000,
    workers: Advanced[int | None] = None,
) -> None:
    """Check the images of class folders and write them into shards, which are read faster than many files.

    Run the same command again to continue after a stop. If both folders are the same, the WebDataset tars in it get an
    index.

    Examples:
        patchreorder shard imagenet imagenet-shards
        patchreorder shard photographs shards --skip-unreadable --size 5000

    Args:
        folder: holds train/CLASS/*.jpg and val/CLASS/*.jpg, or CLASS/*.jpg.
        out: a new folder for the shards.
        size: images in a shard.
        workers: processes; by default one for every core.
        skip_unreadable: leave out images that cannot be read, and list them in skipped.txt.
    """
    from patchreorder.data import folders, shard_writer, webdataset
    from patchreorder.data.loader import processors
    from patchreorder.engine.progress import Terminal

    console = open_console()
    screen = Terminal(console)
    splits = ("train", "val") if folders.has_splits(folder) else ("",)
    if folder.resolve() == out.resolve():
        for split in splits:
            progress = screen.progress(f"reading {folder / split}")
            screen.say(f"Index: {webdataset.index_tars(folder / split, progress=progress)}")
    else:
        if folder.resolve() in out.resolve().parents:
            raise ValueError(f"out ({out}) must not be in {folder}: it would count as a class")
        unreadable = []
        classes = None
        for split in splits:
            with console.status(f"listing {folder / split}"):
                listing = folders.list_images(folder / split, classes=classes)
            classes = listing.classes
            left_out = {
                "files are no images and are left out": listing.ignored,
                "classes have no image": listing.missing,
            }
            for what, names in left_out.items():
                if names:
                    more = ", ..." if len(names) > 5 else ""
                    screen.say(f"{listing.root}: {len(names)} {what}: {', '.join(names[:5])}{more}")
            try:
                written = shard_writer.write(
                    listing,
                    out / split,
                    size=size,
                    workers=processors() if workers is None else workers,
                    skip_unreadable=skip_unreadable,
                    say=screen.say,
                    progress=screen.progress(f"writing {out / split}"),
                )
            except shard_writer.Unreadable as error:
                unreadable.append(f"{folder / split}: {error}")
                continue
            skipped = f", {len(written.skipped)} unreadable ones are in skipped.txt" if written.skipped else ""
            screen.say(f"{out / split}: {written.images} images in {written.shards} shards{skipped}.")
        if unreadable:
            raise ValueError("; ".join(unreadable))
    screen.say(f"Written to {out}.\nNext: `patchreorder run table2 --data {out}` trains on it.")
