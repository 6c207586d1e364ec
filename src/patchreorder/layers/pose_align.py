"""Pose alignment: shift and rotate every image so that its pose no longer matters.

The centroid of the energy comes to the middle and its principal axis becomes vertical, as in the classical
normalisation by moments, or its slant is removed. The shift by whole pixels is that of `align_shift`, to the last bit.
The rest, a fraction of a pixel and the rotation, is bilinear, so it is as accurate as the pixels are fine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from patchreorder.operator.functional import Energy, check_maps
from patchreorder.operator.options import Count, Options, constructor, takes

from .layer import Layer
from .shift_align import align_shift, middle

Ends = Literal["heavier", "nearest"]
By = Literal["turn", "shear"]
ROUND = 1e-6  # of the moments: a smaller difference between the two axes is none
STEEPEST = 1.0  # slant that is removed, in pixels a row


@dataclass(frozen=True)
class PoseAlignOptions(Options):
    """Options of `align_pose` and `PoseAlign`.

    Args:
        energy: of a pixel, "l1" for its magnitude, "l2" for its square.
        ends: which end of the principal axis comes down. "heavier" takes the one that reaches farther out (the sign of
            the third moment), so that any rotation is undone, by 180 degrees too; "nearest" takes the smaller rotation,
            so that objects keep their ends if nothing is rotated by more than 90 degrees.
        by: "turn" rotates. "shear" moves every row sideways instead, in proportion to its height, until the line
            through the middles of the rows is vertical, by at most a pixel a row. It removes slants, as of handwriting,
            and no rotations, and ignores `ends`. Rows stay rows: vertically, pixels move by whole pixels only and are
            not blurred.
        size: return the middle size x size pixels only.
    """

    energy: Energy = "l1"
    ends: Ends = "heavier"
    by: By = "turn"
    size: Count | None = None


@takes(PoseAlignOptions)
def align_pose(x: Tensor, options: PoseAlignOptions) -> Tensor:
    """Shift and rotate every image: the centroid of its energy to the middle, its principal axis vertical.

    Shifts by whole pixels, cyclic or over a background of zeros, change nothing, bit for bit, as long as the circular
    centroid is the same pixel of the object (see `align_shift`). Rotations change little where pixels are fine and
    nothing is cut off: the result is interpolated bilinearly, and zero outside. All channels move together. The
    gradient goes to the pixels that were read; the pose is a constant to it. An image whose energy has no principal
    axis, such as a disc, is not rotated; one without energy, or with an energy that is NaN or infinite, is only rolled.

    Shape:
        x: (batch, channels, height, width) or (channels, height, width); the result has its shape, type and layout,
        with `size` (..., size, size).

    Raises:
        ValueError: x has no pixels, or fewer than `size`, or an argument is out of range.
        TypeError: an argument, or the tensor, is of the wrong type.

    >>> x = torch.zeros(1, 1, 5, 5)
    >>> x[0, 0, 3, 0:3] = torch.tensor([1.0, 3.0, 1.0])  # a horizontal bar in a corner
    >>> align_pose(x)[0, 0].round(decimals=3)
    tensor([[0., 0., 0., 0., 0.],
            [0., 0., 1., 0., 0.],
            [0., 0., 3., 0., 0.],
            [0., 0., 1., 0., 0.],
            [0., 0., 0., 0., 0.]])
    """
    check_maps("x", x)
    maps = align_shift(x.unsqueeze(0) if x.dim() == 3 else x, energy=options.energy)
    wide = maps.float() if maps.dtype in (torch.float16, torch.bfloat16) else maps
    rolled = wide if options.size is None else middle(wide, options.size)
    axes = _axes(wide.detach(), options)
    z = F.grid_sample(wide, _grid(axes, wide, rolled), mode="bilinear", padding_mode="zeros", align_corners=False)
    z = torch.where(axes.valid, z, rolled).to(x.dtype)
    if x.dim() == 3:
        return z.squeeze(0)
    # grid_sample returns contiguous maps, whatever the layout of x.
    return z.contiguous(memory_format=torch.channels_last) if is_channels_last(x) else z


def is_channels_last(x: Tensor) -> bool:
    """Whether maps are in memory pixel by pixel, with all channels of one together."""
    return x.shape[1] > 1 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)


class _Axes(NamedTuple):
    """The centroid of each image, in pixels from the middle, and the axes of the result in it, (b,) each.

    The pixel below one of the result is (below_down, below_right) away in the image, the next one in its row
    (next_down, next_right).
    """

    down: Tensor
    right: Tensor
    below_down: Tensor
    below_right: Tensor
    next_down: Tensor
    next_right: Tensor
    valid: Tensor  # (b, 1, 1, 1): False for an image without energy, or with one that is not finite
    whole_rows: bool = False  # the centroid is taken to be in a row, and comes to one


def _axes(x: Tensor, options: PoseAlignOptions) -> _Axes:
    """The axes of every image, by the moments of its energy."""
    height, width = x.shape[2:]
    e, valid = energies(x, options.energy)
    down, right = (from_middle(side, x.device) for side in (height, width))
    # All moments up to the third about the middle, [i][j] that of down ** i * right ** j; then about the centroid.
    moments = _powers(down).T @ (e @ _powers(right))
    ((m, m01, m02, m03), (m10, m11, m12, _), (m20, m21, _, _), (m30, _, _, _)) = (
        row.unbind(1) for row in moments.unbind(1)
    )
    total = torch.where(valid.flatten(), m, 1.0)
    y, across = m10 / total, m01 / total
    yy, xx, xy = m20 - y * m10, m02 - across * m01, m11 - y * m01
    if options.by == "shear":
        high = yy > ROUND * (xx + yy)
        slant = torch.where(high, xy / torch.where(high, yy, 1.0), 0.0).clamp(-STEEPEST, STEEPEST)
        one, none = torch.ones_like(slant), torch.zeros_like(slant)
        row = down[height // 2]  # not the centroid's row but the one that `align_shift` took for it: rows stay rows
        return _Axes(row * one, across + slant * (row - y), one, slant, none, one, valid.unsqueeze(3), True)
    # The axis is at half the angle of (xx - yy, 2 xy).
    size = ((xx - yy) * (xx - yy) + 4 * xy * xy).sqrt()
    long = size > ROUND * (xx + yy)
    double = torch.where(long, (xx - yy) / torch.where(long, size, 1.0), -1.0)  # -1: vertical
    cos = ((1 + double) / 2).clamp(min=0).sqrt()
    cos = torch.where(xy < 0, -cos, cos)
    sin = ((1 - double) / 2).clamp(min=0).sqrt()
    if options.ends == "heavier":
        yyy, xxx = m30 - 3 * y * m20 + 2 * y * y * m10, m03 - 3 * across * m02 + 2 * across * across * m01
        yyx = m21 - 2 * y * m11 - across * m20 + 2 * y * y * m01
        yxx = m12 - 2 * across * m11 - y * m02 + 2 * across * across * m10
        along = cos * cos * (cos * xxx + 3 * sin * yxx) + sin * sin * (sin * yyy + 3 * cos * yyx)
        flipped = long & (along < 0)
        cos, sin = torch.where(flipped, -cos, cos), torch.where(flipped, -sin, sin)
    return _Axes(y, across, sin, cos, -cos, sin, valid.unsqueeze(3))


def _grid(axes: _Axes, given: Tensor, wanted: Tensor) -> Tensor:
    """Where each pixel of the maps that are wanted is read in those that are given, (b, h, w, 2), for grid_sample."""
    narrow = (each.to(given.dtype).view(-1, 1, 1) for each in axes[:6])
    down, right, below_down, below_right, next_down, next_right = narrow
    rows, columns = (from_middle(side, given.device).to(given.dtype) for side in wanted.shape[2:])
    if axes.whole_rows:
        rows = rows - rows[wanted.shape[2] // 2]
    rows, columns = rows.view(1, -1, 1), columns.view(1, 1, -1)
    from_top = down + columns * next_down + rows * below_down
    from_left = right + columns * next_right + rows * below_right
    return in_grid(torch.stack([from_left, from_top], dim=1), given)


def in_grid(pixels: Tensor, given: Tensor) -> Tensor:
    """Distances from the middle to the right and down, (b, 2, h, w) in pixels, in the units of `F.grid_sample`."""
    right, down = pixels.unbind(1)
    return torch.stack([right * (2 / given.shape[3]), down * (2 / given.shape[2])], dim=3)


def energies(x: Tensor, energy: Energy) -> tuple[Tensor, Tensor]:
    """The energy of every pixel over all channels, (b, h, w) float64, and which images have a valid one, (b, 1, 1).

    The largest energy of an image is 1. An image without energy, or with one that is not finite, is not valid and has
    zeros only.
    """
    e = x.abs() if energy == "l1" else x * x
    e = e.sum(1, dtype=torch.float64)  # b h w
    top = e.amax((1, 2), keepdim=True)
    valid = top.isfinite() & (top > 0)
    return torch.where(valid, e / torch.where(valid, top, 1.0), 0.0), valid


def from_middle(side: int, device: torch.device) -> Tensor:
    """The distance of every row (or column) from the middle, in pixels."""
    return torch.arange(side, dtype=torch.float64, device=device) - (side - 1) / 2


def _powers(distance: Tensor) -> Tensor:
    """The powers 0 to 3 of every distance, (n, 4)."""
    return torch.stack(
        [torch.ones_like(distance), distance, distance * distance, distance * distance * distance], dim=1
    )


class PoseAlign(Layer[PoseAlignOptions]):
    """Shift and rotate every image to a canonical pose; no parameters (see `align_pose`).

    Shape:
        Input and output: (batch, channels, height, width) or (channels, height, width); with `size` the output is
        (..., size, size).

    Raises:
        ValueError: an argument is out of range; when called, the maps have no pixels, or fewer than `size`.

    >>> PoseAlign(by="shear", size=28)
    PoseAlign(by='shear', size=28)
    """

    function = staticmethod(align_pose)

    @constructor(PoseAlignOptions)
    def __init__(self, options: PoseAlignOptions) -> None:
        super().__init__(options)
