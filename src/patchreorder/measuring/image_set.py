"""Images to measure a classifier on: a data set by name, or a folder of images with or without labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from patchreorder.data import datasets, folders
from patchreorder.data.datasets import LabelledImages
from patchreorder.data.images import MEAN
from patchreorder.data.photos import Photos
from patchreorder.data.poses import UPRIGHT, Pose, apply_pose
from patchreorder.data.sweeps import shrink
from patchreorder.engine.batches import Dataset, model_input

DIGITS, COLOURED = tuple(datasets.MNIST_VARIANTS), ("cifar10", "cifar10-r", "cifar10-t")
SIZE = 224  # default pixels a side of images from a folder
_LUMA = (0.299, 0.587, 0.114)  # weights of red, green and blue in grey


def posed_batches(
    data: Dataset,
    indices: Tensor,
    poses: Iterable[Pose],
    *,
    fill: Sequence[float] | None = None,
    side: float = 1.0,
    device: torch.device | str = "cpu",
) -> tuple[Iterator[Tensor], Tensor]:
    """The images (b,) of a data set in each of the poses, (b, c, h, w) in [0, 1], and their labels (b,).

    `fill` is the colour of uncovered pixels, black by default. Photographs have their own, and are posed before they
    are cropped; images of other data sets are posed as they are in batches. With a `side` below 1, every image is
    cropped first, shrunk to that part of its canvas and posed there, so that poses within `fitting_side` lose nothing.
    """
    device = torch.device(device)
    if isinstance(data, Photos | GreyPhotos) and side == 1:
        copies, labels = data.posed_batches(indices, poses)
    elif isinstance(data, Photos | GreyPhotos):
        (batch,), labels = data.posed_batches(indices, [UPRIGHT])
        fill = MEAN if isinstance(data, Photos) else None
        images = shrink(model_input(batch, device), side=side, fill=fill)
        copies = (apply_pose(images, pose, fill=fill) for pose in poses)
    else:
        batch, labels = data.batch(indices)
        images = model_input(batch, device)
        images = images if side == 1 else shrink(images, side=side, fill=fill)
        copies = (apply_pose(images, pose, fill=fill) for pose in poses)
    return (model_input(copy, device) for copy in copies), labels


@dataclass(frozen=True)
class GreyPhotos:
    """Photographs in grey, (b, 1, size, size) in [0, 1]; uncovered pixels are black."""

    photos: Photos

    def __len__(self) -> int:
        return len(self.photos)

    def batch(self, indices: Tensor, *, epoch: int = 0) -> tuple[Tensor, Tensor]:
        images, labels = self.photos.batch(indices, epoch=epoch)
        return _grey(images), labels

    def posed_batches(self, indices: Tensor, poses: Iterable[Pose]) -> tuple[Iterator[Tensor], Tensor]:
        images, labels = self.photos.posed_batches(indices, poses, fill=(0, 0, 0))
        return map(_grey, images), labels


def _grey(images: Tensor) -> Tensor:
    colours = images.to(torch.get_default_dtype()).div_(255)
    return (colours.permute(0, 2, 3, 1) @ colours.new_tensor(_LUMA))[:, None]  # b 1 h w


@dataclass(frozen=True)
class ImageSet:
    """Images in the order in which they are measured."""

    title: str  # the name of the data set or folder
    data: LabelledImages | Photos | GreyPhotos  # labels are -1 if unknown
    names: Sequence[str]  # of the images
    classes: list[str]  # empty if labels are unknown
    fill: tuple[float, ...] | None = None  # of uncovered pixels; None for black, and for photographs, with their own
    bad: Sequence[str] = ()  # the images that are left out, and why
    ignored: Sequence[str] = ()  # other files, without hidden ones

    def __len__(self) -> int:
        return len(self.data)

    def for_network(self, *, channels: int, side: int, crop: float) -> ImageSet:
        """The same photographs for a network that takes another size, crop or number of channels; see `open_folder`.

        Images of a data set stay as they are.
        """
        photos = self.data.photos if isinstance(self.data, GreyPhotos) else self.data
        if not isinstance(photos, Photos):
            return self
        if channels not in (1, 3):
            raise ValueError(f"channels ({channels}) must be 1 (grey) or 3 (RGB) to measure on a folder of images")
        photos = replace(photos, size=side, short=round(side * crop))
        return replace(self, data=GreyPhotos(photos) if channels == 1 else photos)


def is_dataset(images: str) -> bool:
    """Whether this is the name of a data set."""
    return images in (*DIGITS, *COLOURED)


def open_dataset(
    name: str, *, folder: Path | None = None, count: int = 0, say: Callable[[str], None] = lambda text: None
) -> ImageSet:
    """The test images of a data set, or the first `count` of them."""
    digits = name in DIGITS
    load = datasets.mnist if digits else datasets.cifar10
    data: LabelledImages = load(name, split="test", folder=folder, say=say)
    data = data.first(count) if count else data
    classes = [str(label) for label in range(10)]
    return ImageSet(name, data, [f"image {index}" for index in range(len(data))], classes, None if digits else MEAN)


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
) -> ImageSet:
    """The images of a folder, labelled if it consists of class folders.

    Args:
        root: holds images, or a folder for each class; if it holds train/ and val/, the images of val/ are used.
        channels, side: of the images; 1 channel is grey, 3 are RGB.
        crop: short side of the scaled photograph over `side`.
        classes: names of a network's outputs, in their order; the sorted class folders by default.
        labels: False ignores the labels.
        count: how many images, evenly spaced in the order of their names; 0 for all.
        strict: raise if an image cannot be read, instead of leaving it out.
        workers: processes that decode images.
        progress: receives how many images are checked, and the total.

    Raises:
        ValueError: there is no readable image, an image cannot be read (strict), or class folders do not match.
    """
    if not root.is_dir():
        names = ", ".join((*DIGITS, *COLOURED))
        raise ValueError(f"images ({root}) must be a folder of images, or one of {names}")
    title = str(root)
    if (root / "val").is_dir() and (root / "train").is_dir():
        classes = folders.class_names(root / "train") if classes is None else classes
        root = root / "val"
    if labels and folders.class_names(root) and not folders.has_images(root):
        listing = folders.list_images(root, classes=classes)
    else:
        listing = folders.list_unlabelled(root)
    chosen = torch.arange(len(listing))
    if 0 < count < len(listing):
        chosen = chosen[torch.linspace(0, len(listing) - 1, count).round().long()]
    photos = Photos(listing, chosen, "Ori", size=side, short=round(side * crop), workers=workers)
    bad = photos.find_bad(progress=progress)
    if bad and strict:
        raise ValueError(f"{bad[0][1]} ({len(bad)} such files in all): remove them, or leave out --strict")
    photos = photos.without(index for index, _ in bad)
    if not len(photos):
        raise ValueError(f"{title}: none of {len(bad)} images can be read; the first: {bad[0][1]}")
    known = bool((listing.labels >= 0).all())
    reasons = [reason for _, reason in bad]
    ignored = [name for name in listing.ignored if not name.rpartition("/")[2].startswith(".")]
    found = ImageSet(title, photos, photos.names, listing.classes if known else [], bad=reasons, ignored=ignored)
    return found.for_network(channels=channels, side=side, crop=crop)
