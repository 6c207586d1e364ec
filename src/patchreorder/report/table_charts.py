"""Charts of a table for the page: its values, its comparisons, its curves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from . import text
from .curves import Line, mean_line, thinned
from .drawing import BLACK, BLUE, ORANGE, STYLES, Drawing, Style
from .line_chart import LineChart, Panel, Series
from .mark_chart import MarkChart, MarkPanel, Marks
from .sheets import Sheet
from .tables import Curve, Heading, Table

SEED, MEAN = Style(BLUE, marker="o"), Style(BLUE, marker="|", hollow=True)
PAPER = Style(ORANGE, marker="D", hollow=True)
REFERENCE = Style(BLACK, (0, (2, 1.5)), ".")
GROUP = 6  # models of one chart: more lines are hard to distinguish
NUMBERS = 13  # columns of the table of numbers below a chart


def values_chart(table: Table) -> Drawing | None:
    """Every seed, mean and value of the paper, a panel for each column; None without results."""
    panels = []
    for column in table.columns:
        cells = [(index, table.cell(row, column)) for index, row in enumerate(table.rows)]
        marks = [
            Marks("a seed", SEED, [(index, result.value) for index, cell in cells for result in cell.results]),
            Marks("mean over seeds", MEAN, [(index, cell.mean) for index, cell in cells if cell.mean is not None]),
            Marks("paper", PAPER, [(index, cell.paper) for index, cell in cells if cell.paper is not None]),
        ]
        if marks[0].values:
            panels.append(MarkPanel(column.title, [one for one in marks if one.values]))
    alt = f"The values of the table: {table.recipe.metric} of every model"
    rows = [row.title for row in table.rows]
    return MarkChart(panels=panels, rows=rows, x=table.recipe.metric, alt=alt).draw() if panels else None


def pairs_chart(table: Table) -> Drawing | None:
    """Every difference with its interval, a panel for each column; None without comparisons."""
    compared = [(pair, pair.comparison.difference) for pair in table.pairs if pair.comparison]
    rows = list(dict.fromkeys(f"{pair.a.title} against {pair.b.title}" for pair, _ in compared))
    panels = []
    for column in table.columns:
        values = [
            (rows.index(f"{pair.a.title} against {pair.b.title}"), found.mean, found.low, found.high)
            for pair, found in compared
            if pair.column == column
        ]
        if values:
            panels.append(MarkPanel(column.title, [Marks("difference", Style(BLUE, marker="."), values)]))
    x = "difference of score" if table.compares_scores else "points of error"
    alt = "The differences of the table with their 95 % intervals"
    return MarkChart(panels=panels, rows=rows, x=x, alt=alt, zero=True).draw() if panels else None


class CurveCharts(NamedTuple):
    """One curve of all models, a chart for some of them at a time."""

    title: str
    x: str
    y: str
    log: bool
    charts: Sequence[Drawing]  # none if the paper's figure is of this curve
    missing: Sequence[str]  # models without this curve
    numbers: Sequence[Sheet]


def curve_charts(table: Table) -> list[CurveCharts]:
    """The charts of each curve that any row has."""
    return [found for curve in table.recipe.curves if (found := _charts(table, curve))]


def _charts(table: Table, curve: Curve) -> CurveCharts | None:
    lines = {
        column: {row: line for row in table.rows if (line := mean_line(table.cell(row, column).results, curve))}
        for column in table.columns
    }
    lines = {column: own for column, own in lines.items() if own}
    if not lines:
        return None
    if table.recipe.trains_once:  # the curve of the training is that of every column
        column = next(iter(lines))
        lines = {column._replace(title=""): lines[column]}
    span = [y for own in lines.values() for line in own.values() for y in (*line.low, *line.high)]
    rows = [row for row in table.rows if any(row in own for own in lines.values())]
    reference = _reference(table, rows) if len(rows) > GROUP else None
    figure = table.recipe.figure
    shown = figure.get("kind") == "lines" and figure.get("curve") == curve.name  # in the paper's figure
    others = [] if shown else [row for row in rows if row != reference]
    charts = []
    for group in (others[start : start + GROUP] for start in range(0, len(others), GROUP)):
        styles = {row: STYLES[index] for index, row in enumerate(group)}
        if reference:
            styles[reference] = REFERENCE
        alt = f"{curve.y} by {curve.x}: {', '.join(row.title for row in styles)}; the numbers are in the table below"
        panels = [Panel(column.title, _series(own, styles)) for column, own in lines.items()]
        panels = [panel for panel in panels if panel.series]
        charts.append(LineChart(panels=panels, x=curve.x, y=curve.y, alt=alt, log=curve.log, include=span).draw())
    return CurveCharts(
        title=curve.name[:1].upper() + curve.name[1:],
        x=curve.x,
        y=curve.y,
        log=curve.log,
        charts=charts,
        missing=[row.title for row in table.rows if row not in rows and any(table.cell(row, c).results for c in lines)],
        numbers=[_numbers(column.title, own) for column, own in lines.items()],
    )


def _series(lines: Mapping[Heading, Line], styles: Mapping[Heading, Style]) -> list[Series]:
    return [Series(row.title, lines[row], style) for row, style in styles.items() if row in lines]


def _reference(table: Table, rows: Sequence[Heading]) -> Heading | None:
    """The row that most others are compared with, drawn in every chart."""
    counts = Counter(b for _, b in table.recipe.compare)
    return max((row for row in rows if row.name in counts), key=lambda row: counts[row.name], default=None)


def _numbers(column: str, lines: Mapping[Heading, Line]) -> Sheet:
    xs = thinned(sorted({x for line in lines.values() for x in line.x}), NUMBERS)
    means = [(row.title, dict(zip(line.x, line.mean, strict=True))) for row, line in lines.items()]
    rows = [[title, *(text.short(mean.get(x)) for x in xs)] for title, mean in means]
    return Sheet(column, ["model", *map(text.short, xs)], rows)
