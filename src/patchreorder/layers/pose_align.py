"""Pose alignment: move and turn every image so that its energy lies alike, however the thing on it lay.

The centroid of the energy comes to the middle and its principal axis stands upright, as in the classical normalisation
by moments, or its slant is taken out. The shift by whole pixels is that of `align_shift`, to the last bit; the rest, a
part of a pixel and the turn, is bilinear, so it is as good as pixels are fine.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
import torch.fx
from torch import Tensor, nn
from torch.nn import functional as F

from patchreorder.operator.functional import Energy, check_maps

from .shift_align import align_shift, check_shift, check_size, middle

Ends = Literal["heavier", "nearest"]
By = Literal["turn", "shear"]
ENDS = ("heavier", "nearest")
WAYS = ("turn", "shear")
SWAYS = ("jitter", "tilt", "zoom", "bend")  # of training mode only
ROUND = 1e-6  # of the moments: a smaller difference between the two axes is none
STEEPEST = 1.0  # slant that is taken out, in pixels a row
KNOTS = 5  # places a side that move by themselves when an image is bent; between them it bends smoothly


def align_pose(
    x: Tensor, *, energy: Energy = "l1", ends: Ends = "heavier", by: By = "turn", size: int | None = None
) -> Tensor:
    """Roll, move and turn every image: the centroid of its energy to the middle, its principal axis upright.

    Shifts by whole pixels, cyclic or over a background of zeros, change nothing, bit for bit, as long as the circular
    centroid is the same pixel of the thing (see `align_shift`). Turns change little where pixels are fine and nothing
    is cut off: the result is read between pixels, bilinearly, and zero outside. All channels move together. The
    gradient goes to the pixels that were read; the pose is a constant to it. An image whose energy has no principal
    axis, as a disc, is not turned; one without energy, or with an energy that is NaN or infinite, is only rolled.

    Shape:
        x: (batch, channels, height, width) or (channels, height, width); the result has its shape, type and layout,
        with `size` (..., size, size).

    Args:
        energy: of a pixel, "l1" for its magnitude, "l2" for its square.
        ends: an axis has two ends, and which one comes down has to be chosen: "heavier" takes the one that reaches
            farther out (the sign of the third moment), so that any turn is undone, half turns too; "nearest" takes the
            smaller turn, so that things keep their ends as long as nothing is turned by more than 90 degrees.
        by: "turn", or "shear" to move every row sideways instead, in proportion to its height, until the line through
            the middles of the rows is upright, by at most a pixel a row: slanted writing becomes upright and keeps its
            ends, whatever `ends` says. Undoes slants, not turns. Rows stay rows: down and up things move by whole
            pixels only, and are not blurred.
        size: return the middle size x size pixels only; at least as many must be there.

    Raises:
        ValueError: x has no pixels, or fewer than `size`, or an argument is out of range.
        TypeError: the tensor is of the wrong type.

    >>> x = torch.zeros(1, 1, 5, 5)
    >>> x[0, 0, 3, 0:3] = torch.tensor([1.0, 3.0, 1.0])  # a bar that lies in a corner
    >>> align_pose(x)[0, 0].round(decimals=3)
    tensor([[0., 0., 0., 0., 0.],
            [0., 0., 1., 0., 0.],
            [0., 0., 3., 0., 0.],
            [0., 0., 1., 0., 0.],
            [0., 0., 0., 0., 0.]])
    """
    return _pose(x, energy, ends, by, size)


def _pose(
    x: Tensor,
    energy: Energy,
    ends: Ends,
    by: By,
    size: int | None,
    *,
    jitter: int = 0,
    tilt: float = 0.0,
    zoom: float = 0.0,
    bend: float = 0.0,
) -> Tensor:
    """`align_pose`, but each image ends a little beside its pose, at random (see `PoseAlign`)."""
    check_maps("x", x)
    _check(energy, ends, by, size, jitter, tilt, zoom, bend)
    maps = align_shift(x.unsqueeze(0) if x.dim() == 3 else x, energy=energy)
    wide = maps.float() if maps.dtype in (torch.float16, torch.bfloat16) else maps
    rolled = wide if size is None else middle(wide, size)
    pose = _found(wide.detach(), energy, ends, by)
    if tilt or zoom:
        pose = _swayed(pose, tilt, zoom)
    moved = torch.randint(-jitter, jitter + 1, (2, len(wide), 1, 1), device=x.device) if jitter else (0, 0)
    grid = _grid(pose, wide, rolled, moved)
    if bend:
        grid = grid + _bent(grid, wide, bend)
    z = F.grid_sample(wide, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    z = torch.where(pose.whole, z, rolled).to(x.dtype)
    if x.dim() == 3:
        return z.squeeze(0)
    # grid_sample answers in rows of one channel, whatever the layout of x.
    return z.contiguous(memory_format=torch.channels_last) if in_pixels(x) else z


def _check(
    energy: str,
    ends: str,
    by: str,
    size: int | None,
    jitter: int = 0,
    tilt: float = 0.0,
    zoom: float = 0.0,
    bend: float = 0.0,
) -> None:
    check_shift(energy, jitter)
    check_size(size)
    if ends not in ENDS:
        raise ValueError(f"ends ({ends!r}) must be one of {', '.join(ENDS)}")
    if by not in WAYS:
        raise ValueError(f"by ({by!r}) must be one of {', '.join(WAYS)}")
    swaying = ("tilt", tilt, 180, "degrees"), ("zoom", zoom, 1, "a part, such as 0.1"), ("bend", bend, 100, "pixels")
    for name, value, most, what in swaying:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{name} ({value!r}) must be a number, {what}")
        if not 0 <= value <= most:
            raise ValueError(f"{name} ({value}) must be from 0 (none) to {most}, {what}")


def in_pixels(x: Tensor) -> bool:
    """Whether maps lie in memory pixel by pixel, with all channels of one together."""
    return x.shape[1] > 1 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)


class _Pose(NamedTuple):
    """How each image lies, (b,) each: its centroid, in pixels from the middle, and what one pixel of the result is.

    The pixel below one of the result is (below_down, below_right) further in the image, the next in its row
    (next_down, next_right).
    """

    down: Tensor
    right: Tensor
    below_down: Tensor
    below_right: Tensor
    next_down: Tensor
    next_right: Tensor
    whole: Tensor  # (b, 1, 1, 1): False for an image without energy, or with one that is not finite: it has no pose
    whole_rows: bool = False  # the centroid is taken to be in a row, and comes to one


def _found(x: Tensor, energy: Energy, ends: Ends, by: By) -> _Pose:
    """The pose of every image, by the moments of its energy."""
    height, width = x.shape[2:]
    e, whole = energies(x, energy)
    down, right = (from_middle(side, x.device) for side in (height, width))
    # All moments up to the third about the middle, [i][j] that of down ** i * right ** j; then about the centroid.
    moments = _powers(down).T @ (e @ _powers(right))
    ((m, m01, m02, m03), (m10, m11, m12, _), (m20, m21, _, _), (m30, _, _, _)) = (
        row.unbind(1) for row in moments.unbind(1)
    )
    total = torch.where(whole.flatten(), m, 1.0)
    y, across = m10 / total, m01 / total
    yy, xx, xy = m20 - y * m10, m02 - across * m01, m11 - y * m01
    if by == "shear":
        high = yy > ROUND * (xx + yy)
        slant = torch.where(high, xy / torch.where(high, yy, 1.0), 0.0).clamp(-STEEPEST, STEEPEST)
        one, none = torch.ones_like(slant), torch.zeros_like(slant)
        row = down[height // 2]  # not the centroid's but the one that `align_shift` took for it: rows stay rows
        return _Pose(row * one, across + slant * (row - y), one, slant, none, one, whole.unsqueeze(3), True)
    # The axis is at half the angle of (xx - yy, 2 xy).
    size = ((xx - yy) * (xx - yy) + 4 * xy * xy).sqrt()
    turned = size > ROUND * (xx + yy)
    double = torch.where(turned, (xx - yy) / torch.where(turned, size, 1.0), -1.0)  # -1: upright
    cos = ((1 + double) / 2).clamp(min=0).sqrt()
    cos = torch.where(xy < 0, -cos, cos)
    sin = ((1 - double) / 2).clamp(min=0).sqrt()
    if ends == "heavier":
        yyy, xxx = m30 - 3 * y * m20 + 2 * y * y * m10, m03 - 3 * across * m02 + 2 * across * across * m01
        yyx = m21 - 2 * y * m11 - across * m20 + 2 * y * y * m01
        yxx = m12 - 2 * across * m11 - y * m02 + 2 * across * across * m10
        along = cos * cos * (cos * xxx + 3 * sin * yxx) + sin * sin * (sin * yyy + 3 * cos * yyx)
        flipped = turned & (along < 0)
        cos, sin = torch.where(flipped, -cos, cos), torch.where(flipped, -sin, sin)
    return _Pose(y, across, sin, cos, -cos, sin, whole.unsqueeze(3))


def _swayed(pose: _Pose, tilt: float, zoom: float) -> _Pose:
    """Poses that are off by up to `tilt` degrees and by a factor of up to 1 + `zoom`, either way, at random."""
    turn, size = torch.rand(2, len(pose.down), dtype=torch.float64, device=pose.down.device) * 2 - 1
    turn, factor = turn * math.radians(tilt), (size * math.log1p(zoom)).exp()
    cos, sin = turn.cos() * factor, turn.sin() * factor
    return pose._replace(
        below_down=cos * pose.below_down + sin * pose.next_down,
        below_right=cos * pose.below_right + sin * pose.next_right,
        next_down=cos * pose.next_down - sin * pose.below_down,
        next_right=cos * pose.next_right - sin * pose.below_right,
    )


def _bent(grid: Tensor, given: Tensor, bend: float) -> Tensor:
    """By how much a grid is to be bent: KNOTS x KNOTS places move by up to `bend` pixels each way, at random."""
    knots = torch.rand(len(grid), 2, KNOTS, KNOTS, dtype=grid.dtype, device=grid.device) * 2 - 1
    smooth = F.interpolate(knots, size=grid.shape[1:3], mode="bicubic", align_corners=True)
    return in_grid(smooth * bend, given)


def _grid(pose: _Pose, given: Tensor, wanted: Tensor, moved: Tensor | tuple[int, int] = (0, 0)) -> Tensor:
    """Where each pixel of the maps that are wanted reads in those that are given, (b, h, w, 2), for `F.grid_sample`.

    `moved`: down and right, by how many pixels the result ends away from the middle.
    """
    narrow = (each.to(given.dtype).view(-1, 1, 1) for each in pose[:6])
    down, right, below_down, below_right, next_down, next_right = narrow
    rows, columns = (from_middle(side, given.device).to(given.dtype) for side in wanted.shape[2:])
    if pose.whole_rows:
        rows = rows - rows[wanted.shape[2] // 2]
    rows, columns = rows.view(1, -1, 1) - moved[0], columns.view(1, 1, -1) - moved[1]
    from_top = down + columns * next_down + rows * below_down
    from_left = right + columns * next_right + rows * below_right
    return in_grid(torch.stack([from_left, from_top], dim=1), given)


def in_grid(pixels: Tensor, given: Tensor) -> Tensor:
    """Ways to the right and down in the maps that are given, (b, 2, h, w) in pixels, as `F.grid_sample` takes them."""
    right, down = pixels.unbind(1)
    return torch.stack([right * (2 / given.shape[3]), down * (2 / given.shape[2])], dim=3)


def energies(x: Tensor, energy: Energy) -> tuple[Tensor, Tensor]:
    """The energy of every pixel over all channels, (b, h, w) float64, the largest of an image being 1; and of which
    images, (b, 1, 1): an image without energy, or with one that is not finite, has only zeros.
    """
    e = x.abs() if energy == "l1" else x * x
    e = e.sum(1, dtype=torch.float64)  # b h w
    top = e.amax((1, 2), keepdim=True)
    whole = top.isfinite() & (top > 0)
    return torch.where(whole, e / torch.where(whole, top, 1.0), 0.0), whole


def from_middle(side: int, device: torch.device) -> Tensor:
    """Of every row (or column) how far it is from the middle."""
    return torch.arange(side, dtype=torch.float64, device=device) - (side - 1) / 2


def _powers(place: Tensor) -> Tensor:
    """The powers 0 to 3 of every place, (n, 4)."""
    return torch.stack([torch.ones_like(place), place, place * place, place * place * place], dim=1)


torch.fx.wrap("_pose")
torch.fx.wrap("align_pose")  # one node in a symbolic trace, which cannot look at sizes


class PoseAlign(nn.Module):
    """Move and turn every image so that its energy lies alike; no parameters (see `align_pose`).

    Shape:
        Input and output: (batch, channels, height, width) or (channels, height, width); with `size` the output is
        (..., size, size).

    Args:
        energy: "l1" (magnitudes) or "l2" (squares).
        ends: which end of the principal axis comes down, "heavier" or "nearest".
        by: "turn", or "shear" to take out slants only.
        jitter: in training mode every image is moved on by up to so many whole pixels, at random (see `ShiftAlign`).
        tilt: in training mode every image is turned on by up to so many degrees, either way, at random: what follows
            learns how far a pose can be off. In eval mode nothing is random.
        zoom: in training mode every image is made larger or smaller, by a factor of up to 1 + zoom, at random.
        bend: in training mode every image is bent smoothly, at random: 5x5 places move by up to so many pixels, down
            and right, and what is between them follows, as handwriting differs from hand to hand.
        size: leave the middle size x size pixels only (see `ShiftAlign`).

    Raises:
        ValueError: an argument is out of range; when called, the maps have no pixels, or fewer than `size`.

    >>> PoseAlign()
    PoseAlign(energy='l1', ends='heavier')
    >>> PoseAlign(by="shear", jitter=2, tilt=12, size=28)
    PoseAlign(energy='l1', by='shear', jitter=2, tilt=12, size=28)
    """

    def __init__(
        self,
        energy: Energy = "l1",
        ends: Ends = "heavier",
        by: By = "turn",
        jitter: int = 0,
        size: int | None = None,
        tilt: float = 0.0,
        zoom: float = 0.0,
        bend: float = 0.0,
    ) -> None:
        super().__init__()
        _check(energy, ends, by, size, jitter, tilt, zoom, bend)
        self.energy: Energy = energy
        self.ends: Ends = ends
        self.by: By = by
        self.jitter = jitter
        self.size = size
        self.tilt, self.zoom, self.bend = tilt, zoom, bend

    def forward(self, x: Tensor) -> Tensor:
        sway = {name: getattr(self, name) for name in SWAYS}
        if self.training and any(sway.values()):
            return _pose(x, self.energy, self.ends, self.by, self.size, **sway)
        return align_pose(x, energy=self.energy, ends=self.ends, by=self.by, size=self.size)

    def extra_repr(self) -> str:
        way = f"ends={self.ends!r}" if self.by == "turn" else f"by={self.by!r}"
        others = [f", {name}={getattr(self, name)}" for name in SWAYS if getattr(self, name)]
        size = f", size={self.size}" if self.size is not None else ""
        return f"energy={self.energy!r}, {way}{''.join(others)}{size}"
