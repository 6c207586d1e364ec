"""Whether feature maps move with the image: the error after undoing a pose, and the Lie derivative.

Maps that move with the image (equivariant) can still be brought into one order; maps that neither move with it nor stay
the same (invariant) have lost what a later layer could use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .ratio import Ratio, ratio

MARGIN = 8  # a border of one pixel in so many of a side is left out: padding and uncovered pixels decide there
SAME = 2e-4  # of the energy of the maps: different images that are nearer than this cannot be told apart
GENERATORS = ("shift", "rotation", "scale")


class Equivariance(NamedTuple):
    """Squared distances of the maps of posed images to those of the unposed ones, over that of different images.

    0 is exact, 1 as far as the maps of another image; 1 if different images have the same maps.
    """

    moved: Ratio  # with the pose undone: 0 if the maps move with the image
    stayed: Ratio  # as they are: 0 if the maps stay the same


class Undoing(NamedTuple):
    """How maps of some size are brought back from a pose; the same for all layers of that size."""

    to: Tensor  # (b, 2, 3), where the pose moves a point (x, y, 1), from -1 to 1 along each side
    grid: Tensor  # (b, h, w, 2), the same for every pixel
    inside: Tensor  # (b, h, w), the pixels that are compared

    @classmethod
    def of(cls, to: Tensor, size: Sequence[int]) -> Undoing:
        """For maps of this height and width."""
        grid = F.affine_grid(to, [len(to), 1, *size], align_corners=False)
        return cls(to, grid, _inside(grid, size))


class MapEquivariance:
    """The equivariance of one layer's maps, batch by batch, the unposed images of a batch first.

    >>> x = torch.rand(6, 2, 16, 16)
    >>> maps = MapEquivariance()
    >>> maps.start(x)
    >>> right = torch.eye(2, 3).repeat(6, 1, 1)
    >>> right[:, 0, 2] = 2 * 4 / 16  # what was at x is now 4 pixels to the right of it
    >>> maps.update("right", x.roll(4, 3), Undoing.of(right, (16, 16)))
    >>> found = maps.result()["right"]
    >>> round(found.moved.value, 6), found.stayed.value > 0.5
    (0.0, True)
    """

    def __init__(self) -> None:
        self._count = 0
        self._sum: Tensor = torch.zeros(0)
        self._squares: Tensor = torch.zeros(0)
        self._moved: dict[str, list[Tensor]] = {}
        self._stayed: dict[str, list[Tensor]] = {}
        self._where: dict[str, list[Tensor]] = {}

    @torch.no_grad()
    def start(self, maps: Tensor) -> None:
        """Take the maps (b, c, h, w) of a batch of unposed images."""
        own = self._own = _checked(maps)
        if not self._count:
            self._sum, self._squares = own.new_zeros(own.shape[1:]).double(), own.new_zeros(own.shape[2:]).double()
        self._count += len(own)
        self._sum = self._sum + own.sum(0, dtype=torch.float64)
        self._squares = self._squares + own.square().sum((0, 1), dtype=torch.float64)

    @torch.no_grad()
    def update(self, pose: str, maps: Tensor, undoing: Undoing) -> None:
        """Take the maps of the same images in a pose, by its name."""
        copies, own = _checked(maps), self._own
        undone = F.grid_sample(copies, undoing.grid, mode="bilinear", padding_mode="border", align_corners=False)
        inside = undoing.inside.to(copies.dtype)[:, None]  # b 1 h w
        for found, other in ((self._moved, undone), (self._stayed, copies)):
            squares = (other - own).square_().mul_(inside).sum((1, 2, 3), dtype=torch.float64)
            found.setdefault(pose, []).append(squares.cpu())
        self._where.setdefault(pose, []).append(undoing.to)

    def result(self) -> dict[str, Equivariance]:
        """By pose, those that leave no pixel to compare left out."""
        if self._count < 2:
            return {}
        # Twice the variance is the mean squared distance of two different images.
        mean = self._sum / self._count
        energy = self._squares / self._count
        variance = (energy - mean.square().sum(0)).clamp(min=0) * (self._count / (self._count - 1))
        found = {}
        for pose, where in self._where.items():
            to = torch.cat(where)
            size = self._squares.shape
            inside = torch.cat([Undoing.of(part, size).inside for part in to.split(64)]).flatten(1).double().cpu()
            if not bool(inside.sum(1).all()):
                continue
            different = 2 * (inside @ variance.flatten().cpu())
            if float(different.sum()) <= SAME * float((inside @ energy.flatten().cpu()).sum()):
                same = Ratio(1.0, 1.0, 1.0, len(to))
                found[pose] = Equivariance(same, same)
            else:
                moved, stayed = (torch.cat(own[pose]) for own in (self._moved, self._stayed))
                found[pose] = Equivariance(ratio(moved, different), ratio(stayed, different))
        return found


def _checked(maps: Tensor) -> Tensor:
    if maps.dim() != 4 or not maps.is_floating_point():
        raise ValueError(f"maps must be (images, channels, height, width), floating, got {tuple(maps.shape)}")
    return maps.detach() if maps.dtype == torch.float64 else maps.detach().float()


def _inside(grid: Tensor, size: Sequence[int]) -> Tensor:
    """(b, h, w): pixels that are not in the border, before and after the pose; grid: (b, h, w, 2), x and y."""
    height, width = size
    borders = height // MARGIN, width // MARGIN
    most = grid.new_tensor(
        [1 - (2 * border + 1) / side for border, side in zip(borders[::-1], (width, height), strict=True)]
    )
    own = torch.zeros(height, width, dtype=torch.bool, device=grid.device)
    own[borders[0] : height - borders[0], borders[1] : width - borders[1]] = True
    return (grid.abs() <= most + 1e-6).all(3) & own


def move(maps: Tensor, generator: str, axis: int = 0) -> Tensor:
    """How maps (b, c, h, w) change with time as their content shifts, rotates or grows at unit speed.

    Differences of neighbours stand for derivatives; half a side is the unit of length. `axis` of a shift: 0 is down,
    1 to the right.

    >>> ramp = torch.arange(4.0).expand(1, 1, 4, 4)  # grows to the right
    >>> move(ramp, "shift", 1)[0, 0, 0], float(move(ramp, "shift", 0).abs().max())
    (tensor([-2., -2., -2., -2.]), 0.0)
    """
    if generator == "shift":
        return -_slope(maps, 2 + axis)
    down, right = (_slope(maps, dim) for dim in (2, 3))
    y, x = (_places(maps.shape[dim], maps) for dim in (2, 3))
    height, width = maps.shape[2:]
    if generator == "rotation":  # counter-clockwise, with y downwards; a pixel is as high as it is wide
        return x * (width / height) * down - y[:, None] * (height / width) * right
    if generator == "scale":
        return -(y[:, None] * down + x * right)
    raise ValueError(f"generator ({generator!r}) must be one of {', '.join(GENERATORS)}")


def _slope(maps: Tensor, dim: int) -> Tensor:
    """The derivative along a side; one-sided at its ends, 0 along a side of one pixel."""
    side = maps.shape[dim]
    if side < 2:
        return torch.zeros_like(maps)
    inner = (maps.narrow(dim, 2, side - 2) - maps.narrow(dim, 0, side - 2)) / 2
    first = maps.narrow(dim, 1, 1) - maps.narrow(dim, 0, 1)
    last = maps.narrow(dim, side - 1, 1) - maps.narrow(dim, side - 2, 1)
    return torch.cat([first, inner, last], dim) * (side / 2)


def _places(side: int, maps: Tensor) -> Tensor:
    """The centres of pixels, from -1 to 1."""
    return (torch.arange(side, dtype=maps.dtype, device=maps.device) * 2 + 1) / side - 1


def lie_error(change: Tensor, moved: Tensor) -> tuple[Tensor, Tensor]:
    """Of each image, the squared Lie derivative and what it is compared with: `ratio` of the two is from 0 to 2.

    The Lie derivative is how maps change as the image moves, less how they would change if they moved with it. The
    ratio is 0 if they do, and 1 if both changes have nothing to do with each other, as in maps that do not change.

    Args:
        change: (b, c, h, w), of the maps as the input moves.
        moved: `move` of the maps.
    """
    height, width = change.shape[2:]
    rows, columns = height // MARGIN, width // MARGIN
    change, moved = (x[:, :, rows : height - rows, columns : width - columns] for x in (change, moved))
    error, first, second = (x.square().sum((1, 2, 3), dtype=torch.float64) for x in (change - moved, change, moved))
    return error, first + second
