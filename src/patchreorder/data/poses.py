"""The poses that invariance is measured over (the paper's section "Measuring Invariance"), and images in a pose."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from fractions import Fraction

import torch
from torch import Tensor
from torch.nn import functional as F

from . import transforms
from .photos import UPRIGHT, Pose

AXES = {"x": (0, 1), "y": (1, 0), "diagonal": (1, 1)}  # down, right
AS_IT_IS = "as it is"


def rotations(*, most: float = 45.0, step: float = 9.0) -> dict[str, Pose]:
    """Turns from -most to most degrees, counter-clockwise positive; 0 is in the middle and is called "as it is".

    >>> grid = rotations()
    >>> len(grid), [pose.degrees for pose in grid.values()][:3], grid["rotate 45"]
    (11, [-45.0, -36.0, -27.0], Pose(degrees=45.0, down=0.0, right=0.0))
    """
    return {f"rotate {value:g}" if value else AS_IT_IS: Pose(degrees=value) for value in _steps(most, step)}


def translations(*, most: float = 0.2, step: float = 0.04, axes: Sequence[str] = ("x", "y")) -> dict[str, Pose]:
    """Shifts from -most to most of a side, along each axis; what all axes share, no shift, is there once.

    Args:
        most: in parts of the height (y, down) and the width (x, to the right).
        step: between two shifts.
        axes: of "x", "y" and "diagonal", which is down and to the right by the same part.

    Raises:
        ValueError: an axis is unknown, or most is no whole number of steps.

    >>> len(translations(axes=["x"])), len(translations()), len(translations(axes=["x", "y", "diagonal"]))
    (11, 21, 31)
    >>> translations(axes=["diagonal"])["diagonal 0.12"]
    Pose(degrees=0.0, down=0.12, right=0.12)
    """
    if isinstance(axes, str) or not axes or not set(axes) <= AXES.keys():
        raise ValueError(f"axes ({axes!r}) must be a list of {', '.join(AXES)}")
    found = {}
    for axis in axes:
        down, right = AXES[axis]
        for value in _steps(most, step):
            pose = Pose(down=down * value + 0.0, right=right * value + 0.0)  # the sum makes -0.0 a 0.0
            found[f"{axis} {value:g}" if value else AS_IT_IS] = pose
    return found


def posed(images: Tensor, pose: Pose, *, fill: Sequence[float] | None = None) -> Tensor:
    """The images, all turned counter-clockwise and then shifted alike: bilinear, same size; upright, they come back.

    Shape:
        images: (b, c, h, w), floating; so is the result.

    Args:
        pose: degrees, and shifts in parts of the height and the width.
        fill: what uncovered places show, one number for each channel; black without it.

    >>> images = torch.rand(2, 1, 5, 5)
    >>> torch.allclose(posed(images, Pose(degrees=90.0)), images.rot90(1, (2, 3)), atol=1e-5)
    True
    >>> torch.allclose(posed(images, Pose(right=0.2))[:, :, :, 1:], images[:, :, :, :-1], atol=1e-5)
    True
    """
    if images.dim() != 4 or not images.is_floating_point():
        raise ValueError(
            f"images must be (b, c, h, w) floating-point numbers, got {tuple(images.shape)} {images.dtype}"
        )
    if fill is not None and len(fill) != images.shape[1]:
        raise ValueError(f"fill ({list(fill)}) must have a number for each of {images.shape[1]} channels")
    if pose == UPRIGHT:
        return images
    ground = None if fill is None else images.new_tensor(fill).view(-1, 1, 1)
    flat = (images if ground is None else images - ground).flatten(2).flatten(0, 1)  # bc hw
    index, weight = _taps(pose, images.shape[2], images.shape[3])
    # A pixel is the same sum of four in every image: one product with a sparse matrix, images side by side, takes half
    # the time of grid_sample, which looks for the four again in every image.
    drawn = F.embedding_bag(
        index.to(flat.device), flat.T, mode="sum", per_sample_weights=weight.to(flat.device, flat.dtype)
    )  # hw bc
    drawn = drawn.T.reshape(images.shape)
    return drawn if ground is None else drawn + ground


@functools.lru_cache(maxsize=32)  # all poses of both grids; 75 MB at 224x224
def _taps(pose: Pose, height: int, width: int) -> tuple[Tensor, Tensor]:
    """For every pixel of a posed image the four of the image that it shows, and their weights: (hw, 4) both.

    What lies outside has no weight.
    """
    radians = math.radians(pose.degrees)
    cos, sin = math.cos(radians), math.sin(radians)
    middle = (height - 1) / 2, (width - 1) / 2
    y = (torch.arange(height, dtype=torch.float64) - middle[0] - pose.down * height)[:, None]
    x = torch.arange(width, dtype=torch.float64) - middle[1] - pose.right * width
    # See transforms.warp: from the centre and y downwards, the inverse turn.
    rows, columns = (sin * x + cos * y + middle[0]).flatten(), (cos * x - sin * y + middle[1]).flatten()
    top, left = rows.floor(), columns.floor()
    index, weight = [], []
    for row, part in ((top, top + 1 - rows), (top + 1, rows - top)):
        for column, share in ((left, left + 1 - columns), (left + 1, columns - left)):
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            index.append(torch.where(inside, row * width + column, 0).int())
            weight.append(torch.where(inside, part * share, 0))
    return torch.stack(index, 1), torch.stack(weight, 1)


def random_pairs(count: int, poses: int, *, seed: int = 0) -> Tensor:
    """For each of `count` images the indices of two different poses, all pairs alike likely, by (seed, index) alone.

    Shape:
        (count, 2), int64.

    >>> bool((random_pairs(3, 11, seed=1) == random_pairs(9, 11, seed=1)[:3]).all())
    True
    """
    if poses < 2:
        raise ValueError(f"poses ({poses}) must be 2 or more to draw pairs of")
    numbers = transforms.uniform(count, 2, seed=seed, epoch=0)
    first = (numbers[:, 0] * poses).long()
    other = (numbers[:, 1] * (poses - 1)).long() + 1
    return torch.stack([first, (first + other) % poses], 1)


def _steps(most: float, step: float) -> list[float]:
    """-most, ..., 0, ..., most: multiples of the decimal numbers that were written, each rounded once."""
    if step <= 0 or most <= 0:
        raise ValueError(f"most ({most}) and step ({step}) must be above 0")
    exact = Fraction(str(step))
    count = Fraction(str(most)) / exact
    if count.denominator != 1:
        raise ValueError(
            f"most ({most}) must be a whole number of steps ({step}), so that no shift or turn is among them"
        )
    return [float(k * exact) for k in range(-int(count), int(count) + 1)]
