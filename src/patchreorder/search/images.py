"""The image files of a folder: listed, and read in worker processes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from patchreorder.data.folders import ENDINGS
from patchreorder.data.images import BadImage, decode
from patchreorder.data.poses import UPRIGHT, Pose
from patchreorder.data.views import centre_crop
from patchreorder.models.backbones import SIZE
from patchreorder.untrusted import clean

SHORT = 256  # pixels of the short side, before the centre is cropped
PREPROCESSING = {"size": SIZE, "short": SHORT, "view": "Ori"}
FRESH = 2_000_000_000  # nanoseconds in which a file may change again and keep its modification time
LARGEST = 1_000_000_000  # bytes of an image file
UNKNOWN = -1
Stat = tuple[str, int, int]  # name, size and modification time
_DOTTED = tuple(f".{ending}" for ending in ENDINGS)


class ImageFile(NamedTuple):
    """An image file: its path in the folder, how a change is noticed, and why it has no vector."""

    name: str
    size: int
    mtime: int  # nanoseconds; UNKNOWN if only the content shows a change
    digest: str  # of the content
    reason: str = ""

    @property
    def stat(self) -> Stat:
        return self[:3]


def scan(root: Path, *, leave: Path | None = None) -> tuple[list[Stat], list[str]]:
    """Name, size and modification time of all images in a folder and its subfolders, by name; and all other files.

    Links are followed, but no folder is read twice, and `leave` is left out. What is deleted meanwhile is not there.
    Raises OSError if a folder cannot be read: its images must not pass for removed ones.
    """
    if not root.is_dir():
        raise ValueError(f"{clean(str(root))} is not a folder")
    found: list[Stat] = []
    ignored: list[str] = []
    seen = {os.path.realpath(leave)} if leave else set()
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        if (real := os.path.realpath(root / folder)) in seen:
            continue
        seen.add(real)
        try:
            entries = os.scandir(root / folder)
        except FileNotFoundError:
            if folder:
                continue  # deleted since it was listed
            raise
        with entries:
            for entry in entries:
                name = f"{folder}{entry.name}"
                kind = _kind(entry)
                if kind == "folder":
                    waiting.append(f"{name}/")
                elif kind == "image":
                    with contextlib.suppress(FileNotFoundError):
                        found.append((name, *_size_and_time(entry)))
                else:
                    ignored.append(name)
    return sorted(found), sorted(ignored)


def _kind(entry: os.DirEntry[str]) -> str:
    """`folder`, `image` or `other`; a link that leads nowhere, or to itself, is other."""
    try:
        if entry.name.startswith("."):
            return "other"
        if entry.is_dir():
            return "folder"
        return "image" if entry.name.lower().endswith(_DOTTED) and entry.is_file() else "other"
    except OSError:
        return "other"


def _size_and_time(entry: os.DirEntry[str]) -> tuple[int, int]:
    """Size and modification time; UNKNOWN if the disk does not tell, so that reading it gives the reason."""
    try:
        stat = entry.stat()
    except FileNotFoundError:
        raise
    except OSError:
        return UNKNOWN, UNKNOWN
    return stat.st_size, stat.st_mtime_ns


@dataclass(frozen=True)
class Reader:
    """Reads files of a folder; it is sent to worker processes.

    Shape:
        Returns the files and (readable * poses, 3, SIZE, SIZE), uint8: all poses of the first readable file, then
        those of the next.
    """

    root: Path
    poses: tuple[Pose, ...] = (UPRIGHT,)

    def __call__(self, names: Sequence[str]) -> tuple[list[ImageFile], Tensor]:
        files, images = [], []
        for name in names:
            file, shown = self._read(name)
            files.append(file)
            images += shown
        if not images:
            return files, torch.empty(0, 3, SIZE, SIZE, dtype=torch.uint8)
        return files, torch.stack(images).permute(0, 3, 1, 2)

    def _read(self, name: str) -> tuple[ImageFile, list[Tensor]]:
        try:
            with open(self.root / name, "rb") as opened:
                stat, now = os.fstat(opened.fileno()), time.time_ns()
                content = opened.read(LARGEST + 1) if stat.st_size <= LARGEST else b""
        except OSError as error:  # without size and time, so that the next update tries again
            return ImageFile(name, UNKNOWN, UNKNOWN, "", f"{clean(name)} cannot be opened: {error.strerror}"), []
        mtime = stat.st_mtime_ns if stat.st_mtime_ns < now - FRESH else UNKNOWN
        if (size := max(stat.st_size, len(content))) > LARGEST:
            reason = f"{clean(name)} has {size / 1e9:.1f} GB: no image file is larger than {LARGEST / 1e9:.1f} GB"
            return ImageFile(name, stat.st_size, mtime, "", reason), []
        digest = blake2b(content, digest_size=16).hexdigest()
        try:
            image = decode(content, name=clean(name))
        except BadImage as error:
            return ImageFile(name, stat.st_size, mtime, digest, clean(str(error))), []
        shown = [centre_crop(image, pose=pose, size=SIZE, short=SHORT) for pose in self.poses]
        return ImageFile(name, stat.st_size, mtime, digest), shown
