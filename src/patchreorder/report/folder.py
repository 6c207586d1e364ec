"""Reads a folder of results: the rows of every recipe and the facts about its table.

Anybody may have written these files. A value of the wrong type is left out and reported, and control characters are
removed from text.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from patchreorder.laboratory.rows import Result
from patchreorder.laboratory.rows import read as read_rows
from patchreorder.untrusted import clean, is_count, is_number

from .tables import Curve, Heading, RecipeResults


def load(folder: Path) -> list[RecipeResults]:
    """The results of every recipe in a folder, in natural order.

    Raises:
        OSError: the folder does not exist.
        ValueError: it holds no results.
    """
    if not folder.exists():
        raise FileNotFoundError(errno.ENOENT, "the folder does not exist", str(folder))
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "not a folder of results", str(folder))
    facts = {file.stem: _facts(file) for file in folder.glob("*.json")}
    names = {file.stem for file in folder.glob("*.jsonl")}
    names |= {name for name, (found, _) in facts.items() if found.get("recipe") == name}  # no row yet
    if not names:
        raise ValueError(
            f"folder ({folder}) holds no RECIPE.jsonl: name a folder of results, or make one with "
            "`patchreorder run RECIPE` (its --help lists the recipes)"
        )
    return [_recipe(folder, name, *facts.get(name, ({}, f"{name}.json is missing"))) for name in _natural(names)]


def _natural(names: Iterable[str]) -> list[str]:
    """Sorted with table2 before table10."""
    return sorted(names, key=lambda name: [(not part.isdigit(), part.zfill(9)) for part in re.split(r"(\d+)", name)])


def _facts(file: Path) -> tuple[dict[str, Any], str]:
    """The facts, and the problem with their file."""
    try:
        facts = clean(json.loads(file.read_bytes()))
    except (OSError, ValueError, RecursionError):
        return {}, f"{file.name} cannot be read"
    return (facts, "") if isinstance(facts, dict) else ({}, f"{file.name} holds no object")


def _recipe(folder: Path, name: str, facts: Mapping[str, Any], problem: str) -> RecipeResults:
    found, problems = _rows(folder / f"{name}.jsonl", name)
    if problem:
        problems.append(f"{problem}: titles and the paper's values are not known.")
    if facts.get("better") not in ("lower", "higher", None):
        problems.append(f"{name}.json says that {facts['better']!r} is better, not lower or higher: taken as lower.")
    metrics = list(dict.fromkeys(result.metric for result in found))
    metric = as_text(facts.get("metric")) or (metrics[0] if metrics else "")
    if others := [other for other in metrics if other != metric]:
        found = [result for result in found if result.metric == metric]
        problems.append(f"Rows that measured {', '.join(others)} are left out: this table shows {metric}.")
    described = {curve: _mapping(how) for curve, how in _mapping(facts.get("curves")).items()}
    for curve in (curve for result in found for curve in result.curves):
        described.setdefault(curve, {})
    return RecipeResults(
        name=name,
        folder=folder,
        title=as_text(facts.get("title")) or name,
        about=as_text(facts.get("about")),
        metric=metric,
        better="higher" if facts.get("better") == "higher" else "lower",
        command=as_text(facts.get("command")),
        rows=_headings(facts.get("rows"), (result.row for result in found)),
        columns=_headings(facts.get("columns"), (result.column for result in found)),
        paper={key: float(value) for key, value in _cells(facts.get("paper")).items() if is_number(value)},
        unlike_paper=[as_text(setting) for setting in as_list(facts.get("unlike_paper"))],
        compare=[
            (pair[0], pair[1])
            for pair in as_list(facts.get("compare"))
            if isinstance(pair, list) and len(pair) == 2 and all(isinstance(row, str) for row in pair)
        ],
        settings={key: as_text(value) for key, value in _mapping(facts.get("settings")).items()},
        needs={key: as_text(value) for key, value in _mapping(facts.get("needs")).items()},
        rows_of=_names_of(facts.get("rows_of")),
        columns_of=_names_of(facts.get("columns_of")),
        parameters={key: value for key, value in _cells(facts.get("parameters")).items() if is_count(value)},
        curves=[
            Curve(curve, as_text(how.get("x")) or "x", as_text(how.get("y")) or curve, how.get("log") is True)
            for curve, how in described.items()
        ],
        figure=_mapping(facts.get("figure")),
        trains_once=facts.get("trains_once") is True,
        results=found,
        problems=problems,
    )


def _rows(file: Path, recipe: str) -> tuple[list[Result], list[str]]:
    """The sound rows of this recipe, and problems with the file."""
    if not file.exists():
        return [], []
    rows = read_rows(file)
    problems = []
    if rows.damaged:
        lines = ", ".join(map(str, rows.damaged[:10])) + (", ..." if len(rows.damaged) > 10 else "")
        problems.append(f"{file.name}: damaged lines left out: {len(rows.damaged)} (line {lines}).")
    shown = [Result(**clean(vars(result))) for result in rows.results]
    own = [result for result in shown if result.recipe == recipe]
    if foreign := len(shown) - len(own):
        problems.append(f"{file.name}: rows left out because they belong to another recipe: {foreign}.")
    return own, problems


def as_text(value: Any) -> str:
    """A text, or "" if the value is none."""
    return value.strip() if isinstance(value, str) else ""


def as_list(value: Any) -> list[Any]:
    """A list, or [] if the value is none."""
    return value if isinstance(value, list) else []


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _cells(value: Any) -> dict[tuple[str, str], Any]:
    """{"row": {"column": value}} by row and column."""
    return {(row, column): cell for row, cells in _mapping(value).items() for column, cell in _mapping(cells).items()}


def _names_of(value: Any) -> dict[str, list[str]]:
    """{"setting": ["name", ...]}."""
    return {key: [as_text(name) for name in as_list(names)] for key, names in _mapping(value).items()}


def _headings(facts: Any, found: Iterable[str]) -> list[Heading]:
    """Rows or columns in the order of the facts, then those that only the results have."""
    named = {}
    for item in map(_mapping, as_list(facts)):
        if name := as_text(item.get("name")):
            columns = tuple(map(as_text, as_list(item.get("columns"))))
            title, about = as_text(item.get("title")) or name, as_text(item.get("about"))
            named[name] = Heading(name, title, about, columns, compared=item.get("compared") is not False)
    for name in found:
        named.setdefault(name, Heading(name, name))
    return list(named.values())
