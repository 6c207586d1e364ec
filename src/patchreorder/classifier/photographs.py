"""The photographs that a classifier is fitted to and tested on, and the poses that they are shown in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b, sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from patchreorder.data import folders
from patchreorder.data.folders import Listing
from patchreorder.data.images import MEAN_COLOUR
from patchreorder.data.loader import parallel_map
from patchreorder.data.photos import open_source
from patchreorder.data.poses import UPRIGHT, Pose
from patchreorder.data.shards import Shards
from patchreorder.data.views import centre_crop, decode_small

FILLS = (MEAN_COLOUR, (0, 0, 0), (255, 255, 255))  # colours of uncovered pixels in posed copies, in turn
ANGLES = tuple(15.0 * number for number in range(24))


@dataclass(frozen=True)
class SamePoses:
    """Poses that mean the same thing.

    Args:
        rotations: up to so many degrees both ways; 180 is all rotations.
        flips: mirrored photographs mean the same.
        shifts: up to so much of the sides.
        zoom: scaled up or down by up to this fraction.
    """

    rotations: float = 180.0
    flips: bool = False
    shifts: float = 0.1
    zoom: float = 0.1

    def __post_init__(self) -> None:
        for name, value, most in (
            ("rotations", self.rotations, 180.0),
            ("shifts", self.shifts, 0.5),
            ("zoom", self.zoom, 0.9),
        ):
            if not 0 <= value <= most:
                raise ValueError(f"{name} ({value}) must be from 0 to {most:g}")

    def draw(self, count: int, seed: Sequence[int]) -> list[Pose]:
        """So many poses, whose rotations are spread evenly over the range; half of all are mirrored if flips are."""
        random = np.random.default_rng(list(seed))
        offset, poses = random.random(), []
        for number in range(count):
            degrees = self.rotations * (2 * (number + offset) / count - 1)
            down, right = (float(value) * self.shifts for value in random.uniform(-1, 1, 2))
            scale = float(1 + self.zoom) ** float(random.uniform(-1, 1))
            poses.append(Pose(degrees, down, right, scale))
        if self.flips:
            return [
                pose._replace(flip=bool(half)) for pose, half in zip(poses, random.random(count) < 0.5, strict=True)
            ]
        return poses


class Shown(NamedTuple):
    """One pose of a photograph."""

    pose: Pose
    fill: tuple[int, int, int] = MEAN_COLOUR


@dataclass(frozen=True)
class Photographs:
    """Labelled photographs of one part, training or test.

    Args:
        source: class folders or shards.
        chosen: which of them, indices.
        part: "train" or "test".
        inside: what its names begin with in the data's folder, such as "val/".
    """

    source: Listing | Shards
    chosen: tuple[int, ...]
    part: str
    inside: str = ""

    def __len__(self) -> int:
        return len(self.chosen)

    @property
    def classes(self) -> list[str]:
        return list(self.source.classes)

    @property
    def labels(self) -> Tensor:
        return self.source.labels[torch.tensor(self.chosen, dtype=torch.int64)]

    @property
    def names(self) -> list[str]:
        return [self.source.names[index] for index in self.chosen]

    @property
    def ignored(self) -> list[str]:
        """Files in the data's folder that are no photographs, without hidden ones."""
        found = self.source.ignored if isinstance(self.source, Listing) else []
        return [f"{self.inside}{name}" for name in found if not name.rpartition("/")[2].startswith(".")]

    def path(self, index: int) -> Path:
        """The file of a photograph; of one in a shard, the name that it had."""
        root = self.source.root if isinstance(self.source, Listing) else Path()
        return root / self.source.names[self.chosen[index]]


def open_photographs(data: Path, *, test: float = 0.2) -> tuple[Photographs, Photographs]:
    """The training and the test photographs of a folder.

    It has train/ and val/ (or test/), or class folders of which a part of every class is for the test: the fraction
    `test`, rounded, at least one photograph, but never the only one. Digests of the names decide which, so the same
    folder is always divided in the same way; when photographs are added, a few others change sides.

    Raises:
        ValueError: the folder holds neither, or fewer than two classes, or val/ has other classes than train/.
    """
    if not 0 < test < 1:
        raise ValueError(f"test ({test}) must be more than 0 and less than 1")
    folder, *held = layout(data)
    train = open_source(folder)
    if len(train.classes) < 2:
        raise ValueError(f"{data} holds one class, {train.classes[0]}: two or more are needed to tell apart")
    if held:
        return _all(train, "train"), _all(open_source(held[0], classes=train.classes), "test")
    if (data / "train").is_dir() and set(train.classes) <= {"train", "val", "test", "valid", "validation"}:
        raise ValueError(f"{data} holds train/ but neither val/ nor test/: {folders.LAYOUT}, or DIR/CLASS/*.jpg")
    drawn = held_out(list(train.names), train.labels, fraction=test)
    every = range(len(train))
    return (
        Photographs(train, tuple(index for index in every if index not in drawn), "train"),
        Photographs(train, tuple(sorted(drawn)), "test"),
    )


def layout(data: Path) -> list[Path]:
    """The folders whose folders are classes: train/ and val/ (or test/), or the data's folder."""
    held = [data / name for name in ("val", "test", "valid", "validation") if (data / name).is_dir()]
    return [data / "train", held[0]] if held and (data / "train").is_dir() else [data]


def held_out(names: Sequence[str], labels: Tensor, *, fraction: float) -> set[int]:
    """Indices of the test photographs: of every class the fraction, rounded, at least one, never all.

    >>> sorted(held_out(["a/1", "a/2", "a/3", "b/1"], torch.tensor([0, 0, 0, 1]), fraction=0.3))
    [0]
    """
    drawn: set[int] = set()
    for own in _shuffled(names, labels):
        count = min(len(own) - 1, max(1, round(fraction * len(own))))
        drawn.update(own[:count])
    return drawn


def first_of_each(photographs: Photographs, count: int) -> Photographs:
    """At most so many photographs of every class; digests of their names decide which, as for the test."""
    drawn = {index for own in _shuffled(photographs.names, photographs.labels) for index in own[:count]}
    return replace(photographs, chosen=tuple(each for index, each in enumerate(photographs.chosen) if index in drawn))


def _shuffled(names: Sequence[str], labels: Tensor) -> list[list[int]]:
    """Indices of the photographs of each class, in the order of the digests of their names."""
    chance = [blake2b(name.encode(errors="surrogateescape")).digest() for name in names]
    classes = [(labels == label).nonzero()[:, 0].tolist() for label in labels.unique().tolist()]
    return [sorted(own, key=lambda index: chance[index]) for own in classes]


def _all(source: Listing | Shards, part: str) -> Photographs:
    inside = f"{source.root.name}/" if isinstance(source, Listing) else ""
    return Photographs(source, tuple(range(len(source))), part, inside)


class Crops(NamedTuple):
    """A photograph in its poses, or why it cannot be read."""

    pixels: np.ndarray | None  # (poses, size, size, 3), uint8
    digest: str  # of its content
    fault: str = ""


@dataclass(frozen=True)
class Cropper:
    """Reads a photograph once and shows it in all its poses; it is sent to worker processes."""

    photographs: Photographs
    shown: Sequence[Sequence[Shown]]
    size: int
    short: int

    def __call__(self, index: int) -> Crops:
        own = self.photographs.chosen[index]
        name = self.photographs.source.names[own]
        try:
            content = self.photographs.source.read(own)
            image = decode_small(content, name=name, short=self.short)
        except (ValueError, OSError, MemoryError) as error:
            return Crops(None, "", " ".join(str(error).split()) or type(error).__name__)
        return Crops(
            np.stack(self.crops(image, self.shown[index])),
            sha256(content).hexdigest()[:32],
        )

    def crops(self, image: Image.Image, shown: Sequence[Shown]) -> list[np.ndarray]:
        return [crop(image, each, size=self.size, short=self.short) for each in shown]


def crop(image: Image.Image, shown: Shown, *, size: int, short: int) -> np.ndarray:
    """A photograph in a pose: (size, size, 3), uint8."""
    return centre_crop(image, pose=shown.pose, size=size, short=short, fill=shown.fill).numpy()


def crops(cropper: Cropper, indices: Sequence[int], *, workers: int) -> Iterator[Crops]:
    """The photographs of these indices in their poses, in order, decoded ahead by worker processes."""
    return parallel_map(cropper, indices, workers=workers)


def training_poses(count: int, same: SamePoses, *, copies: int, seed: int = 0) -> list[list[Shown]]:
    """For each photograph: as it is, and posed copies."""
    found = []
    for index in range(count):
        drawn = same.draw(copies, (seed, index))
        found.append([Shown(UPRIGHT)] + [Shown(pose, FILLS[(index + k) % len(FILLS)]) for k, pose in enumerate(drawn)])
    return found


TEST_POSES = ("as they are", "rotated up to 45", "shifted", "any rotation", "mirrored", "zoomed")


def sweep_poses(count: int, *, angles: int = 6, seed: int = 1) -> list[list[Shown]]:
    """For each photograph: one pose for each of `TEST_POSES`, and so many of the 24 rotations of `ANGLES`.

    The rotations of photographs take turns, so that each of the 24 is tested on the same share of them.
    """
    found = []
    for index in range(count):
        random = np.random.default_rng([seed, index])
        up_to_45, any_angle = float(random.uniform(-45, 45)), float(random.uniform(0, 360))
        down, right = (float(value) for value in random.uniform(-0.2, 0.2, 2))
        zoom = float(1.25 ** random.uniform(-1, 1))
        poses = [UPRIGHT, Pose(up_to_45), Pose(0.0, down, right), Pose(any_angle), Pose(flip=True), Pose(scale=zoom)]
        found.append([Shown(pose) for pose in [*poses, *(Pose(degrees) for degrees in swept(index, angles))]])
    return found


def swept(index: int, angles: int) -> list[float]:
    """The rotations of `ANGLES` that a photograph is tested in.

    >>> swept(0, 6), swept(1, 6)
    ([0.0, 60.0, 120.0, 180.0, 240.0, 300.0], [15.0, 75.0, 135.0, 195.0, 255.0, 315.0])
    """
    step = len(ANGLES) // angles
    return [ANGLES[(index % step) + step * number] for number in range(angles)]
