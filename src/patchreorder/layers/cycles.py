"""Choosing an index on a cycle so that the choice commutes with rolling the cycle, to the last bit.

Rounding depends on the order of a sum, and a rolled or rotated map is summed in another order. So energies are rounded
to whole numbers before they are added: the rounding of a pixel does not depend on its position, and sums of whole
numbers below 2 ** 53 are exact in float64, in any order, on any device. A choice by comparing such sums moves with the
map. Ties are broken by content, and by position only if the contents are equal too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from patchreorder.operator import torch_form
from patchreorder.operator.dispatch import can_read_values

MAX_ENERGY = 2.0**24  # of one pixel: float32 holds all whole numbers up to it
MAX_PART = 2.0**20  # of one element of a cycle, and of one weight: products of 8192 elements still add up exactly
PRIME = 1048573  # just below MAX_PART


def whole_energy(x: Tensor, *, energy: str, per_channel: bool) -> Tensor:
    """Energy of every pixel as a whole number, the largest of an image (or channel) being 2 ** 24.

    If an energy is not finite (NaN, or an overflow), only such pixels count, with equal energies.

    Shape:
        x: (b, c, h, w), to (b, c or 1, h, w), float32 or float64. Sum them in float64.
    """
    e = x.detach()
    e = e.float() if e.dtype in (torch.float16, torch.bfloat16) else e
    e = e.abs() if energy == "l1" else e * e
    e = e if per_channel else torch_form.sum_channels(e)
    top = e.amax((2, 3), keepdim=True)  # NaN if there is one
    if not can_read_values(top) or not bool(top.isfinite().all()):
        e = torch.where(top.isfinite(), e, 1 - e.isfinite().to(e))
        top = torch.where(top.isfinite(), top, 1.0)
    return _scaled(e, top, MAX_ENERGY)


def nearest_to_centroid(profile: Tensor) -> Tensor:
    """The index of each cycle that is nearest to the circular centroid of its energies.

    The sum of the energies, weighted by the cosine of their distance to an index, is largest at the index nearest to
    the centroid. If the centroid is half-way between two, the sine chooses the one before it; if there is no centroid,
    as with equal energies on opposite sides, fixed arbitrary weights choose.

    Shape:
        profile: (..., n) whole numbers, not negative, to (...).

    >>> nearest_to_centroid(torch.tensor([[0.0, 5.0, 0.0, 0.0], [3.0, 0.0, 0.0, 3.0], [0.0, 1.0, 9.0, 1.0]]))
    tensor([1, 3, 2])
    """
    n = profile.shape[-1]
    angle = torch.arange(n, dtype=torch.float64, device=profile.device) * (2 * math.pi / n)
    weights = (angle.cos() * MAX_PART).round(), (angle.sin() * MAX_PART).round(), arbitrary(n, profile.device)
    parts = _scaled(profile.double(), profile.amax(-1, keepdim=True).double(), MAX_PART)
    return best_by(parts @ _cyclic(each) for each in weights)


def strongest(profile: Tensor) -> Tensor:
    """The index of each cycle with the most energy; ties are broken by arbitrary weights of the other energies.

    Shape:
        profile: (..., n) whole numbers, not negative, to (...).

    >>> strongest(torch.tensor([[1.0, 5.0, 2.0, 0.0], [2.0, 0.0, 1.0, 3.0]]))
    tensor([1, 3])
    """
    parts = _scaled(profile.double(), profile.amax(-1, keepdim=True).double(), MAX_PART)
    return best_by([profile, parts @ _cyclic(arbitrary(profile.shape[-1], profile.device))])


def best_by(scores: Iterable[Tensor]) -> Tensor:
    """The index with the largest first score; ties are broken by the second score, and so on, then by the index.

    Shape:
        scores: (..., n) each, finite, to (...).

    >>> best_by([torch.tensor([1, 3, 3]), torch.tensor([9, 0, 1])])
    tensor(2)
    """
    left: Tensor | None = None
    for score in scores:
        score = score.double() if left is None else torch.where(left, score.double(), -math.inf)
        left = score == score.amax(-1, keepdim=True)
        if can_read_values(left) and int(left.sum()) == left[..., 0].numel():  # no ties left
            break
    assert left is not None
    return left.int().argmax(-1)


def wrapped(index: Tensor, n: int) -> Tensor:
    """Indices from -n to 2 n - 1 modulo n. ONNX has no remainder by a dynamic size."""
    index = torch.where(index < 0, index + n, index)
    return torch.where(index < n, index, index - n)


def arbitrary(n: int, device: torch.device) -> Tensor:
    """Fixed whole weights below 2 ** 20 without an obvious pattern: (n,), float64.

    >>> arbitrary(4, torch.device("cpu"))
    tensor([   577., 164049., 212002.,  28917.], dtype=torch.float64)
    """
    i = torch.arange(n, device=device)
    return ((i * i % PRIME * i * 155509 + 7963 * i + 577) % PRIME).double()


def _cyclic(weights: Tensor) -> Tensor:
    """The circulant matrix whose column c holds the weights rolled by c."""
    n = weights.shape[0]
    i = torch.arange(n, device=weights.device)
    return weights[wrapped(i.unsqueeze(1) - i, n)]


def _scaled(e: Tensor, top: Tensor, most: float) -> Tensor:
    """Whole numbers in proportion to e, with `top` mapped to `most`."""
    least = 2 * most / torch.finfo(e.dtype).max  # below it most / top would overflow
    return (e * (most / top.clamp(min=least))).floor_()
