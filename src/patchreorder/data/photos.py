"""Photographs of any size as batches: rotated, shifted, scaled and cropped as (seed, epoch, index) determine."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from . import folders, shards, transforms
from .datasets import TEST_SEED
from .folders import Listing
from .images import MEAN_COLOUR, BadImage, decode, pixels
from .loader import parallel_map
from .poses import UPRIGHT, Pose
from .shards import Shards
from .views import VIEWS, centre_crop, decode_small, resized_crop

SPLITS = ("train", "val", "fit", "validation")
CHECKED = 32  # images that a worker checks at a time


@dataclass(frozen=True)
class Photos:
    """Labelled photographs, and the view that batches show.

    Args:
        source: class folders or shards.
        chosen: (n,), int64: which images of the source. An image's random parameters belong to its index in the source,
            so they do not change when other images are left out.
        view: a name in VIEWS.
        seed: of the random parameters. Leave it for tests: every model then sees the same images.
        size: pixels a side of the images.
        short: the short side that images are scaled to before the crop.
        workers: processes for `find_bad` and for callers of `loader.stream`; threads for `posed_batches`.
    """

    source: Listing | Shards
    chosen: Tensor
    view: str
    seed: int = TEST_SEED
    size: int = 224
    short: int = 256
    workers: int = 0
    _drawn: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.view not in VIEWS:
            raise ValueError(f"view ({self.view!r}) must be one of {', '.join(VIEWS)}")
        if not 1 <= self.size <= self.short:
            raise ValueError(f"size ({self.size}) must be from 1 to short ({self.short})")
        if self.workers < 0:
            raise ValueError(f"workers ({self.workers}) must be 0 (none) or more")

    @classmethod
    def open(
        cls,
        root: Path,
        split: str,
        *,
        view: str,
        seed: int = TEST_SEED,
        size: int = 224,
        short: int = 256,
        workers: int = 0,
    ) -> Photos:
        """The images of one split of a folder of class folders or shards.

        The folder has train/ and val/, or else about a fifth of every class is `val`.

        Args:
            root: the folder.
            split: `train` and `val`, or `fit` and `validation`, parts of `train`.
            view: a name in VIEWS.
            seed, size, short, workers: see `Photos`.

        Raises:
            ValueError: if the folder holds neither, or is damaged.
        """
        if split not in SPLITS:
            raise ValueError(f"split ({split!r}) must be one of {', '.join(SPLITS)}")
        source, chosen = _find(Path(root), "val" if split == "val" else "train")
        if split in ("fit", "validation"):
            held_out = _held_out(source, chosen, "validation")
            chosen = chosen[held_out if split == "validation" else ~held_out]
        return cls(source, chosen, view, seed, size, short, workers)

    def __len__(self) -> int:
        return len(self.chosen)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_drawn": {}}

    @property
    def classes(self) -> list[str]:
        return self.source.classes

    @property
    def labels(self) -> Tensor:
        return self.source.labels[self.chosen]

    @property
    def names(self) -> list[str]:
        """The images' file names, relative to their folder."""
        names = self.source.names
        return [names[index] for index in self.chosen.tolist()]

    def batch(self, indices: Tensor, *, epoch: int = 0) -> tuple[Tensor, Tensor]:
        """Images (b, 3, size, size), uint8, channels last, and labels (b,).

        Raises:
            BadImage: if an image cannot be read; the message names it.
        """
        chosen = self.chosen[indices]
        numbers = self.numbers(epoch)[chosen].tolist()
        images = torch.empty(len(chosen), self.size, self.size, 3, dtype=torch.uint8)
        for image, index, own in zip(images, chosen.tolist(), numbers, strict=True):
            image.copy_(self._show(index, own))
        return images.permute(0, 3, 1, 2), self.source.labels[chosen]

    def posed_batches(
        self, indices: Tensor, poses: Iterable[Pose], *, fill: tuple[int, int, int] = MEAN_COLOUR
    ) -> tuple[Iterator[Tensor], Tensor]:
        """Images in each of the poses, instead of the view, and their labels (b,).

        An image is decoded once, put in each pose on a canvas of its own size, and cropped afterwards. A short side of
        more than `views.DETAIL` times `short` is scaled to that before: posing full-size photographs would take longer
        than most networks.

        Args:
            indices: (b,), which images.
            poses: in the order of the iterator, which gives (b, 3, size, size), uint8, channels last, for each.
            fill: colour of uncovered pixels.

        Raises:
            BadImage: if an image cannot be decoded; the message names it.
        """
        chosen = self.chosen[indices]

        def images() -> Iterator[Tensor]:
            with ThreadPoolExecutor(max(1, self.workers)) as pool:
                with warnings.catch_warnings():  # `decode` changes the filters in every thread; restore them once
                    decoded = list(pool.map(self._decode_small, chosen.tolist()))
                for pose in poses:
                    crop = partial(centre_crop, pose=pose, size=self.size, short=self.short, fill=fill)
                    yield torch.stack(list(pool.map(crop, decoded))).permute(0, 3, 1, 2)

        return images(), self.source.labels[chosen]

    def stored_size(self, index: int) -> tuple[int, int]:
        """Width and height of an image as it is stored, upright."""
        chosen = int(self.chosen[index])
        return decode(self.source.read(chosen), name=self.source.names[chosen]).size

    def small_size(self, index: int) -> tuple[int, int]:
        """Width and height of an image as `posed_batches` poses it."""
        return self._decode_small(int(self.chosen[index])).size

    def order(self, seed: int, epoch: int) -> Tensor | None:
        """The order of an epoch that reads few shards at a time; None for class folders, where any order is as good."""
        if not isinstance(self.source, Shards):
            return None
        position = torch.full((len(self.source),), -1)
        position[self.chosen] = torch.arange(len(self))
        order = position[self.source.order(seed=seed, epoch=epoch)]
        return order[order >= 0]

    def with_view(self, view: str, *, seed: int | None = None) -> Photos:
        """The same images in another view, without listing the folder again."""
        return replace(self, view=view, seed=self.seed if seed is None else seed)

    def first(self, count: int) -> Photos:
        """The first `count` images, with the same parameters."""
        return replace(self, chosen=self.chosen[:count])

    def without(self, indices: Iterable[int]) -> Photos:
        """All images but these, with the same parameters."""
        left = torch.ones(len(self), dtype=torch.bool)
        left[torch.tensor(list(indices), dtype=torch.int64)] = False
        return replace(self, chosen=self.chosen[left])

    def find_bad(self, progress: Callable[[int, int], None] = lambda done, total: None) -> list[tuple[int, str]]:
        """Decode every image; return the indices of those that cannot be read, each with the reason.

        Args:
            progress: receives the number of images read so far, and of all.
        """
        bad: list[tuple[int, str]] = []
        parts = [range(begin, min(begin + CHECKED, len(self))) for begin in range(0, len(self), CHECKED)]
        for part, found in zip(parts, parallel_map(self._check, parts, workers=self.workers), strict=True):
            bad += found
            progress(part.stop, len(self))
        return bad

    def _check(self, indices: Sequence[int]) -> list[tuple[int, str]]:
        bad = []
        for index in indices:
            own = int(self.chosen[index])
            try:
                decode(self.source.read(own), name=self.source.names[own])
            except (ValueError, OSError) as error:
                bad.append((index, str(error)))
        return bad

    def numbers(self, epoch: int) -> Tensor:
        """The random numbers of every image of the source up to the last chosen one, (images, numbers of the view)."""
        if epoch not in self._drawn:
            self._drawn.clear()
            count = int(self.chosen.max()) + 1 if len(self) else 0
            self._drawn[epoch] = transforms.uniform(count, VIEWS[self.view].numbers, seed=self.seed, epoch=epoch)
        return self._drawn[epoch]

    def _decode_small(self, index: int) -> Image.Image:
        return decode_small(self.source.read(index), name=self.source.names[index], short=self.short)

    def _show(self, index: int, numbers: Sequence[float]) -> Tensor:
        view = VIEWS[self.view]
        pose = view.pose(numbers)
        content, name = self.source.read(index), self.source.names[index]
        try:
            if view.crop is None:
                return centre_crop(decode(content, name=name), pose=pose, size=self.size, short=self.short)
            # A JPEG draft differs a little from the whole image, so only training uses it, at twice the size it needs.
            image = (pixels if pose == UPRIGHT else decode)(content, name=name, short=2 * self.short)
        except BadImage as error:
            raise BadImage(f"{error}: remove it; `patchreorder shard` finds all such files at once") from None
        return resized_crop(image, pose=pose, crop=view.crop(numbers), size=self.size, short=self.short)


def _find(root: Path, split: str) -> tuple[Listing | Shards, Tensor]:
    """The source that holds `train` or `val`, and which of its images are in that split."""
    for name in ("train", "val"):
        shards.are_in(root / name)  # an unfinished folder is the first thing to report
    apart = folders.has_splits(root)
    folder = root / split if apart else root
    classes = _classes(root / "train") if apart and split == "val" else None
    source = open_source(folder, classes=classes)
    every = torch.arange(len(source))
    if apart:
        return source, every
    held_out = _held_out(source, every, "val")
    return source, every[held_out if split == "val" else ~held_out]


def open_source(folder: Path, *, classes: Sequence[str] | None = None) -> Listing | Shards:
    """The class folders or shards in a folder.

    Args:
        folder: holds either.
        classes: those of the training images, in their order, which determine the labels here.

    Raises:
        ValueError: the folder holds neither, or other classes.
    """
    if not shards.are_in(folder):
        return folders.list_images(folder, classes=classes)
    source = Shards(folder)
    if classes is not None:
        if source.classes != list(classes[: len(source.classes)]):  # numbered classes end with the largest label
            raise ValueError(f"{folder} has other classes than the training images: make both again, together")
        source.classes = list(classes)
    return source


def _classes(folder: Path) -> list[str]:
    return Shards(folder).classes if shards.are_in(folder) else folders.class_names(folder)


def _held_out(source: Listing | Shards, chosen: Tensor, purpose: str) -> Tensor:
    names = source.names
    own: Iterable[str] = names if len(chosen) == len(names) else (names[index] for index in chosen.tolist())
    return folders.held_out(own, source.labels[chosen], classes=source.classes, purpose=purpose)
