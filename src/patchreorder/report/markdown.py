"""Tables and comparisons as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from . import text
from .tables import RecipeResults, Table


def render(recipes: Iterable[RecipeResults]) -> str:
    """The tables and comparisons of these recipes, ready for a README."""
    return "\n\n".join("\n\n".join(_blocks(recipe)) for recipe in recipes) + "\n"


def _blocks(recipe: RecipeResults) -> Iterator[str]:
    if not recipe.tables:
        yield _escaped(text.no_rows(recipe))
    for table in recipe.tables:
        yield f"**{_escaped(table.title)}**"
        yield _cells(table)
        command = f"Made by `{table.command.replace('`', '')}`." if table.command else ""
        yield " ".join(filter(None, [_escaped(table.legend("Bold")), _escaped(table.about), command]))
        if bullets := [*table.remarks(), *map(text.describe, table.pairs)]:
            yield "\n".join(f"- {_escaped(bullet)}" for bullet in bullets)
        yield f"{_escaped(text.cost_title(table))}:"
        costs = ([_escaped(row), _escaped(column), *values] for row, column, values in text.costs(table))
        yield _table(["model", "on", *text.COSTS], 2, costs)
    for problem in recipe.problems:
        yield _escaped(problem)


def _cells(table: Table) -> str:
    heads = ["model"]
    for column in table.columns:
        heads += [column.title, "paper", "gap"] if table.in_paper(column) else [column.title]
    lines = []
    for row in table.rows:
        line = [_escaped(row.title)]
        for column in table.columns:
            cell = table.cell(row, column)
            line.append(f"**{text.value(cell)}**" if cell.best else text.value(cell))
            if table.in_paper(column):
                line += [text.number(cell.paper, cell.digits), text.signed(cell.gap, cell.digits)]
        lines.append(line)
    return _table(heads, 1, lines)


def _table(heads: Sequence[str], texts: int, lines: Iterable[Sequence[str]]) -> str:
    """A table whose first `texts` columns are text and whose other columns are numbers."""
    rule = ["---"] * texts + ["---:"] * (len(heads) - texts)
    return "\n".join(f"| {' | '.join(line)} |" for line in ([_escaped(head) for head in heads], rule, *lines))


def _escaped(content: str) -> str:
    """Text without meaning in Markdown, also inside a table."""
    marked = re.sub(r"([\\`*_\[\]|#~$])", r"\\\1", content)
    return marked.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
