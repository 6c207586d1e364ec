"""Choices on a cycle that commute with rolling it, to the last bit.

Rounding depends on the order of a sum, and a rolled or turned map is summed in another order. So energies become whole
numbers before anything is added over places: single pixels are rounded alike wherever they are, and sums of whole
numbers below 2 ** 53 are exact in float64, in any order, on any device. What is chosen by comparing such sums moves
with the map. Ties are told apart by content, never by place, as far as there is a difference.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from patchreorder.operator import torch_form
from patchreorder.operator.dispatch import can_read_values

MOST_ENERGY = 2.0**24  # of one pixel: what float32 tells apart
MOST_SHARE = 2.0**20  # of one place of a cycle, and of one weight: 8192 places still add up exactly
PRIME = 1048573  # just below MOST_SHARE


def whole_energy(x: Tensor, *, energy: str, per_channel: bool) -> Tensor:
    """Energy of every pixel as a whole number, the largest of an image (or channel) being 2 ** 24.

    Where the energy is not finite (NaN, or an overflow), only such pixels count, all alike.

    Shape:
        x: (b, c, h, w), to (b, c or 1, h, w), float32 or float64: add them up in float64.
    """
    e = x.detach()
    e = e.float() if e.dtype in (torch.float16, torch.bfloat16) else e
    e = e.abs() if energy == "l1" else e * e
    e = e if per_channel else torch_form.sum_channels(e)
    top = e.amax((2, 3), keepdim=True)  # NaN if there is one
    if not can_read_values(top) or not bool(top.isfinite().all()):
        loud = 1 - e.isfinite().to(e)
        e = torch.where(top.isfinite(), e, loud)
        top = torch.where(top.isfinite(), top, 1.0)
    return _share(e, top, MOST_ENERGY)


def nearest_to_centroid(profile: Tensor) -> Tensor:
    """The place of each cycle that is nearest to the circular centroid of its energies.

    The cosine of the way to a place, summed over the energies, is largest where the centroid is nearest. If the
    centroid is half-way between two places, the sine of the way chooses the one before it; where the centroid is
    nowhere, as with equal energies on opposite sides, a fixed list of arbitrary weights chooses.

    Shape:
        profile: (..., n) whole numbers, not negative, to (...).

    >>> nearest_to_centroid(torch.tensor([[0.0, 5.0, 0.0, 0.0], [3.0, 0.0, 0.0, 3.0], [0.0, 1.0, 9.0, 1.0]]))
    tensor([1, 3, 2])
    """
    n = profile.shape[-1]
    angle = torch.arange(n, dtype=torch.float64, device=profile.device) * (2 * math.pi / n)
    weights = (angle.cos() * MOST_SHARE).round(), (angle.sin() * MOST_SHARE).round(), arbitrary(n, profile.device)
    shares = _share(profile.double(), profile.amax(-1, keepdim=True).double(), MOST_SHARE)
    return first_by(shares @ _around(line) for line in weights)


def strongest(profile: Tensor) -> Tensor:
    """The place of each cycle with the most energy; of several, the one which a list of arbitrary weights chooses.

    Shape:
        profile: (..., n) whole numbers, not negative, to (...).

    >>> strongest(torch.tensor([[1.0, 5.0, 2.0, 0.0], [2.0, 0.0, 1.0, 3.0]]))
    tensor([1, 3])
    """
    shares = _share(profile.double(), profile.amax(-1, keepdim=True).double(), MOST_SHARE)
    return first_by([profile, shares @ _around(arbitrary(profile.shape[-1], profile.device))])


def first_by(scores: Iterable[Tensor]) -> Tensor:
    """The place with the largest first score; of several, that with the largest second one, and so on; then the first.

    Shape:
        scores: (..., n) each, finite, to (...).

    >>> first_by([torch.tensor([1, 3, 3]), torch.tensor([9, 0, 1])])
    tensor(2)
    """
    left: Tensor | None = None
    for score in scores:
        score = score.double() if left is None else torch.where(left, score.double(), -math.inf)
        left = score == score.amax(-1, keepdim=True)
        if can_read_values(left) and int(left.sum()) == left[..., 0].numel():  # one is left of each: done
            break
    assert left is not None
    return left.int().argmax(-1)


def wrapped(place: Tensor, n: int) -> Tensor:
    """Places from -n to 2 n - 1 brought into a cycle of n. ONNX has no remainder by a size that may change."""
    place = torch.where(place < 0, place + n, place)
    return torch.where(place < n, place, place - n)


def arbitrary(n: int, device: torch.device) -> Tensor:
    """Whole weights below 2 ** 20 without a pattern to speak of, always the same: (n,), float64.

    >>> arbitrary(4, torch.device("cpu"))
    tensor([   577., 164049., 212002.,  28917.], dtype=torch.float64)
    """
    place = torch.arange(n, device=device)
    return ((place * place % PRIME * place * 155509 + 7963 * place + 577) % PRIME).double()


def _around(weights: Tensor) -> Tensor:
    """The matrix whose column c holds the weights from place c on, around the cycle."""
    n = weights.shape[0]
    place = torch.arange(n, device=weights.device)
    return weights[wrapped(place.unsqueeze(1) - place, n)]


def _share(e: Tensor, top: Tensor, most: float) -> Tensor:
    least = 2 * most / torch.finfo(e.dtype).max  # or most / top would overflow
    return (e * (most / top.clamp(min=least))).floor_()
