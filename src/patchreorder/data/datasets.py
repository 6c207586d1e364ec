"""MNIST and CIFAR-10 in memory: as they are stored, rotated (R), shifted (T), and augmented for training."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from . import formats, sources, transforms
from .images import MEAN_COLOUR

CANVAS = 42  # pixels a side of MNIST's T, as in the paper
AUG_RANGE = 12  # degrees of rotation and percent of scale that augmentation adds to training digits, either way
SIDE = 32  # pixels a side of CIFAR-10's images
PADDING = 4  # pixels around them before the random crop
BATCH = 10_000  # images in a file of CIFAR-10
HELD_OUT = 10_000  # the last training images, on which settings are chosen
SPLITS = ("train", "test", "fit", "validation")
TEST_SEED = 0  # of the parameters of fixed sets: the same images for every model
Change = Callable[[Tensor, Tensor], Tensor]  # images (b, c, h, w) and their random numbers (b, n) -> images


class Variant(NamedTuple):
    """How the images of a data set are made from the stored ones.

    Args:
        size: pixels a side.
        numbers: how many uniform random numbers an image needs.
        apply: makes the images.
    """

    size: int
    numbers: int
    apply: Change


def _uniform(numbers: Tensor, most: float) -> Tensor:
    """U[-most, most] from U[0, 1)."""
    return numbers * (2 * most) - most


def rotated_by(most: float) -> Change:
    return lambda images, numbers: transforms.rotate(images, degrees=_uniform(numbers[:, 0], most))


def warped_to(images: Tensor, *, degrees: Tensor, shift: Tensor, size: int) -> Tensor:
    return transforms.warp(images, degrees=degrees, scale=torch.ones_like(degrees), shift=shift, size=(size, size))


def _unchanged(images: Tensor, numbers: Tensor) -> Tensor:
    return images


# ---- MNIST -----------------------------------------------------------------------------------------

_rotated_digits = rotated_by(90)
_any_rotation = rotated_by(180)


def _shifted_digits(images: Tensor, numbers: Tensor) -> Tensor:
    corners = CANVAS - images.shape[2] + 1
    return transforms.place(images, corner=(numbers * corners).long(), size=(CANVAS, CANVAS))


def _augmented_digits(images: Tensor, numbers: Tensor) -> Tensor:
    """Rotate by up to AUG_RANGE degrees and scale by a factor of up to 1 + AUG_RANGE %, either way."""
    centred = 2 * numbers - 1
    scale = (centred[:, 1] * math.log1p(AUG_RANGE / 100)).exp()
    side = images.shape[2]
    still = torch.zeros(len(images), 2)
    return transforms.warp(images, degrees=centred[:, 0] * AUG_RANGE, scale=scale, shift=still, size=(side, side))


def _centred_digits(images: Tensor, numbers: Tensor) -> Tensor:
    corner = torch.full((len(images), 2), (CANVAS - images.shape[2]) // 2)
    return transforms.place(images, corner=corner, size=(CANVAS, CANVAS))


MNIST_VARIANTS = {
    "mnist": Variant(28, 0, _unchanged),
    "mnist-r": Variant(28, 1, _rotated_digits),
    "mnist-t": Variant(CANVAS, 2, _shifted_digits),
    # Augmented before that: the training digits of CNN-Data-Aug.
    "mnist-r-aug": Variant(28, 3, lambda x, numbers: _rotated_digits(_augmented_digits(x, numbers[:, 1:]), numbers)),
    "mnist-t-aug": Variant(
        CANVAS, 4, lambda x, numbers: _shifted_digits(_augmented_digits(x, numbers[:, 2:]), numbers[:, :2])
    ),
    # In the centre of T's canvas: as they are, rotated as R, and by any angle.
    "mnist-c": Variant(CANVAS, 0, _centred_digits),
    "mnist-cr": Variant(CANVAS, 1, lambda x, numbers: _centred_digits(_rotated_digits(x, numbers), numbers)),
    "mnist-c360": Variant(CANVAS, 1, lambda x, numbers: _centred_digits(_any_rotation(x, numbers), numbers)),
}

# ---- CIFAR-10 --------------------------------------------------------------------------------------


def on_mean_colour(change: Change) -> Change:
    """The same change; pixels that it uncovers show the mean colour instead of black."""

    def apply(images: Tensor, numbers: Tensor) -> Tensor:
        mean = images.new_tensor(MEAN_COLOUR).view(3, 1, 1) / 255
        return change(images - mean, numbers) + mean

    return apply


def _shifts(numbers: Tensor) -> Tensor:
    """U[-0.2, 0.2] of a side, down and to the right, in pixels."""
    return (numbers - 0.5) * 0.4 * SIDE


def _shifted(images: Tensor, numbers: Tensor) -> Tensor:
    return warped_to(images, degrees=torch.zeros(len(images)), shift=_shifts(numbers), size=SIDE)


def _flipped_and_cropped(images: Tensor, numbers: Tensor) -> Tensor:
    images = torch.where((numbers[:, 0] < 0.5).view(-1, 1, 1, 1), images.flip(3), images)
    corner = (numbers[:, 1:] * (2 * PADDING + 1)).long()  # on the padded canvas, of which the crop is the centre
    canvas = transforms.place(images, corner=corner, size=(SIDE + 2 * PADDING, SIDE + 2 * PADDING))
    return canvas[:, :, PADDING : PADDING + SIDE, PADDING : PADDING + SIDE]


def _augmented(images: Tensor, numbers: Tensor) -> Tensor:
    """One of three at random: rotated as R, as it is, or shifted as T. Then flipped and cropped."""
    choice = numbers[:, :1]
    degrees = torch.where(choice < 1 / 3, _uniform(numbers[:, 1:2], 45), 0)[:, 0]
    shift = torch.where(choice >= 2 / 3, _shifts(numbers[:, 2:4]), 0)
    return _flipped_and_cropped(warped_to(images, degrees=degrees, shift=shift, size=SIDE), numbers[:, 4:])


CIFAR10_VARIANTS = {
    "cifar10": Variant(SIDE, 0, _unchanged),
    "cifar10-r": Variant(SIDE, 1, on_mean_colour(rotated_by(45))),
    "cifar10-t": Variant(SIDE, 2, on_mean_colour(_shifted)),
    "cifar10-train": Variant(SIDE, 3, on_mean_colour(_flipped_and_cropped)),
    "cifar10-train-aug": Variant(SIDE, 7, on_mean_colour(_augmented)),
}

# ---- images in memory ------------------------------------------------------------------------------

AnyImages = TypeVar("AnyImages", bound="LabelledImages")


@dataclass
class LabelledImages:
    """Labelled images, and the variant that batches show; see `Digits` and `ColourImages`.

    Args:
        images: (n, channels, side, side), uint8.
        labels: (n,), int64.
        variant: a name in `variants`.
        seed: of the random parameters.
    """

    variants: ClassVar[Mapping[str, Variant]]
    images: Tensor
    labels: Tensor
    variant: str
    seed: int = TEST_SEED

    def __post_init__(self) -> None:
        if self.variant not in self.variants:
            raise ValueError(f"variant ({self.variant!r}) must be one of {', '.join(self.variants)}")
        self._numbers: tuple[int, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.images)

    def stored(self, indices: Tensor) -> Tensor:
        """The images as they are stored, (b, c, side, side) in [0, 1]."""
        return self.images[indices].to(torch.get_default_dtype()).div_(255)

    def batch(self, indices: Tensor, *, epoch: int = 0) -> tuple[Tensor, Tensor]:
        """Images (b, c, size, size) in [0, 1] and labels (b,); the parameters come from (seed, epoch, index)."""
        _, count, apply = self.variants[self.variant]
        if self._numbers is None or self._numbers[0] != epoch:
            self._numbers = epoch, transforms.uniform(len(self), count, seed=self.seed, epoch=epoch)
        return apply(self.stored(indices), self._numbers[1][indices]), self.labels[indices]

    def first(self: AnyImages, count: int) -> AnyImages:
        """The first `count` images, with the same parameters."""
        return replace(self, images=self.images[:count], labels=self.labels[:count])

    def posed(self, *, degrees: float = 0.0, right: float = 0.0) -> PosedImages:
        """The stored images, all rotated counter-clockwise by `degrees`, then shifted by `right` pixels.

        They are on the centre of a canvas of the variant's size.
        """
        return PosedImages(self, degrees, right)


class Digits(LabelledImages):
    """Labelled digits (n, 1, 28, 28), and one of MNIST_VARIANTS."""

    variants = MNIST_VARIANTS


class ColourImages(LabelledImages):
    """Labelled colour images (n, 3, 32, 32), and one of CIFAR10_VARIANTS."""

    variants = CIFAR10_VARIANTS


@dataclass
class PosedImages:
    """Images that all have one pose, from `LabelledImages.posed`."""

    source: LabelledImages
    degrees: float
    right: float

    def __len__(self) -> int:
        return len(self.source)

    def batch(self, indices: Tensor, *, epoch: int = 0) -> tuple[Tensor, Tensor]:
        """Images (b, c, size, size) in [0, 1] and labels (b,); the same in every epoch."""
        size = self.source.variants[self.source.variant].size

        def warped(images: Tensor, pose: Tensor) -> Tensor:
            return warped_to(images, degrees=pose[:, 0], shift=pose[:, 1:], size=size)

        change = on_mean_colour(warped) if isinstance(self.source, ColourImages) else warped
        pose = torch.tensor([self.degrees, 0.0, self.right]).expand(len(indices), 3)
        return change(self.source.stored(indices), pose), self.source.labels[indices]


# ---- loading ---------------------------------------------------------------------------------------


class _Files(ABC):
    """The files of a data set, fetched and decoded once, when they are first needed."""

    def __init__(self, *, folder: Path | None = None, say: Callable[[str], None] = lambda text: None) -> None:
        self.folder, self.say = folder, say
        self._read: dict[str, tuple[Tensor, Tensor]] = {}

    @abstractmethod
    def _decode(self, part: str) -> tuple[Tensor, Tensor]:
        """The images and labels of `train` or `test`."""

    def _split(self, split: str) -> tuple[Tensor, Tensor]:
        if split not in SPLITS:
            raise ValueError(f"split ({split!r}) must be {', '.join(SPLITS[:-1])} or {SPLITS[-1]}")
        part = "test" if split == "test" else "train"
        if part not in self._read:
            self._read[part] = self._decode(part)
        chosen = {"fit": slice(0, -HELD_OUT), "validation": slice(-HELD_OUT, None)}.get(split, slice(None))
        images, labels = self._read[part]
        return images[chosen], labels[chosen]


class Mnist(_Files):
    """The digits of MNIST, read once for all variants and splits.

    Args:
        folder: holds the four files of MNIST; without it they are fetched once and cached.
        say: receives a line about each download.
    """

    def load(self, variant: str, *, split: str, seed: int = TEST_SEED) -> Digits:
        """One variant of one split: `train` (60,000) and `test` (10,000), or `fit` and `validation`, parts of `train`.

        Args:
            variant: a name in MNIST_VARIANTS.
            split: one of the four.
            seed: of the random parameters. Leave it for `test` and `validation`: every model then sees the same images.
        """
        return Digits(*self._split(split), variant, seed)

    def _decode(self, part: str) -> tuple[Tensor, Tensor]:
        files = sources.fetch(sources.MNIST, folder=self.folder, say=self.say)
        name = "t10k" if part == "test" else "train"
        images = torch.from_numpy(formats.read_idx(files[f"{name}-images-idx3-ubyte"]))[:, None]
        return images, torch.from_numpy(formats.read_idx(files[f"{name}-labels-idx1-ubyte"])).long()


class Cifar10(_Files):
    """The images of CIFAR-10, read once for all variants and splits; decoding takes seconds, both parts 180 MB.

    Args:
        folder: holds the eight files of `sources.CIFAR10`; without it they are fetched once and cached.
        say: receives a line about each download.
    """

    def load(self, variant: str, *, split: str, seed: int = TEST_SEED) -> ColourImages:
        """One variant of one split: `train` (50,000) and `test` (10,000), or `fit` and `validation`, parts of `train`.

        Args:
            variant: a name in CIFAR10_VARIANTS.
            split: one of the four.
            seed: see `Mnist.load`.
        """
        return ColourImages(*self._split(split), variant, seed)

    def _decode(self, part: str) -> tuple[Tensor, Tensor]:
        files = sources.fetch(sources.CIFAR10, folder=self.folder, say=self.say)
        names = ["test_batch"] if part == "test" else [f"data_batch_{number}" for number in range(1, 6)]
        batches = [formats.read_png_batch(files[f"{name}.png"], count=BATCH, side=SIDE) for name in names]
        images = torch.cat([torch.from_numpy(batch) for batch in batches])
        labels = formats.read_labels(files[f"{part}_lables.json"], count=len(images), classes=10)
        return images, torch.from_numpy(labels)


def mnist(
    variant: str,
    *,
    split: str,
    seed: int = TEST_SEED,
    folder: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Digits:
    """One variant of one split of MNIST; see `Mnist`, which reads the files once for several."""
    return Mnist(folder=folder, say=say).load(variant, split=split, seed=seed)


def cifar10(
    variant: str,
    *,
    split: str,
    seed: int = TEST_SEED,
    folder: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> ColourImages:
    """One variant of one split of CIFAR-10; see `Cifar10`, which reads the files once for several."""
    return Cifar10(folder=folder, say=say).load(variant, split=split, seed=seed)
