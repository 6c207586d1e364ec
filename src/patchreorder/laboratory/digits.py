"""The task of tables of digits: MNIST turned and shifted, the networks for it, and how they answer to poses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from patchreorder.data import datasets, transforms
from patchreorder.data.datasets import Digits
from patchreorder.data.generated import generate_digits
from patchreorder.engine.batches import Dataset
from patchreorder.engine.distributed import World
from patchreorder.engine.options import Training
from patchreorder.engine.predict import predict
from patchreorder.metrics.accuracy import error_rate
from patchreorder.models import count_parameters, create_model

from .classification import Measure, Task
from .recipe import Column, Job, Row

ANGLES = range(-180, 181, 15)
SHIFTS = range(-7, 8)  # pixels to the right; on T that is the whole canvas
CURVES: Mapping[str, Mapping[str, Any]] = {
    "training loss": {"x": "epoch", "y": "training loss", "log": True},
    "error by angle": {"x": "digits turned by (degrees)", "y": "error %"},
    "error by shift": {"x": "digits shifted right by (pixels)", "y": "error %"},
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a cell of a table of digits costs: its training, and how many images of the sets are used (None: all)."""

    training: Training
    images: int | None = None
    tested: int | None = None
    curve_images: int = 2000
    generated: bool = False
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class OneTraining(Plan):
    """A training on `view`, one of the data sets of digits, that serves all columns."""

    view: str


def parameters(row: Row, column: Column) -> int:
    """How many parameters the row's network has for the column's images."""
    with torch.device("meta"):
        return count_parameters(create_model(row.model, dataset=column.dataset, **row.options))


class _Task(Task):
    def fetch(self, job: Job) -> None:
        _digits(job)

    def training_set(self, job: Job) -> Dataset:
        return _digits(job)[0]

    def test_set(self, job: Job) -> Dataset:
        return _digits(job)[1]

    def model(self, job: Job) -> nn.Module:
        return create_model(job.row.model, dataset=_view(job), **job.row.options)

    def curves(self, job: Job, model: nn.Module, test_set: Dataset) -> dict[str, list[list[float]]]:
        assert isinstance(test_set, Digits)
        if job.column.dataset != _view(job).removesuffix("-aug"):
            return {}  # told once, with the column of the images that it was trained on
        return _responses(model, test_set.first(job.plan.curve_images), job.world)


measure = Measure(_Task())


def _view(job: Job) -> str:
    """What is trained on: the column's digits, or the plan's."""
    return job.plan.view if isinstance(job.plan, OneTraining) else job.column.dataset


def _digits(job: Job) -> tuple[Digits, Digits]:
    """The digits to train on, and those to test on."""
    plan: Plan = job.plan
    variants, seed = (_view(job), job.column.dataset), job.cell.seed
    if plan.generated:
        training = generate_digits(variants[0], count=plan.images or 64, seed=seed + 1)
        return training, generate_digits(variants[1], count=plan.tested or 64)
    parts = ("train", "test") if job.cell.split == "test" else ("fit", "validation")
    # What was drawn for training must not come again in the test: the seeds are apart.
    training, test = (
        datasets.mnist(variant, split=part, seed=own, folder=job.data, say=job.screen.say)
        for variant, part, own in zip(variants, parts, (seed + 1, datasets.TEST_SEED), strict=True)
    )
    return training.first(plan.images or len(training)), test.first(plan.tested or len(test))


class _Posed:
    """Digits that are all turned and shifted alike, in the middle of the variant's canvas."""

    def __init__(self, digits: Digits, *, degrees: float = 0.0, right: float = 0.0) -> None:
        self.digits, self.degrees, self.right = digits, degrees, right

    def __len__(self) -> int:
        return len(self.digits)

    def batch(self, indices: Tensor, *, epoch: int = 0) -> tuple[Tensor, Tensor]:
        images = self.digits.images[indices].to(torch.get_default_dtype()).div_(255)
        size = datasets.MNIST_VARIANTS[self.digits.variant].size
        full = torch.ones(len(indices))
        shift = torch.stack([torch.zeros(len(indices)), full * self.right], dim=1)
        posed = transforms.warp(images, degrees=full * self.degrees, scale=full, shift=shift, size=(size, size))
        return posed, self.digits.labels[indices]


def _responses(model: nn.Module, digits: Digits, world: World) -> dict[str, list[list[float]]]:
    """Errors of digits that are all turned, or all shifted, by the same amount."""

    def error(**pose: float) -> float:
        return error_rate(*predict(model, _Posed(digits, **pose), world=world))

    return {
        "error by angle": [[float(angle), error(degrees=angle)] for angle in ANGLES],
        "error by shift": [[float(shift), error(right=shift)] for shift in SHIFTS],
    }
