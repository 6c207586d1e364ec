"""The tasks of tables of MNIST, CIFAR-10 and Tiny-ImageNet: images in memory, networks trained from scratch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from patchreorder.data.datasets import TEST_SEED, Cifar10, LabelledImages, Mnist
from patchreorder.data.generated import generate_colour_images, generate_digits, generate_tiny_images
from patchreorder.data.tiny_imagenet import TinyImageNet
from patchreorder.engine.batches import Dataset
from patchreorder.engine.predict import predict
from patchreorder.files import digest
from patchreorder.metrics.accuracy import error_rate
from patchreorder.models import count_parameters, create_model

from .cells import Job
from .classification import Classification
from .recipe import Column, Plan, Row

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CURVES: Mapping[str, Mapping[str, Any]] = {
    "training loss": {"x": "epoch", "y": "training loss", "log": True},
    "error by step": {"x": "steps of training", "y": "error %"},
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
        self.loaded: Mnist | Cifar10 | TinyImageNet | None = None

    def prepare(self, job: Job) -> None:
        self.training_set(job)

    def open(self, job: Job) -> Mnist | Cifar10 | TinyImageNet:
        """The files of the data set."""
        return self.dataset(folder=job.data, say=job.screen.say)

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
            self.loaded = self.open(job)
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


class TinyTask(SmallImageTask):
    """Tiny-ImageNet: trains on upright photographs, flipped and shifted, unless the plan has a view.

    The photographs are decoded once, into a file of the output folder that all its processes share.
    """

    metric = "accuracy %"
    changeable = (*SmallImageTask.changeable, "options")
    generate = staticmethod(generate_tiny_images)
    angles, shifts = range(-90, 91, 15), range(-16, 17, 4)

    def __init__(self) -> None:
        super().__init__()
        self.folders: dict[Path, TinyImageNet] = {}

    def identify(self, data: Path | None, plan: Plan, split: str) -> str:
        if data is None or plan.synthetic:
            return ""
        listed = [self._folder(data).listing(part) for part in ("train", "test")]
        return digest([[part.names, part.labels.tolist()] for part in listed])

    def open(self, job: Job) -> TinyImageNet:
        if job.data is None:
            raise ValueError(f"{job.cell.recipe} needs --data DIR, the folder tiny-imagenet-200")
        found = self._folder(job.data)
        found.kept, found.say = job.out / "decoded", job.screen.say
        return found

    def view(self, job: Job) -> str:
        return job.plan.view or "tiny-train"

    def has_curves(self, job: Job) -> bool:
        return job.column.dataset == "tiny" and job.column.top == 1

    def names(self, job: Job) -> Sequence[str | int]:
        return range(1_000_000) if job.plan.synthetic else self.open(job).titles

    def model(self, job: Job) -> nn.Module:
        return create_model(job.row.model, dataset="tiny", **{**job.plan.options, **job.row.options})

    def _folder(self, data: Path) -> TinyImageNet:
        if data not in self.folders:
            self.folders[data] = TinyImageNet(data)
        return self.folders[data]

    @staticmethod
    def create(row: Row, dataset: str) -> nn.Module:
        return create_model(row.model, dataset="tiny", **row.options)
