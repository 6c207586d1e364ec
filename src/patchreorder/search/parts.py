"""One of several parts of a folder described, on any machine; `update` then makes the index of all parts.

The name of an image decides about its part. A part writes chunks into the folder of the index, which may be on a disk
that machines share, and puts them into the store if there is one. It writes no manifest, so that parts never wait for
each other. A part that is repeated, or described twice at the same time, does no harm.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from patchreorder.data.loader import parallel_map
from patchreorder.engine.progress import SILENT, Screen
from patchreorder.files import try_lock
from patchreorder.untrusted import clean

from .descriptors import BATCH, Descriptor
from .images import Reader, Stat, scan
from .manifest import PARTS, Chunk, check_folder, empty_manifest
from .stores import open_store
from .update import (
    LOCAL,
    Updated,
    compare,
    describe,
    old_manifest,
    send_chunk,
    sound_chunks,
)


class Part(NamedTuple):
    """A part of the images: the third of sixteen is 3/16.

    >>> part = Part.parse("3/16")
    >>> part, str(part), part.holds("cat.jpg")
    (Part(number=3, total=16), '3/16', False)
    """

    number: int
    total: int

    @classmethod
    def parse(cls, text: str) -> Part:
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text, re.ASCII)
        part = cls(*map(int, found.groups())) if found else cls(0, 0)
        if not 1 <= part.number <= part.total:
            raise ValueError(f"part ({clean(text)}) must be such as 3/16: the third of sixteen, counted from 1")
        return part

    def __str__(self) -> str:
        return f"{self.number}/{self.total}"

    def holds(self, name: str) -> bool:
        """Whether an image is in this part; that depends on its name only, so it is the same on all machines."""
        digest = blake2b(os.fsencode(name), digest_size=8).digest()
        return int.from_bytes(digest, "big") % self.total == self.number - 1


def describe_part(
    folders: Path | Sequence[Path],
    out: Path,
    model: Descriptor,
    *,
    part: Part,
    store: str | None = None,
    workers: int = 0,
    batch: int = BATCH,
    screen: Screen = SILENT,
) -> Updated:
    """Describe a part of the images in folders; what is described already is not described again.

    Args:
        folders, out, model, workers, batch: as of `update`. All parts need the same `out`: its path names the index in
            the store.
        store: the URL of a store, `local` for none; None for that of the last update.

    Raises:
        ValueError, ImportError, OSError: as `update`.
    """
    out = out.absolute()
    nothing = empty_manifest([folders] if isinstance(folders, Path) else folders, out, model)
    root = Path(nothing.root)
    images, ignored = scan(root, folders=nothing.folders, leave=out)
    images = [stat for stat in images if part.holds(stat[0])]
    check_folder(out)
    with contextlib.ExitStack() as stack:
        while (handle := try_lock(out / PARTS, shared=True)) is None:
            time.sleep(0.1)  # an update is removing files
        stack.callback(os.close, handle)
        old = old_manifest(out, nothing, screen)
        where = store or old.store or LOCAL
        chunks = sound_chunks(out, old, screen)
        held: dict[str, set[Stat]] = {}
        remote = None
        if where != LOCAL:
            dimensions = old.maker.dimensions
            remote = open_store(where, identity=old.identity, dimensions=dimensions, say=screen.say)
            stack.callback(remote.close)
            remote.count()
            for digest, files in remote.listed():
                held[digest] = {(name, *stat) for name, stat in files.items()}
            for chunk in chunks:  # of a process that was killed before it sent them
                mine = {file.digest for file in chunk.files if part.holds(file.name)} - held.keys()
                send_chunk(remote, chunk, chunk.files, mine)
        described = {stat for files in held.values() for stat in files}
        same, names = compare([stat for stat in images if stat not in described], chunks, old)
        batches = parallel_map(
            Reader(root, nothing.maker.preprocessing),
            [names[begin : begin + batch] for begin in range(0, len(names), batch)],
            workers=workers,
        )

        def written(chunk: Chunk) -> None:
            if remote:
                send_chunk(remote, chunk, chunk.files, chunk.digests)

        more = screen.count(f"describing part {part}", len(names))
        others, new = describe(batches, out, model, old.maker, chunks, more, known=held, written=written)
    unreadable = [file for file in (*same, *others) if file.reason]
    return Updated(
        images=len(images) - len(unreadable),
        described=new,
        removed=0,
        unreadable=unreadable,
        ignored=ignored,
        changed=bool(new),
    )
