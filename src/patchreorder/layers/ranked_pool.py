"""Ranked pooling: the values of every map from the largest to the smallest, or what is left of them.

Max pooling keeps the first of them, average pooling the mean of all; between these are the k largest, the means of k
equal shares, and weights that fall with the rank.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.fx
from torch import Tensor, nn
from torch.nn import functional as F

from patchreorder.operator import native, torch_form
from patchreorder.operator.dispatch import can_read_values, permute_patches
from patchreorder.operator.functional import check_maps, patch_reorder, whole_number


class Pooling(NamedTuple):
    """The arguments of `ranked_pool`, checked."""

    keep: int | None = None
    quantiles: int | None = None
    smooth: int = 1
    stride: int = 1
    weights: float | None = None
    mean: bool = False
    focus: bool = False
    centre: bool = False

    def check(self) -> Pooling:
        """Return the settings with plain numbers; raise ValueError or TypeError naming the argument and its value."""
        found = {name: getattr(self, name) for name in ("keep", "quantiles", "smooth", "stride")}
        found = {name: None if value is None else whole_number(name, value) for name, value in found.items()}
        for name, value in found.items():
            if value is None and name in ("smooth", "stride"):
                raise TypeError(f"{name} (None) must be a whole number")
            if value is not None and value < 1:
                raise ValueError(f"{name} ({value}) must be 1 or more")
        if self.keep is not None and self.quantiles is not None:
            raise ValueError(f"keep ({self.keep}) and quantiles ({self.quantiles}) exclude each other: give one")
        if self.weights is not None and (isinstance(self.weights, bool) or not isinstance(self.weights, (int, float))):
            raise TypeError(f"weights ({self.weights!r}) must be a power of the rank, such as -0.5, or None")
        if self.weights is not None and not math.isfinite(self.weights):
            raise ValueError(f"weights ({self.weights}) must be finite; keep=1 is the limit of falling weights")
        for name in ("mean", "focus", "centre"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} ({getattr(self, name)!r}) must be True or False")
        return self._replace(**found)


def ranked_pool(
    x: Tensor,
    *,
    keep: int | None = None,
    quantiles: int | None = None,
    smooth: int = 1,
    stride: int = 1,
    weights: float | None = None,
    mean: bool = False,
    focus: bool = False,
    centre: bool = False,
) -> Tensor:
    """Sort the values of every channel, largest first, and keep all, the first k, or the means of k equal shares.

    Without smoothing any permutation of the pixels of a channel gives the same result, bit for bit: shifts around the
    border, quarter turns, mirroring. Averages of windows (`smooth`, before sorting) keep that for shifts by multiples
    of `stride` on a background of zeros, smooth - 1 of them on every side of what is there; turned windows are added
    in another order, so turns are then exact up to rounding only. With `focus` all channels decide together which
    places count, so permutations must move them together. NaN goes first, and is in its own share only.
    The gradient of a value goes to its pixel, of equal values in their order on the map.

    Shape:
        x: (batch, channels, height, width) or (channels, height, width), to (batch, channels, length) or
        (channels, length): length is `keep`, `quantiles`, or the number of pixels or windows; 1 with `mean`.

    Args:
        keep: only so many of the largest.
        quantiles: the ranks in so many equal shares, and the mean of each, so that images of any size give one length.
            A rank on the border of two shares counts in both by its parts.
        smooth: side of the windows that are averaged before sorting; 1 for none. There is no padding.
        stride: step from one window to the next.
        weights: multiply what is left by 1 ** weights, 2 ** weights, 3 ** weights, ...
        mean: the mean of what is left, weighted if there are weights: between the average (0) and the maximum.
        focus: before sorting, multiply what every place (or window) says by sqrt(n / largest n), where n is the root of
            its energy over all channels: places where little is seen, such as a blank border, count less. Places
            whose energy is not finite are left as they are and are not the largest.
        centre: subtract from every rank its mean over the channels of the image. Sorted values are alike in all
            images; what follows learns faster from what differs. A channel that is not finite makes the others so.

    Raises:
        ValueError: more to keep than there is, a window larger than the map, or an argument out of range.
        TypeError: an argument, or the tensor, is of the wrong type.

    >>> x = torch.tensor([[[[0.0, 4.0], [6.0, 2.0]]]])
    >>> ranked_pool(x), ranked_pool(x, keep=1), ranked_pool(x, quantiles=2)
    (tensor([[[6., 4., 2., 0.]]]), tensor([[[6.]]]), tensor([[[5., 1.]]]))
    >>> ranked_pool(x, weights=-1), ranked_pool(x, mean=True)
    (tensor([[[6.0000, 2.0000, 0.6667, 0.0000]]]), tensor([[[3.]]]))
    >>> ranked_pool(torch.tensor([[[[3.0, 16.0]], [[4.0, 12.0]]]]), focus=True)  # norms 5 and 20: a half and 1
    tensor([[[16.0000,  1.5000],
             [12.0000,  2.0000]]])
    >>> ranked_pool(torch.tensor([[[[1.0, 5.0]], [[3.0, 1.0]]]]), centre=True)
    tensor([[[ 1.,  0.],
             [-1.,  0.]]])
    """
    check_maps("x", x)
    pooling = Pooling(keep, quantiles, smooth, stride, weights, mean, focus, centre).check()
    if x.dim() == 3:
        return _pool(x.unsqueeze(0), pooling).squeeze(0)
    return _pool(x, pooling)


def _pool(x: Tensor, pooling: Pooling) -> Tensor:
    if min(x.shape[2:]) < pooling.smooth:
        raise ValueError(
            f"smooth ({pooling.smooth}) does not fit maps of {x.shape[2]}x{x.shape[3]}: "
            "windows must not be larger than a map, which must have pixels"
        )
    if pooling.smooth > 1 or pooling.stride > 1:
        x = F.avg_pool2d(x, pooling.smooth, pooling.stride)
    if pooling.focus:
        x = _focused(x)
    if pooling.keep is not None and pooling.keep > x.shape[2] * x.shape[3]:
        raise ValueError(
            f"keep ({pooling.keep}) is more than the {x.shape[2]}x{x.shape[3]} values of a map: keep fewer, or use "
            "quantiles, which fit any number"
        )
    if pooling.quantiles is not None or pooling.mean or pooling.centre:
        x = x.contiguous()  # sums follow: their order follows the memory, and rounding follows the order
    z = _largest(x, pooling.keep)  # b c n
    if pooling.quantiles is not None:
        z = _shares(z, pooling.quantiles)
    if pooling.centre:
        z = z - z.mean(1, keepdim=True, dtype=_exact(z.dtype)).to(z.dtype)
    if pooling.weights is None:
        return z.mean(2, keepdim=True) if pooling.mean else z
    by_rank = torch.arange(1, z.shape[2] + 1, dtype=_exact(z.dtype), device=z.device).pow(pooling.weights)
    if pooling.mean:
        by_rank = by_rank / by_rank.sum()
        return (z * by_rank.to(z.dtype)).sum(2, keepdim=True)
    return z * by_rank.to(z.dtype)


def _focused(x: Tensor) -> Tensor:
    """Every place times the root of its norm over the channels, as a part of the largest norm of the image."""
    exact = x.to(_exact(x.dtype))
    energy = torch_form.sum_channels(exact.square())  # b 1 h w
    counts = energy.isfinite()
    energy = torch.where(counts, energy, 0.0)
    largest = energy.amax((2, 3), keepdim=True)
    some = largest > 0
    part = torch.where(counts & some, energy / torch.where(some, largest, 1.0), 1.0)
    # Two roots, which are rounded alike everywhere, as a power is not; that of 0 has no derivative.
    there = part > 0
    by = torch.where(there, torch.where(there, part, 1.0).sqrt().sqrt(), 0.0)
    return (exact * by).to(x.dtype)


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


def _shares(z: Tensor, count: int) -> Tensor:
    """The means of equal shares of sorted values: (b, c, n) to (b, c, count)."""
    n = z.shape[2]
    share, rank = torch.arange(count, device=z.device), torch.arange(n, device=z.device)
    exact = _exact(z.dtype)
    begin, end = (edge.to(exact) * n / count for edge in (share, share + 1))
    inside = torch.minimum(rank.to(exact).unsqueeze(1) + 1, end) - torch.maximum(rank.to(exact).unsqueeze(1), begin)
    parts = inside.clamp(min=0) * count / n  # n count
    # Values are sorted: if there is one that is not finite, the first or the last is not.
    if can_read_values(z) and bool(z[:, :, 0].isfinite().all() & z[:, :, -1].isfinite().all()):
        return (z.to(exact) @ parts).to(z.dtype)
    means = z.nan_to_num(0.0, 0.0, 0.0).to(exact) @ parts
    # And it stands at one end of its share, but would turn every share to NaN in the product.
    first, last = share * n // count, ((share + 1) * n - 1) // count
    ends = z.index_select(2, first) / 2 + z.index_select(2, last) / 2
    return torch.where(ends.isfinite(), means.to(z.dtype), ends)


def _exact(dtype: torch.dtype) -> torch.dtype:
    """What to calculate in: float32 at least."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


torch.fx.wrap("ranked_pool")  # one node in a symbolic trace, which cannot look at sizes


class RankedPool(nn.Module):
    """Sort the values of every channel and keep some of them; no parameters (see `ranked_pool`).

    Shape:
        x: (batch, channels, height, width) to (batch, channels, length); without the batch likewise.

    Args:
        keep: only so many of the largest.
        quantiles: the means of so many equal shares instead, for maps of any size.
        smooth, stride: side and step of windows that are averaged before sorting.
        weights: multiply what is left by rank ** weights.
        mean: the (weighted) mean of what is left.
        focus: places where the channels together say little count less.
        centre: subtract from every rank its mean over the channels.

    Raises:
        ValueError: an argument is out of range; when called, the map is too small.

    >>> RankedPool(keep=2)(torch.tensor([[[[1.0, 4.0, 2.0]]]]))
    tensor([[[4., 2.]]])
    >>> RankedPool(quantiles=16, smooth=3)
    RankedPool(quantiles=16, smooth=3)
    """

    def __init__(
        self,
        keep: int | None = None,
        quantiles: int | None = None,
        smooth: int = 1,
        stride: int = 1,
        weights: float | None = None,
        mean: bool = False,
        focus: bool = False,
        centre: bool = False,
    ) -> None:
        super().__init__()
        checked = Pooling(keep, quantiles, smooth, stride, weights, mean, focus, centre).check()
        self.keep, self.quantiles, self.smooth, self.stride, self.weights, self.mean, self.focus, self.centre = checked

    def forward(self, x: Tensor) -> Tensor:
        return ranked_pool(
            x,
            keep=self.keep,
            quantiles=self.quantiles,
            smooth=self.smooth,
            stride=self.stride,
            weights=self.weights,
            mean=self.mean,
            focus=self.focus,
            centre=self.centre,
        )

    def extra_repr(self) -> str:
        values = {name: getattr(self, name) for name in Pooling._fields}
        changed = [f"{name}={v!r}" for name, v in values.items() if v != Pooling._field_defaults[name]]
        return ", ".join(changed)
