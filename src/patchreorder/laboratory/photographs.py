"""The tasks of tables of photographs: AlexNet trained from the first layer, or its classifier alone on features."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from patchreorder.data import backbone_weights, datasets, series
from patchreorder.data.generated import write_photos
from patchreorder.data.photos import Photos
from patchreorder.data.shards import Shards
from patchreorder.engine.batches import Dataset
from patchreorder.files import digest
from patchreorder.models import alexnet, create_model

from .cells import Job
from .classification import Classification
from .features import FeatureCache, Features
from .recipe import Column, Plan, Row

CURVES: Mapping[str, Mapping[str, Any]] = {"training loss": {"x": "epoch", "y": "training loss", "log": True}}


class PhotographTask(Classification):
    """Trains whole networks on photographs that are decoded anew in every epoch."""

    metric = "accuracy %"

    def __init__(self) -> None:
        super().__init__()
        self.listed: dict[tuple[Path, str], Photos] = {}  # a million files are not listed twice
        self.folds: dict[Path, Tensor] = {}  # every training image is read for them
        self.described: set[Path] = set()
        self.pretrained: dict[str, Tensor] | None = None

    def prepare(self, job: Job) -> None:
        if job.data is None and job.plan.synthetic and not _folder(job).is_dir():
            for part, images in (("train", 4), ("val", 2)):
                write_photos(_folder(job) / part, classes=6, images=images, seed=len(part))
        self._describe(job)

    def training_set(self, job: Job) -> Dataset:
        return self.training_photos(job)

    def test_set(self, job: Job) -> Dataset:
        return self.test_photos(job)

    def shown(self, job: Job) -> Dataset:
        return self.test_photos(job)

    def model(self, job: Job) -> nn.Module:
        return self.network(job)

    def names(self, job: Job) -> Sequence[str | int]:
        return self.classes(job)

    def training_photos(self, job: Job) -> Photos:
        """Photographs to train on; poses are drawn with other seeds than those of the test."""
        part = "fit" if job.cell.split == "validation" else "train"
        seed = 1 if job.plan.frozen else job.cell.seed + 1  # cached features serve all seeds
        return self._open(job, part, job.plan.view or "train", seed, job.plan.images, tested=False)

    def test_photos(self, job: Job) -> Photos:
        """Photographs to test on, in the view of the column."""
        part = {"test": "val", "validation": "validation", "series": "train"}[job.cell.split]
        return self._open(job, part, job.column.dataset, datasets.TEST_SEED, job.plan.tested, tested=True)

    def classes(self, job: Job) -> list[str]:
        """The names of the classes, in the order of the logits."""
        return self._list(_folder(job), "train").classes

    def readable(self, job: Job, part: str) -> Photos:
        """The photographs of a part; a training of a million images does not check each, `patchreorder shard` does."""
        return self._list(_folder(job), part)

    def _list(self, folder: Path, part: str) -> Photos:
        if (folder, part) not in self.listed:
            self.listed[folder, part] = Photos.open(folder, part, view="Ori")
        return self.listed[folder, part]

    def _open(self, job: Job, part: str, view: str, seed: int, count: int | None, *, tested: bool) -> Photos:
        folder = _folder(job)
        found = replace(self.readable(job, part).with_view(view, seed=seed), workers=job.resources.workers)
        if job.cell.split == "series":
            if folder not in self.folds:
                self.folds[folder] = series.folds(self.readable(job, "train"))
            held_out = self.folds[folder] == job.cell.seed % series.FOLDS
            found = found.without((held_out != tested).nonzero()[:, 0].tolist())
        return found if count is None else found.first(count)

    def _describe(self, job: Job) -> None:
        """Report once which files of a folder are no images, and which classes have no test image."""
        folder = _folder(job)
        if folder in self.described:
            return
        self.described.add(folder)
        train, test = (self._list(folder, part) for part in ("train", "val"))
        ignored = [name for images in (train, test) for name in getattr(images.source, "ignored", ())]
        lacking = [train.classes[label] for label in sorted(set(range(len(train.classes))) - set(test.labels.tolist()))]
        for names, what in (
            (ignored, "files are not images and are left out"),
            (lacking, "classes have no test image"),
        ):
            if names:
                more = ", ..." if len(names) > 5 else ""
                job.screen.say(f"{folder}: {len(names)} {what}: {', '.join(map(repr, names[:5]))}{more}")

    def identify(self, data: Path | None, plan: Plan, split: str) -> str:
        if data is None:
            return ""
        parts = {"test": ("train", "val"), "validation": ("fit", "validation"), "series": ("train",)}[split]
        return digest([image_digest(self._list(data, part)) for part in parts])

    def network(self, job: Job) -> nn.Module:
        """The row's network for the classes of the photographs, with pretrained convolutions if the plan says so."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(job.cell.seed)  # the same weights whenever it is made
            model = self.new_network(job)
        if job.plan.frozen:
            if not job.plan.synthetic:  # a smoke run must not fetch weights
                alexnet.load_convolutions(model, self.convolutions(job))
            alexnet.freeze_convolutions(model)
        return model

    def new_network(self, job: Job) -> nn.Module:
        options = {**job.plan.options, **job.row.options}
        return create_model(job.row.model, dataset="imagenet", classes=len(self.classes(job)), **options)

    def convolutions(self, job: Job) -> dict[str, Tensor]:
        """The pretrained weights, fetched or read once for the run."""
        if self.pretrained is None:
            self.pretrained = backbone_weights.alexnet_convolutions(file=job.resources.weights)
        return self.pretrained

    @classmethod
    def count_parameters(cls, row: Row, column: Column) -> int | None:
        """Parameters of a row's network for a thousand classes."""
        with torch.device("meta"):
            model = create_model(row.model, dataset="imagenet", **row.options)
            return sum(parameter.numel() for parameter in model.parameters())


class FrozenPhotographTask(PhotographTask):
    """Trains classifiers on the features of frozen, pretrained convolutions, which are computed once and kept.

    A network that warps its input, ST-CNN, has no fixed features: it is trained through the convolutions.
    """

    def __init__(self) -> None:
        super().__init__()
        self.checked: dict[tuple[Path, str], Photos] = {}
        self.cache = FeatureCache()

    def prepare(self, job: Job) -> None:
        super().prepare(job)
        if not _warps(job):
            self.training_set(job)
            self.test_set(job)

    def training_set(self, job: Job) -> Dataset:
        images = self.training_photos(job)
        return images if _warps(job) else self.features(job, images, copies=job.plan.copies)

    def test_set(self, job: Job) -> Dataset:
        images = self.test_photos(job)
        return images if _warps(job) else self.features(job, images, copies=1)

    def features(self, job: Job, images: Photos, *, copies: int) -> Features:
        """The features of the job's network, computed now or read from the output folder."""
        whole = self.readable(job, "train").chosen if job.cell.split == "series" else None  # folds share features
        weights_of = job.cell.seed if job.plan.synthetic else self.cache.fingerprint(self.convolutions(job))
        every = images if whole is None else replace(images, chosen=whole)
        facts = {"weights": weights_of, "images": image_digest(every)}
        return self.cache.features(job, images, every, copies=copies, facts=facts, network=lambda: self.network(job))

    def model(self, job: Job) -> nn.Module:
        model = self.network(job)
        return model if _warps(job) else Head(alexnet.split(model)[1])

    def parameters(self, job: Job, model: nn.Module) -> int:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in self.new_network(job).parameters())

    def readable(self, job: Job, part: str) -> Photos:
        """The photographs that can be decoded; the others are reported and left out."""
        folder = _folder(job)
        if (folder, part) in self.checked:
            return self.checked[folder, part]
        images = replace(self._list(folder, part), workers=job.resources.workers)
        bad = images.find_bad(progress=job.screen.progress(f"checking {len(images)} images ({part})"))
        for _, reason in bad:
            job.screen.say(f"left out: {reason}")
        left = images.without(index for index, _ in bad)
        for label in set(range(len(left.classes))) - set(left.labels.tolist()):
            if part in ("train", "fit"):
                raise ValueError(f"{folder}: no image of the class {left.classes[label]} can be read")
        self.checked[folder, part] = left
        return left

    @classmethod
    def count_parameters(cls, row: Row, column: Column) -> int | None:
        return None  # depends on the classes


class Head(nn.Module):
    """The classifier of a network, its weights named as there."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, features: Tensor) -> Tensor:
        return self.classifier(features)


def image_digest(images: Photos) -> str:
    """A digest of the names and labels of photographs."""
    names = hashlib.sha256("\0".join([*images.classes, "", *images.names]).encode("utf-8", "surrogateescape"))
    names.update(images.labels.numpy().tobytes())
    if isinstance(images.source, Shards):  # the same images, but read in another order
        names.update(b"shards")
    return names.hexdigest()


def _folder(job: Job) -> Path:
    if job.data is None and job.plan.synthetic:
        return job.out / "generated"
    if job.data is None:
        raise ValueError(
            f"{job.cell.recipe} needs --data DIR, a folder with train/CLASS/*.jpg and val/CLASS/*.jpg, or what "
            "`patchreorder shard` made of it"
        )
    return job.data


def _warps(job: Job) -> bool:
    return job.row.model == "alexnet_st"
