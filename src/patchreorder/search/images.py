"""The pictures of a folder, and what a descriptor says of them; also of pictures that are asked about."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from patchreorder.data.folders import ENDINGS
from patchreorder.data.images import BadImage, decode
from patchreorder.data.poses import UPRIGHT, Pose
from patchreorder.data.views import centre_crop
from patchreorder.engine.train import model_input
from patchreorder.untrusted import clean

SIZE, SHORT = 224, 256  # of what a descriptor sees: the centre of the picture scaled to this short side
PREPROCESSING = {"size": SIZE, "short": SHORT, "view": "Ori"}
FRESH = 2_000_000_000  # nanoseconds in which a file may change again without another date
UNKNOWN = -1
_DOTTED = tuple(f".{ending}" for ending in ENDINGS)
# How a query is tried with --poses; the upright one first.
POSES = (
    *(Pose(degrees=float(degrees)) for degrees in range(0, 360, 45)),
    *(Pose(down=down, right=right) for down, right in ((-0.2, 0.0), (0.2, 0.0), (0.0, -0.2), (0.0, 0.2))),
)


class Descriptor(Protocol):
    """A network that says of pictures in [0, 1], (b, 3, 224, 224), what is on them: (b, dimensions), of length 1."""

    name: str
    dimensions: int

    def __call__(self, images: Tensor) -> Tensor: ...

    def eval(self) -> Any: ...

    def parameters(self) -> Iterator[Any]: ...


class File(NamedTuple):
    """A picture's file: its name in the folder, what tells that it has changed, and why it has no vector."""

    name: str
    size: int
    mtime: int  # nanoseconds; UNKNOWN if only the content can tell
    digest: str  # of the content
    reason: str = ""

    @property
    def known_by(self) -> tuple[str, int, int]:
        return self[:3]


def listed(root: Path, *, leave: Path | None = None) -> tuple[list[tuple[str, int, int]], list[str]]:
    """Name, size and date of all pictures in a folder and the folders in it, by name; and what is no picture.

    Args:
        root: the folder. Links are followed, but no folder is read twice.
        leave: a folder to leave out.

    Raises:
        OSError: if a folder cannot be read: its pictures must not pass for removed ones.
    """
    if not root.is_dir():
        raise ValueError(f"{clean(str(root))} is no folder")
    found: list[tuple[str, int, int]] = []
    ignored: list[str] = []
    seen = {_place(leave)} if leave is not None and leave.is_dir() else set()
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        if (place := _place(root / folder)) in seen:
            continue
        seen.add(place)
        with os.scandir(root / folder) as entries:
            for entry in entries:
                name = f"{folder}{entry.name}"
                if entry.name.startswith("."):
                    ignored.append(name)
                elif entry.is_dir():
                    waiting.append(f"{name}/")
                elif entry.name.lower().endswith(_DOTTED) and entry.is_file():
                    stat = entry.stat()
                    found.append((name, stat.st_size, stat.st_mtime_ns))
                else:
                    ignored.append(name)
    return sorted(found), sorted(ignored)


def _place(folder: Path) -> tuple[int, int]:
    stat = os.stat(folder)
    return stat.st_dev, stat.st_ino


@dataclass(frozen=True)
class Reader:
    """Reads files of a folder, in a worker process: what is known of each, and the pictures that can be read.

    Shape:
        (readable * poses, 3, SIZE, SIZE), uint8: all poses of the first readable file, then those of the next.
    """

    root: Path
    poses: tuple[Pose, ...] = (UPRIGHT,)

    def __call__(self, names: Sequence[str]) -> tuple[list[File], Tensor]:
        files, images = [], []
        for name in names:
            file, shown = self._read(name)
            files.append(file)
            images += shown
        if not images:
            return files, torch.empty(0, 3, SIZE, SIZE, dtype=torch.uint8)
        return files, torch.stack(images).permute(0, 3, 1, 2)

    def _read(self, name: str) -> tuple[File, list[Tensor]]:
        try:
            with open(self.root / name, "rb") as opened:
                stat, now = os.fstat(opened.fileno()), time.time_ns()
                content = opened.read()
        except OSError as error:  # perhaps it can be read the next time
            return File(name, UNKNOWN, UNKNOWN, "", f"{clean(name)} cannot be opened: {error.strerror}"), []
        mtime = stat.st_mtime_ns if stat.st_mtime_ns < now - FRESH else UNKNOWN
        digest = blake2b(content, digest_size=16).hexdigest()
        try:
            image = decode(content, name=clean(name))
        except BadImage as error:
            return File(name, stat.st_size, mtime, digest, clean(str(error))), []
        shown = [centre_crop(image, pose=pose, size=SIZE, short=SHORT) for pose in self.poses]
        return File(name, stat.st_size, mtime, digest), shown


@torch.inference_mode()
def described(model: Descriptor, images: Tensor) -> Tensor:
    """The vectors of pictures, (b, dimensions), float32, on the CPU.

    Raises:
        ValueError: if the descriptor gives something else than it says.
    """
    if not len(images):
        return torch.empty(0, model.dimensions)
    first = next(iter(model.parameters()), None)
    vectors = model(model_input(images, torch.device("cpu") if first is None else first.device)).float().cpu()
    if vectors.shape != (len(images), model.dimensions):
        raise ValueError(
            f"the descriptor {model.name} gave {tuple(vectors.shape)}, expected {(len(images), model.dimensions)}"
        )
    return vectors


def fault(vector: Tensor) -> str:
    """Why a vector cannot be compared, or nothing."""
    if not vector.isfinite().all():
        return "its features are not finite numbers"
    return "" if vector.any() else "all its features are zero: a blank picture"


def pose_name(pose: Pose) -> str:
    """A pose in words; nothing for the upright one.

    Example:
        >>> pose_name(Pose(degrees=45.0)), pose_name(Pose(right=-0.2))
        ('turned by 45°', 'shifted left by 20 %')
    """
    if pose.degrees:
        return f"turned by {pose.degrees:.0f}°"
    if pose.down:
        return f"shifted {'down' if pose.down > 0 else 'up'} by {abs(pose.down):.0%}".replace("%", " %")
    if pose.right:
        return f"shifted {'right' if pose.right > 0 else 'left'} by {abs(pose.right):.0%}".replace("%", " %")
    return ""
