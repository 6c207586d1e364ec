"""Rotation, scaling and placing of batches, and the random numbers behind them.

Sampling is apart from applying: the numbers of an image are a function of (seed, epoch, index) alone. Every model then
sees the same images, whatever the batch, the process or the order.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F


def uniform(count: int, numbers: int, *, seed: int, epoch: int) -> Tensor:
    """Draw `numbers` values in [0, 1) for each of `count` images; those of image i do not depend on `count`.

    Shape:
        (count, numbers), float64.

    Example:
        >>> bool((uniform(3, 2, seed=7, epoch=0) == uniform(9, 2, seed=7, epoch=0)[:3]).all())
        True
    """
    stream = np.random.Philox(np.random.SeedSequence([seed, epoch]))
    return torch.from_numpy(np.random.Generator(stream).random((count, numbers)))


def rotate(images: Tensor, *, degrees: Tensor) -> Tensor:
    """Rotate every image counter-clockwise about its centre, bilinearly; uncovered pixels are 0.

    Shape:
        images: (b, c, h, w), floating point; degrees: (b,).

    Example:
        >>> x = torch.rand(1, 1, 5, 5)
        >>> torch.allclose(rotate(x, degrees=torch.tensor([90.0])), torch.rot90(x, 1, (2, 3)), atol=1e-5)
        True
    """
    size = (images.shape[2], images.shape[3])
    still = torch.zeros(len(images), 2, dtype=images.dtype, device=images.device)
    return warp(images, degrees=degrees, scale=torch.ones_like(degrees), shift=still, size=size)


def warp(
    images: Tensor,
    *,
    degrees: Tensor,
    scale: Tensor,
    shift: Tensor,
    size: tuple[int, int],
    bend: Tensor | None = None,
) -> Tensor:
    """Rotate and scale every image about its centre, then shift that centre from the centre of the canvas.

    Shape:
        images: (b, c, h, w), floating point; degrees, scale: (b,); shift: (b, 2), pixels down and right.
        bend: (b, 2, *size), how many pixels of the image farther down and right each pixel is read.
        Returns (b, c, *size).
    """
    (height, width), (rows, columns) = images.shape[2:], size
    radians = degrees.to(images.dtype) * (math.pi / 180)
    scale = scale.to(images.dtype)
    cos, sin = torch.cos(radians) / scale, torch.sin(radians) / scale
    down, right = shift.to(images.dtype).unbind(1)
    # From the centre and with y downwards, the canvas at (x, y) shows the image at A (x - right, y - down), where
    # A = [[cos, -sin], [sin, cos]] / scale. The units of affine_grid are halves of the sides.
    theta = torch.stack(
        [
            torch.stack([cos * columns / width, -sin * rows / width, (sin * down - cos * right) * 2 / width], dim=1),
            torch.stack([sin * columns / height, cos * rows / height, -(sin * right + cos * down) * 2 / height], dim=1),
        ],
        dim=1,
    )  # b 2 3
    grid = F.affine_grid(theta, [len(images), images.shape[1], rows, columns], align_corners=False)
    if bend is not None:
        below, beside = bend.to(images.dtype).unbind(1)
        grid = grid + torch.stack([beside * (2 / width), below * (2 / height)], dim=3)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def place(images: Tensor, *, corner: Tensor, size: tuple[int, int]) -> Tensor:
    """Put every image on a canvas of zeros, its upper left pixel at `corner`.

    Shape:
        images: (b, c, h, w); corner: (b, 2), row and column, integers. Returns (b, c, *size).

    Raises:
        ValueError: if an image does not fit on the canvas there.
    """
    (count, channels, height, width), (rows, columns) = images.shape, size
    last = torch.tensor([rows - height, columns - width], device=corner.device)
    if bool(((corner < 0) | (corner > last)).any()):
        raise ValueError(
            f"corner ({corner.min().item()} to {corner.max().item()}) must be from 0 to {last.tolist()}: "
            f"images of {height}x{width} on a canvas of {rows}x{columns}"
        )
    canvas = images.new_zeros(count, channels, rows, columns)
    down = corner[:, 0, None] + torch.arange(height, device=corner.device)  # b h
    right = corner[:, 1, None] + torch.arange(width, device=corner.device)  # b w
    image = torch.arange(count, device=corner.device)[:, None, None]
    canvas[image, :, down[:, :, None], right[:, None, :]] = images.permute(0, 2, 3, 1)
    return canvas
