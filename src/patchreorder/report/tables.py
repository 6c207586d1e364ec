"""The rows of a recipe as tables, one for each setting and split, for the terminal, for Markdown and for the page."""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from patchreorder.laboratory.rows import Result
from patchreorder.untrusted import is_number

from . import comparison
from .comparison import Comparison, Difference
from .folder import Named, Recipe, load

MISSING, NONE, MINUS = "missing", "\N{EN DASH}", "\N{MINUS SIGN}"
FEW = 4  # comparisons without rows that are told one by one
FIRST = ("short", "paper")  # the settings that results are about; others follow


class Entry(NamedTuple):
    """One cell of a table: the results of its seeds, all of the same settings, and the paper's value."""

    results: Sequence[Result]
    paper: float | None
    parameters: int | None
    best: bool = False
    left_out: int = 0  # rows of older settings
    digits: int = 2  # behind the point
    meant: bool = True  # whether the recipe has such a cell

    @property
    def mean(self) -> float | None:
        return statistics.fmean(result.value for result in self.results) if self.results else None

    @property
    def spread(self) -> float | None:
        """The sample's standard deviation over seeds."""
        return statistics.stdev(result.value for result in self.results) if len(self.results) > 1 else None

    @property
    def gap(self) -> float | None:
        """Ours minus the paper's."""
        return self.mean - self.paper if self.mean is not None and self.paper is not None else None

    @property
    def seconds(self) -> float | None:
        """Of training one seed, the mean."""
        return statistics.fmean(result.seconds for result in self.results) if self.results else None

    @property
    def cpu_seconds(self) -> float:
        """Processor time of all seeds together."""
        return sum(result.cpu_seconds for result in self.results)

    @property
    def images_per_second(self) -> float | None:
        known = [result for result in self.results if is_number(result.details.get("batch")) and result.seconds > 0]
        # Without training, the images that were tested are all that were computed.
        speeds = [(r.steps * r.details["batch"] or r.n) / r.seconds for r in known]
        return statistics.fmean(speeds) if speeds else None

    @property
    def steps(self) -> list[int]:
        return sorted({result.steps for result in self.results})

    @property
    def notes(self) -> list[str]:
        """What the rows say about themselves, each once."""
        notes = (result.details.get("note") for result in self.results)
        return list(dict.fromkeys(note for note in notes if isinstance(note, str) and note.strip()))


class Pair(NamedTuple):
    """Two models on one column: how they compare, or why they cannot be compared."""

    a: Named
    b: Named
    column: Named
    comparison: Comparison | None
    reason: str = ""
    steps: str = ""  # what their training differs in


@dataclass(frozen=True)
class Table:
    """What was measured with one setting on one split."""

    recipe: Recipe
    setting: str
    split: str
    entries: Mapping[tuple[str, str], Entry]  # by row and column
    pairs: Sequence[Pair]

    @property
    def title(self) -> str:
        return f"{self.recipe.title}, setting {self.setting}, {self.split} images"

    @property
    def about(self) -> str:
        """What a reader must know of the setting and the split."""
        base, _, change = self.setting.partition(",")  # a trial is named short,lr=0.1
        setting = _sentence(self.recipe.settings.get(self.setting, self.recipe.settings.get(base, "")))
        changed = f"Changed: {change}." if change else ""
        split = "" if self.split == "test" else f"Measured on the {self.split} images, not on the test images."
        return " ".join(filter(None, [setting, changed, split]))

    @property
    def command(self) -> str:
        """The command that makes this table."""
        base, _, change = self.setting.partition(",")
        command = self.recipe.command
        command += f" --setting {base}" if base != "short" and list(self.recipe.settings) != [base] else ""
        command += f" {needs}" if (needs := self.recipe.needs.get(base)) else ""
        command += f" --split {self.split}" if self.split != "test" else ""
        command += f" --change {change.replace(',', ' ')}" if change else ""
        return command if self.recipe.command else ""

    @property
    def rows(self) -> Sequence[Named]:
        """All rows of the setting in a table of results; elsewhere, such as in trials, those that have any."""
        expected = self._expected if self.setting in FIRST and self.split == "test" else []
        return [row for row in self.recipe.rows if row in expected or self._measured(row)]

    @property
    def columns(self) -> Sequence[Named]:
        """Those of the setting, and others that have results."""
        base, _, _ = self.setting.partition(",")
        names = self.recipe.columns_of.get(base)
        measured = {column for (_, column), entry in self.entries.items() if entry.results}
        return [column for column in self.recipe.columns if names is None or column.name in {*names, *measured}]

    @property
    def _expected(self) -> Sequence[Named]:
        base, _, _ = self.setting.partition(",")
        names = self.recipe.rows_of.get(base)
        return [row for row in self.recipe.rows if names is None or row.name in names]

    def _measured(self, row: Named) -> bool:
        return any(self.entry(row, column).results for column in self.columns)

    def entry(self, row: Named, column: Named) -> Entry:
        return self.entries[row.name, column.name]

    def cells(self) -> Iterator[tuple[Named, Named, Entry]]:
        for row in self.rows:
            for column in self.columns:
                yield row, column, self.entry(row, column)

    @property
    def has_paper(self) -> bool:
        return any(map(self.of_paper, self.columns))

    def of_paper(self, column: Named) -> bool:
        """Whether the paper has a number in this column."""
        return any(self.entry(row, column).paper is not None for row in self.rows)

    @property
    def compares_scores(self) -> bool:
        """Whether its pairs differ in scores rather than in errors."""
        return any(pair.comparison.difference.scores for pair in self.pairs if pair.comparison)

    def remarks(self) -> list[str]:
        """What the numbers alone do not tell: what is missing, left out, shorter."""
        remarks = []
        absent = [row.title for row in self._expected if not self._measured(row)]
        missing = [
            f"{row.title} on {column.title}"
            for row, column, entry in self.cells()
            if not entry.results and entry.meant and self._measured(row)
        ]
        if absent or missing:
            remarks.append(f"Missing: {'; '.join(absent + missing)}.")
        for row, column, entry in self.cells():
            for note in entry.notes:
                remarks.append(f"{row.title} on {column.title}: {_sentence(note)}")
            if entry.left_out:
                remarks.append(
                    f"{row.title} on {column.title}: rows of other settings left out: {entry.left_out} "
                    "(those of the newest settings are shown)."
                )
        for column in self.columns:
            steps = sorted({step for row in self.rows for step in self.entry(row, column).steps})
            if len(steps) > 1:
                remarks.append(
                    f"On {column.title} not all were trained for the same number of steps: {count(steps[0])} to "
                    f"{count(steps[-1])}."
                )
        return remarks

    def legend(self, mark: str) -> str:
        """How to read the table, in which the best stand out by the mark."""
        text = [f"{self.recipe.metric}, {self.recipe.better} is better: mean ± standard deviation (number of seeds)."]
        if any(entry.best for entry in self.entries.values()):
            extreme = "lowest" if self.recipe.better == "lower" else "highest"
            text.append(f"{mark}: the {extreme} mean of a column, which alone proves nothing.")
        if self.has_paper:
            text.append("Paper: the value it prints; gap: ours minus the paper's.")
        return " ".join(text)


def tables(recipe: Recipe) -> list[Table]:
    """One table for every setting and split that has rows, `short` first, then `paper`; test images first."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in recipe.results:
        groups.setdefault((result.setting, result.split), []).append(result)
    return [_table(recipe, *group, groups[group]) for group in sorted(groups, key=_rank)]


def _rank(group: tuple[str, str]) -> tuple[int, str, bool, str]:
    setting, split = group
    return FIRST.index(setting) if setting in FIRST else len(FIRST), setting, split != "test", split


def _table(recipe: Recipe, setting: str, split: str, results: Sequence[Result]) -> Table:
    entries = {}
    # Smoke runs are on generated images.
    comparable = split == "test" and setting.split(",")[0] not in ("smoke", *recipe.unlike_paper)
    for row in recipe.rows:
        for column in recipe.columns:
            key = row.name, column.name
            rows = [result for result in results if (result.row, result.column) == key]
            shown = sorted((r for r in rows if r.settings == rows[-1].settings), key=lambda r: r.seed)
            parameters = shown[0].parameters if shown else recipe.parameters.get(key)
            paper = recipe.paper.get(key) if comparable else None
            digits = 2 if recipe.metric.endswith("%") else 3
            meant = not row.columns or column.name in row.columns
            entries[key] = Entry(shown, paper, parameters, left_out=len(rows) - len(shown), digits=digits, meant=meant)
    for column in recipe.columns:
        _mark_best(entries, [(row.name, column.name) for row in recipe.rows], recipe.better)
    table = Table(recipe, setting, split, entries, [])
    there = {row.name for row in table.rows}
    pairs = [pair for names in recipe.compare if there.issuperset(names) for pair in _pairs(table, *names)]
    return dataclasses.replace(table, pairs=pairs)


def _mark_best(entries: dict[tuple[str, str], Entry], column: Sequence[tuple[str, str]], better: str) -> None:
    means = {key: mean for key in column if (mean := entries[key].mean) is not None}
    if len(means) < 2:
        return
    best = min(means.values()) if better == "lower" else max(means.values())
    for key, mean in means.items():
        if math.isclose(mean, best, abs_tol=1e-9):
            entries[key] = entries[key]._replace(best=True)


def _pairs(table: Table, a: str, b: str) -> Iterator[Pair]:
    first, second = (next(row for row in table.rows if row.name == name) for name in (a, b))
    for column in table.columns:
        rows = [table.entry(first, column), table.entry(second, column)]
        if column.name in table.recipe.uncompared or not all(entry.meant for entry in rows):
            continue
        lacking = [named.title for named, entry in zip((first, second), rows, strict=True) if not entry.results]
        if lacking:
            reason = f"{' and '.join(lacking)} {'have' if len(lacking) > 1 else 'has'} no rows here"
            yield Pair(first, second, column, None, reason)
            continue
        steps = [" to ".join(map(count, entry.steps)) for entry in rows]
        unequal = "" if steps[0] == steps[1] else f"trained for {steps[0]} and {steps[1]} steps"
        try:
            yield Pair(first, second, column, comparison.compare(*(entry.results for entry in rows)), steps=unequal)
        except ValueError as error:
            yield Pair(first, second, column, None, str(error))


# ---- numbers as text -------------------------------------------------------------------------------


def number(value: float | None, digits: int = 2) -> str:
    return NONE if value is None else f"{value:.{digits}f}".replace("-", MINUS)


def signed(value: float | None, digits: int = 2) -> str:
    if value is None:
        return NONE
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", MINUS)


def interval(difference: Difference) -> str:
    """From the lower to the upper end."""
    return f"{signed(difference.low, difference.digits)} to {signed(difference.high, difference.digits)}"


def count(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def chance(p: float) -> str:
    """A p value: two digits, never a false zero."""
    return "p < 0.0001" if p < 0.0001 else f"p = {min(p, 1):.2g}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return NONE
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def value(entry: Entry) -> str:
    """Mean ± standard deviation (seeds)."""
    if entry.mean is None:
        return MISSING if entry.meant else NONE
    spread = "" if entry.spread is None else f" ± {number(entry.spread, entry.digits)}"
    return f"{number(entry.mean, entry.digits)}{spread} ({len(entry.results)})"


def _sentence(text: str) -> str:
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."


def seeds(numbers: Sequence[int]) -> str:
    return f"seed{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def in_words(pair: Pair) -> str:
    """The comparison as one or two sentences."""
    about = f"{pair.a.title} against {pair.b.title} on {pair.column.title}"
    if pair.comparison is None:
        return f"{about}: not compared, {pair.reason}."
    difference = pair.comparison.difference
    over = " over images alone" if len(difference.seeds) == 1 else ""
    unequal = f"; {pair.steps}" if pair.steps else ""
    unit, split = "points of error", f"Wrong only by {pair.a.title} : only by {pair.b.title}"
    if difference.scores:
        unit, split = "in score", f"Lower for {pair.a.title} : for {pair.b.title}"
        over = f", drawing {images_of(difference)} again,"
    return (
        f"{about}: {pair.comparison.verdict}. {signed(difference.mean, difference.digits)} {unit} (95 % interval{over} "
        f"{interval(difference)}; {count(difference.n)} images, {seeds(difference.seeds)}{unequal}). {split}: "
        f"{tests_in_words(pair.comparison)}."
    )


def images_of(difference: Difference) -> str:
    """What is drawn again for an interval."""
    return "images" if difference.together == 1 else f"groups of {difference.together} images"


def tests_in_words(found: Comparison) -> str:
    """McNemar's test, seed by seed and for all together."""
    return "; ".join(tests_by_seed(found))


def tests_by_seed(found: Comparison) -> list[str]:
    tests = {f"seed {seed}": test for seed, test in found.tests.items()}
    if len(tests) > 1:
        tests["all seeds"] = found.together
    return [f"{count(test.only_a)} : {count(test.only_b)}, {chance(test.p)} ({of})" for of, test in tests.items()]


# ---- terminal --------------------------------------------------------------------------------------


def show(folder: Path, console: Console | None = None) -> None:
    """Print the tables and comparisons of a folder."""
    show_recipes(load(folder), console)


def show_recipes(recipes: Iterable[Recipe], console: Console | None = None) -> None:
    """Print the tables and comparisons of recipes that are loaded."""
    console = console or Console(highlight=False)
    for recipe in recipes:
        for problem in recipe.problems:
            console.print(Text(problem, "yellow"), soft_wrap=True)
        found = tables(recipe)
        if not found:
            console.print(Text(no_rows(recipe)), soft_wrap=True)
        for table in found:
            console.print(_rich(table))
            for text in (table.legend("*"), table.about, *table.remarks()):
                if text:
                    console.print(Text(text, "dim"), soft_wrap=not console.is_terminal)
            if any(pair.comparison for pair in table.pairs):
                console.print(_rich_pairs(table))
            said = [in_words(pair) for pair in table.pairs if not pair.comparison]
            if len(said) > FEW:
                said = [f"{count(len(said))} comparisons are left out: a row is missing."]
            for text in said:
                console.print(Text(text, "dim"), soft_wrap=not console.is_terminal)
            console.print(_rich_costs(table))
            console.print()


def no_rows(recipe: Recipe) -> str:
    how = f": run `{recipe.command}`" if recipe.command else ""
    return f"{recipe.title}: no rows yet{how}."


def _rich(table: Table) -> RichTable:
    shown = _new(table.title, "model")
    for column in table.columns:
        shown.add_column(Text(column.title), justify="right", no_wrap=True)
        if table.of_paper(column):
            shown.add_column("paper", justify="right", no_wrap=True)
            shown.add_column("gap", justify="right", no_wrap=True)
    for row in table.rows:
        cells = [Text(row.title)]
        for column in table.columns:
            entry = table.entry(row, column)
            style = "bold" if entry.best else "" if entry.results else "dim"
            cells.append(Text(("* " if entry.best else "") + value(entry), style))
            if table.of_paper(column):
                cells += [Text(number(entry.paper, entry.digits)), Text(signed(entry.gap, entry.digits))]
        shown.add_row(*cells)
    return shown


def _rich_pairs(table: Table) -> RichTable:
    shown = _new("Pairwise, on the same images", "first against second")
    scores = table.compares_scores
    shown.add_column("first has" if scores else "first makes")
    split = "lower for\n1st : 2nd" if scores else "wrong only\nby 1st : 2nd"
    for head in ("score" if scores else "points", "95 % interval", split, "exact\ntest"):
        shown.add_column(head, justify="right", no_wrap=True)
    for pair in table.pairs:
        name = Text(f"{pair.a.title} against {pair.b.title}, {pair.column.title}")
        if pair.comparison is None:
            continue
        difference, test = pair.comparison.difference, pair.comparison.together
        shown.add_row(
            name,
            pair.comparison.verdict + (f"; {pair.steps}" if pair.steps else ""),
            signed(difference.mean, difference.digits),
            interval(difference),
            f"{count(test.only_a)} : {count(test.only_b)}",
            chance(test.p),
        )
    return shown


COSTS = ("seeds", "parameters", "steps", "time of a seed", "images/s", "processor time")


def costs(table: Table) -> list[tuple[str, str, list[str]]]:
    """What each measured cell cost: model, column, and the values of COSTS."""
    return [
        (
            row.title,
            on,
            [
                str(len(entry.results)),
                count(entry.parameters),
                " to ".join(map(count, entry.steps)),
                duration(entry.seconds),
                count(entry.images_per_second),
                duration(entry.cpu_seconds),
            ],
        )
        for row, on, entry in _trainings(table)
    ]


def _trainings(table: Table) -> list[tuple[Named, str, Entry]]:
    """What was trained: a network for each cell, or one for all columns of a row, which is then paid for once."""
    if not table.recipe.trains_once:
        return [(row, column.title, entry) for row, column, entry in table.cells() if entry.results]
    by_row = [(row, [table.entry(row, column) for column in table.columns]) for row in table.rows]
    fullest = [(row, max(entries, key=lambda entry: len(entry.results))) for row, entries in by_row if entries]
    return [(row, "all", entry) for row, entry in fullest if entry.results]


def cost_title(table: Table) -> str:
    seconds = sum(entry.cpu_seconds for _, _, entry in _trainings(table))
    trained = any(any(entry.steps) for _, _, entry in _trainings(table))
    what = "training" if trained else "computing, nothing was trained"
    return f"Cost of {what}: {duration(seconds)} of processor time, all cells and seeds together"


def _rich_costs(table: Table) -> RichTable:
    shown = _new(cost_title(table), "model")
    shown.add_column("on")
    for head in COSTS:
        shown.add_column(head, justify="right")
    for row, column, cells in costs(table):
        shown.add_row(Text(row), Text(column), *cells)
    return shown


def _new(title: str, first: str) -> RichTable:
    style: dict[str, Any] = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), "pad_edge": False}
    shown = RichTable(title=Text(title, "bold"), title_justify="left", **style)
    shown.add_column(first, min_width=12)
    return shown


# ---- Markdown --------------------------------------------------------------------------------------


def markdown(recipes: Iterable[Recipe]) -> str:
    """The tables and comparisons as Markdown, ready for a README."""
    return "\n\n".join("\n\n".join(_markdown(recipe)) for recipe in recipes) + "\n"


def _markdown(recipe: Recipe) -> Iterator[str]:
    found = tables(recipe)
    if not found:
        yield _escaped(no_rows(recipe))
    for table in found:
        yield f"**{_escaped(table.title)}**"
        heads = ["model"]
        for column in table.columns:
            heads += [column.title, "paper", "gap"] if table.of_paper(column) else [column.title]
        lines = []
        for row in table.rows:
            cells = [_escaped(row.title)]
            for column in table.columns:
                entry = table.entry(row, column)
                cells.append(f"**{value(entry)}**" if entry.best else value(entry))
                if table.of_paper(column):
                    cells += [number(entry.paper, entry.digits), signed(entry.gap, entry.digits)]
            lines.append(cells)
        yield _grid(heads, 1, lines)
        command = f"Made by `{table.command.replace('`', '')}`." if table.command else ""
        yield " ".join(filter(None, [_escaped(table.legend("Bold")), _escaped(table.about), command]))
        if bullets := [*table.remarks(), *map(in_words, table.pairs)]:
            yield "\n".join(f"- {_escaped(text)}" for text in bullets)
        yield f"{_escaped(cost_title(table))}:"
        cells_of = ([_escaped(row), _escaped(column), *cells] for row, column, cells in costs(table))
        yield _grid(["model", "on", *COSTS], 2, cells_of)
    for problem in recipe.problems:
        yield _escaped(problem)


def _grid(heads: Sequence[str], texts: int, lines: Iterable[Sequence[str]]) -> str:
    """A table whose first columns are texts, the others numbers."""
    rule = ["---"] * texts + ["---:"] * (len(heads) - texts)
    return "\n".join(f"| {' | '.join(line)} |" for line in ([_escaped(head) for head in heads], rule, *lines))


def _escaped(text: str) -> str:
    """Text that means itself in Markdown, also inside a table."""
    return re.sub(r"([\\`*_\[\]|#~$])", r"\\\1", text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
