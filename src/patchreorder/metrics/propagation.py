"""How far feature maps move when the image is shifted or rotated: the paper's Fig. 1 as numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

FLAT = 1e-5  # of the energy of the maps: less than this in the overlap is rounding


class MapShift(NamedTuple):
    """The shift of each image's feature maps."""

    right: Tensor  # (b,), in pixels of the map, float64; NaN where the maps are flat
    correlation: Tensor  # (b,), of the shifted maps with those of the original image, float64


def map_shift(maps: Tensor, shifted: Tensor, *, steps: Sequence[float]) -> MapShift:
    """By how many pixels to the right the feature maps of a shifted image are shifted.

    The maps of the original image are shifted by each of `steps`, linearly between pixels, and compared with those of
    the shifted image where they overlap, by correlation over all positions and channels, each channel less its mean.
    The result is the step with the highest correlation; of equal ones the smallest.

    Shape:
        maps, shifted: (b, c, h, w), floating.

    Args:
        maps: of the original images.
        shifted: of the shifted images.
        steps: candidates in pixels of the map, from -w / 2 to w / 2: in a smaller overlap, chance decides.

    Raises:
        ValueError: the shapes do not match, or a step is too large.

    >>> maps = torch.rand(2, 3, 8, 8)
    >>> map_shift(maps, maps.roll(2, 3), steps=range(-4, 5)).right.tolist()
    [2.0, 2.0]
    >>> map_shift(maps, (maps + maps.roll(1, 3)) / 2, steps=[0, 0.25, 0.5, 0.75, 1]).right.tolist()
    [0.5, 0.5]
    """
    if maps.dim() != 4 or maps.shape != shifted.shape:
        raise ValueError(
            f"maps must be (images, channels, height, width), both of one shape, got {tuple(maps.shape)} and "
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
        better = found > best  # False for NaN
        best = torch.where(better, found, best)
        right = torch.where(better, float(step), right)
    return MapShift(right, torch.where(right.isnan(), math.nan, best))


class _Products:
    """Products of every two columns of the maps, of which the correlation at any step is a sum.

    So the maps are read once, not once for each step.
    """

    def __init__(self, maps: Tensor, shifted: Tensor) -> None:
        # Without their means, which does not change the correlation, nothing large cancels.
        a, b = (x - x.mean((2, 3), keepdim=True) for x in (maps, shifted))
        columns, others = (x.permute(0, 3, 1, 2).flatten(2) for x in (a, b))  # b w (c h)
        self.height, self.width = maps.shape[2:]
        self.own, self.mixed = ((columns @ x.mT).double() for x in (columns, others))  # b w w
        self.others = others.square().sum(2, dtype=torch.float64)  # b w
        self.sums, self.other_sums = (x.sum(2, dtype=torch.float64) for x in (a, b))  # b c w

    def correlation(self, step: float) -> Tensor:
        """Of the maps shifted by a step with the others, in their overlap; NaN where one of them is flat there."""
        whole = math.floor(step)
        part = step - whole
        overlap = torch.arange(max(0, whole + (part > 0)), min(self.width, self.width + whole))
        source, count = overlap - whole, self.height * len(overlap)
        before = source - 1 if part else source  # linear between the two
        products = torch.lerp(self.mixed[:, source, overlap], self.mixed[:, before, overlap], part).sum(1)
        first = (
            (1 - part) ** 2 * self.own[:, source, source].sum(1)
            + part**2 * self.own[:, before, before].sum(1)
            + 2 * part * (1 - part) * self.own[:, source, before].sum(1)
        )
        second = self.others[:, overlap].sum(1)
        # Each channel less its mean over the overlap.
        sums = torch.lerp(self.sums[:, :, source], self.sums[:, :, before], part).sum(2)
        others = self.other_sums[:, :, overlap].sum(2)
        products = products - (sums * others).sum(1) / count
        first = first - sums.square().sum(1) / count
        second = second - others.square().sum(1) / count
        all_first, all_second = self.own.diagonal(dim1=1, dim2=2).sum(1), self.others.sum(1)
        flat = (first <= FLAT * all_first) | (second <= FLAT * all_second)
        return torch.where(flat, math.nan, products / (first * second).clamp(min=1e-300).sqrt())


class MapRotation(NamedTuple):
    """The rotation of each image's feature maps."""

    degrees: Tensor  # (k, b), counter-clockwise, float64; NaN where the maps are flat
    correlation: Tensor  # (k, b), of the rotated maps with those of the original image, float64


def map_rotation(maps: Tensor, rotated: Tensor, *, degrees: Sequence[float]) -> MapRotation:
    """By how many degrees the feature maps of rotated images are rotated.

    The maps of the original image are rotated about their middle by each of `degrees`, bilinearly, and compared with
    those of the rotated images in the largest disc, by correlation over its pixels and all channels, each channel less
    its mean. The result is the angle with the highest correlation; of equal ones the smallest.

    Shape:
        maps: (b, c, h, w), floating; rotated: (k, b, c, h, w), of the same images in k poses.

    Args:
        maps: of the original images.
        rotated: of the rotated images.
        degrees: candidates, counter-clockwise.

    Raises:
        ValueError: the shapes do not match, or there is no candidate.

    >>> maps = torch.rand(2, 3, 8, 8)
    >>> map_rotation(maps, maps.rot90(1, (2, 3))[None], degrees=[-90, 0, 90]).degrees.tolist()
    [[90.0, 90.0]]
    """
    if maps.dim() != 4 or rotated.shape[1:] != maps.shape:
        raise ValueError(
            f"maps must be (images, channels, height, width) and rotated (poses, *that), got {tuple(maps.shape)} and "
            f"{tuple(rotated.shape)}"
        )
    if not degrees:
        raise ValueError("degrees must be one or more angles")
    disc = _disc(maps)
    others, sizes = _centred(rotated[..., disc])
    best = torch.full(rotated.shape[:2], -math.inf, dtype=torch.float64, device=maps.device)
    found = torch.full_like(best, math.nan)
    for angle in sorted(degrees, key=abs):
        own, size = _centred(_turned(maps, float(angle))[..., disc])
        products = (others * own).sum((2, 3), dtype=torch.float64)
        correlation = torch.where(
            (sizes > 0) & (size > 0), products / (sizes * size).clamp(min=1e-300).sqrt(), math.nan
        )
        better = correlation > best  # False for NaN
        best, found = torch.where(better, correlation, best), torch.where(better, float(angle), found)
    return MapRotation(found, torch.where(found.isnan(), math.nan, best))


def _turned(maps: Tensor, degrees: float) -> Tensor:
    """Rotated counter-clockwise about the middle, whatever the shape of the maps."""
    height, width = maps.shape[2:]
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    theta = maps.new_tensor([[cos, -sin * height / width, 0.0], [sin * width / height, cos, 0.0]])
    grid = F.affine_grid(theta.expand(len(maps), 2, 3), list(maps.shape), align_corners=False)
    return F.grid_sample(maps, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def _disc(maps: Tensor) -> Tensor:
    """Which pixels of a map are in its largest disc: rotations about the middle leave them there."""
    height, width = maps.shape[2:]
    y = torch.arange(height, device=maps.device) - (height - 1) / 2
    x = torch.arange(width, device=maps.device) - (width - 1) / 2
    return torch.hypot(y[:, None], x) <= (min(height, width) - 1) / 2 + 1e-6


def _centred(values: Tensor) -> tuple[Tensor, Tensor]:
    """Values (..., c, n) less each channel's mean, and the sum of their squares; 0 where that is rounding."""
    less = values - values.mean(-1, keepdim=True)
    size, whole = (x.square().sum((-2, -1), dtype=torch.float64) for x in (less, values))
    return less, torch.where(size <= FLAT * whole, 0.0, size)


def propagated_fraction(shifts: Sequence[float], moved: Sequence[float]) -> float:
    """The fraction of a shift that reaches a layer: the least-squares slope through zero, 1 for all of it.

    >>> propagated_fraction([-2.0, 0.0, 4.0], [-1.0, 0.0, 2.0])
    0.5
    """
    size = math.fsum(shift * shift for shift in shifts)
    if not size:
        raise ValueError(f"shifts ({list(shifts)}) must have one that is not 0")
    return math.fsum(shift * by for shift, by in zip(shifts, moved, strict=True)) / size
