"""Tables as text, for every kind of output."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from .tables import RecipeResults, Table
from .text import chance, count, duration, interval, number, signed, value


class Sheet(NamedTuple):
    """A table of texts."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1  # the first columns; the others are numbers
    best: Collection[tuple[int, int]] = ()  # row and column of the best values
    whole: bool = False  # texts are never wrapped, so that names can be copied
    noted: Collection[tuple[int, int]] = ()  # row and column of values with a note


def values_sheet(table: Table) -> Sheet:
    """The mean of every cell, beside the paper's value and the gap where the paper has values."""
    heads, best, noted = ["model"], [], []
    rows = [[row.title] for row in table.rows]
    for column in table.columns:
        for index, row in enumerate(table.rows):
            cell = table.cell(row, column)
            best += [(index, len(heads))] if cell.best else []
            noted += [(index, len(heads))] if cell.notes else []
            rows[index].append(value(cell))
            if table.in_paper(column):
                rows[index] += [number(cell.paper, cell.digits), signed(cell.gap, cell.digits)]
        heads += [column.title, "paper", "gap"] if table.in_paper(column) else [column.title]
    return Sheet(table.title, heads, rows, best=best, noted=noted)


def pairs_sheet(table: Table) -> Sheet:
    """The comparisons of the table that could be made."""
    verdict, unit, split = "first makes", "points", "wrong only\nby 1st : 2nd"
    if table.compares_scores:
        verdict, unit, split = "first has", "score", "lower for\n1st : 2nd"
    rows = []
    for pair in table.pairs:
        if pair.comparison:
            difference, test = pair.comparison.difference, pair.comparison.together
            rows.append(
                [
                    f"{pair.a.title} against {pair.b.title}",
                    pair.column.title,
                    pair.comparison.verdict + (f"; {pair.steps}" if pair.steps else ""),
                    signed(difference.mean, difference.digits),
                    interval(difference),
                    f"{count(test.only_a)} : {count(test.only_b)}",
                    chance(test.p),
                ]
            )
    heads = ["first against second", "on", verdict, unit, "95 % interval", split, "exact\ntest"]
    return Sheet("Pairwise, on the same images", heads, rows, texts=3)


def costs_sheet(table: Table) -> Sheet:
    """The cost of each training."""
    trainings = table.trainings
    seconds = sum(cell.cpu_seconds for _, _, cell in trainings)
    trained = any(any(cell.steps) for _, _, cell in trainings)
    what = "training" if trained else "computing, nothing was trained"
    rows = [
        [
            row,
            column,
            str(len(cell.results)),
            count(cell.parameters),
            " to ".join(map(count, cell.steps)),
            duration(cell.seconds),
            count(cell.images_per_second),
            duration(cell.cpu_seconds),
        ]
        for row, column, cell in trainings
    ]
    title = f"Cost of {what}: {duration(seconds)} of processor time, all cells and seeds together"
    heads = ["model", "on", "seeds", "parameters", "steps", "time of a seed", "images/s", "processor time"]
    return Sheet(title, heads, rows, texts=2)


def origins_sheet(recipe: RecipeResults) -> Sheet:
    """Where the rows were made, in the order of the rows."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for result in recipe.results:
        versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
        groups.setdefault((result.commit, result.machine, versions), []).append(result.finished[:10])
    rows = []
    for (commit, machine, versions), days in groups.items():
        dates = " to ".join(dict.fromkeys([min(days), max(days)]))
        rows.append([commit, machine, versions, dates, count(len(days))])
    return Sheet("Origin of the rows", ["commit", "machine", "versions", "finished", "rows"], rows, texts=4)
