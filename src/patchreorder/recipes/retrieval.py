"""Measuring a cell of a table of retrieval: describe every image, and count how many of its group each one finds."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from patchreorder import recipes
from patchreorder.data import ukbench
from patchreorder.data import weights as of_others
from patchreorder.data.ukbench import GROUP, UKBench
from patchreorder.engine import checkpoint
from patchreorder.engine.describe import BATCH, describe, fingerprint, open_descriptor, ready
from patchreorder.metrics.retrieval import ns_score
from patchreorder.models import alexnet, create_model
from patchreorder.models.descriptors import Descriptor, create_descriptor
from patchreorder.results import Result, digest, is_count, provenance

from .spec import Job

LAYERS = {"fc6": "relu6", "fc7": "relu7"}  # what they say is taken behind their ReLU
SETTINGS = ("wide", "paper", "short")  # of the trainings to look for, the first that is there
WIDTH = 16  # of fc6 and fc7 where nothing is trained


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a cell is measured on.

    Args:
        groups: of UK-Bench, the first (None: all).
        generated: small generated images and random weights.
    """

    groups: int | None = None
    generated: bool = False
    note: str = ""


def changed(plan: Plan, change: Mapping[str, Any]) -> Plan:
    """The plan with another number of groups."""
    for name, value in change.items():
        if name != "groups" or not is_count(value) or not value:
            raise ValueError(f"change ({name}={value!r}) must be groups=N: nothing is trained here")
    return replace(plan, **change)


def identify(data: Path | None, plan: Plan, split: str) -> str:
    """Which images a cell is about, by their names."""
    return "" if data is None else digest(_opened(data).names)


class Measure:
    """Measures one cell; every process of the world calls this. The last network is kept for the next column."""

    def __init__(self) -> None:
        self.kept: tuple[Any, Descriptor] | None = None
        self.told: set[Path] = set()

    def __call__(self, job: Job) -> Result:
        if job.cell.split != "test":
            raise ValueError(f"split ({job.cell.split}) must be test: nothing is trained here, so nothing is held out")
        images = self.images(job)
        model = self.model(job)
        show = job.screen.count(f"{job.row.title}, {job.column.title}", len(images))
        begun, cpu_begun = time.perf_counter(), time.process_time()
        features = describe(model, images, world=job.world, report=show)
        seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - cpu_begun
        counts, mean = ns_score(features, images.groups)
        return Result(
            **job.cell._asdict(),
            metric="NS-score",
            value=mean,
            n=len(images),
            steps=0,
            seconds=round(seconds, 1),
            cpu_seconds=round(cpu_seconds, 1),
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            details={
                "dataset": job.column.dataset,
                "descriptor": model.name,
                "dimensions": model.dimensions,
                "weights": fingerprint(model),
                "scores": counts.tolist(),  # of every query, so that rows can be compared
                "together": GROUP,
                "groups": len(images) // GROUP,
                "batch": BATCH,
                "threads": torch.get_num_threads(),
                "processes": job.world.size,
                "resumed": 0,
                "note": job.plan.note,
            },
            **provenance(),
        )

    def images(self, job: Job) -> UKBench:
        folder = job.data
        if folder is None and job.plan.generated:
            folder = job.out / "generated"
            if job.world.leads and not folder.is_dir():
                ukbench.generated(folder, groups=2)
            job.world.wait()
        if folder is None:
            raise ValueError(f"{job.cell.recipe} needs --data DIR, a folder with UK-Bench's files ukbenchNNNNN.jpg")
        found = _opened(folder)
        for line in found.remarks() if folder not in self.told else ():
            job.screen.say(line)
        self.told.add(folder)
        found = replace(found, view=job.column.dataset, photos=replace(found.photos, workers=job.means.workers))
        return found if job.plan.groups is None else found.first(job.plan.groups)

    def model(self, job: Job) -> Descriptor:
        """The row's network; what is to be fetched is fetched by one process before all others ask for it."""
        known = (job.row, job.cell.seed, job.plan.generated, job.means.weights, job.means.trained)
        if self.kept is None or self.kept[0] != known:
            self.kept = None  # gone before the next one takes as much memory
            first = _model(job) if job.world.leads else None
            job.world.wait()
            self.kept = known, (first or _model(job)).to(job.world.device)
        return self.kept[1]


measure = Measure()


@functools.lru_cache(maxsize=2)
def _opened(folder: Path) -> UKBench:
    return UKBench.open(folder)


def _model(job: Job) -> Descriptor:
    layer = job.row.options.get("layer")
    if job.plan.generated:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(job.cell.seed)
            if layer is None:
                return ready(create_descriptor(job.row.model))
            of_row = _row("table2_grocery", job.row.model)
            model = create_model(of_row.model, dataset="imagenet", classes=2, width=WIDTH, **of_row.options)
            return ready(_up_to(model, job.row.model, layer, WIDTH))
    if layer is None:
        # The given file is AlexNet's: rows of other networks fetch theirs.
        weights = job.means.weights if job.row.model.startswith("alexnet/") else None
        return open_descriptor(job.row.model, weights=weights, say=job.screen.say)
    if job.means.trained is None:
        raise ValueError(
            f"{job.row.title} needs --trained DIR, the output folder of `patchreorder run table2_grocery` (wide, short)"
        )
    return connected(
        job.means.trained,
        job.row.model,
        layer=layer,
        seed=job.cell.seed,
        weights=job.means.weights,
        say=job.screen.say,
    )


def connected(
    run: Path,
    network: str,
    *,
    layer: str,
    seed: int = 0,
    weights: Path | None = None,
    say: Callable[[str], None] = lambda message: None,
) -> Descriptor:
    """What a fully connected layer of a trained AlexNet says, after its ReLU, as a descriptor.

    Args:
        run: output folder of `patchreorder run table2_grocery` or `table2`; of several trainings the last one of the
            setting wide, else of paper, else of short.
        network: a row of that table, such as cnn or pr_cnn.
        layer: fc6 or fc7.
        seed: of the training.
        weights: file with the ImageNet-trained convolutions, where the training left them as they are.
        say: gets a line about what is fetched.

    Raises:
        ValueError: there is no such training in the folder, or its weights are damaged.
    """
    if layer not in LAYERS:
        raise ValueError(f"layer ({layer!r}) must be one of {', '.join(LAYERS)}")
    names = [f"{network}.all.{setting}.test.{seed}.*/weights.safetensors" for setting in SETTINGS]
    found = next((files for name in names if (files := list((run / "cells").glob(name)))), [])
    if not found:
        raise ValueError(
            f"{run} holds no trained {network} of seed {seed}: `patchreorder run table2_grocery --setting wide --out "
            f"{run}` trains it"
        )
    file = max(found, key=lambda file: file.stat().st_mtime)
    tensors, state = checkpoint.read(file)
    row = _row(state["cell"][0], network)
    matrices = [tensor for name, tensor in sorted(tensors.items()) if tensor.dim() == 2 and "classifier." in name]
    width, classes = len(matrices[0]), len(matrices[-1])
    model = create_model(row.model, dataset="imagenet", classes=classes, width=width, **row.options)
    if not any(name.startswith("features.") for name in tensors):
        alexnet.load_convolutions(model, of_others.alexnet_convolutions(file=weights, say=say))
        tensors = {**model.state_dict(), **tensors}
    model.load_state_dict(tensors)
    return ready(_up_to(model, network, layer, width))


def _up_to(model: nn.Module, network: str, layer: str, width: int) -> Descriptor:
    front, classifier = alexnet.split(model)
    assert isinstance(model, alexnet.AlexNet)
    last = model.layers[LAYERS[layer]].removeprefix("classifier.")
    names = [name for name, _ in classifier.named_children()]
    parts = list(classifier.children())[: names.index(last) + 1]
    return Descriptor(f"{network}/{layer}", front, nn.Sequential(*parts), dimensions=width)


def _row(recipe: str, name: str) -> Any:
    return next(row for row in recipes.load(recipe).rows if row.name == name)
