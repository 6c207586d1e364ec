"""Networks that a table has trained, found again in its output folder; for the recipes that measure them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from patchreorder.data import backbone_weights as pretrained
from patchreorder.engine import checkpoint
from patchreorder.models import alexnet, create_model

from .cells import Job

# The table that trains networks for a source of images.
TABLES = {"mnist": "table1", "cifar10": "table2_cifar10", "grocery": "table2_grocery", "imagenet": "table2"}
DATASETS = {"table2_cifar10": "cifar10", "table2_grocery": "imagenet", "table2": "imagenet"}
# Untrained networks for smoke runs, by the names of the tables' rows.
SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "cnn": ("cifar_cnn", {}),
    "cnn_aug": ("cifar_cnn", {}),
    "st_cnn": ("cifar_st", {}),
    "pr_cnn": ("cifar_pr", {}),
    "pr_cnn_fine": ("cifar_pr_fine", {}),
}
_NARROW = {"variant": "torchvision", "classes": 2, "width": 16}
ALEXNETS: dict[str, tuple[str, dict[str, Any]]] = {
    "cnn": ("alexnet", _NARROW),
    "cnn_aug": ("alexnet", _NARROW),
    "si_cnn": ("alexnet_si", _NARROW),
    "st_cnn": ("alexnet_st", _NARROW),
    "pr_cnn": ("alexnet_pr", _NARROW | {"place": "conv5", "grid": 2, "levels": 2}),
    "pr_cnn_fine": ("alexnet_pr", _NARROW | {"place": "pool5", "grid": "pixels", "levels": 1}),
}


def untrained(job: Job, kind: dict[str, tuple[str, dict[str, Any]]]) -> nn.Module:
    """The network of a row with random weights, of one of the tables above."""
    name, options = kind[job.row.model]
    dataset = "cifar10" if kind is SMALL else "imagenet"
    return seeded(job.cell.seed, lambda: create_model(name, dataset=dataset, **options))


def seeded(seed: int, make: Callable[[], Any]) -> Any:
    """What `make` returns with this seed; torch's random state stays what it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def trained(job: Job, setting: str, table: str, *, column: str = "all") -> nn.Module:
    """The network that a row of a table trained, from the folder that the user names.

    Args:
        job: `job.row.model` is the row of that table.
        setting: of the training.
        table: the recipe.
        column: whose training it is, where columns have their own (Table 1).
    """
    if job.resources.trained is None:
        raise ValueError(
            f"{job.row.title} needs --trained DIR, the output folder of `patchreorder run {table} --setting {setting}`"
        )
    return load_trained(
        job.resources.trained,
        job.row.model,
        table=table,
        column=column,
        setting=setting,
        seed=job.cell.seed,
        weights=job.resources.weights,
        say=job.screen.say,
    )


def load_trained(
    run: Path,
    network: str,
    *,
    table: str = "table2_grocery",
    column: str = "all",
    setting: str = "short",
    seed: int = 0,
    weights: Path | None = None,
    say: Callable[[str], None] = lambda message: None,
) -> nn.Module:
    """A network that a table trained.

    Args:
        run: output folder of `patchreorder run`; of several trainings of a cell the last one.
        network: a row of the table, such as cnn or pr_cnn.
        table: table1, table2, table2_cifar10 or table2_grocery.
        column: whose training it is, where columns have their own (Table 1).
        setting, seed: of the training.
        weights: file with the ImageNet-trained convolutions, where they were frozen in training.
        say: gets a line about what is fetched.

    Raises:
        ValueError: there is no such training in the folder, or its weights are damaged.
    """
    found = list((run / "cells").glob(f"{network}.{column}.{setting}.test.{seed}.*/weights.safetensors"))
    if not found:
        of_column = "" if column == "all" else f" --columns {column}"
        raise ValueError(
            f"{run} holds no trained {network} of setting {setting} and seed {seed}: `patchreorder run {table} "
            f"--setting {setting} --rows {network}{of_column} --seeds {seed} --out {run}` trains it"
        )
    file = max(found, key=lambda file: file.stat().st_mtime)
    tensors, state = checkpoint.read(file)
    made_by = str(state["cell"][0])
    if made_by not in TABLES.values() or "model" not in state:
        raise ValueError(f"{file} is of {made_by}, whose networks cannot be read here: name the folder of {table}")
    dataset = DATASETS.get(made_by) or f"mnist-{column.lower()}"
    options = dict(state["options"])
    if dataset == "imagenet":  # as wide as its weights
        matrices = [tensor for name, tensor in sorted(tensors.items()) if tensor.dim() == 2 and "classifier." in name]
        options |= {"classes": len(matrices[-1]), "width": len(matrices[0])}
    model = create_model(state["model"], dataset=dataset, **options)
    if dataset == "imagenet" and not any(name.startswith("features.") for name in tensors):
        alexnet.load_convolutions(model, pretrained.alexnet_convolutions(file=weights, say=say))
        tensors = {**model.state_dict(), **tensors}
    model.load_state_dict(tensors)
    return model
