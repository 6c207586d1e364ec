"""What a recipe is, and how its cells are measured one after the other, in one process or several at once."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patchreorder import files
from patchreorder.engine.distributed import World
from patchreorder.engine.progress import Screen
from patchreorder.laboratory import provenance, rows

from .rows import Cell, Result


@dataclass(frozen=True, kw_only=True)
class Row:
    """A line of the table: a network, its options, and the columns that it is meant for (none named: all)."""

    name: str
    title: str
    about: str
    model: str
    options: Mapping[str, Any] = field(default_factory=dict)
    columns: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the table: a data set, and among how many first answers the right one must be."""

    name: str
    title: str
    about: str
    dataset: str
    top: int = 1


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How much is spent on a cell, and how; every row of a table gets the same.

    Args:
        about: one line for readers.
        plan: what the recipe needs to know for a (row, column), JSON values or dataclasses of them; part of the hash.
        seeds: of a row.
        rows, columns: those that it has, all if None.
        needs: options that the command must have for it, such as `--trained DIR`.
        meaning: what a reader may conclude from its table, told after a run.
        like_paper: whether its numbers can be put beside the paper's.
    """

    about: str
    plan: Callable[[str, str], Any]
    seeds: Callable[[str], Sequence[int]] = lambda row: (0,)
    rows: Sequence[str] | None = None
    columns: Sequence[str] | None = None
    needs: str = ""
    meaning: str = ""
    like_paper: bool = True


@dataclass(frozen=True, kw_only=True)
class Means:
    """What a machine gives to a training; nothing of it changes what is computed, but for rounding.

    Args:
        workers: processes that decode images for each process that trains.
        accumulate: parts in which a batch is computed.
        save_every: seconds between checkpoints.
        weights: a file with ImageNet-trained convolutions, where a recipe needs them and they are not to be fetched.
        trained: the output folder of another recipe, where one needs the networks that were trained there.
    """

    workers: int = 0
    accumulate: int = 1
    save_every: float = 60.0
    weights: Path | None = None
    trained: Path | None = None


@dataclass(frozen=True)
class Job:
    """One cell to measure, and what it needs."""

    cell: Cell
    row: Row
    column: Column
    plan: Any
    out: Path
    data: Path | None
    world: World
    screen: Screen
    tensorboard: bool
    means: Means = Means()
    place: str = ""  # of the training that this cell shares with those of other columns
    start: Path | None = None  # the folder of the training that this one begins with

    @property
    def folder(self) -> Path:
        """Files of this cell: checkpoint, log."""
        return self.out / "cells" / (self.place or self.cell.folder)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A table of the paper: rows, columns, settings, and how a cell is measured.

    Args:
        measure: trains and evaluates one cell.
        change: a setting's plan with other values, for trials.
        paper: the paper's cells, by row and column.
        compare: pairs of rows that a paired test compares, the first against the second.
        curves: what the rows' curves are of: axes for each name.
        figure: how the report draws the paper's figure of the rows, see `patchreorder.report.figures`.
        parameters: the number of parameters of a row's network for a column, if it does not depend on the images.
        command: what makes the table, if it is not `patchreorder run NAME`.
        trains_once: whether one training serves all columns, which then differ in the test images only.
        identify: what else a cell is known by, of the images in the folder that the user gives.
        splits: what can be tested on, see `cells`.
    """

    name: str
    title: str
    about: str
    metric: str
    rows: Sequence[Row]
    columns: Sequence[Column]
    settings: Mapping[str, Setting]
    measure: Callable[[Job], Result]
    parameters: Callable[[Row, Column], int] | None
    change: Callable[[Any, Mapping[str, Any]], Any]
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    compare: Sequence[tuple[str, str]] = ()
    curves: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    figure: Mapping[str, Any] = field(default_factory=dict)
    better: str = "lower"
    command: str = ""
    trains_once: bool = False
    identify: Callable[[Path | None, Any, str], str] | None = None
    splits: Sequence[str] = ("test", "validation")

    def facts(self) -> dict[str, Any]:
        """What a report needs to know beside the rows."""
        return {
            "recipe": self.name,
            "title": self.title,
            "about": self.about,
            "metric": self.metric,
            "better": self.better,
            "command": self.command or f"patchreorder run {self.name}",
            "rows": [
                {"name": row.name, "title": row.title, "about": row.about}
                | ({"columns": list(row.columns)} if row.columns else {})
                for row in self.rows
            ],
            "columns": [
                {"name": c.name, "title": c.title, "about": c.about} | ({} if c.top == 1 else {"compared": False})
                for c in self.columns
            ],
            "paper": self.paper,
            "compare": self.compare,
            "settings": {name: setting.about for name, setting in self.settings.items()},
            "rows_of": {name: list(setting.rows) for name, setting in self.settings.items() if setting.rows},
            "columns_of": {name: list(setting.columns) for name, setting in self.settings.items() if setting.columns},
            "parameters": {
                row.name: {c.name: self.parameters(row, c) for c in self.columns} if self.parameters else {}
                for row in self.rows
            },
            "curves": self.curves,
            "figure": self.figure,
            "needs": {name: setting.needs for name, setting in self.settings.items() if setting.needs},
            "unlike_paper": [name for name, setting in self.settings.items() if not setting.like_paper],
        } | ({"trains_once": True} if self.trains_once else {})


@dataclass(frozen=True)
class Outcome:
    """What became of the cells that were asked for."""

    measured: list[Cell]
    there_before: list[Cell]
    elsewhere: list[Cell]  # another process is at them


def run(
    recipe: Recipe,
    *,
    out: Path,
    data: Path | None = None,
    world: World | None = None,
    screen: Screen | None = None,
    tensorboard: bool = False,
    means: Means | None = None,
    **which: Any,
) -> Outcome:
    """Measure the cells that are not in the folder yet; each row is on the disk as soon as its cell is done.

    Processes with the same folder share the work: a cell that another one is at is left to it.

    Args:
        recipe: the table.
        out: folder for the rows and everything else; cells that are there are not measured again.
        data: folder with the data, where it is not to be fetched.
        world: the processes that train together.
        screen: where to tell what happens.
        tensorboard: log every training into its cell's folder.
        means: what the machine gives.
        **which: cells, see `cells`; those of the setting `short` by default.
    """
    world, screen, means = world or World(), screen or Screen(), means or Means()
    if data is not None and not data.is_dir():
        raise ValueError(f"data ({data}) must be a folder that holds the data set's files")
    wanted = list(
        jobs(recipe, out=out, data=data, world=world, screen=screen, tensorboard=tensorboard, means=means, which=which)
    )
    outcome = Outcome([], [], [])
    provenance.commit()  # of now: the checkout may move on while we train
    if world.is_main:
        files.write_whole(out / f"{recipe.name}.json", json.dumps(recipe.facts(), indent=1).encode())
    for job in wanted:
        cell = job.cell
        if world.from_main(_is_done(out, cell)):
            outcome.there_before.append(cell)
            continue
        lock = files.try_lock(job.folder / "lock") if world.is_main else None
        try:
            if not world.from_main(lock is not None):
                outcome.elsewhere.append(cell)
                continue
            if world.from_main(_is_done(out, cell)):  # the other process has just ended
                outcome.there_before.append(cell)
                continue
            result = recipe.measure(job)
            if world.is_main:
                rows.append(out, result)
                digits = 2 if result.metric.endswith("%") else 3
                found = f"{result.value:.{digits}f} {result.metric}, {result.seconds / 60:.1f} min"
                screen.say(f"{job.row.title}, {job.column.title}, seed {cell.seed}: {found}")
            outcome.measured.append(cell)
        finally:
            if lock is not None:
                os.close(lock)
    return outcome


def jobs(
    recipe: Recipe,
    *,
    out: Path,
    data: Path | None,
    world: World,
    screen: Screen,
    tensorboard: bool,
    means: Means,
    which: Mapping[str, Any],
) -> Iterator[Job]:
    """The cells that are asked for, each with all that it needs."""
    for cell, row, column, plan in cells(recipe, data=data, **which):
        place = _place(recipe, cell, row, plan, data)
        job = Job(cell, row, column, plan, out, data, world, screen, tensorboard, means, place)
        if first := getattr(plan, "start", None):
            asked = {**which, "rows": [first], "columns": [column.name], "seeds": [cell.seed]}
            ((before, its_row, _, its_plan),) = cells(recipe, data=data, **asked)
            folder = _place(recipe, before, its_row, its_plan, data) or before.folder
            job = dataclasses.replace(job, start=out / "cells" / folder)
        yield job


def cells(
    recipe: Recipe,
    *,
    setting: str = "short",
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    split: str = "test",
    change: Mapping[str, Any] | None = None,
    data: Path | None = None,
) -> Iterator[tuple[Cell, Row, Column, Any]]:
    """The cells that are asked for, the first seed of all before the second of any.

    Args:
        recipe: the table.
        setting, rows, columns, seeds: which cells; by default those of the setting.
        split: `test`, or `validation`: train on a part of the training images, test on the rest; `series`, where a
            recipe has it, is another such part, unlike the others, for each of the seeds 0, 1 and 2.
        change: other values for the setting's plan; the setting is then named after them.
        data: folder with the data, where it is not to be fetched.
    """
    if setting not in recipe.settings:
        raise ValueError(f"setting ({setting!r}) must be one of {', '.join(recipe.settings)}")
    if split not in recipe.splits:
        raise ValueError(f"split ({split!r}) must be {' or '.join(recipe.splits)} for {recipe.name}")
    for seed in seeds or ():
        if seed < 0:
            raise ValueError(f"seed ({seed}) must be 0 or more")
    chosen = recipe.settings[setting]
    change = change or {}
    named = ",".join([setting, *(f"{name}={value}" for name, value in sorted(change.items()))])
    by_name = {row.name: row for row in recipe.rows}
    of_column = {column.name: column for column in recipe.columns}
    names = _choose("rows", rows, [name for name in by_name if name in (chosen.rows or by_name)])
    column_names = _choose("columns", columns, [name for name in of_column if name in (chosen.columns or of_column)])
    wanted = {name: tuple(seeds if seeds is not None else chosen.seeds(name)) for name in names}
    meant = {name: by_name[name].columns or column_names for name in names}
    for name in rows or ():
        if not set(meant[name]) & set(column_names):
            raise ValueError(f"columns ({', '.join(column_names)}): {name} is meant for {', '.join(meant[name])} only")
    for seed in sorted({seed for own in wanted.values() for seed in own}):
        for name in names:
            for column in column_names:
                if seed not in wanted[name] or column not in meant[name]:
                    continue
                row, plan = by_name[name], recipe.change(chosen.plan(name, column), change)
                facts = _facts(recipe, row, plan, data, split) | {"dataset": of_column[column].dataset}
                settings = files.digest(facts)
                cell = Cell(recipe.name, name, column, named, split, seed, settings)
                yield cell, row, of_column[column], plan


def _facts(recipe: Recipe, row: Row, plan: Any, data: Path | None, split: str) -> dict[str, Any]:
    """What decides about a training."""
    facts = {
        "model": row.model,
        "options": dict(row.options),
        "plan": dataclasses.asdict(plan) if dataclasses.is_dataclass(plan) else plan,  # type: ignore[arg-type]
    }
    return facts if recipe.identify is None else facts | {"data": recipe.identify(data, plan, split)}


def _place(recipe: Recipe, cell: Cell, row: Row, plan: Any, data: Path | None) -> str:
    """The folder of the training that all columns of a row share, or ""."""
    if not recipe.trains_once:
        return ""
    settings = files.digest(_facts(recipe, row, plan, data, cell.split))
    return cell._replace(column="all", settings=settings).folder


def _choose(what: str, asked: Sequence[str] | None, there: Sequence[str]) -> Sequence[str]:
    if asked is None:
        return there
    for name in asked:
        if name not in there:
            raise ValueError(f"{what} ({name!r}) must be among {', '.join(there)}")
    return list(dict.fromkeys(asked))


def _is_done(out: Path, cell: Cell) -> bool:
    path = out / f"{cell.recipe}.jsonl"
    return path.is_file() and any(result.cell == cell for result in rows.read(path).results)
