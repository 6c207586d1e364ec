"""The rows of a recipe as tables: one for each setting and split."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from patchreorder.laboratory.rows import Result
from patchreorder.untrusted import is_number

from . import comparison, text
from .comparison import Comparison

PUBLISHED = ("short", "paper")  # the settings of published results, whose tables also show the rows that are missing


class Heading(NamedTuple):
    """The heading of a row (a model) or of a column (a data set)."""

    name: str
    title: str
    about: str = ""
    columns: tuple[str, ...] = ()  # the only columns that a row has cells in; () means all
    compared: bool = True  # False for a column that nearly repeats another one


class Curve(NamedTuple):
    """The axes of a named curve of the rows."""

    name: str
    x: str
    y: str
    log: bool = False


@dataclass(frozen=True, kw_only=True)
class RecipeResults:
    """What a results folder holds of one recipe: its rows, the facts about its table, and problems with the files."""

    name: str
    folder: Path
    title: str
    about: str
    metric: str
    better: str  # "lower" or "higher"
    command: str
    rows: Sequence[Heading]
    columns: Sequence[Heading]
    paper: Mapping[tuple[str, str], float]  # the paper's values by row and column
    unlike_paper: Sequence[str]  # settings that are not comparable with the paper
    compare: Sequence[tuple[str, str]]  # pairs of rows: the first is tested against the second
    settings: Mapping[str, str]  # what each setting is
    needs: Mapping[str, str]  # options that the command needs for a setting
    rows_of: Mapping[str, Sequence[str]]  # the rows of a setting that does not have all
    columns_of: Mapping[str, Sequence[str]]  # the columns of a setting that does not have all
    parameters: Mapping[tuple[str, str], int]
    curves: Sequence[Curve]
    figure: Mapping[str, Any]  # how to draw the paper's figure, see `figures`
    trains_once: bool  # one training serves all columns of a row
    results: Sequence[Result]
    problems: Sequence[str]

    @functools.cached_property
    def tables(self) -> Sequence[Table]:
        """One table for each setting and split that has rows: `short` first, then `paper`; test images first."""
        groups: dict[tuple[str, str], list[Result]] = {}
        for result in self.results:
            groups.setdefault((result.setting, result.split), []).append(result)
        return [Table(self, *group, _cells(self, *group, groups[group])) for group in sorted(groups, key=_rank)]


class TableCell(NamedTuple):
    """One cell of a table: the results of its seeds, all with the same settings, and the paper's value."""

    results: Sequence[Result]
    paper: float | None
    parameters: int | None
    best: bool = False
    left_out: int = 0  # rows with older settings
    digits: int = 2  # after the decimal point
    expected: bool = True  # whether the recipe has this cell

    @property
    def mean(self) -> float | None:
        return statistics.fmean(result.value for result in self.results) if self.results else None

    @property
    def spread(self) -> float | None:
        """The sample standard deviation over seeds."""
        return statistics.stdev(result.value for result in self.results) if len(self.results) > 1 else None

    @property
    def gap(self) -> float | None:
        """Our mean minus the paper's value."""
        return self.mean - self.paper if self.mean is not None and self.paper is not None else None

    @property
    def seconds(self) -> float | None:
        """The mean training time of a seed."""
        return statistics.fmean(result.seconds for result in self.results) if self.results else None

    @property
    def cpu_seconds(self) -> float:
        """The processor time of all seeds together."""
        return sum(result.cpu_seconds for result in self.results)

    @property
    def images_per_second(self) -> float | None:
        known = [result for result in self.results if is_number(result.details.get("batch")) and result.seconds > 0]
        # Without training, the test images are all that was computed.
        speeds = [(r.steps * r.details["batch"] or r.n) / r.seconds for r in known]
        return statistics.fmean(speeds) if speeds else None

    @property
    def steps(self) -> list[int]:
        return sorted({result.steps for result in self.results})

    @property
    def notes(self) -> list[str]:
        """The notes of the rows, each once."""
        notes = (result.details.get("note") for result in self.results)
        return list(dict.fromkeys(note for note in notes if isinstance(note, str) and note.strip()))


class Pair(NamedTuple):
    """Two models on one column: their comparison, or the reason why there is none."""

    a: Heading
    b: Heading
    column: Heading
    comparison: Comparison | None
    reason: str = ""
    steps: str = ""  # how the lengths of their trainings differ


class Training(NamedTuple):
    """A network that was trained for a cell, or for all columns of a row."""

    row: str
    column: str
    cell: TableCell


@dataclass(frozen=True)
class Table:
    """The results of one setting on one split."""

    recipe: RecipeResults
    setting: str
    split: str
    cells: Mapping[tuple[str, str], TableCell]  # by row and column

    @property
    def title(self) -> str:
        return f"{self.recipe.title}, setting {self.setting}, {self.split} images"

    @property
    def base(self) -> str:
        """The setting without changes: `short` of `short,lr=0.1`."""
        return self.setting.partition(",")[0]

    @property
    def change(self) -> str:
        return self.setting.partition(",")[2]

    @property
    def about(self) -> str:
        """What a reader must know about the setting and the split."""
        settings = self.recipe.settings
        setting = text.sentence(settings.get(self.setting, settings.get(self.base, "")))
        changed = f"Changed: {self.change}." if self.change else ""
        split = "" if self.split == "test" else f"Measured on the {self.split} images, not on the test images."
        return " ".join(filter(None, [setting, changed, split]))

    @property
    def command(self) -> str:
        """The command that makes this table."""
        if not self.recipe.command:
            return ""
        command = self.recipe.command
        command += (
            f" --setting {self.base}" if self.base != "short" and list(self.recipe.settings) != [self.base] else ""
        )
        command += f" {needs}" if (needs := self.recipe.needs.get(self.base)) else ""
        command += f" --split {self.split}" if self.split != "test" else ""
        return command + (f" --change {self.change.replace(',', ' ')}" if self.change else "")

    @property
    def rows(self) -> Sequence[Heading]:
        """All rows of the setting if its results are published, else those with results."""
        expected = self._expected if self.setting in PUBLISHED and self.split == "test" else []
        return [row for row in self.recipe.rows if row in expected or self._measured(row)]

    @property
    def columns(self) -> Sequence[Heading]:
        """The columns of the setting, and others with results."""
        names = self.recipe.columns_of.get(self.base)
        measured = {column for (_, column), cell in self.cells.items() if cell.results}
        return [column for column in self.recipe.columns if names is None or column.name in {*names, *measured}]

    @property
    def _expected(self) -> Sequence[Heading]:
        names = self.recipe.rows_of.get(self.base)
        return [row for row in self.recipe.rows if names is None or row.name in names]

    def _measured(self, row: Heading) -> bool:
        return any(self.cell(row, column).results for column in self.columns)

    def cell(self, row: Heading, column: Heading) -> TableCell:
        return self.cells[row.name, column.name]

    def each(self) -> Iterator[tuple[Heading, Heading, TableCell]]:
        """Every cell with its row and column, row by row."""
        for row in self.rows:
            for column in self.columns:
                yield row, column, self.cell(row, column)

    @property
    def results(self) -> list[Result]:
        return [result for cell in self.cells.values() for result in cell.results]

    def in_paper(self, column: Heading) -> bool:
        """Whether the paper has a value in this column."""
        return any(self.cell(row, column).paper is not None for row in self.rows)

    @property
    def has_paper(self) -> bool:
        return any(map(self.in_paper, self.columns))

    @functools.cached_property
    def pairs(self) -> Sequence[Pair]:
        """The comparisons that the recipe names, of rows in this table."""
        rows = {row.name: row for row in self.rows}
        named = [(rows[a], rows[b]) for a, b in self.recipe.compare if a in rows and b in rows]
        return [pair for a, b in named for column in self.columns for pair in _compared(self, a, b, column)]

    @property
    def compares_scores(self) -> bool:
        """Whether its pairs compare scores rather than errors."""
        return any(pair.comparison.difference.scores for pair in self.pairs if pair.comparison)

    @property
    def trainings(self) -> list[Training]:
        """A training for each cell with results, or for each row if one training serves all columns."""
        if not self.recipe.trains_once:
            return [Training(row.title, column.title, cell) for row, column, cell in self.each() if cell.results]
        by_row = [(row.title, [self.cell(row, column) for column in self.columns]) for row in self.rows]
        fullest = [(row, max(cells, key=lambda cell: len(cell.results))) for row, cells in by_row if cells]
        return [Training(row, "all", cell) for row, cell in fullest if cell.results]

    def remarks(self) -> list[str]:
        """What is missing, left out or trained for fewer steps, and the notes of the rows."""
        remarks = []
        absent = [row.title for row in self._expected if not self._measured(row)]
        missing = [
            f"{row.title} on {column.title}"
            for row, column, cell in self.each()
            if not cell.results and cell.expected and self._measured(row)
        ]
        if absent or missing:
            remarks.append(f"Missing: {'; '.join(absent + missing)}.")
        for row, column, cell in self.each():
            remarks += [f"{row.title} on {column.title}: {text.sentence(note)}" for note in cell.notes]
            if cell.left_out:
                remarks.append(
                    f"{row.title} on {column.title}: rows of other settings left out: {cell.left_out} "
                    "(those of the newest settings are shown)."
                )
        for column in self.columns:
            steps = sorted({step for row in self.rows for step in self.cell(row, column).steps})
            if len(steps) > 1:
                remarks.append(
                    f"On {column.title} not all were trained for the same number of steps: {text.count(steps[0])} to "
                    f"{text.count(steps[-1])}."
                )
        return remarks

    def legend(self, mark: str) -> str:
        """How to read the table, in which `mark` marks the best mean of a column."""
        parts = [f"{self.recipe.metric}, {self.recipe.better} is better: mean ± standard deviation (number of seeds)."]
        if any(cell.best for cell in self.cells.values()):
            extreme = "lowest" if self.recipe.better == "lower" else "highest"
            parts.append(f"{mark}: the {extreme} mean of a column, which alone proves nothing.")
        if self.has_paper:
            parts.append("Paper: the value it prints; gap: ours minus the paper's.")
        return " ".join(parts)


def _rank(group: tuple[str, str]) -> tuple[int, str, bool, str]:
    setting, split = group
    return PUBLISHED.index(setting) if setting in PUBLISHED else len(PUBLISHED), setting, split != "test", split


def _cells(
    recipe: RecipeResults, setting: str, split: str, results: Sequence[Result]
) -> dict[tuple[str, str], TableCell]:
    cells = {}
    # Smoke runs use generated images.
    comparable = split == "test" and setting.split(",")[0] not in ("smoke", *recipe.unlike_paper)
    digits = 2 if recipe.metric.endswith("%") else 3
    for row in recipe.rows:
        for column in recipe.columns:
            key = row.name, column.name
            rows = [result for result in results if (result.row, result.column) == key]
            shown = sorted((r for r in rows if r.settings == rows[-1].settings), key=lambda r: r.seed)
            cells[key] = TableCell(
                shown,
                paper=recipe.paper.get(key) if comparable else None,
                parameters=shown[0].parameters if shown else recipe.parameters.get(key),
                left_out=len(rows) - len(shown),
                digits=digits,
                expected=not row.columns or column.name in row.columns,
            )
    for column in recipe.columns:
        means = {row.name: mean for row in recipe.rows if (mean := cells[row.name, column.name].mean) is not None}
        best = min(means.values(), default=0.0) if recipe.better == "lower" else max(means.values(), default=0.0)
        for name in [name for name, mean in means.items() if math.isclose(mean, best, abs_tol=1e-9)]:
            cells[name, column.name] = cells[name, column.name]._replace(best=len(means) > 1)
    return cells


def _compared(table: Table, a: Heading, b: Heading, column: Heading) -> Iterator[Pair]:
    cells = [table.cell(a, column), table.cell(b, column)]
    if not column.compared or not all(cell.expected for cell in cells):
        return
    lacking = [row.title for row, cell in zip((a, b), cells, strict=True) if not cell.results]
    if lacking:
        yield Pair(a, b, column, None, f"{' and '.join(lacking)} {'have' if len(lacking) > 1 else 'has'} no rows here")
        return
    steps = [" to ".join(map(text.count, cell.steps)) for cell in cells]
    unequal = "" if steps[0] == steps[1] else f"trained for {steps[0]} and {steps[1]} steps"
    try:
        yield Pair(a, b, column, comparison.compare(*(cell.results for cell in cells)), steps=unequal)
    except ValueError as error:
        yield Pair(a, b, column, None, str(error))
