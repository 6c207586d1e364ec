"""`patchreorder run RECIPE`: train and measure the cells of a table."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from patchreorder import recipes
from patchreorder.report import figures
from patchreorder.report.folder import load
from patchreorder.report.terminal import show

from .console import open_console
from .values import Advanced, File, Folder, Shown


def run(
    recipe: Annotated[str, Positional, arg(metavar="RECIPE")],
    *,
    setting: str = "short",
    rows: tuple[str, ...] = (),
    columns: tuple[str, ...] = (),
    seeds: tuple[int, ...] = (),
    out: Folder | None = None,
    data: Folder | None = None,
    trained: Folder | None = None,
    split: Advanced[Literal["test", "validation", "series"]] = "test",
    change: Advanced[tuple[Annotated[str, Shown("NAME=VALUE")], ...]] = (),
    weights: Advanced[File | None] = None,
    threads: Advanced[int] = 0,
    workers: Advanced[int | None] = None,
    accumulate: Advanced[int] = 1,
    save_every: Advanced[float] = 60.0,
    tensorboard: Advanced[bool] = False,
) -> None:
    """Train and measure the cells of a table; a finished cell is never trained again.

    Several of these at once share the work if they have the same --out. With torchrun -m patchreorder run, many
    processes train one cell together. `patchreorder run RECIPE --help` explains a recipe's settings, rows and columns.

    Examples:
        patchreorder run few --setting demo
        patchreorder run table2_grocery --data groceries --rows cnn pr_cnn_fine

    Args:
        recipe: the table or figure, see below.
        setting: how much to spend: short (our results), paper, demo (minutes), smoke (seconds, no download), or
            another one of the recipe.
        rows: the networks; all those of the setting by default.
        columns: the data sets; all by default.
        seeds: by default those of the setting.
        split: validation trains on a part of the training images and tests on the rest, to choose settings on; so does
            series, which keeps look-alike photographs in one fold (table2_grocery): seeds 0, 1, 2 are its three folds.
        change: other values for the training, such as lr=0.1 epochs=5; the rows' setting is named after them.
        out: folder for the results; runs/RECIPE by default.
        data: folder with the data set's files; MNIST and CIFAR-10 are fetched once and cached without it. For
            photographs a folder with train/CLASS/*.jpg and val/CLASS/*.jpg, or what `patchreorder shard` made of it;
            for table3 one with ukbench00000.jpg and so on.
        weights: file with ImageNet-trained convolutions (.safetensors, .pth), where a table needs them; fetched else.
        trained: for table3 and the figures, the output folder of the table whose networks are to be measured, such as
            runs/table2_grocery; cells in the same --out are those of one such folder.
        threads: of each process; by default all cores.
        workers: processes that decode photographs, for each process that trains; by default all cores.
        accumulate: compute a batch in so many parts, one after the other, to save memory.
        save_every: seconds between checkpoints.
        tensorboard: log every training into its cell's folder.
    """
    console = open_console()
    changes = _values(change)
    if accumulate < 1:
        raise ValueError(f"accumulate ({accumulate}) must be 1 or more")
    if not save_every >= 0:
        raise ValueError(f"save-every ({save_every}) must be 0 seconds or more")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # else every process logs how it shares its gradients
    chosen = recipes.load(recipe)  # before torch: a wrong name fails at once
    out = out or Path("runs") / chosen.name
    decoders = use_cores(threads, workers)
    from patchreorder.engine.distributed import join
    from patchreorder.engine.progress import Screen, Terminal
    from patchreorder.laboratory.cells import Resources
    from patchreorder.laboratory.run import run as run_recipe

    with join() as world:
        terminal = Terminal(console)
        screen = terminal if world.is_main else Screen()
        try:
            outcome = run_recipe(
                chosen,
                out=out,
                setting=setting,
                rows=rows or None,
                columns=columns or None,
                seeds=seeds or None,
                split=split,
                change=changes,
                data=data,
                world=world,
                screen=screen,
                resources=Resources(
                    workers=decoders,
                    accumulate=accumulate,
                    save_every=save_every,
                    weights=weights,
                    trained=trained,
                    tensorboard=tensorboard,
                ),
            )
        except KeyboardInterrupt as stop:
            screen.say(f"{str(stop) or 'stopped'}; the same command goes on from there")
            raise
        finally:
            terminal.close()
    if not world.is_main:
        return
    there = load(out)
    show(there, console)
    try:
        drawn = figures.write([recipe for recipe in there if recipe.name == chosen.name], out)
    except ImportError as error:  # the rows are measured: the figure can wait
        drawn = []
        screen.say(f"No figure: {error}")
    if meaning := chosen.settings[setting].meaning:
        screen.say(f"What it means: {meaning}")
    screen.say(
        f"\n{len(outcome.measured)} cells measured, {len(outcome.there_before)} were there"
        + (f", {len(outcome.elsewhere)} are being measured by another process" if outcome.elsewhere else "")
        + f". Rows: {out / chosen.name}.jsonl"
        + (f". Figure: {', '.join(map(str, drawn))}" if drawn else "")
        + f"\nNext: `patchreorder report {out}` writes the page with curves and mistakes."
    )


def help_sections(args: list[str]) -> dict[str, dict[str, str]]:
    """What help lists beside the options: all recipes, or the settings, rows and columns of the one that is named."""
    named = next((word for word in args if word.replace("-", "_") in recipes.NAMES), None)
    if named is None:
        settings = {
            name: f"{about}. Settings: {', '.join(recipes.SETTINGS[name])}" for name, about in recipes.NAMES.items()
        }
        return {"recipes": settings}
    recipe = recipes.load(named)
    return {
        f"settings of {recipe.name}": {name: setting.about for name, setting in recipe.settings.items()},
        f"rows of {recipe.name}": {row.name: row.about for row in recipe.rows},
        f"columns of {recipe.name}": {column.name: column.about for column in recipe.columns},
    }


def use_cores(threads: int, workers: int | None) -> int:
    """Set up this process to compute; return the number of processes that decode photographs, all cores by default."""
    if threads < 0:
        raise ValueError(f"threads ({threads}) must be 0 (all cores) or more")
    if workers is not None and workers < 0:
        raise ValueError(f"workers ({workers}) must be 0 (decode in the process that trains) or more")
    import torch

    from patchreorder.data.loader import processors
    from patchreorder.engine.memory import keep_freed_memory

    keep_freed_memory()
    if threads:
        torch.set_num_threads(threads)
    cores = processors() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, cores) if workers is None else workers


def _values(change: tuple[str, ...]) -> dict[str, Any]:
    values = {}
    for text in change:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"change ({text!r}) must be NAME=VALUE, such as lr=0.1")
        if name in values:
            raise ValueError(f"change ({text!r}) names {name} again")
        try:
            values[name] = json.loads(value)
        except ValueError:
            values[name] = value
    return values
