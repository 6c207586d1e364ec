"""Tables and comparisons for the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from . import text
from .tables import RecipeResults, Table

FEW = 4  # comparisons without rows that are listed one by one


def show(recipes: Iterable[RecipeResults], console: Console) -> None:
    """Print the tables and comparisons of these recipes."""
    for recipe in recipes:
        for problem in recipe.problems:
            console.print(Text(problem, "yellow"), soft_wrap=True)
        if not recipe.tables:
            console.print(Text(text.no_rows(recipe)), soft_wrap=True)
        for table in recipe.tables:
            console.print(_cells(table))
            _say([table.legend("*"), table.about, *table.remarks()], console)
            if any(pair.comparison for pair in table.pairs):
                console.print(_pairs(table))
            reasons = [text.describe(pair) for pair in table.pairs if not pair.comparison]
            if len(reasons) > FEW:
                reasons = [f"{text.count(len(reasons))} comparisons are left out: a row is missing."]
            _say(reasons, console)
            console.print(_costs(table))
            console.print()


def _say(lines: Iterable[str], console: Console) -> None:
    for line in filter(None, lines):
        console.print(Text(line, "dim"), soft_wrap=not console.is_terminal)


def _cells(table: Table) -> RichTable:
    shown = _new(table.title, "model")
    for column in table.columns:
        shown.add_column(Text(column.title), justify="right", no_wrap=True)
        if table.in_paper(column):
            shown.add_column("paper", justify="right", no_wrap=True)
            shown.add_column("gap", justify="right", no_wrap=True)
    for row in table.rows:
        cells = [Text(row.title)]
        for column in table.columns:
            cell = table.cell(row, column)
            style = "bold" if cell.best else "" if cell.results else "dim"
            cells.append(Text(("* " if cell.best else "") + text.value(cell), style))
            if table.in_paper(column):
                cells += [Text(text.number(cell.paper, cell.digits)), Text(text.signed(cell.gap, cell.digits))]
        shown.add_row(*cells)
    return shown


def _pairs(table: Table) -> RichTable:
    shown = _new("Pairwise, on the same images", "first against second")
    scores = table.compares_scores
    shown.add_column("first has" if scores else "first makes")
    split = "lower for\n1st : 2nd" if scores else "wrong only\nby 1st : 2nd"
    for head in ("score" if scores else "points", "95 % interval", split, "exact\ntest"):
        shown.add_column(head, justify="right", no_wrap=True)
    for pair in table.pairs:
        if pair.comparison:
            difference, test = pair.comparison.difference, pair.comparison.together
            shown.add_row(
                Text(f"{pair.a.title} against {pair.b.title}, {pair.column.title}"),
                pair.comparison.verdict + (f"; {pair.steps}" if pair.steps else ""),
                text.signed(difference.mean, difference.digits),
                text.interval(difference),
                f"{text.count(test.only_a)} : {text.count(test.only_b)}",
                text.chance(test.p),
            )
    return shown


def _costs(table: Table) -> RichTable:
    shown = _new(text.cost_title(table), "model")
    shown.add_column("on")
    for head in text.COSTS:
        shown.add_column(head, justify="right")
    for row, column, values in text.costs(table):
        shown.add_row(Text(row), Text(column), *values)
    return shown


def _new(title: str, first: str) -> RichTable:
    style: dict[str, Any] = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), "pad_edge": False}
    shown = RichTable(title=Text(title, "bold"), title_justify="left", **style)
    shown.add_column(first, min_width=12)
    return shown
