"""How far feature maps have moved when the image was shifted: the paper's Fig. 1 as numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

FLAT = 1e-5  # of the energy of the maps: less than this in the part that is compared is rounding


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
    products = _Products(maps, shifted)
    best = torch.full((len(maps),), -math.inf, dtype=torch.float64, device=maps.device)
    right = torch.full_like(best, math.nan)
    for step in sorted(steps, key=abs):
        found = products.correlation(float(step))
        better = found > best  # never of NaN
        best = torch.where(better, found, best)
        right = torch.where(better, float(step), right)
    return Moved(right, torch.where(right.isnan(), math.nan, best))


class _Products:
    """Products of every column of the maps with every other: what the correlation at any step is made of.

    The maps are read once, not once for each step.
    """

    def __init__(self, maps: Tensor, shifted: Tensor) -> None:
        # Less their means already: the correlation is the same, and nothing large cancels.
        a, b = (x - x.mean((2, 3), keepdim=True) for x in (maps, shifted))
        columns, others = (x.permute(0, 3, 1, 2).flatten(2) for x in (a, b))  # b w (c h)
        self.height, self.width = maps.shape[2:]
        self.own, self.mixed = ((columns @ x.mT).double() for x in (columns, others))  # b w w
        self.others = others.square().sum(2, dtype=torch.float64)  # b w
        self.sums, self.other_sums = (x.sum(2, dtype=torch.float64) for x in (a, b))  # b c w

    def correlation(self, step: float) -> Tensor:
        """Of the maps moved by a step with the others, where both are; NaN where one of them is flat there."""
        whole = math.floor(step)
        part = step - whole
        place = torch.arange(max(0, whole + (part > 0)), min(self.width, self.width + whole))
        source, count = place - whole, self.height * len(place)
        before = source - 1 if part else source  # linear between the two
        products = torch.lerp(self.mixed[:, source, place], self.mixed[:, before, place], part).sum(1)
        first = (
            (1 - part) ** 2 * self.own[:, source, source].sum(1)
            + part**2 * self.own[:, before, before].sum(1)
            + 2 * part * (1 - part) * self.own[:, source, before].sum(1)
        )
        second = self.others[:, place].sum(1)
        # A channel's mean over the places in common is taken off.
        sums = torch.lerp(self.sums[:, :, source], self.sums[:, :, before], part).sum(2)
        others = self.other_sums[:, :, place].sum(2)
        products = products - (sums * others).sum(1) / count
        first = first - sums.square().sum(1) / count
        second = second - others.square().sum(1) / count
        all_first, all_second = self.own.diagonal(dim1=1, dim2=2).sum(1), self.others.sum(1)
        flat = (first <= FLAT * all_first) | (second <= FLAT * all_second)
        return torch.where(flat, math.nan, products / (first * second).clamp(min=1e-300).sqrt())


def part_that_arrives(shifts: Sequence[float], moved: Sequence[float]) -> float:
    """The slope of the line through zero that fits best: 1 if all of a shift arrives, 0 if nothing does.

    >>> part_that_arrives([-2.0, 0.0, 4.0], [-1.0, 0.0, 2.0])
    0.5
    """
    size = math.fsum(shift * shift for shift in shifts)
    if not size:
        raise ValueError(f"shifts ({list(shifts)}) must hold one that is not 0")
    return math.fsum(shift * by for shift, by in zip(shifts, moved, strict=True)) / size
