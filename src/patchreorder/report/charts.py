"""The curves of a table as small panels, one for each model, measured out for the SVG of the page.

Many lines on one plot need as many colours; here each model has a panel of its own with all others in grey behind it,
on the same scale. The page draws them with its own colours, so that they suit light, dark and paper; the texts stay
text. Nothing here needs matplotlib.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from patchreorder.laboratory.rows import Result

from . import text
from .folder import points
from .tables import Curve, Table, TableCell

WIDTH, HEIGHT = 200, 128  # of a panel, in units of the SVG: about pixels
LEFT, RIGHT, TOP, BOTTOM = 33, 193, 7, 108  # where its lines are drawn
STRIP, STRIP_MARGIN = 120, 6  # width of the small plots inside tables
MOST = 300  # points of a line: more cannot be seen
NUMBERS = 13  # columns of the table of numbers below a figure


class Line(NamedTuple):
    """Mean, smallest and largest y over seeds, at every x that all seeds have."""

    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    seeds: int


class Tick(NamedTuple):
    at: float
    label: str


class Panel(NamedTuple):
    """One model: SVG paths of its mean, of its spread and of the model it is compared with."""

    title: str
    mean: str
    band: str
    other: str
    other_title: str
    dot: tuple[float, float] | None  # a line of one point is a dot
    alt: str


@dataclass(frozen=True)
class Figure:
    """One curve on one column for every model."""

    title: str
    x: str
    y: str
    scale: str  # "", "log" or "root"
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    everyone: str  # the path of all means
    panels: Sequence[Panel]
    missing: Sequence[str]
    heads: Sequence[str]  # the table of numbers: its x
    numbers: Sequence[tuple[str, Sequence[str]]]  # and the y of every model
    several_seeds: bool


class Axis:
    """Where a value lies between two places of the picture, and its ticks."""

    def __init__(self, values: Iterable[float], start: float, end: float, *, scale: str = "", degrees: bool = False):
        values = list(values)
        self.low, self.high = min(values), max(values)
        self.measure = {"log": math.log, "root": math.sqrt}.get(scale, float)
        if self.low == self.high:
            room = abs(self.low) / 2 or 0.5
            self.low, self.high = self.low - room, self.high + room
        self.start, self.end = start, end
        marks = _ticks(self.low, self.high, degrees=degrees) if not scale else self._thinned(scale)
        self.ticks = [Tick(round(self.at(mark), 1), f"{mark:g}".replace("-", text.MINUS)) for mark in marks]

    def at(self, value: float) -> float:
        low, high = self.measure(self.low), self.measure(self.high)
        return self.start + (self.measure(value) - low) / (high - low) * (self.end - self.start)

    def _thinned(self, scale: str) -> list[float]:
        """Round values of an uneven scale that do not touch; powers of ten are the roundest."""
        lowest = self.low if scale == "log" else self.high / 1000  # square roots begin at 0
        exponents = range(math.floor(math.log10(lowest)), math.ceil(math.log10(self.high)) + 1)
        marks: list[float] = [] if scale == "log" else [0.0]
        for lead in (1, 5, 2):
            for mark in (float(f"{lead}e{exponent}") for exponent in reversed(exponents)):
                apart = all(abs(self.at(mark) - self.at(other)) >= 14 for other in marks)
                if self.low <= mark <= self.high and apart:
                    marks.append(mark)
        return sorted(marks)


def _ticks(low: float, high: float, *, degrees: bool) -> list[float]:
    """Three to six round values; angles are round in their own way."""
    if degrees and 60 <= high - low <= 720:
        step = next(step for step in (15.0, 30.0, 45.0, 90.0, 180.0) if (high - low) / step <= 4.1)
    else:
        size = 10.0 ** math.floor(math.log10((high - low) / 2))
        step = next(step for step in (size, 2 * size, 5 * size, 10 * size) if (high - low) / step <= 5)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{index * step:.6g}") for index in range(first, last + 1)]


def figures(table: Table) -> list[Figure]:
    """One figure for every curve and column that any row has; if one training serves all columns, for every curve."""
    found = []
    for curve in table.recipe.curves:
        drawn = [figure for column in table.columns if (figure := _figure(table, curve, column.name))]
        if drawn and table.recipe.trains_once:
            drawn = [replace(drawn[0], title=drawn[0].title.rpartition(",")[0])]
        found += drawn
    return found


def _figure(table: Table, curve: Curve, column: str) -> Figure | None:
    rows = table.rows
    lines = {row.name: line for row in rows if (line := mean_line(table.cells[row.name, column].results, curve))}
    if not lines:
        return None
    spans = [value for line in lines.values() for value in (*line.low, *line.high)]
    scale = "log" if curve.log else _uneven(spans)
    degrees = "degree" in curve.x.lower() or "°" in curve.x
    x_axis = Axis((x for line in lines.values() for x in line.x), LEFT, RIGHT, degrees=degrees)
    y_axis = Axis(spans if curve.log else [0, *spans], BOTTOM, TOP, scale=scale)
    titles = {row.name: row.title for row in rows}
    title = next(named.title for named in table.recipe.columns if named.name == column)
    against: dict[str, str] = {}
    for a, b in table.recipe.compare:
        if b in lines:
            against.setdefault(a, b)
    panels = []
    for name, line in lines.items():
        other = lines.get(against.get(name, ""))
        own = places(line.x, line.mean, x_axis, y_axis)
        panels.append(
            Panel(
                title=titles[name],
                mean=path(own),
                band=band(line, x_axis, y_axis) if line.seeds > 1 else "",
                other=path(places(other.x, other.mean, x_axis, y_axis)) if other else "",
                other_title=titles[against[name]] if other else "",
                dot=own[0] if len(own) == 1 else None,
                alt=_alt(titles[name], line, curve),
            )
        )
    xs = sorted({x for line in lines.values() for x in line.x})
    picked = xs if len(xs) <= NUMBERS else [xs[round(i * (len(xs) - 1) / (NUMBERS - 1))] for i in range(NUMBERS)]
    values = {name: dict(zip(line.x, line.mean, strict=True)) for name, line in lines.items()}
    return Figure(
        title=f"{curve.name[:1].upper()}{curve.name[1:]}, {title}",
        x=curve.x,
        y=curve.y,
        scale=scale,
        x_ticks=x_axis.ticks,
        y_ticks=y_axis.ticks,
        everyone="".join(path(places(line.x, line.mean, x_axis, y_axis)) for line in lines.values()),
        panels=panels,
        missing=[row.title for row in rows if row.name not in lines and table.cells[row.name, column].results],
        heads=[short(x) for x in picked],
        numbers=[(titles[name], [short(at.get(x)) for x in picked]) for name, at in values.items()],
        several_seeds=any(line.seeds > 1 for line in lines.values()),
    )


def _uneven(values: Sequence[float]) -> str:
    """Square roots where most values are far below the largest, so that both can be read."""
    return "root" if min(values) >= 0 and max(values) > 8 * statistics.median(values) else ""


def mean_line(results: Sequence[Result], curve: Curve) -> Line | None:
    """The curve's mean over the seeds that have it; those with other x than the first are left out."""
    found = [points(result.curves.get(curve.name)) for result in results]
    if curve.log:
        found = [{x: y for x, y in points.items() if y > 0} for points in found]
    found = [points for points in found if points]
    if not found:
        return None
    common = sorted(set.intersection(*(set(points) for points in found)))
    if not common:
        found, common = found[:1], sorted(found[0])
    if len(common) > MOST:
        common = [common[round(i * (len(common) - 1) / (MOST - 1))] for i in range(MOST)]
    values = [[points[x] for points in found] for x in common]
    return Line(
        common, [sum(y) / len(y) for y in values], [min(y) for y in values], [max(y) for y in values], len(found)
    )


def places(xs: Sequence[float], ys: Sequence[float], x_axis: Axis, y_axis: Axis) -> list[tuple[float, float]]:
    """Where points lie in the picture."""
    return [(round(x_axis.at(x), 1), round(y_axis.at(y), 1)) for x, y in zip(xs, ys, strict=True)]


def path(points: Sequence[tuple[float, float]]) -> str:
    """An SVG path through places of the picture."""
    return "M" + "L".join(f"{x:g},{y:g}" for x, y in points)


def band(line: Line, x_axis: Axis, y_axis: Axis) -> str:
    """An SVG path around what is between the lowest and the highest line."""
    there = places(line.x, line.high, x_axis, y_axis)
    return path(there + places(line.x, line.low, x_axis, y_axis)[::-1]) + "Z"


def _alt(title: str, line: Line, curve: Curve) -> str:
    ends = f"{short(line.mean[0])} at {short(line.x[0])}, {short(line.mean[-1])} at {short(line.x[-1])}"
    return f"{title}: {curve.y} by {curve.x}: {ends}; smallest {short(min(line.mean))}, largest {short(max(line.mean))}"


def short(value: float | None) -> str:
    """A number of three digits."""
    return text.NONE if value is None else f"{value:.3g}".replace("-", text.MINUS)


# ---- small plots inside tables ---------------------------------------------------------------------


class Strip(NamedTuple):
    """The values of one cell on the scale of its column."""

    seeds: Sequence[float]
    mean: float | None
    paper: float | None


def strips(entries: Mapping[str, TableCell]) -> tuple[dict[str, Strip], str]:
    """A strip for every row of a column, and the text of the scale."""
    values = [result.value for entry in entries.values() for result in entry.results]
    values += [entry.paper for entry in entries.values() if entry.paper is not None]
    if not values:
        return {}, ""
    axis = Axis(values, STRIP_MARGIN, STRIP - STRIP_MARGIN)

    def at(value: float | None) -> float | None:
        return None if value is None else round(axis.at(value), 1)

    shown = {
        row: Strip([round(axis.at(result.value), 1) for result in entry.results], at(entry.mean), at(entry.paper))
        for row, entry in entries.items()
    }
    digits = max(entry.digits for entry in entries.values())
    return shown, f"{text.number(min(values), digits)} to {text.number(max(values), digits)}"


class Interval(NamedTuple):
    """A difference, its interval and zero."""

    low: float
    mean: float
    high: float
    zero: float


def intervals(table: Table) -> list[Interval | None]:
    """For every pair of the table, on one scale."""
    found = [pair.comparison.difference if pair.comparison else None for pair in table.pairs]
    values = [value for difference in found if difference for value in (difference.low, difference.high)]
    if not values:
        return [None] * len(found)
    axis = Axis([0, *values], STRIP_MARGIN, STRIP - STRIP_MARGIN)
    return [
        Interval(*(round(axis.at(value), 1) for value in (found.low, found.mean, found.high, 0))) if found else None
        for found in found
    ]
