"""The task of a table of CIFAR-10: small pictures in memory, networks trained once and tested in several poses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from patchreorder.data import datasets
from patchreorder.data.datasets import ColourImages
from patchreorder.data.generated import generate_colour_images
from patchreorder.engine.batches import Dataset
from patchreorder.engine.options import Training
from patchreorder.engine.predict import predict
from patchreorder.metrics.accuracy import error_rate
from patchreorder.models import count_parameters, create_model

from .classification import Measure, Task
from .recipe import Column, Job, Row

NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
ANGLES = range(-90, 91, 15)
SHIFTS = range(-8, 9, 2)  # pixels to the right
CURVES: Mapping[str, Mapping[str, Any]] = {
    "training loss": {"x": "epoch", "y": "training loss", "log": True},
    "error by angle": {"x": "pictures turned by (degrees)", "y": "error %"},
    "error by shift": {"x": "pictures shifted right by (pixels)", "y": "error %"},
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a row costs: its training, the view of its training pictures, and how many are used (None: all)."""

    training: Training
    view: str
    images: int | None = None
    tested: int | None = None
    curve_images: int = 2000
    generated: bool = False
    note: str = ""


class _Task(Task):
    metric = "accuracy %"

    def fetch(self, job: Job) -> None:
        self.training_set(job)

    def training_set(self, job: Job) -> ColourImages:
        part = "train" if job.cell.split == "test" else "fit"
        return _some(job, part, job.plan.view, job.cell.seed + 1, job.plan.images)

    def test_set(self, job: Job) -> ColourImages:
        part = "test" if job.cell.split == "test" else "validation"
        return _some(job, part, job.column.dataset, datasets.TEST_SEED, job.plan.tested)

    def model(self, job: Job) -> nn.Module:
        return create_model(job.row.model, dataset="cifar10", **job.row.options)

    def names(self, job: Job) -> Sequence[str | int]:
        return NAMES

    def curves(self, job: Job, model: nn.Module, test_set: Dataset) -> dict[str, list[list[float]]]:
        if job.column.dataset != "cifar10":  # they are of the upright pictures, whatever the column
            return {}
        assert isinstance(test_set, ColourImages)
        some = test_set.first(job.plan.curve_images)

        def error(**pose: float) -> float:
            return error_rate(*predict(model, some.posed(**pose), world=job.world))

        return {
            "error by angle": [[float(angle), error(degrees=angle)] for angle in ANGLES],
            "error by shift": [[float(shift), error(right=shift)] for shift in SHIFTS],
        }


def _some(job: Job, part: str, variant: str, seed: int, count: int | None) -> ColourImages:
    if job.plan.generated:
        return generate_colour_images(variant, count=count or 64, seed=seed)
    found = datasets.cifar10(variant, split=part, seed=seed, folder=job.data, say=job.screen.say)
    return found.first(count or len(found))


def parameters(row: Row, column: Column) -> int:
    """How many parameters the row's network has."""
    with torch.device("meta"):
        return count_parameters(create_model(row.model, dataset="cifar10", **row.options))


measure = Measure(_Task())
