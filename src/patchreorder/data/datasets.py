"""MNIST as it is, turned (R), shifted (T), and both with scaling (RTS); and images that need no download."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from . import sources, transforms

CANVAS = 42  # pixels a side of T and RTS, as in the paper
HELD_OUT = 10_000  # the last training digits, on which settings are chosen
TEST_SEED = 0  # of the parameters of fixed sets: the same images for every model


class Variant(NamedTuple):
    """How images of a data set are made of digits: `numbers` uniform values for each decide."""

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


VARIANTS = {
    "mnist": Variant(28, 0, lambda images, numbers: images),
    "mnist-r": Variant(28, 1, _turned),
    "mnist-t": Variant(CANVAS, 2, _shifted),
    "mnist-rts": Variant(CANVAS, 4, _all_three),
}


@dataclass
class Digits:
    """A set of labelled digits, and the variant that batches are made of.

    Args:
        images: (n, 1, 28, 28), uint8.
        labels: (n,), int64.
        variant: a name in VARIANTS.
        seed: of the random parameters.
    """

    images: Tensor
    labels: Tensor
    variant: str
    seed: int = TEST_SEED

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise ValueError(f"variant ({self.variant!r}) must be one of {', '.join(VARIANTS)}")
        self._numbers: tuple[int, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: Tensor, *, epoch: int = 0) -> tuple[Tensor, Tensor]:
        """Images (b, 1, size, size) in [0, 1] and labels (b,); the parameters come from (seed, epoch, index)."""
        _, count, apply = VARIANTS[self.variant]
        if self._numbers is None or self._numbers[0] != epoch:
            self._numbers = epoch, transforms.uniform(len(self), count, seed=self.seed, epoch=epoch)
        images = self.images[indices].to(torch.get_default_dtype()).div_(255)
        return apply(images, self._numbers[1][indices]), self.labels[indices]

    def first(self, count: int) -> Digits:
        """The first `count` digits; their parameters stay what they were."""
        return Digits(self.images[:count], self.labels[:count], self.variant, self.seed)


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
    if split not in ("train", "test", "fit", "validation"):
        raise ValueError(f"split ({split!r}) must be train, test, fit or validation")
    files = sources.fetch(sources.MNIST, folder=folder, say=say)
    part = "t10k" if split == "test" else "train"
    images = torch.from_numpy(sources.read_idx(files[f"{part}-images-idx3-ubyte"]))[:, None]
    labels = torch.from_numpy(sources.read_idx(files[f"{part}-labels-idx1-ubyte"])).long()
    chosen = {"fit": slice(0, -HELD_OUT), "validation": slice(-HELD_OUT, None)}.get(split, slice(None))
    return Digits(images[chosen], labels[chosen], variant, seed)


def generated(variant: str, *, count: int, seed: int = TEST_SEED) -> Digits:
    """Blurred random marks in ten classes that need no download: enough to see that a network can learn."""
    generator = torch.Generator().manual_seed(0)
    marks = F.interpolate(torch.rand(10, 1, 5, 5, generator=generator), size=(20, 20), mode="bilinear")
    marks = F.pad((marks > 0.55).float(), (4, 4, 4, 4))
    labels = torch.arange(count) % 10
    images = marks[labels] * (0.6 + 0.4 * torch.rand(count, 1, 1, 1, generator=generator))
    return Digits((images * 255).byte(), labels, variant, seed)
