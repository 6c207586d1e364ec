"""How far feature maps have moved when the image was shifted: the paper's Fig. 1 as numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Moved(NamedTuple):
    """Where the maps of each image of a batch went."""

    right: Tensor  # (b,), pixels of the map, float64; NaN where nothing can be compared
    correlation: Tensor  # (b,), of the maps there with those of the image as it is, float64


def moved_right(maps: Tensor, shifted: Tensor, *, steps: Sequence[float]) -> Moved:
    """By how many pixels to the right the maps of an image have moved, when the image was shifted.

    The maps of the image as it is are moved by every one of `steps`, linearly between pixels, and compared with those
    of the shifted image where both are: correlation over all places and channels, each channel less its mean there.
    The step with the highest correlation is the answer; of equal ones the smallest.

    Shape:
        maps, shifted: (b, c, h, w), floating.

    Args:
        maps: of images as they are.
        shifted: of the same images, shifted.
        steps: candidates in pixels of the map, from -w / 2 to w / 2: with less of the maps in common, chance decides.

    Raises:
        ValueError: the shapes do not fit, or a step is too large.

    >>> maps = torch.rand(2, 3, 8, 8)
    >>> moved_right(maps, maps.roll(2, 3), steps=range(-4, 5)).right.tolist()
    [2.0, 2.0]
    >>> moved_right(maps, (maps + maps.roll(1, 3)) / 2, steps=[0, 0.25, 0.5, 0.75, 1]).right.tolist()
    [0.5, 0.5]
    """
    if maps.dim() != 4 or maps.shape != shifted.shape:
        raise ValueError(
            f"maps must be (images, channels, height, width), both alike, got {tuple(maps.shape)} and "
            f"{tuple(shifted.shape)}"
        )
    width = maps.shape[3]
    if not steps or not max(map(abs, steps)) <= width / 2:
        raise ValueError(f"steps ({list(steps)}) must be one or more, from {-width / 2:g} to {width / 2:g}: half a map")
    best = torch.full((len(maps),), -math.inf, dtype=torch.float64, device=maps.device)
    right = torch.full_like(best, math.nan)
    for step in sorted(steps, key=abs):
        found = _correlation(*_common(maps, shifted, float(step)))
        better = found > best  # never of NaN
        best = torch.where(better, found, best)
        right = torch.where(better, float(step), right)
    return Moved(right, torch.where(right.isnan(), math.nan, best))


def _common(maps: Tensor, shifted: Tensor, step: float) -> tuple[Tensor, Tensor]:
    """The maps moved by a step, and the others, where both are."""
    width = maps.shape[3]
    whole = math.floor(step)
    part = step - whole
    first, last = max(0, whole + (part > 0)), min(width, width + whole)  # of the places that are known
    moved = maps[..., first - whole : last - whole]
    if part:
        moved = torch.lerp(moved, maps[..., first - whole - 1 : last - whole - 1], part)
    return moved, shifted[..., first:last]


def _correlation(a: Tensor, b: Tensor) -> Tensor:
    """Of each image's maps, over places and channels; NaN where one of them is flat."""
    a, b = (x - x.mean((2, 3), keepdim=True) for x in (a, b))
    products, first, second = ((x * y).sum((1, 2, 3), dtype=torch.float64) for x, y in ((a, b), (a, a), (b, b)))
    return products / (first * second).sqrt()


def part_that_arrives(shifts: Sequence[float], moved: Sequence[float]) -> float:
    """The slope of the line through zero that fits best: 1 if all of a shift arrives, 0 if nothing does.

    >>> part_that_arrives([-2.0, 0.0, 4.0], [-1.0, 0.0, 2.0])
    0.5
    """
    size = math.fsum(shift * shift for shift in shifts)
    if not size:
        raise ValueError(f"shifts ({list(shifts)}) must hold one that is not 0")
    return math.fsum(shift * by for shift, by in zip(shifts, moved, strict=True)) / size
