"""Unrolling: read every image in rings about a point, so that a rotation becomes a cyclic shift.

Rows of the result are rings, from the innermost out, columns are directions, counter-clockwise from the right.
Everything that handles cyclic shifts (alignment, sorting, circular convolutions) then handles rotations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from patchreorder.operator.functional import Energy, check_maps
from patchreorder.operator.options import Count, Must, Options, constructor, takes

from .layer import Layer
from .pose_align import energies, from_middle, in_grid, is_channels_last
from .shift_align import align_shift

About = Literal["middle", "centroid"]
Pixels = Annotated[float, Must("more than 0 pixels, and finite", lambda value: 0 < value < math.inf)]


@dataclass(frozen=True)
class UnrollOptions(Options):
    """Options of `unroll` and `Unroll`.

    Args:
        radii: how many rings, by default one a pixel. Ring i has the radius (i + 1/2) reach / radii.
        angles: how many directions, by default a multiple of 4 with about one a pixel half-way out.
        reach: where the outermost ring ends, in pixels; by default half the shorter side.
        about: "middle" of the image, or the "centroid" of its energy. An image without energy, or with one that is NaN
            or infinite, is read about the pixel that `align_shift` takes for the centroid.
        energy: of a pixel, for the centroid, "l1" for its magnitude, "l2" for its square.
    """

    radii: Count | None = None
    angles: Count | None = None
    reach: Pixels | None = None
    about: About = "middle"
    energy: Energy = "l1"

    def for_maps(self, height: int, width: int) -> tuple[int, int, float]:
        """How many rings and directions, and the outermost radius, for maps of this size."""
        reach = min(height, width) / 2 if self.reach is None else float(self.reach)
        radii = math.ceil(reach) if self.radii is None else self.radii
        angles = 4 * math.ceil(math.pi * reach / 4) if self.angles is None else self.angles
        return radii, angles, reach


@takes(UnrollOptions)
def unroll(x: Tensor, options: UnrollOptions) -> Tensor:
    """Read every image in rings about its middle, or about the centroid of its energy: rows are radii, columns angles.

    If the image is rotated counter-clockwise by 360 / angles degrees, the columns move on by one, around the cycle: bit
    for bit for the quarter turns of a square image about its middle, if 4 divides the angles; nearly for others, since
    the result is interpolated bilinearly, and zero outside. About the centroid, shifts by whole pixels, cyclic or over
    a background of zeros, change nothing, bit for bit, as for `align_shift`. All channels are read alike. The gradient
    goes to the pixels that were read; the centroid is a constant to it.

    Shape:
        x: (batch, channels, height, width) or (channels, height, width), to (..., radii, angles); type and layout stay.

    Raises:
        ValueError: x has no pixels, or an argument is out of range.
        TypeError: an argument, or the tensor, is of the wrong type.

    >>> x = torch.tensor([[[[0.0, 5.0, 0.0], [7.0, 9.0, 3.0], [0.0, 8.0, 0.0]]]])
    >>> unroll(x, radii=1, angles=4, reach=2)  # right, up, left, down: one pixel from the middle
    tensor([[[[3., 5., 7., 8.]]]])
    >>> unroll(x.rot90(1, (2, 3)), radii=1, angles=4, reach=2)
    tensor([[[[8., 3., 5., 7.]]]])
    """
    check_maps("x", x)
    maps = x.unsqueeze(0) if x.dim() == 3 else x
    height, width = maps.shape[2:]
    if height < 1 or width < 1:
        raise ValueError(f"x has no pixels to unroll: its maps are {height}x{width}")
    radii, angles, reach = options.for_maps(height, width)
    if options.about == "centroid":
        maps = align_shift(maps, energy=options.energy)
    wide = maps.float() if maps.dtype in (torch.float16, torch.bfloat16) else maps
    down, right = _centre(wide.detach(), options)
    # A quarter of the directions at a time, each from the image rotated back by as much: quarter turns are then exact.
    parts = 4 if height == width and angles % 4 == 0 else 1
    radius = (torch.arange(radii, dtype=torch.float64, device=x.device) + 0.5) * (reach / radii)
    angle = torch.arange(angles // parts, dtype=torch.float64, device=x.device) * (2 * math.pi / angles)
    beside, above = radius.view(-1, 1) * angle.cos(), radius.view(-1, 1) * angle.sin()  # r a
    read = []
    for part in range(parts):
        from_left, from_top = right.view(-1, 1, 1) + beside, down.view(-1, 1, 1) - above
        grid = in_grid(torch.stack([from_left, from_top], dim=1), wide).to(wide.dtype)
        rotated = wide.rot90(-part, (2, 3)) if part else wide
        read.append(F.grid_sample(rotated, grid, mode="bilinear", padding_mode="zeros", align_corners=False))
        down, right = right, -down
    z = torch.cat(read, 3).to(x.dtype)
    if x.dim() == 3:
        return z.squeeze(0)
    return z.contiguous(memory_format=torch.channels_last) if is_channels_last(x) else z


def _centre(x: Tensor, options: UnrollOptions) -> tuple[Tensor, Tensor]:
    """The point that each image is read about: how far below the middle and to its right, (b,) float64 each."""
    if options.about == "middle":
        none = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        return none, none
    e, valid = energies(x, options.energy)
    total = torch.where(valid, e.sum((1, 2), keepdim=True), 1.0).flatten()

    def along(over: int, side: int) -> Tensor:
        distance = from_middle(side, x.device)
        # Without a centroid: the pixel that `align_shift` brought to side // 2.
        return torch.where(valid.flatten(), (e.sum(over) @ distance) / total, distance[side // 2])

    return along(2, x.shape[2]), along(1, x.shape[3])


class Unroll(Layer[UnrollOptions]):
    """Read every image in rings, so that a rotation becomes a cyclic shift; no parameters (see `unroll`).

    Shape:
        Input: (batch, channels, height, width) or (channels, height, width). Output: (..., radii, angles).

    Raises:
        ValueError: an argument is out of range; when called, the maps have no pixels.
        TypeError: an argument is of the wrong type.

    >>> Unroll(radii=22, angles=40, reach=13)
    Unroll(radii=22, angles=40, reach=13)
    >>> Unroll()(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 1, 14, 44])
    """

    function = staticmethod(unroll)

    @constructor(UnrollOptions)
    def __init__(self, options: UnrollOptions) -> None:
        super().__init__(options)
