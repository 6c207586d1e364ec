"""The curves of rows: their mean and range over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from patchreorder.laboratory.rows import Result
from patchreorder.untrusted import is_number

from .tables import Curve

MOST = 300  # points of a line: more cannot be seen


class Line(NamedTuple):
    """Mean, smallest and largest y at every x."""

    x: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]

    @classmethod
    def of(cls, values: dict[float, Sequence[float]]) -> Line:
        """The line over some values at every x."""
        ys = values.values()
        return cls(list(values), [sum(y) / len(y) for y in ys], [min(y) for y in ys], [max(y) for y in ys])


def mean_line(results: Sequence[Result], curve: Curve) -> Line | None:
    """The mean of a curve at the x that all seeds have; of the first seed if they have none in common."""
    found = [points(result.curves.get(curve.name)) for result in results]
    if curve.log:
        found = [{x: y for x, y in line.items() if y > 0} for line in found]
    found = [line for line in found if line]
    if not found:
        return None
    common = sorted(set.intersection(*map(set, found)))
    if not common:
        found, common = found[:1], sorted(found[0])
    return Line.of({x: [line[x] for line in found] for x in thinned(common, MOST)})


def points(curve: Any) -> dict[float, float]:
    """The y of every x of a curve, without what is no pair of numbers; |y| below 1e-100 becomes 0."""
    pairs = curve if isinstance(curve, list) else []
    pairs = [pair for pair in pairs if isinstance(pair, list) and len(pair) == 2 and all(map(is_number, pair))]
    return {float(x): float(y) if abs(y) > 1e-100 else 0.0 for x, y in pairs}


def thinned(values: Sequence[float], most: int) -> Sequence[float]:
    """At most so many of the values, evenly spaced, the first and the last among them."""
    if len(values) <= most:
        return values
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]
