"""Augmentation before a network: small random shifts, rotations, changes of scale and smooth deformations.

Sampling is apart from applying: `sample` draws from torch's generator, `apply` warps each image once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from patchreorder.operator.options import Must, Options, constructor

from .transforms import warp

KNOTS = 5  # a side: these points of the image move independently when it is bent
Pixels = Annotated[float, Must("from 0 (none) to 100 pixels", lambda value: 0 <= value <= 100)]
Degrees = Annotated[float, Must("from 0 (none) to 180 degrees", lambda value: 0 <= value <= 180)]
Part = Annotated[float, Must("from 0 (none) to 1, such as 0.1 for 10 %", lambda value: 0 <= value <= 1)]


@dataclass(frozen=True)
class Augmentation(Options):
    """How much an image may change. All amounts are uniform and independent.

    Args:
        jitter: shift by up to so many pixels, down or up and to the right or left.
        tilt: rotate by up to so many degrees, in either direction.
        zoom: scale by a factor of up to 1 + zoom, larger or smaller.
        bend: deform smoothly: 5x5 points of the image move by up to so many pixels in both directions, with bicubic
            interpolation in between.
    """

    jitter: Pixels = 0
    tilt: Degrees = 0
    zoom: Part = 0
    bend: Pixels = 0


class Sampled(NamedTuple):
    """What happens to each image of a batch."""

    shift: Tensor  # (b, 2), pixels down and to the right
    degrees: Tensor  # (b,), counter-clockwise
    scale: Tensor  # (b,)
    knots: Tensor | None  # (b, 2, KNOTS, KNOTS), pixels down and to the right


def read_augmentation(text: str) -> dict[str, Any]:
    """The arguments of `Augmentation` in a text.

    Raises:
        ValueError: there is no such option, or its value is no number.

    >>> Augmentation(**read_augmentation("jitter=2,zoom=0.12"))
    Augmentation(jitter=2, tilt=0, zoom=0.12, bend=0)
    """
    try:
        return Augmentation.read(text)
    except ValueError as error:
        raise ValueError(f"augment ({text!r}): {error}") from None


def sample(augmentation: Augmentation, count: int, device: torch.device | None = None) -> Sampled:
    """Draw the changes of `count` images from torch's generator; as many numbers whatever the augmentation."""
    numbers = torch.rand(count, 4 + 2 * KNOTS * KNOTS, device=device) * 2 - 1  # from -1 to 1
    return Sampled(
        shift=numbers[:, :2] * augmentation.jitter,
        degrees=numbers[:, 2] * augmentation.tilt,
        scale=(numbers[:, 3] * math.log1p(augmentation.zoom)).exp(),
        knots=numbers[:, 4:].view(count, 2, KNOTS, KNOTS) * augmentation.bend if augmentation.bend else None,
    )


def apply(images: Tensor, sampled: Sampled) -> Tensor:
    """Rotate and scale every image about its centre, shift and bend it: bilinear, zero outside, same size.

    Shape:
        images: (b, c, h, w), floating, to the same.

    >>> x = torch.arange(4.0).view(1, 1, 1, 4)
    >>> none = sample(Augmentation(), 1)
    >>> apply(x, none._replace(shift=torch.tensor([[0.0, 1.0]])))
    tensor([[[[0., 0., 1., 2.]]]])
    """
    size = (images.shape[2], images.shape[3])
    bend = None
    if sampled.knots is not None:
        bend = F.interpolate(sampled.knots, size=size, mode="bicubic", align_corners=True)
    return warp(images, degrees=sampled.degrees, scale=sampled.scale, shift=sampled.shift, size=size, bend=bend)


class Augment(nn.Module):
    """Change every image of a batch at random (see `Augmentation`), in training mode only; no parameters.

    Shape:
        images: (batch, channels, height, width), to the same.

    >>> Augment(jitter=2, tilt=12)
    Augment(jitter=2, tilt=12)
    >>> x = torch.rand(2, 1, 8, 8)
    >>> torch.equal(Augment(jitter=2).eval()(x), x)
    True
    """

    @constructor(Augmentation)
    def __init__(self, augmentation: Augmentation) -> None:
        super().__init__()
        self.augmentation = augmentation

    def forward(self, images: Tensor) -> Tensor:
        if not self.training:
            return images
        return apply(images, sample(self.augmentation, len(images), images.device))

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.augmentation.changed().items())
