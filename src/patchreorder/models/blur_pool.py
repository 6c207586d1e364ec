"""Pooling that blurs before it subsamples, so that a shifted image gives a shifted map (Zhang, 2019)."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def blur_rows(size: int, *, skip: int = 0) -> list[list[float]]:
    """The matrix that blurs a line with (1, 2, 1) / 4, reflected at its ends, and takes every other pixel.

    Shape:
        result: ((size + 1) // 2, skip + size).

    Args:
        size: pixels of the line.
        skip: pixels before the line, with weight 0.

    >>> blur_rows(3)
    [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]
    """
    rows = [[0.0] * (skip + size) for _ in range((size + 1) // 2)]
    for number, row in enumerate(rows):
        for pixel, weight in ((2 * number - 1, 0.25), (2 * number, 0.5), (2 * number + 1, 0.25)):
            reflected = size - 1 - abs(size - 1 - abs(pixel))
            row[skip + max(reflected, 0)] += weight  # a line of one pixel reflects into itself
    return rows


def blur_pool(x: Tensor) -> Tensor:
    """Blur with the binomial 3x3 kernel, reflecting at the border, and take every other row and column.

    A constant map stays constant.

    Shape:
        x: (batch, channels, height, width) to (batch, channels, ceil(height / 2), ceil(width / 2)), of the same layout.

    Raises:
        ValueError: x has other than four dimensions, or no pixels.

    >>> x = torch.zeros(1, 1, 5, 5)
    >>> x[0, 0, 2, 2] = 16
    >>> blur_pool(x)
    tensor([[[[0., 0., 0.],
              [0., 4., 0.],
              [0., 0., 0.]]]])
    """
    _check(x)
    return _blur(x, *(_matrix(size, 0, x) for size in x.shape[2:]))


def max_blur_pool(x: Tensor, *, window: int = 2) -> Tensor:
    """Max-pooling with stride 1, then `blur_pool`: instead of max-pooling with stride 2 in ceil mode.

    As there, a window that is partly outside the map gives the maximum of its pixels inside.

    Shape:
        x: (batch, channels, height, width) to (batch, channels, ceil(height / 2), ceil(width / 2)) with 2x2 windows,
        to (batch, channels, floor(height / 2), floor(width / 2)) with 3x3; the layout is that of x.

    Args:
        window: side of the square in which the maximum is taken, 2 or 3.

    Raises:
        ValueError: x has other than four dimensions, or too few pixels, or window is neither 2 nor 3.

    >>> max_blur_pool(torch.rand(2, 3, 20, 11)).shape
    torch.Size([2, 3, 10, 6])
    >>> max_blur_pool(torch.rand(2, 3, 54, 27), window=3).shape
    torch.Size([2, 3, 27, 13])
    """
    _check(x)
    if window not in (2, 3) or min(x.shape[2:]) < window - 1:
        raise ValueError(f"window ({window}) must be 2 or 3, and x of {tuple(x.shape)} not smaller than window - 1")
    rest = [(size - window) % 2 for size in x.shape[2:]]
    # Padding adds a window at the end, and one at the start: skipped.
    largest = F.max_pool2d(x, window, stride=1, padding=rest)
    sizes = [size - skip for size, skip in zip(largest.shape[2:], rest, strict=True)]
    return _blur(largest, *(_matrix(size, skip, x) for size, skip in zip(sizes, rest, strict=True)))


def _check(x: Tensor) -> None:
    if x.dim() != 4 or x.shape[2] < 1 or x.shape[3] < 1:
        raise ValueError(f"x must have shape (batch, channels, height, width), got {tuple(x.shape)}")


def _matrix(size: int, skip: int, like: Tensor) -> Tensor:
    """`blur_rows` as a tensor, cached for each size unless tensors are traced or fake."""
    if torch.compiler.is_compiling() or type(like) not in (Tensor, nn.Parameter):
        return torch.tensor(blur_rows(size, skip=skip), dtype=like.dtype, device=like.device)
    return _cached(size, skip, like.dtype, like.device)


@functools.lru_cache(maxsize=64)
def _cached(size: int, skip: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # an inference tensor could not be used in training later
        return torch.tensor(blur_rows(size, skip=skip), dtype=dtype, device=device)


def _blur(x: Tensor, down: Tensor, across: Tensor) -> Tensor:
    """down @ x @ across.mT in the layout of x. Two small products are faster than a padded depthwise convolution."""
    if x.is_contiguous():
        return torch.matmul(torch.matmul(down, x), across.mT)
    batch, channels, height, width = x.shape
    rows = torch.matmul(down, x.permute(0, 2, 3, 1).reshape(batch, height, width * channels))
    rows = torch.matmul(across, rows.view(-1, width, channels))
    return rows.view(batch, down.shape[0], across.shape[0], channels).permute(0, 3, 1, 2)


class MaxBlurPool2d(nn.Module):
    """Max-pooling without aliasing; no parameters (see `max_blur_pool`).

    Shape:
        x: (batch, channels, height, width) to (batch, channels, ceil(height / 2), ceil(width / 2)); floor with 3x3.

    Args:
        window: 2 or 3 pixels a side.

    Raises:
        ValueError: when called, x is too small, or window is neither 2 nor 3.

    >>> MaxBlurPool2d()(torch.rand(1, 64, 4, 4)).shape
    torch.Size([1, 64, 2, 2])
    """

    def __init__(self, *, window: int = 2) -> None:
        super().__init__()
        self.window = window

    def forward(self, x: Tensor) -> Tensor:
        return max_blur_pool(x, window=self.window)

    def extra_repr(self) -> str:
        return f"window={self.window}"
