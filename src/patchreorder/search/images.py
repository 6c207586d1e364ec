"""The image files of a folder: listed, and read in worker processes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from patchreorder.data.folders import ENDINGS
from patchreorder.data.images import decode, upright_size
from patchreorder.data.poses import UPRIGHT, Pose
from patchreorder.data.views import centre_crop
from patchreorder.models.backbones import SIZE
from patchreorder.untrusted import clean

from .borders import content_of
from .hashes import perceptual_hash

SHORT = 256  # pixels of the short side, before the centre is cropped
CONTENT = "content"  # the view of the whole image without a border of one colour, scaled to a square
PREPROCESSING = {"size": SIZE, "short": SHORT, "view": "Ori"}
FRESH = 2_000_000_000  # nanoseconds in which a file may change again and keep its modification time
LARGEST = 1_000_000_000  # bytes of an image file
UNKNOWN = -1
Box = tuple[int, int, int, int]  # left, top, width and height, in pixels
Stat = tuple[str, int, int]  # name, size and modification time
_DOTTED = tuple(f".{ending}" for ending in ENDINGS)


class ImageFile(NamedTuple):
    """An image file: its path in the folder, how a change is noticed, why it has no vector, and what is in it."""

    name: str
    size: int
    mtime: int  # nanoseconds; UNKNOWN if only the content shows a change
    digest: str  # of the content
    reason: str = ""
    width: int = 0  # upright; 0 in an index of an older version
    height: int = 0
    look: str = ""  # the perceptual hash

    @property
    def stat(self) -> Stat:
        return self[:3]


def common_root(folders: Sequence[Path]) -> tuple[Path, list[str]]:
    """The folder that names are relative to (the only one, or the parent of all), and the given ones within it.

    Raises:
        ValueError: one is not a folder.
    """
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"{clean(str(folder))} is not a folder")
    real = [folder.resolve() for folder in folders]
    root = Path(os.path.commonpath(real))
    names = ["" if folder == root else folder.relative_to(root).as_posix() for folder in real]
    return root, list(dict.fromkeys(names))


def scan(root: Path, *, folders: Sequence[str] = ("",), leave: Path | None = None) -> tuple[list[Stat], list[str]]:
    """Name, size and modification time of all images in a folder and its subfolders, by name; and all other files.

    Links are followed, but no folder is read twice, and `leave` is left out. What is deleted meanwhile is not there.
    Raises OSError if a folder cannot be read: its images must not pass for removed ones.

    Args:
        root: names are relative to it.
        folders: those within it that are read.
        leave: a folder to leave out.
    """
    for folder in folders:
        if not (root / folder).is_dir():
            raise ValueError(f"{clean(str(root / folder))} is not a folder")
    found: list[Stat] = []
    ignored: list[str] = []
    seen = {os.path.realpath(leave)} if leave else set()
    waiting = [f"{folder}/" if folder else "" for folder in reversed(folders)]
    while waiting:
        folder = waiting.pop()
        if (real := os.path.realpath(root / folder)) in seen:
            continue
        seen.add(real)
        try:
            entries = os.scandir(root / folder)
        except FileNotFoundError:
            if folder.rstrip("/") not in folders:
                continue  # deleted since it was listed
            raise
        with entries:
            for entry in entries:
                name = f"{folder}{entry.name}"
                kind = _kind(entry)
                if kind == "folder":  # links come last: what they lead to may be there by its own name
                    waiting.insert(0 if entry.is_symlink() else len(waiting), f"{name}/")
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
        Returns the files and (readable * poses, 3, size, size), uint8: all poses of the first readable file, then
        those of the next.

    Args:
        root: the folder.
        preprocessing: of the descriptor.
        poses: of each image; the whole view has only the upright one.
        box: left, top, width and height of the part to read, in pixels of the upright image; None for all of it.
    """

    root: Path
    preprocessing: Mapping[str, Any] = field(default_factory=lambda: PREPROCESSING)
    poses: tuple[Pose, ...] = (UPRIGHT,)
    box: Box | None = None

    def __call__(self, names: Sequence[str]) -> tuple[list[ImageFile], Tensor]:
        files, images = [], []
        for name in names:
            file, shown = self._read(name)
            files.append(file)
            images += shown
        if not images:
            size = self.preprocessing["size"]
            return files, torch.empty(0, 3, size, size, dtype=torch.uint8)
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
        whole, size = self.preprocessing["view"] == CONTENT, self.preprocessing["size"]
        short = 2 * size if whole and not self.box else None  # a large JPEG is then decoded at a part of its size
        try:
            image = decode(content, name=clean(name), short=short)
            width, height = upright_size(content)
            if self.box:
                image = part_of(image, self.box)
        except ValueError as error:
            return ImageFile(name, stat.st_size, mtime, digest, clean(str(error))), []
        inside = content_of(image)
        file = ImageFile(name, stat.st_size, mtime, digest, "", width, height, perceptual_hash(inside))
        if whole:
            return file, [torch.from_numpy(np.array(inside.resize((size, size), Image.Resampling.BOX, reducing_gap=2)))]
        return file, [centre_crop(image, pose=pose, size=size, short=SHORT) for pose in self.poses]


def part_of(image: Image.Image, box: Box) -> Image.Image:
    """The part of an image at (left, top, width, height).

    Raises:
        ValueError: it does not lie in the image.
    """
    left, top, width, height = box
    if min(left, top) < 0 or min(width, height) < 1 or left + width > image.width or top + height > image.height:
        raise ValueError(f"crop ({left},{top},{width},{height}) must lie in the image, {image.width}x{image.height}")
    return image.crop((left, top, left + width, top + height))
