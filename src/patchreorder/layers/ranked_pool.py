"""Ranked pooling: the values of every map from the largest to the smallest, or some of them.

Max pooling keeps the first of them, average pooling the mean of all; between these are the k largest, the means of k
quantiles, and weights that fall with the rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from patchreorder.operator import native, torch_form
from patchreorder.operator.dispatch import can_read_values, permute_patches
from patchreorder.operator.functional import check_maps, patch_reorder
from patchreorder.operator.options import Count, Must, Options, constructor, takes

from .layer import Layer

Power = Annotated[float, Must("finite: keep=1 is the limit of falling weights", math.isfinite)]


@dataclass(frozen=True)
class RankedPoolOptions(Options):
    """Options of `ranked_pool` and `RankedPool`.

    Args:
        keep: return only so many of the largest values.
        quantiles: return the means of so many equal parts of the sorted values, so that maps of any size give one
            length. A value on the border of two parts counts in both by its fractions.
        smooth: side of the windows that are averaged before sorting; 1 for none. There is no padding.
        stride: step from one window to the next.
        weights: multiply the values that are returned by 1 ** weights, 2 ** weights, 3 ** weights, ...
        mean: return the mean of these values, weighted if there are weights: between the average (0) and the maximum.
        centre: subtract from every rank its mean over the channels of the image. Sorted values are alike in all
            images; what follows learns faster from what differs. A channel that is not finite makes the others so.
    """

    keep: Count | None = None
    quantiles: Count | None = None
    smooth: Count = 1
    stride: Count = 1
    weights: Power | None = None
    mean: bool = False
    centre: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep is not None and self.quantiles is not None:
            raise ValueError(f"keep ({self.keep}) and quantiles ({self.quantiles}) exclude each other: give one")


@takes(RankedPoolOptions)
def ranked_pool(x: Tensor, options: RankedPoolOptions) -> Tensor:
    """Sort the values of every channel, largest first, and return all, the first k, or the means of k quantiles.

    Without smoothing any permutation of the pixels of a channel gives the same result, bit for bit: cyclic shifts,
    quarter turns, mirroring. Averages of windows (`smooth`, before sorting) keep that for shifts by multiples of
    `stride` on a background of zeros at least smooth - 1 pixels wide. The pixels of a rotated window are added in
    another order, so that rotations are then exact up to rounding only. NaN goes first, and is in its own quantile
    only. The gradient of a value goes to its pixel, of equal values in their order on the map.

    Shape:
        x: (batch, channels, height, width) or (channels, height, width), to (batch, channels, length) or
        (channels, length): length is `keep`, `quantiles`, or the number of pixels or windows; 1 with `mean`.

    Raises:
        ValueError: `keep` is more than there are values, a window is larger than the map, or an argument is out of
            range.
        TypeError: an argument, or the tensor, is of the wrong type.

    >>> x = torch.tensor([[[[0.0, 4.0], [6.0, 2.0]]]])
    >>> ranked_pool(x), ranked_pool(x, keep=1), ranked_pool(x, quantiles=2)
    (tensor([[[6., 4., 2., 0.]]]), tensor([[[6.]]]), tensor([[[5., 1.]]]))
    >>> ranked_pool(x, weights=-1), ranked_pool(x, mean=True)
    (tensor([[[6.0000, 2.0000, 0.6667, 0.0000]]]), tensor([[[3.]]]))
    >>> ranked_pool(torch.tensor([[[[1.0, 5.0]], [[3.0, 1.0]]]]), centre=True)
    tensor([[[ 1.,  0.],
             [-1.,  0.]]])
    """
    check_maps("x", x)
    return _pool(x, options) if x.dim() == 4 else _pool(x.unsqueeze(0), options).squeeze(0)


def _pool(x: Tensor, options: RankedPoolOptions) -> Tensor:
    if min(x.shape[2:]) < options.smooth:
        raise ValueError(
            f"smooth ({options.smooth}) does not fit maps of {x.shape[2]}x{x.shape[3]}: a window must not be larger "
            "than a map, and a map must have pixels"
        )
    if options.smooth > 1 or options.stride > 1:
        x = F.avg_pool2d(x, options.smooth, options.stride)
    if options.keep is not None and options.keep > x.shape[2] * x.shape[3]:
        raise ValueError(
            f"keep ({options.keep}) is more than the {x.shape[2]}x{x.shape[3]} values of a map: keep fewer, or use "
            "quantiles, which fit any number"
        )
    if options.quantiles is not None or options.mean or options.centre:
        x = x.contiguous()  # sums follow: their order follows the memory, and rounding follows the order
    z = _largest(x, options.keep)  # b c n
    if options.quantiles is not None:
        z = _quantiles(z, options.quantiles)
    if options.centre:
        z = z - z.mean(1, keepdim=True, dtype=_exact(z.dtype)).to(z.dtype)
    if options.weights is None:
        return z.mean(2, keepdim=True) if options.mean else z
    by_rank = torch.arange(1, z.shape[2] + 1, dtype=_exact(z.dtype), device=z.device).pow(options.weights)
    if options.mean:
        by_rank = by_rank / by_rank.sum()
        return (z * by_rank.to(z.dtype)).sum(2, keepdim=True)
    return z * by_rank.to(z.dtype)


def _largest(x: Tensor, keep: int | None) -> Tensor:
    if keep == 1 and not torch_form.is_exporting():  # ONNX runtimes differ about the maximum of NaN
        return x.flatten(2).max(2, keepdim=True).values
    z = _descending(x)
    return z if keep is None else z[:, :, :keep]


def _descending(x: Tensor) -> Tensor:
    """The values of every map, largest first, NaN before all: (b, c, h, w) to (b, c, h * w)."""
    if torch_form.is_exporting():
        x = x.flatten(2)
        nan = x.isnan()
        return x.gather(2, torch_form.argsort([nan.to(x.dtype), torch.where(nan, 0.0, x)]))
    if x.device.type != "cpu" or not native.fits(x.shape[2], x.shape[3]):
        return torch.sort(x.flatten(2), dim=2, descending=True, stable=True).values
    if can_read_values(x) and (x.numel() == 0 or bool(x.detach().amin() >= 0)):
        return patch_reorder(x, grid="pixels", energy="l1").flatten(2)
    # The kernel ranks magnitudes, and ties stay in order: first the negative values to the end, the nearest to zero
    # first, then the positive ones to the front.
    x = _by_magnitude(x, (-x).relu(), descending=False)
    return _by_magnitude(x, x.relu(), descending=True).flatten(2)


def _by_magnitude(x: Tensor, key: Tensor, *, descending: bool) -> Tensor:
    order = patch_reorder(key.detach(), grid="pixels", energy="l1", descending=descending, return_order=True)[1]
    return permute_patches(x, order)


def _quantiles(z: Tensor, count: int) -> Tensor:
    """The means of equal parts of sorted values: (b, c, n) to (b, c, count)."""
    n = z.shape[2]
    part, rank = torch.arange(count, device=z.device), torch.arange(n, device=z.device)
    exact = _exact(z.dtype)
    begin, end = (edge.to(exact) * n / count for edge in (part, part + 1))
    inside = torch.minimum(rank.to(exact).unsqueeze(1) + 1, end) - torch.maximum(rank.to(exact).unsqueeze(1), begin)
    fractions = inside.clamp(min=0) * count / n  # n count
    # Values are sorted: if one is not finite, the first or the last is not.
    if can_read_values(z) and bool(z[:, :, 0].isfinite().all() & z[:, :, -1].isfinite().all()):
        return (z.to(exact) @ fractions).to(z.dtype)
    means = z.nan_to_num(0.0, 0.0, 0.0).to(exact) @ fractions
    # A value that is not finite is at one end of its part. In the product it would make every part NaN.
    first, last = part * n // count, ((part + 1) * n - 1) // count
    ends = z.index_select(2, first) / 2 + z.index_select(2, last) / 2
    return torch.where(ends.isfinite(), means.to(z.dtype), ends)


def _exact(dtype: torch.dtype) -> torch.dtype:
    """The type to calculate in: float32 or wider."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


class RankedPool(Layer[RankedPoolOptions]):
    """Sort the values of every channel and return some of them; no parameters (see `ranked_pool`).

    Shape:
        x: (batch, channels, height, width) to (batch, channels, length); without the batch likewise.

    Raises:
        ValueError: an argument is out of range; when called, the map is too small.

    >>> RankedPool(keep=2)(torch.tensor([[[[1.0, 4.0, 2.0]]]]))
    tensor([[[4., 2.]]])
    >>> RankedPool(quantiles=16, smooth=3)
    RankedPool(quantiles=16, smooth=3)
    """

    function = staticmethod(ranked_pool)

    @constructor(RankedPoolOptions)
    def __init__(self, options: RankedPoolOptions) -> None:
        super().__init__(options)
