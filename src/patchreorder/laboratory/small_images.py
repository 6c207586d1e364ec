"""The tasks of tables of MNIST and CIFAR-10: images in memory, networks trained from scratch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from patchreorder.data.datasets import TEST_SEED, Cifar10, LabelledImages, Mnist
from patchreorder.data.generated import generate_colour_images, generate_digits
from patchreorder.engine.batches import Dataset
from patchreorder.engine.predict import predict
from patchreorder.metrics.accuracy import error_rate
from patchreorder.models import count_parameters, create_model

from .cells import Job
from .classification import Classification
from .recipe import Column, Row

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CURVES: Mapping[str, Mapping[str, Any]] = {
    "training loss": {"x": "epoch", "y": "training loss", "log": True},
    "error by angle": {"x": "images rotated by (degrees)", "y": "error %"},
    "error by shift": {"x": "images shifted right by (pixels)", "y": "error %"},
}


class FixedPoses:
    """A data set whose images are those of the first epoch in every epoch."""

    def __init__(self, data: Dataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, indices: Tensor, *, epoch: int = 0) -> tuple[Tensor, Tensor]:
        return self.data.batch(indices)


class SmallImageTask(Classification):
    """Trains on the plan's view of the images; the data set is read once for all cells."""

    dataset: type[Mnist] | type[Cifar10]
    generate: Callable[..., LabelledImages]
    angles: Sequence[int]
    shifts: Sequence[int]  # pixels to the right

    def __init__(self) -> None:
        super().__init__()
        self.loaded: Mnist | Cifar10 | None = None

    def prepare(self, job: Job) -> None:
        self.training_set(job)

    def view(self, job: Job) -> str:
        """The variant of the training images."""
        raise NotImplementedError

    def has_curves(self, job: Job) -> bool:
        """Whether curves are measured with this column; once for a training."""
        raise NotImplementedError

    def training_set(self, job: Job) -> Dataset:
        found = self._images(job, "train", self.view(job), job.cell.seed + 1, job.plan.images)
        return FixedPoses(found) if job.plan.fixed_poses else found

    def test_set(self, job: Job) -> LabelledImages:
        # Another seed than any training's: poses drawn for training must not come again in the test.
        return self._images(job, "test", job.column.dataset, TEST_SEED, job.plan.tested)

    def model(self, job: Job) -> nn.Module:
        return self.create(job.row, self.view(job))

    def curves(self, job: Job, model: nn.Module, test_set: Dataset) -> dict[str, list[list[float]]]:
        if not self.has_curves(job):
            return {}
        assert isinstance(test_set, LabelledImages)
        some = test_set.first(job.plan.curve_images)

        def error(**pose: float) -> float:
            return error_rate(*predict(model, some.posed(**pose), world=job.world))

        return {
            "error by angle": [[float(angle), error(degrees=angle)] for angle in self.angles],
            "error by shift": [[float(shift), error(right=shift)] for shift in self.shifts],
        }

    def _images(self, job: Job, part: str, variant: str, seed: int, count: int | None) -> LabelledImages:
        if job.plan.synthetic:
            return type(self).generate(variant, count=count or 64, seed=seed)
        if self.loaded is None:
            self.loaded = self.dataset(folder=job.data, say=job.screen.say)
        split = part if job.cell.split == "test" else {"train": "fit", "test": "validation"}[part]
        found = self.loaded.load(variant, split=split, seed=seed)
        if part == "train" and job.plan.images_by_seed:
            drawn = torch.from_numpy(np.random.default_rng(job.cell.seed).permutation(len(found)))
            found = replace(found, images=found.images[drawn], labels=found.labels[drawn])
        return found.first(count or len(found))

    @staticmethod
    def create(row: Row, dataset: str) -> nn.Module:
        """The row's network, for images of a data set."""
        return create_model(row.model, dataset=dataset, **row.options)

    @classmethod
    def count_parameters(cls, row: Row, column: Column) -> int:
        with torch.device("meta"):
            return count_parameters(cls.create(row, column.dataset))


class DigitTask(SmallImageTask):
    """MNIST: trains on the column's digits unless the plan has a view."""

    dataset, generate = Mnist, staticmethod(generate_digits)
    angles, shifts = range(-180, 181, 15), range(-7, 8)  # on T that is the whole canvas

    def view(self, job: Job) -> str:
        return job.plan.view or job.column.dataset

    def has_curves(self, job: Job) -> bool:
        return not job.plan.images_by_seed and job.column.dataset == self.view(job).removesuffix("-aug")


class Cifar10Task(SmallImageTask):
    """CIFAR-10: trains on upright images, flipped and cropped, unless the plan has a view."""

    metric = "accuracy %"
    dataset, generate = Cifar10, staticmethod(generate_colour_images)
    angles, shifts = range(-90, 91, 15), range(-8, 9, 2)

    def view(self, job: Job) -> str:
        return job.plan.view or "cifar10-train"

    def has_curves(self, job: Job) -> bool:
        return job.column.dataset == "cifar10"

    def names(self, job: Job) -> Sequence[str | int]:
        return CLASSES

    @staticmethod
    def create(row: Row, dataset: str) -> nn.Module:
        return create_model(row.model, dataset="cifar10", **row.options)
