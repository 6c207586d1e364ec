"""Rates in percent with Wilson's confidence interval."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

Z = NormalDist().inv_cdf(0.975)  # for an interval of 95 %


class Rate(NamedTuple):
    """A rate in percent, its 95 % confidence interval, and the number of images it is measured on."""

    value: float
    low: float
    high: float
    n: int


def rate(hits: int, of: int, *, n: int | None = None) -> Rate:
    """The rate of `hits` in `of` trials, with Wilson's interval.

    Args:
        hits: from 0 to `of`.
        of: trials, 1 or more.
        n: independent trials, if fewer than `of`.

    Raises:
        ValueError: hits or n is out of range.

    >>> [round(number, 2) for number in rate(5, 10)]
    [50.0, 23.66, 76.34, 10]
    """
    n = of if n is None else n
    if of < 1 or not 0 <= hits <= of or not 1 <= n <= of:
        raise ValueError(f"hits ({hits}) must be from 0 to `of` ({of}), and n ({n}) from 1 to `of`")
    share = hits / of
    middle = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
    # At the ends the formula gives exactly 0 and 1, except for rounding.
    low = 0.0 if hits == 0 else max(0.0, middle - half)
    high = 1.0 if hits == of else min(1.0, middle + half)
    return Rate(100 * hits / of, 100 * low, 100 * high, n)
