"""Images to measure a classifier on: a data set by name, or anybody's folder, with labels or without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from patchreorder.data import datasets, folders
from patchreorder.data.datasets import LabelledImages
from patchreorder.data.folders import Listing
from patchreorder.data.images import MEAN
from patchreorder.data.photos import Photos

DIGITS, COLOURED = tuple(datasets.MNIST_VARIANTS), ("cifar10", "cifar10-r", "cifar10-t")
SIZE = 224  # pixels a side of pictures from a folder, if nobody says
_GREY = (0.299, 0.587, 0.114)  # of red, green and blue in brightness


@dataclass(frozen=True)
class Grey:
    """Pictures in grey."""

    photos: Photos

    @property
    def workers(self) -> int:
        return self.photos.workers

    def __len__(self) -> int:
        return len(self.photos)

    def batch(self, indices: Tensor, *, epoch: int = 0) -> tuple[Tensor, Tensor]:
        """Images (b, 1, size, size) in [0, 1] and labels (b,)."""
        images, labels = self.photos.batch(indices, epoch=epoch)
        colours = images.to(torch.get_default_dtype()).div_(255)
        return torch.einsum("bchw,c->bhw", colours, colours.new_tensor(_GREY))[:, None], labels


@dataclass(frozen=True)
class Gallery:
    """Images in the order in which they are measured.

    `data` has a label below 0 for each image where labels are not known; `classes` are then none. `bad` says which
    pictures are left out, and why. `fill` is what uncovered places show, None for black.
    """

    title: str
    data: LabelledImages | Photos | Grey
    names: Sequence[str]
    classes: list[str]
    fill: tuple[float, ...] | None
    bad: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.data)


def is_dataset(images: str) -> bool:
    """Whether it is the name of a data set."""
    return images in DIGITS or images in COLOURED


def open_dataset(
    name: str, *, folder: Path | None = None, count: int = 0, say: Callable[[str], None] = lambda text: None
) -> Gallery:
    """The test images of a data set, or the first `count` of them."""
    digits = name in DIGITS
    load = datasets.mnist if digits else datasets.cifar10
    data: LabelledImages = load(name, split="test", folder=folder, say=say)
    data = data.first(count) if count else data
    classes = [str(label) for label in range(10)]
    return Gallery(name, data, [f"image {index}" for index in range(len(data))], classes, None if digits else MEAN)


def open_folder(
    root: Path,
    *,
    channels: int = 3,
    side: int = SIZE,
    crop: float = 1.0,
    classes: Sequence[str] | None = None,
    labels: bool = True,
    count: int = 0,
    strict: bool = False,
    workers: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Gallery:
    """The pictures of a folder: of class folders with labels, of any other folder without.

    Args:
        root: holds pictures, or a folder for each class; with train/ and val/ in it, the pictures of val/.
        channels: 1 for grey, or 3.
        side: pixels of an image.
        crop: short side of a scaled picture over `side`.
        classes: names of a network's answers, which decide about labels; without them class folders in sorted order.
        labels: False leaves labels out.
        count: how many pictures, evenly spread over all in the order of their names; 0 for all.
        strict: a picture that cannot be read is an error; else it is left out.
        workers: processes that decode pictures.
        progress: gets the number of pictures that were checked, and of all.

    Raises:
        ValueError: there is no picture, or one that cannot be read, or class folders do not fit.
    """
    if channels not in (1, 3):
        raise ValueError(f"channels ({channels}) must be 1 (grey) or 3 (colours): a folder's pictures have no others")
    listing = _listing(root, classes, labels)
    chosen = torch.arange(len(listing))
    if 0 < count < len(listing):
        chosen = chosen[torch.linspace(0, len(listing) - 1, count).round().long()]
    photos = Photos(listing, chosen, "Ori", size=side, short=round(side * crop), workers=workers)
    bad = photos.find_bad(progress=progress)
    if bad and strict:
        raise ValueError(f"{bad[0][1]} ({len(bad)} such files in all): remove them, or leave out --strict")
    photos = photos.without(index for index, _ in bad)
    if not len(photos):
        raise ValueError(f"{root}: none of {len(bad)} pictures can be read; the first: {bad[0][1]}")
    names = photos.names
    data = Grey(photos) if channels == 1 else photos
    known = bool((listing.labels >= 0).all())
    fill = None if channels == 1 else MEAN
    return Gallery(str(root), data, names, listing.classes if known else [], fill, [reason for _, reason in bad])


def _listing(root: Path, classes: Sequence[str] | None, labels: bool) -> Listing:
    if not root.is_dir():
        known = ", ".join((*DIGITS, *COLOURED))
        raise ValueError(f"images ({root}) must be a folder of pictures, or one of {known}")
    if (root / "val").is_dir() and (root / "train").is_dir():
        classes = folders.class_names(root / "train") if classes is None else classes
        root = root / "val"
    if labels and folders.class_names(root) and not folders.has_images(root):
        return folders.list_images(root, classes=classes)
    return folders.list_unlabelled(root)
