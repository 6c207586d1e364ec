"""The cells of a recipe that are asked for: their hashes, plans and folders."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchreorder.engine.distributed import World
from patchreorder.engine.progress import Screen
from patchreorder.files import digest

from .recipe import Column, Plan, Recipe, Row
from .rows import LONGEST_TEXT, Cell
from .task import Task


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What the machine gives to a run; nothing of it changes what is computed, but for rounding.

    Args:
        workers: processes that decode images, for each process that trains.
        accumulate: parts in which a batch is computed.
        save_every: seconds between checkpoints.
        weights: a file with ImageNet-trained convolutions, where a recipe needs them and they are not to be fetched.
        trained: the output folder of another recipe, where one needs the networks that were trained there.
        tensorboard: log every training into its cell's folder.
    """

    workers: int = 0
    accumulate: int = 1
    save_every: float = 60.0
    weights: Path | None = None
    trained: Path | None = None
    tensorboard: bool = False


@dataclass(frozen=True, kw_only=True)
class Job:
    """One cell to measure, and what it needs.

    Args:
        folder: for the files of its training, which the columns of a row may share.
        start: the folder of the training whose weights this one begins with.
    """

    cell: Cell
    row: Row
    column: Column
    plan: Plan
    out: Path
    folder: Path
    data: Path | None = None
    world: World = dataclasses.field(default_factory=World)
    screen: Screen = dataclasses.field(default_factory=Screen)
    resources: Resources = Resources()
    start: Path | None = None


def jobs(
    recipe: Recipe,
    task: Task,
    *,
    out: Path,
    setting: str = "short",
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    split: str = "test",
    change: Mapping[str, Any] | None = None,
    **shared: Any,
) -> Iterator[Job]:
    """The cells that are asked for, the first seed of all rows before the second of any.

    Args:
        recipe: the table.
        task: which identifies the images of `data`.
        out: folder for the results.
        setting, rows, columns, seeds: which cells; by default those of the setting.
        split: `test`, or `validation`: train on a part of the training images, test on the rest; `series`, where a
            recipe has it, is another such split with a fold for each of the seeds 0, 1 and 2, look-alikes in one fold.
        change: other values for the setting's plan; the setting is then named after them.
        **shared: fields of every Job.

    Raises:
        ValueError: there is no such setting, row, column or split, or a change does not fit the plan.
    """
    if setting not in recipe.settings:
        raise ValueError(f"setting ({setting!r}) must be one of {', '.join(recipe.settings)}")
    if split not in recipe.splits:
        raise ValueError(f"split ({split!r}) must be {' or '.join(recipe.splits)} for {recipe.name}")
    for seed in seeds or ():
        if seed < 0:
            raise ValueError(f"seed ({seed}) must be 0 or more")
    chosen, change = recipe.settings[setting], change or {}
    named = ",".join([setting, *(f"{name}={value}" for name, value in sorted(change.items()))])
    if len(named) > LONGEST_TEXT:  # before the training, not when its row is refused
        raise ValueError(f"change ({named[:60]}...) has {len(named)} characters: {LONGEST_TEXT} are the most")
    instead = chosen.instead
    row_of = {row.name: dataclasses.replace(row, model=instead.get(row.model, row.model)) for row in recipe.rows}
    column_of = {
        column.name: dataclasses.replace(column, dataset=instead.get(column.dataset, column.dataset))
        for column in recipe.columns
    }
    row_names = _choose("rows", rows, [name for name in row_of if name in (chosen.rows or row_of)])
    column_names = _choose("columns", columns, [name for name in column_of if name in (chosen.columns or column_of)])
    wanted = {name: tuple(seeds if seeds is not None else chosen.seeds(name)) for name in row_names}
    meant = {name: row_of[name].columns or column_names for name in row_names}
    for name in rows or ():
        if not set(meant[name]) & set(column_names):
            raise ValueError(
                f"columns ({', '.join(column_names)}): {name} is measured in {', '.join(meant[name])} only"
            )

    def identified(name: str, column: str, seed: int) -> tuple[Cell, Plan, Path]:
        """The cell, its plan, and the folder of its training."""
        plan = chosen.plan(name, column).changed(change, own=task.changeable)
        facts = {"model": row_of[name].model, "options": dict(row_of[name].options), "plan": plan.hashed()}
        facts |= {"data": task.identify(shared.get("data"), plan, split)}
        facts = {key: value for key, value in facts.items() if value}
        cell = Cell(recipe.name, name, column, named, split, seed, "")
        trained = cell._replace(column="all", settings=digest(facts))
        cell = cell._replace(settings=digest(facts | {"dataset": column_of[column].dataset}))
        return cell, plan, out / "cells" / (trained if recipe.trains_once else cell).folder

    for seed in sorted({seed for own in wanted.values() for seed in own}):
        for name in row_names:
            for column in column_names:
                if seed not in wanted[name] or column not in meant[name]:
                    continue
                cell, plan, folder = identified(name, column, seed)
                start = identified(plan.start, column, seed)[2] if plan.start else None
                row, of_column = row_of[name], column_of[column]
                yield Job(
                    cell=cell, row=row, column=of_column, plan=plan, out=out, folder=folder, start=start, **shared
                )


def _choose(what: str, asked: Sequence[str] | None, there: Sequence[str]) -> Sequence[str]:
    if asked is None:
        return there
    for name in asked:
        if name not in there:
            raise ValueError(f"{what} ({name!r}) must be among {', '.join(there)}")
    return list(dict.fromkeys(asked))
