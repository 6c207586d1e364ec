"""Error over the number of training images: with how many images does a network reach an error?"""

from __future__ import annotations

import math
from collections.abc import Mapping


def images_for(error: float, curve: Mapping[int, float]) -> float:
    """With how many training images a network makes no more than `error`, by its errors at some numbers of images.

    Between two measured numbers the logarithm of the error falls in proportion to the logarithm of the number. The
    first number that is enough counts. infinity if the largest number is not enough, 0 if the smallest is more than
    enough: how many are needed is then not known.

    >>> images_for(5.0, {100: 20.0, 400: 5.0, 1600: 2.0}), images_for(10.0, {100: 20.0, 400: 5.0})
    (400.0, 200.0)
    >>> images_for(1.0, {100: 20.0, 400: 5.0}), images_for(30.0, {100: 20.0, 400: 5.0})
    (inf, 0.0)

    Raises:
        ValueError: there is no point, or a number or an error is not above 0.
    """
    if not curve or not all(count > 0 and value > 0 for count, value in curve.items()) or not error > 0:
        raise ValueError(f"error ({error}) and curve ({dict(curve)}) must be above 0, and the curve needs a point")
    points = sorted(curve.items())
    if points[0][1] < error:
        return 0.0
    for (fewer, worse), (more, better) in zip([points[0], *points], points, strict=False):
        if better <= error:
            if worse <= error:
                return float(fewer)
            share = math.log(worse / error) / math.log(worse / better)
            return float(fewer * (more / fewer) ** share)
    return math.inf
