"""The pose of an image, images in a pose, and the sweeps of poses that invariance is measured over.

The sweeps are those of the paper's section "Measuring Invariance".
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Pose(NamedTuple):
    """How an image lies on a canvas of its size: mirrored, scaled, rotated counter-clockwise, then shifted."""

    degrees: float = 0.0
    down: float = 0.0  # of the height
    right: float = 0.0  # of the width
    scale: float = 1.0  # about the centre
    flip: bool = False  # left and right change places


UPRIGHT = Pose()
AS_IT_IS = "as it is"  # the name of UPRIGHT in a sweep
AXES = {"x": (0, 1), "y": (1, 0), "diagonal": (1, 1)}  # down, right


def rotations(*, most: float = 45.0, step: float = 9.0) -> dict[str, Pose]:
    """Rotations from -most to most degrees, counter-clockwise positive; 0 is called "as it is".

    >>> sweep = rotations()
    >>> len(sweep), [pose.degrees for pose in sweep.values()][:3], sweep["rotate 45"] == Pose(degrees=45.0)
    (11, [-45.0, -36.0, -27.0], True)
    """
    return {f"rotate {value:g}" if value else AS_IT_IS: Pose(degrees=value) for value in _steps(most, step)}


def translations(*, most: float = 0.2, step: float = 0.04, axes: Sequence[str] = ("x", "y")) -> dict[str, Pose]:
    """Shifts from -most to most of a side along each axis; 0 is called "as it is" and occurs once.

    Args:
        most: a fraction of the height (y, downwards) and of the width (x, to the right).
        step: between two shifts.
        axes: some of "x", "y" and "diagonal", which shifts down and right by the same fraction.

    Raises:
        ValueError: an axis is unknown, or `most` is no multiple of `step`.

    >>> len(translations(axes=["x"])), len(translations()), len(translations(axes=["x", "y", "diagonal"]))
    (11, 21, 31)
    >>> translations(axes=["diagonal"])["diagonal 0.12"] == Pose(down=0.12, right=0.12)
    True
    """
    if isinstance(axes, str) or not axes or not set(axes) <= AXES.keys():
        raise ValueError(f"axes ({axes!r}) must be a list of {', '.join(AXES)}")
    found = {}
    for axis in axes:
        down, right = AXES[axis]
        for value in _steps(most, step):
            pose = Pose(down=down * value + 0.0, right=right * value + 0.0)  # the sum turns -0.0 into 0.0
            found[f"{axis} {value:g}" if value else AS_IT_IS] = pose
    return found


def apply_pose(images: Tensor, pose: Pose, *, fill: Sequence[float] | None = None) -> Tensor:
    """Mirror, scale, rotate and then shift all images, bilinearly; UPRIGHT returns the images themselves.

    Shape:
        images: (b, c, h, w), floating point; so is the result.

    Args:
        pose: the same for all images.
        fill: the value of uncovered pixels, one for each channel; 0 by default.

    >>> images = torch.rand(2, 1, 5, 5)
    >>> torch.allclose(apply_pose(images, Pose(degrees=90.0)), images.rot90(1, (2, 3)), atol=1e-5)
    True
    >>> torch.allclose(apply_pose(images, Pose(flip=True)), images.flip(3), atol=1e-5)
    True
    >>> torch.allclose(apply_pose(images, Pose(right=0.2))[:, :, :, 1:], images[:, :, :, :-1], atol=1e-5)
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
    # A pixel is the same weighted sum of four pixels in every image. One product with a sparse matrix computes it in
    # half the time of grid_sample, which finds the four pixels again for every image.
    sums = F.embedding_bag(
        index.to(flat.device), flat.T, mode="sum", per_sample_weights=weight.to(flat.device, flat.dtype)
    )  # hw bc
    result = sums.T.reshape(images.shape)
    return result if ground is None else result + ground


@functools.lru_cache(maxsize=32)  # all poses of both sweeps; 75 MB at 224x224
def _taps(pose: Pose, height: int, width: int) -> tuple[Tensor, Tensor]:
    """For every pixel of a posed image, the four pixels of the image it is made of and their weights: (hw, 4) both.

    Pixels outside the image have weight 0.
    """
    radians = math.radians(pose.degrees)
    cos, sin = math.cos(radians), math.sin(radians)
    middle = (height - 1) / 2, (width - 1) / 2
    y = (torch.arange(height, dtype=torch.float64) - middle[0] - pose.down * height)[:, None]
    x = torch.arange(width, dtype=torch.float64) - middle[1] - pose.right * width
    # The inverse rotation about the centre, with y downwards, as in transforms.warp.
    cos, sin, mirror = cos / pose.scale, sin / pose.scale, -1.0 if pose.flip else 1.0
    rows, columns = (sin * x + cos * y + middle[0]).flatten(), (mirror * (cos * x - sin * y) + middle[1]).flatten()
    top, left = rows.floor(), columns.floor()
    index, weight = [], []
    for row, vertical in ((top, top + 1 - rows), (top + 1, rows - top)):
        for column, horizontal in ((left, left + 1 - columns), (left + 1, columns - left)):
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            index.append(torch.where(inside, row * width + column, 0).int())
            weight.append(torch.where(inside, vertical * horizontal, 0))
    return torch.stack(index, 1), torch.stack(weight, 1)


def _steps(most: float, step: float) -> list[float]:
    """-most, ..., 0, ..., most: multiples of the decimal numbers as written, each rounded once."""
    if step <= 0 or most <= 0:
        raise ValueError(f"most ({most}) and step ({step}) must be above 0")
    exact = Fraction(str(step))
    count = Fraction(str(most)) / exact
    if count.denominator != 1:
        raise ValueError(f"most ({most}) must be a multiple of step ({step}), so that 0 is one of the steps")
    return [float(k * exact) for k in range(-int(count), int(count) + 1)]
