"""A ratio of two sums over images, with its confidence interval."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from .rate import Z


class Ratio(NamedTuple):
    """A ratio, its 95 % confidence interval, and the number of images it is measured on."""

    value: float  # NaN if both sums are 0
    low: float
    high: float
    n: int


def ratio(above: Tensor, below: Tensor) -> Ratio:
    """The sum of `above` over the sum of `below`, with the interval of the delta method for images drawn at random.

    Shape:
        above, below: (images,), 0 or more.

    >>> import torch
    >>> ratio(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 6.0]))  # each image has the same ratio
    Ratio(value=0.5, low=0.5, high=0.5, n=2)
    >>> ratio(torch.tensor([1.0]), torch.tensor([4.0]))
    Ratio(value=0.25, low=nan, high=nan, n=1)
    """
    above, below = above.double(), below.double()
    n, total = len(above), float(below.sum())
    if not total > 0:
        return Ratio(math.nan, math.nan, math.nan, n)
    value = float(above.sum()) / total
    if n < 2:
        return Ratio(value, math.nan, math.nan, n)
    spread = float((above - value * below).square().sum()) / (n - 1)
    half = Z * math.sqrt(n * spread) / total
    return Ratio(value, max(0.0, value - half), value + half, n)
