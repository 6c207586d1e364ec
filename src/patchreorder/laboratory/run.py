"""Measuring the cells of a recipe one after the other, in one process or several at once."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patchreorder.engine.distributed import World
from patchreorder.engine.progress import Screen
from patchreorder.files import try_lock, write_whole

from . import provenance, rows
from .cells import Job, Resources, jobs
from .recipe import Recipe
from .rows import Cell
from .task import Task


@dataclass(frozen=True)
class Outcome:
    """What became of the cells that were asked for, and the task that measured them."""

    task: Task
    measured: list[Job] = field(default_factory=list)
    there_before: list[Job] = field(default_factory=list)
    elsewhere: list[Job] = field(default_factory=list)  # another process measures them


def run(
    recipe: Recipe,
    *,
    out: Path,
    data: Path | None = None,
    setting: str = "short",
    world: World | None = None,
    screen: Screen | None = None,
    resources: Resources | None = None,
    **which: Any,
) -> Outcome:
    """Measure the cells that are not in the folder yet; each row is on the disk as soon as its cell is done.

    Processes with the same folder share the work: a cell that another one measures is left to it.

    Args:
        recipe: the table.
        out: folder for the rows and everything else; cells that are there are not measured again.
        data: folder with the data, where it is not to be fetched.
        setting: of the recipe.
        world: the processes that train together.
        screen: shows progress and messages.
        resources: of the machine.
        **which: cells, see `jobs`.
    """
    world, screen = world or World(), screen or Screen()
    if data is not None and not data.is_dir():
        raise ValueError(f"data ({data}) must be a folder that holds the data set's files")
    chosen = recipe.settings.get(setting)
    task = ((chosen.task if chosen else None) or recipe.task)()
    shared: dict[str, Any] = {"data": data, "world": world, "screen": screen, "resources": resources or Resources()}
    wanted = list(jobs(recipe, task, out=out, setting=setting, **shared, **which))
    outcome = Outcome(task)
    provenance.commit()  # of now: the checkout may move on while we train
    if world.is_main:
        write_whole(out / f"{recipe.name}.json", json.dumps(recipe.facts(), indent=1).encode())
    for job in wanted:
        if world.from_main(_is_done(out, job.cell)):
            outcome.there_before.append(job)
            continue
        lock = try_lock(job.folder / "lock") if world.is_main else None
        try:
            if not world.from_main(lock is not None):
                outcome.elsewhere.append(job)
                continue
            if world.from_main(_is_done(out, job.cell)):  # the other process has just ended
                outcome.there_before.append(job)
                continue
            result = task.measure(job)
            if world.is_main:
                rows.append(out, result)
                digits = 2 if result.metric.endswith("%") else 3
                found = f"{result.value:.{digits}f} {result.metric}, {result.seconds / 60:.1f} min"
                screen.say(f"{job.row.title}, {job.column.title}, seed {job.cell.seed}: {found}")
            outcome.measured.append(job)
        finally:
            if lock is not None:
                os.close(lock)
    return outcome


def _is_done(out: Path, cell: Cell) -> bool:
    path = out / f"{cell.recipe}.jsonl"
    return path.is_file() and any(result.cell == cell for result in rows.read(path).results)
