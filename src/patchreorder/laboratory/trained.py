"""Networks that a table has trained, found again in its output folder; shared by the recipes that measure them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from patchreorder import recipes
from patchreorder.data import weights as of_others
from patchreorder.engine import checkpoint
from patchreorder.models import alexnet, create_model

from .recipe import Job, Row

WIDTH = 16  # of fc6 and fc7 where nothing is trained
GROCERY, IMAGENET, CIFAR10, MNIST = "table2_grocery", "table2", "table2_cifar10", "table1"


def generated_network(job: Job, recipe: str = GROCERY, *, column: str = "all") -> nn.Module:
    """The network of a row of a table, with random weights; AlexNets are narrow."""
    row = _row(recipe, job.row.model)
    options: dict[str, Any] = {"classes": 2, "width": WIDTH} if recipe in (GROCERY, IMAGENET) else {}
    dataset = _dataset(recipe, column)
    return seeded(job, lambda: create_model(row.model, dataset=dataset, **options, **row.options))


def trained_network(job: Job, setting: str, recipe: str = "", *, column: str = "all") -> nn.Module:
    """The network that a row of a table trained, from the folder that the user names.

    Args:
        job: `job.row.model` is the row of that table.
        setting: of the training.
        recipe: the table; by default that of photographs: `table2` for `paper`, `table2_grocery` for any other.
        column: whose training it is, where columns have their own (Table 1).
    """
    recipe = recipe or _of_photographs(setting)
    if job.means.trained is None:
        raise ValueError(
            f"{job.row.title} needs --trained DIR, the output folder of `patchreorder run {recipe} --setting {setting}`"
        )
    return load_trained(
        job.means.trained,
        job.row.model,
        recipe=recipe,
        column=column,
        setting=setting,
        seed=job.cell.seed,
        weights=job.means.weights,
        say=job.screen.say,
    )


def seeded(job: Job, make: Callable[[], Any]) -> Any:
    """What `make` gives with the cell's seed; other random numbers go on as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.cell.seed)
        return make()


def load_trained(
    run: Path,
    network: str,
    *,
    recipe: str = "",
    column: str = "all",
    setting: str = "short",
    seed: int = 0,
    weights: Path | None = None,
    say: Callable[[str], None] = lambda message: None,
) -> nn.Module:
    """A network that a table trained.

    Args:
        run: output folder of `patchreorder run` with table2_grocery, table2, table2_cifar10 or table1; of several
            trainings the last one.
        network: a row of that table, such as cnn or pr_cnn.
        recipe: the table that is to be run if there is no such training; by default one of photographs.
        column: whose training it is, where columns have their own (Table 1).
        setting, seed: of the training.
        weights: file with the ImageNet-trained convolutions, where the training left them as they are.
        say: gets a line about what is fetched.

    Raises:
        ValueError: there is no such training in the folder, or its weights are damaged.
    """
    found = list((run / "cells").glob(f"{network}.{column}.{setting}.test.{seed}.*/weights.safetensors"))
    if not found:
        of_column = "" if column == "all" else f" --columns {column}"
        raise ValueError(
            f"{run} holds no trained {network} of setting {setting} and seed {seed}: `patchreorder run "
            f"{recipe or _of_photographs(setting)} --setting {setting} --rows {network}{of_column} --seeds {seed} "
            f"--out {run}` trains it"
        )
    file = max(found, key=lambda file: file.stat().st_mtime)
    tensors, state = checkpoint.read(file)
    made_by = str(state["cell"][0])
    if made_by not in (GROCERY, IMAGENET, CIFAR10, MNIST):
        raise ValueError(f"{file} is of {made_by}, of which no networks are read: name the folder of another table")
    row = _row(made_by, network)
    if made_by in (CIFAR10, MNIST):
        model = create_model(row.model, dataset=_dataset(made_by, column), **row.options)
    else:
        model, tensors = _alexnet(row, tensors, weights=weights, say=say)
    model.load_state_dict(tensors)
    return model


def _alexnet(
    row: Row, tensors: dict[str, Tensor], *, weights: Path | None, say: Callable[[str], None]
) -> tuple[nn.Module, dict[str, Tensor]]:
    """An AlexNet as wide as its weights, and all of them: those that training left out are fetched."""
    matrices = [tensor for name, tensor in sorted(tensors.items()) if tensor.dim() == 2 and "classifier." in name]
    width, classes = len(matrices[0]), len(matrices[-1])
    model = create_model(row.model, dataset="imagenet", classes=classes, width=width, **row.options)
    if not any(name.startswith("features.") for name in tensors):
        alexnet.load_convolutions(model, of_others.alexnet_convolutions(file=weights, say=say))
        tensors = {**model.state_dict(), **tensors}
    return model, tensors


def _of_photographs(setting: str) -> str:
    return IMAGENET if setting == "paper" else GROCERY


def _dataset(recipe: str, column: str) -> str:
    """What the networks of a table are made for."""
    if recipe in (GROCERY, IMAGENET):
        return "imagenet"
    return "cifar10" if recipe == CIFAR10 else {"R": "mnist-r", "T": "mnist-t"}[column]


def _row(recipe: str, name: str) -> Row:
    return next(row for row in recipes.load(recipe).rows if row.name == name)
