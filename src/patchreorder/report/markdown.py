"""Tables and comparisons as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from . import text
from .sheets import Sheet, costs_sheet, values_sheet
from .tables import RecipeResults


def render(recipes: Iterable[RecipeResults]) -> str:
    """The tables and comparisons of these recipes, ready for a README."""
    return "\n\n".join("\n\n".join(_blocks(recipe)) for recipe in recipes) + "\n"


def _blocks(recipe: RecipeResults) -> Iterator[str]:
    if not recipe.tables:
        yield _escaped(text.no_rows(recipe))
    for table in recipe.tables:
        yield f"**{_escaped(table.title)}**"
        yield render_sheet(values_sheet(table))
        command = f"Made by `{table.command.replace('`', '')}`." if table.command else ""
        yield " ".join(filter(None, [_escaped(table.legend("Bold")), _escaped(table.about), command]))
        if bullets := [*table.remarks(), *map(text.describe, table.pairs)]:
            yield "\n".join(f"- {_escaped(bullet)}" for bullet in bullets)
        costs = costs_sheet(table)
        yield f"{_escaped(costs.title)}:"
        yield render_sheet(costs)
    for problem in recipe.problems:
        yield _escaped(problem)


def render_sheet(sheet: Sheet) -> str:
    """A table of texts."""
    rule = ["---"] * sheet.texts + ["---:"] * (len(sheet.heads) - sheet.texts)
    rows = [[_escaped(cell) for cell in row] for row in sheet.rows]
    for i, j in sheet.best:
        rows[i][j] = f"**{rows[i][j]}**"
    return "\n".join(f"| {' | '.join(line)} |" for line in ([*map(_escaped, sheet.heads)], rule, *rows))


def _escaped(content: str) -> str:
    """Text without meaning in Markdown, also inside a table."""
    marked = re.sub(r"([\\`*_\[\]|#~$])", r"\\\1", content)
    return marked.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
