"""Class folders written into shards: every image is decoded once, and a stopped writer continues."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from patchreorder.files import open_whole, try_lock, write_whole

from .folders import Listing
from .images import decode
from .loader import parallel_map
from .shards import INDEX, PLAN, Shards, write_index


class Unreadable(ValueError):
    """Images that cannot be read; the message names all of them."""


@dataclass(frozen=True)
class Written:
    """A finished folder of shards."""

    folder: Path
    shards: int
    images: int
    skipped: list[tuple[str, str]]  # names, and why


def write(
    listing: Listing,
    out: Path,
    *,
    size: int = 1000,
    workers: int = 0,
    skip_unreadable: bool = False,
    say: Callable[[str], None] = lambda text: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Written:
    """Write the images of class folders into shards, shuffled.

    A shard is written whole or not at all. Stopped and called again with the same arguments, it continues, and the
    files are bit for bit those of a single call.

    Args:
        listing: the images.
        out: a new or empty folder, or one with unfinished shards.
        size: images in a shard; 1000 of ImageNet are 110 MB.
        workers: processes that read and write.
        skip_unreadable: leave out images that cannot be read, and list them in skipped.txt.
        say: receives a line if some or all shards exist already.
        progress: receives the number of images done, and of all.

    Raises:
        Unreadable: if some cannot be read; all others are in the shards, only the index is missing.
        ValueError: if `out` holds something else, or another process is writing there.
    """
    if size < 1:
        raise ValueError(f"size ({size}) must be 1 or more images in a shard")
    out = Path(out)
    plan = {"format": 1, "images": len(listing), "size": size, "made_of": _fingerprint(listing)}
    if (out / INDEX).is_file():
        there = Shards(out)
        if there.plan != plan:
            raise ValueError(f"{out} was made from other images or in another way: remove it or choose another folder")
        say(f"{out} is finished: there is nothing to do")
        return Written(out, len(there.files), len(there), there.skipped)
    if out.is_dir() and not (out / PLAN).is_file() and any(path.name != ".lock" for path in out.iterdir()):
        raise ValueError(f"{out} holds files that are not ours: choose a new or empty folder")
    lock = try_lock(out / ".lock")
    if lock is None:
        raise ValueError(f"another process is writing to {out}: let it end, or choose another folder")
    try:
        _begin(out, plan)
        parts = _write_shards(listing, out, size, workers, say, progress)
        return _finish(listing, out, plan, parts, skip_unreadable)
    finally:
        os.close(lock)


def _fingerprint(listing: Listing) -> str:
    """Changes with classes, names, labels and the sizes of files."""
    sizes = torch.tensor([_size(listing.root / name) for name in listing.names])
    found = hashlib.sha256(json.dumps(listing.classes).encode())
    for tensor in (listing.names.text, listing.names.ends, listing.labels, sizes):
        found.update(tensor.numpy().tobytes())
    return found.hexdigest()


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:  # deleted since it was listed: it is found unreadable when its shard is written
        return -1


def _begin(out: Path, plan: dict[str, Any]) -> None:
    if not (out / PLAN).is_file():
        write_whole(out / PLAN, json.dumps(plan).encode())
    elif json.loads((out / PLAN).read_bytes()) != plan:
        raise ValueError(f"{out} was begun with other images or another size: remove it or choose another folder")
    for left in out.glob(".*.tar.*"):  # by a process that was killed
        left.unlink()


def _write_shards(
    listing: Listing,
    out: Path,
    size: int,
    workers: int,
    say: Callable[[str], None],
    progress: Callable[[int, int], None],
) -> list[dict[str, Any]]:
    """Write the shards that are missing; return what `_Writer` returned for each."""
    order = np.random.Generator(np.random.Philox(0)).permutation(len(listing))
    writer = _Writer(listing, out, order, size)
    parts = {shard: _finished(out, shard) for shard in range(-(-len(order) // size))}
    missing = [shard for shard, part in parts.items() if part is None]
    done = sum(len(part["images"]) + len(part["skipped"]) for part in parts.values() if part)
    if done:
        say(f"{done} of {len(listing)} images are in {out} already: continuing")
    with contextlib.closing(parallel_map(writer, missing, workers=workers)) as made:
        for shard, part in zip(missing, made, strict=True):
            parts[shard] = part
            done += len(part["images"]) + len(part["skipped"])
            progress(done, len(listing))
    return [part for part in parts.values() if part]


def _finish(
    listing: Listing, out: Path, plan: dict[str, Any], parts: list[dict[str, Any]], skip_unreadable: bool
) -> Written:
    """Write the files that make the folder complete, the index last."""
    skipped = sorted((name, reason) for part in parts for name, reason in part["skipped"])
    if skipped and not skip_unreadable:
        reasons = "; ".join(reason for _, reason in skipped)
        raise Unreadable(
            f"{len(skipped)} of {len(listing)} images cannot be read. {reasons}. Replace them and start again, or "
            "leave them out with --skip-unreadable"
        )
    images = sorted((*image, shard) for shard, part in enumerate(parts) for image in part["images"])
    if not images:
        raise ValueError(f"{listing.root} holds no image that can be read")
    labels = listing.labels.tolist()
    if empty := set(labels) - {labels[index] for index, *_ in images}:
        lost = ", ".join(listing.classes[label] for label in sorted(empty))
        raise ValueError(f"no image of {lost} can be read: remove the class or replace its images")
    write_whole(out / "classes.json", json.dumps(listing.classes, indent=0).encode())
    if skipped:
        lines = "".join(f"{name}\t{reason}\n" for name, reason in skipped)
        write_whole(out / "skipped.txt", os.fsencode(lines))
    names = [listing.names[index] for index, *_ in images]
    write_index(
        out,
        [(shard, offset, length, labels[index]) for index, offset, length, shard in images],
        names=names,
        members=[_member(index, name) for (index, *_), name in zip(images, names, strict=True)],
        classes=listing.classes,
        shards=[(part["shard"], part["bytes"], part["sha256"]) for part in parts],
        plan=plan,
        skipped=skipped,
    )
    for shard in range(len(parts)):
        _part_file(out, shard).unlink()
    (out / PLAN).unlink()
    return Written(out, len(parts), len(images), skipped)


def _part_file(out: Path, shard: int) -> Path:
    return out / f".{shard:05d}.json"


def _finished(out: Path, shard: int) -> dict[str, Any] | None:
    """What `_Writer` returned for a shard in an earlier call."""
    try:
        part = json.loads(_part_file(out, shard).read_bytes())
        return part if (out / part["shard"]).stat().st_size == part["bytes"] else None
    except FileNotFoundError:
        return None


def _member(index: int, name: str) -> str:
    ending = name.rpartition(".")[2].lower()
    return f"{index:08d}.{'jpg' if ending == 'jpeg' else ending}"


@dataclass(frozen=True)
class _Writer:
    """Writes the shard of a number and, in a JSON file, what the index needs to know about it."""

    listing: Listing
    out: Path
    order: np.ndarray
    size: int

    def __call__(self, shard: int) -> dict[str, Any]:
        images, skipped = [], []
        path = self.out / f"{shard:05d}.tar"
        with open_whole(path) as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
                for index in self.order[shard * self.size : (shard + 1) * self.size].tolist():
                    name = self.listing.names[index]
                    try:
                        content = self.listing.read(index)
                        decode(content, name=name)
                    except (ValueError, OSError) as error:
                        skipped.append((name, str(error)))
                        continue
                    images.append((index, _add(tar, _member(index, name), content), len(content)))
                    _add(tar, f"{index:08d}.cls", str(int(self.listing.labels[index])).encode())
            length = file.tell()
            file.seek(0)
            digest = _sha256(file)
        part = {"shard": path.name, "bytes": length, "sha256": digest, "images": images, "skipped": skipped}
        write_whole(_part_file(self.out, shard), json.dumps(part).encode())
        return part


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> int:
    """Add a member without owner or date, so that equal images give equal tars; return where its content begins."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    begin = tar.offset + tarfile.BLOCKSIZE
    tar.addfile(member, io.BytesIO(content))
    return begin


def _sha256(file: Any) -> str:
    found = hashlib.sha256()
    while content := file.read(1 << 20):
        found.update(content)
    return found.hexdigest()
