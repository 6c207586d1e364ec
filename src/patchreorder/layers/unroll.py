"""Unrolling: read every image in rings about a point, so that a turn becomes a shift around a cycle.

Rows of the result are rings, from the innermost out, columns are directions, counter-clockwise from the right. What is
known of cyclic shifts (alignment, sorting, convolutions that wrap around) then holds for turns.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
import torch.fx
from torch import Tensor, nn
from torch.nn import functional as F

from patchreorder.operator.functional import Energy, check_maps, whole_number

from .pose_align import KNOTS, energies, from_middle, in_grid, in_pixels
from .shift_align import align_shift

About = Literal["middle", "centroid"]
CENTRES = ("middle", "centroid")


class Rings(NamedTuple):
    """The arguments of `unroll`, checked."""

    radii: int | None = None
    angles: int | None = None
    reach: float | None = None
    about: About = "middle"
    energy: Energy = "l1"
    jitter: float = 0.0
    zoom: float = 0.0
    bend: float = 0.0

    def check(self) -> Rings:
        """Return the settings with plain numbers; raise ValueError or TypeError naming the argument and its value."""
        found = {name: getattr(self, name) for name in ("radii", "angles")}
        found = {name: None if value is None else whole_number(name, value) for name, value in found.items()}
        for name, value in found.items():
            if value is not None and value < 1:
                raise ValueError(f"{name} ({value}) must be 1 or more")
        none_or_more = "0 (none) or more"
        for name, least in (
            ("reach", "more than 0"),
            ("jitter", none_or_more),
            ("zoom", "from 0 (none) to 1"),
            ("bend", none_or_more),
        ):
            value = getattr(self, name)
            if value is None and name == "reach":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"{name} ({value!r}) must be a number")
            right = value > 0 if name == "reach" else 0 <= value <= (1 if name == "zoom" else math.inf)
            if not right or math.isinf(value):
                raise ValueError(f"{name} ({value}) must be {least}{'' if name == 'zoom' else ' pixels'}")
        if self.about not in CENTRES:
            raise ValueError(f"about ({self.about!r}) must be one of {', '.join(CENTRES)}")
        if self.energy not in ("l1", "l2"):
            raise ValueError(f"energy ({self.energy!r}) must be 'l1' or 'l2'")
        return self._replace(**found)

    def for_maps(self, height: int, width: int) -> tuple[int, int, float]:
        """How many rings and directions, and the outermost radius, for maps of this size."""
        reach = min(height, width) / 2 if self.reach is None else float(self.reach)
        radii = math.ceil(reach) if self.radii is None else self.radii
        angles = 4 * math.ceil(math.pi * reach / 4) if self.angles is None else self.angles
        return radii, angles, reach


def unroll(
    x: Tensor,
    *,
    radii: int | None = None,
    angles: int | None = None,
    reach: float | None = None,
    about: About = "middle",
    energy: Energy = "l1",
) -> Tensor:
    """Read every image in rings about its middle, or about the centroid of its energy: rows are radii, columns angles.

    If the image turns counter-clockwise by 360 / angles degrees, the columns move on by one, around the cycle: bit for
    bit for the quarter turns of a square image about its middle, if 4 divides the angles; nearly for others, since the
    result is read between pixels, bilinearly, and zero outside. About the centroid, shifts by whole pixels, cyclic or
    over a background of zeros, change nothing, bit for bit, as for `align_shift`. All channels are read alike.
    The gradient goes to the pixels that were read; the centroid is a constant to it.

    Shape:
        x: (batch, channels, height, width) or (channels, height, width), to (..., radii, angles); type and layout stay.

    Args:
        radii: how many rings, by default one a pixel. Ring i has the radius (i + 1/2) reach / radii.
        angles: how many directions, by default a multiple of 4 with about one a pixel half-way out.
        reach: where the outermost ring ends, in pixels; by default half the shorter side.
        about: "middle" of the image, or the "centroid" of its energy. An image without energy, or with one that is NaN
            or infinite, is read about the pixel that `align_shift` takes for the centroid.
        energy: of a pixel, "l1" for its magnitude, "l2" for its square.

    Raises:
        ValueError: x has no pixels, or an argument is out of range.
        TypeError: an argument, or the tensor, is of the wrong type.

    >>> x = torch.tensor([[[[0.0, 5.0, 0.0], [7.0, 9.0, 3.0], [0.0, 8.0, 0.0]]]])
    >>> unroll(x, radii=1, angles=4, reach=2)  # right, up, left, down: one pixel from the middle
    tensor([[[[3., 5., 7., 8.]]]])
    >>> unroll(x.rot90(1, (2, 3)), radii=1, angles=4, reach=2)
    tensor([[[[8., 3., 5., 7.]]]])
    """
    return _unroll(x, Rings(radii, angles, reach, about, energy).check())


def _unroll(x: Tensor, rings: Rings) -> Tensor:
    """`unroll`, and with `jitter`, `zoom` or `bend` each image a little otherwise, at random (see `Unroll`)."""
    check_maps("x", x)
    maps = x.unsqueeze(0) if x.dim() == 3 else x
    height, width = maps.shape[2:]
    if height < 1 or width < 1:
        raise ValueError(f"x has no pixels to unroll: its maps are {height}x{width}")
    radii, angles, reach = rings.for_maps(height, width)
    if rings.about == "centroid":
        maps = align_shift(maps, energy=rings.energy)
    wide = maps.float() if maps.dtype in (torch.float16, torch.bfloat16) else maps
    down, right = _centre(wide.detach(), rings)
    factor = torch.ones_like(down)
    if rings.jitter:
        moved = (torch.rand(2, len(wide), dtype=down.dtype, device=x.device) * 2 - 1) * rings.jitter
        down, right = down + moved[0], right + moved[1]
    if rings.zoom:
        size = torch.rand(len(wide), dtype=down.dtype, device=x.device) * 2 - 1
        factor = (size * math.log1p(rings.zoom)).exp()
    # A quarter of the directions at a time, each of the image turned back by as much: quarter turns are then exact.
    parts = 4 if height == width and angles % 4 == 0 and not rings.bend else 1
    radius = (torch.arange(radii, dtype=torch.float64, device=x.device) + 0.5) * (reach / radii)
    angle = torch.arange(angles // parts, dtype=torch.float64, device=x.device) * (2 * math.pi / angles)
    beside, above = radius.view(-1, 1) * angle.cos(), radius.view(-1, 1) * angle.sin()  # r a
    read = []
    for part in range(parts):
        from_left = right.view(-1, 1, 1) + factor.view(-1, 1, 1) * beside
        from_top = down.view(-1, 1, 1) - factor.view(-1, 1, 1) * above
        grid = in_grid(torch.stack([from_left, from_top], dim=1), wide).to(wide.dtype)
        if rings.bend:
            still = in_grid(torch.stack([beside, -above]).unsqueeze(0), wide).to(wide.dtype)
            grid = grid + _bent(still, wide, rings.bend)
        turned = wide.rot90(-part, (2, 3)) if part else wide
        read.append(F.grid_sample(turned, grid, mode="bilinear", padding_mode="zeros", align_corners=False))
        down, right = right, -down
    z = torch.cat(read, 3).to(x.dtype)
    if x.dim() == 3:
        return z.squeeze(0)
    return z.contiguous(memory_format=torch.channels_last) if in_pixels(x) else z


def _bent(grid: Tensor, given: Tensor, bend: float) -> Tensor:
    """By how much each of the given maps is to be bent, (b, r, a, 2), for a grid (1, r, a, 2) about the middle.

    KNOTS x KNOTS places move by up to `bend` pixels each way, at random, and what is between them smoothly.
    """
    each = torch.eye(KNOTS * KNOTS, dtype=grid.dtype, device=grid.device).view(1, -1, KNOTS, KNOTS)
    share = F.grid_sample(each, grid, mode="bicubic", padding_mode="border", align_corners=True)[0]  # knots r a
    knots = torch.rand(len(given), 2, len(share), dtype=grid.dtype, device=grid.device) * 2 - 1
    return in_grid((knots @ share.flatten(1)).unflatten(2, share.shape[1:]) * bend, given)


def _centre(x: Tensor, rings: Rings) -> tuple[Tensor, Tensor]:
    """How far below the middle and to its right each image is read about, (b,) float64 each."""
    if rings.about == "middle":
        none = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        return none, none
    e, whole = energies(x, rings.energy)
    total = torch.where(whole, e.sum((1, 2), keepdim=True), 1.0).flatten()

    def along(over: int, side: int) -> Tensor:
        place = from_middle(side, x.device)
        # Without a centroid: the pixel that `align_shift` brought to side // 2.
        return torch.where(whole.flatten(), (e.sum(over) @ place) / total, place[side // 2])

    return along(2, x.shape[2]), along(1, x.shape[3])


torch.fx.wrap("_unroll")
torch.fx.wrap("unroll")  # one node in a symbolic trace, which cannot look at sizes


class Unroll(nn.Module):
    """Read every image in rings, so that a turn becomes a shift around a cycle; no parameters (see `unroll`).

    Shape:
        Input: (batch, channels, height, width) or (channels, height, width). Output: (..., radii, angles).

    Args:
        radii: how many rings; by default one a pixel.
        angles: how many directions; by default a multiple of 4 with about one a pixel half-way out.
        reach: where the outermost ring ends, in pixels; by default half the shorter side.
        about: "middle" or "centroid".
        energy: "l1" (magnitudes) or "l2" (squares), for the centroid.
        jitter: in training mode every image is read about a point that is off by up to so many pixels, down and right,
            at random (torch's generator), for a centre is never quite right. In eval mode nothing is random.
        zoom: in training mode all radii of an image are larger or smaller by a factor of up to 1 + zoom, at random.
        bend: in training mode every image is bent smoothly, at random, by up to so many pixels (see `PoseAlign`).

    Raises:
        ValueError: an argument is out of range; when called, the maps have no pixels.
        TypeError: an argument is of the wrong type.

    >>> Unroll(radii=22, angles=40, reach=13)
    Unroll(radii=22, angles=40, reach=13, about='middle')
    >>> Unroll()(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 1, 14, 44])
    """

    def __init__(
        self,
        radii: int | None = None,
        angles: int | None = None,
        reach: float | None = None,
        about: About = "middle",
        energy: Energy = "l1",
        jitter: float = 0.0,
        zoom: float = 0.0,
        bend: float = 0.0,
    ) -> None:
        super().__init__()
        self.rings = Rings(radii, angles, reach, about, energy, jitter, zoom, bend).check()

    def forward(self, x: Tensor) -> Tensor:
        return _unroll(x, self.rings if self.training else self.rings._replace(jitter=0.0, zoom=0.0, bend=0.0))

    def extra_repr(self) -> str:
        usual = Rings()
        shown = {name: value for name, value in self.rings._asdict().items() if value != getattr(usual, name)}
        return ", ".join(f"{name}={value!r}" for name, value in {**shown, "about": self.rings.about}.items())
