"""Tables and comparisons for the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from patchreorder.untrusted import clean_lines

from . import text
from .sheets import Sheet, costs_sheet, pairs_sheet, values_sheet
from .tables import RecipeResults

FEW = 4  # comparisons without rows that are listed one by one


def show(recipes: Iterable[RecipeResults], console: Console) -> None:
    """Print the tables and comparisons of these recipes."""
    for recipe in recipes:
        for problem in recipe.problems:
            console.print(_text(problem, "yellow"), soft_wrap=True)
        if not recipe.tables:
            console.print(_text(text.no_rows(recipe)), soft_wrap=True)
        for table in recipe.tables:
            reasons = [text.describe(pair) for pair in table.pairs if not pair.comparison]
            if len(reasons) > FEW:
                reasons = [f"{text.count(len(reasons))} comparisons are left out: a row is missing."]
            print_sheet(values_sheet(table), filter(None, [table.legend("*"), table.about, *table.remarks()]), console)
            print_sheet(pairs_sheet(table), reasons, console)
            print_sheet(costs_sheet(table), [""], console)


def print_sheet(sheet: Sheet, notes: Iterable[str], console: Console) -> None:
    """Print a table, and notes below it; one that is too wide in several parts, each with the text columns."""
    for part, columns in enumerate(_parts(sheet, console.width) if sheet.rows else ()):
        title = sheet.title + (" (continued)" if part else "")
        shown = RichTable(title=_text(title, "bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        shown.padding = (0, 1, 0, 0)
        for column in columns:
            number, head = column >= sheet.texts, _text(sheet.heads[column])
            whole = sheet.whole and not number  # then heads of numbers give way
            least = max(len(row[column]) for row in sheet.rows) if whole else None
            no_wrap = whole or (number and not sheet.whole)
            shown.add_column(head, justify="right" if number else "left", no_wrap=no_wrap, min_width=least)
        for i, row in enumerate(sheet.rows):
            best = {j for row_of, j in sheet.best if row_of == i}
            cells = ((j, row[j]) for j in columns)
            shown.add_row(
                *(
                    _text(f"* {cell}", "bold") if j in best else _text(cell, "dim" if cell == text.MISSING else "")
                    for j, cell in cells
                )
            )
        console.print(shown)
    for note in notes:
        console.print(_text(note, "dim"), soft_wrap=not console.is_terminal)


def _parts(sheet: Sheet, width: int) -> list[list[int]]:
    """The columns of each part that fits the width; a text column may be wrapped to 12 characters, if not `whole`."""

    def wide(column: int) -> int:
        cells = [sheet.heads[column], *(f"* {row[column]}" for row in sheet.rows)]
        return 1 + max(len(line) for cell in cells for line in cell.split("\n"))

    texts = list(range(sheet.texts))
    used = room = sum(wide(column) if sheet.whole else min(13, wide(column)) for column in texts)
    parts = [texts.copy()]
    for column in range(sheet.texts, len(sheet.heads)):
        if used + wide(column) > width and len(parts[-1]) > len(texts):
            parts.append(texts.copy())
            used = room
        parts[-1].append(column)
        used += wide(column)
    return parts


def _text(content: str, style: str = "") -> Text:
    """Text without control characters, except line breaks, and without markup."""
    return Text(clean_lines(content), style)
