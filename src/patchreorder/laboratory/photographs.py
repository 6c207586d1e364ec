"""The task of tables of photographs: AlexNet trained whole, or its classifier alone on features that are kept."""

from __future__ import annotations

import functools
import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from patchreorder.data import datasets, series, weights
from patchreorder.data.generated import write_photos
from patchreorder.data.loader import stream
from patchreorder.data.photos import Photos
from patchreorder.data.shards import Shards
from patchreorder.data.views import VIEWS
from patchreorder.engine import checkpoint
from patchreorder.engine.batches import Dataset, model_input
from patchreorder.engine.options import Training
from patchreorder.files import digest
from patchreorder.models import alexnet, create_model

from .classification import Measure, Task
from .recipe import Column, Job, Row

CURVES: Mapping[str, Mapping[str, Any]] = {"training loss": {"x": "epoch", "y": "training loss", "log": True}}
CHUNK = 512  # images whose features are kept together
BATCH = 32  # images that are computed together
OWN_TRUNK = ("alexnet_si", "alexnet_blur")  # rows that differ from AlexNet before the fifth convolution's answer


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a row of a table of photographs costs.

    Args:
        training: how.
        view: of the training images, see `patchreorder.data.photos`.
        copies: how many views of every image the kept features are of; further passes use them again in turn.
        start: the row whose weights the training begins with.
        frozen: the convolutions are those trained on ImageNet, and stay as they are.
        options: of the network, for all rows.
        images, tested: how many images of the sets are used (None: all).
        generated: small generated images instead of a folder's.
    """

    training: Training
    view: str = "train"
    copies: int = 1
    start: str | None = None
    frozen: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    images: int | None = None
    tested: int | None = None
    generated: bool = False
    note: str = ""


class Whole(Task):
    """Networks that are trained from the first layer to the last, on images decoded anew for every pass."""

    metric = "accuracy %"

    def fetch(self, job: Job) -> None:
        if job.data is None and job.plan.generated and not _folder(job).is_dir():
            for part, images in (("train", 4), ("val", 2)):
                write_photos(_folder(job) / part, classes=6, images=images, seed=len(part))
        _tell(job)

    def training_set(self, job: Job) -> Dataset:
        return training_photos(job)

    def test_set(self, job: Job) -> Dataset:
        return test_photos(job)

    def model(self, job: Job) -> nn.Module:
        return network(job)

    def names(self, job: Job) -> Sequence[str | int]:
        return classes(job)


class Frozen(Whole):
    """Classifiers on ImageNet-trained convolutions that stay as they are: what those say is computed once and kept.

    A row that warps its input, ST-CNN, cannot keep it: it is computed anew, through the same convolutions.
    """

    def fetch(self, job: Job) -> None:
        super().fetch(job)
        if not _warps(job):
            self.training_set(job)
            self.test_set(job)

    def training_set(self, job: Job) -> Dataset:
        return training_photos(job) if _warps(job) else Features.of(job, training_photos(job), copies=job.plan.copies)

    def test_set(self, job: Job) -> Dataset:
        return test_photos(job) if _warps(job) else Features.of(job, test_photos(job), copies=1)

    def shown(self, job: Job) -> Dataset:
        return test_photos(job)

    def model(self, job: Job) -> nn.Module:
        model = network(job)
        return model if _warps(job) else Head(alexnet.split(model)[1])

    def parameters(self, job: Job, model: nn.Module) -> int:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in _new(job).parameters())


class Head(nn.Module):
    """The classifier of a network, its weights named as there."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, features: Tensor) -> Tensor:
        return self.classifier(features)


class Features:
    """What the frozen part of a network says about every image, once or for several copies."""

    def __init__(self, values: Tensor, labels: Tensor) -> None:
        self.values, self.labels = values, labels  # (copies, n, d) and (n,)

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Tensor, *, epoch: int = 0) -> tuple[Tensor, Tensor]:
        return self.values[epoch % len(self.values), indices], self.labels[indices]

    @classmethod
    def of(cls, job: Job, images: Photos, *, copies: int) -> Features:
        """The features of the job's network, computed now or read from the output folder, where they are kept."""
        whole = images
        if job.cell.split == "series":  # its parts share what is kept
            whole = replace(images, chosen=_readable(_folder(job), "train", job).chosen)
        of_images = {
            "weights": _fingerprint(job.means.weights) if _trained(job) else job.cell.seed,
            "images": _identity(whole),
            "view": images.view,
            "seed": images.seed if VIEWS[images.view].numbers else 0,  # where nothing is drawn all seeds share them
        }
        folder = job.out / "features" / digest({"model": job.row.model, "options": dict(job.row.options)} | of_images)
        show = job.screen.count(f"{job.row.title}: features ({images.view})", copies * len(whole))
        chunks = [(copy, start) for copy in range(copies) for start in range(0, len(whole), CHUNK)]
        found = {}
        for chunk in chunks:
            kept = _read(_file(folder, chunk), min(CHUNK, len(whole) - chunk[1]))
            if kept is not None:
                found[chunk] = kept
                show(len(kept))
        missing = [chunk for chunk in chunks if chunk not in found]
        if missing:
            trunk, tail = alexnet.cut(alexnet.split(network(job))[0].to(job.world.device).eval())
            known = digest([of_images, _own_trunk(job.row)])
            for chunk, maps in _maps(trunk, whole, missing, known, job):
                with torch.inference_mode():
                    found[chunk] = torch.cat([tail(part.to(job.world.device)).cpu() for part in maps.split(BATCH)])
                checkpoint.write(_file(folder, chunk), {"features": found[chunk]}, {"chunk": chunk})
                show(len(maps))
        each = [torch.cat([found[chunk] for chunk in chunks if chunk[0] == copy]) for copy in range(copies)]
        if whole is not images:
            places = torch.searchsorted(whole.chosen, images.chosen)
            each = [values[places] for values in each]
        return cls(torch.stack(each), images.labels)


def _own_trunk(row: Row) -> Any:
    """What a row differs in from AlexNet before the fifth convolution's answer, if it does."""
    if row.options.get("place", "conv5") not in alexnet.BEHIND:
        return [row.model, dict(row.options)]
    return row.model if row.model in OWN_TRUNK else ""


def _file(folder: Path, chunk: tuple[int, int]) -> Path:
    return folder / f"{chunk[0]}.{chunk[1]}.safetensors"


def _read(file: Path, count: int) -> Tensor | None:
    """Features that were kept; what is cut or damaged is made again."""
    try:
        kept = checkpoint.read(file)[0]["features"] if file.is_file() else None
    except (ValueError, KeyError):
        return None
    return kept if kept is not None and len(kept) == count else None


# What the fifth convolution says, which the rows that differ only behind it share: computed once for all of them where
# there is room, and gone with the process.
_MAPS: OrderedDict[tuple[str, tuple[int, int]], Tensor] = OrderedDict()
ROOM = 2 << 30  # bytes


def _maps(
    trunk: nn.Module, images: Photos, chunks: Sequence[tuple[int, int]], known: str, job: Job
) -> Iterator[tuple[tuple[int, int], Tensor]]:
    """The fifth convolution's answer for every chunk of images."""
    parts = {
        (copy, start): torch.arange(start, min(start + CHUNK, len(images))).split(BATCH)
        for copy, start in chunks
        if (known, (copy, start)) not in _MAPS
    }
    batches = stream(images, [(part, copy) for (copy, _), own in parts.items() for part in own], workers=images.workers)
    for chunk in chunks:
        maps = _MAPS.get((known, chunk))
        if maps is None and chunk not in parts:  # forgotten since: another chunk needed the room
            again = [
                (part, chunk[0]) for part in torch.arange(chunk[1], min(chunk[1] + CHUNK, len(images))).split(BATCH)
            ]
            maps = _run(trunk, stream(images, again, workers=0), len(again), job)
        elif maps is None:
            maps = _run(trunk, batches, len(parts[chunk]), job)
        _MAPS[known, chunk] = maps
        while sum(kept.nbytes for kept in _MAPS.values()) > ROOM:
            _MAPS.popitem(last=False)
        yield chunk, maps


def _run(trunk: nn.Module, batches: Iterator[tuple[Tensor, Tensor]], count: int, job: Job) -> Tensor:
    with torch.inference_mode():
        return torch.cat([trunk(model_input(next(batches)[0], job.world.device)).cpu() for _ in range(count)])


def training_photos(job: Job) -> Photos:
    """Images to train on; what was drawn for them does not come again in the test: the seeds are apart."""
    part = "fit" if job.cell.split == "validation" else "train"
    seed = 1 if job.plan.frozen else job.cell.seed + 1  # kept features serve all seeds
    return _open(job, part, job.plan.view, seed, job.plan.images, tested=False)


def test_photos(job: Job) -> Photos:
    part = {"test": "val", "validation": "validation", "series": "train"}[job.cell.split]
    return _open(job, part, job.column.dataset, datasets.TEST_SEED, job.plan.tested, tested=True)


def classes(job: Job) -> list[str]:
    """The names of the classes, in the order of the network's answers."""
    return _listed(_folder(job), "train").classes


def _open(job: Job, part: str, view: str, seed: int, count: int | None, *, tested: bool) -> Photos:
    folder = _folder(job)
    found = _readable(folder, part, job) if job.plan.frozen else _listed(folder, part)
    found = replace(found.with_view(view, seed=seed), workers=job.means.workers)
    if job.cell.split == "series":
        held_out = _folds(folder, job) == job.cell.seed % series.FOLDS
        found = found.without((held_out != tested).nonzero()[:, 0].tolist())
    return found if count is None else found.first(count)


_FOLDS: dict[Path, Tensor] = {}  # every training image is read for them


def _folds(folder: Path, job: Job) -> Tensor:
    """The part of the split `series` that each training image is in."""
    if folder not in _FOLDS:
        _FOLDS[folder] = series.folds(_readable(folder, "train", job))
    return _FOLDS[folder]


_CHECKED: dict[tuple[Path, str], Photos] = {}  # every image is decoded once to find those that cannot be


def _readable(folder: Path, part: str, job: Job) -> Photos:
    """The images that can be read; the others are named and left out.

    Whole trainings do not do this: for a million images `patchreorder shard` does, once.
    """
    if (folder, part) not in _CHECKED:
        images = replace(_listed(folder, part), workers=job.means.workers)
        show, before = job.screen.count(f"checking {len(images)} images ({part})", len(images)), 0

        def shown(done: int, total: int) -> None:
            nonlocal before
            show(done - before)
            before = done

        bad = images.find_bad(progress=shown)
        for _, reason in bad:
            job.screen.say(f"left out: {reason}")
        left = images.without(index for index, _ in bad)
        for label in set(range(len(left.classes))) - set(left.labels.tolist()):
            if part in ("train", "fit"):
                raise ValueError(f"{folder}: no image of the class {left.classes[label]} can be read")
        _CHECKED[folder, part] = left
    return _CHECKED[folder, part]


@functools.lru_cache(maxsize=4)
def _listed(folder: Path, part: str) -> Photos:
    """A folder's images; a million files are not listed twice."""
    return Photos.open(folder, part, view="Ori")


_TOLD: set[Path] = set()


def _tell(job: Job) -> None:
    """Say once what a folder holds that is no picture, and which classes nothing is tested on."""
    folder = _folder(job)
    if folder in _TOLD:
        return
    _TOLD.add(folder)
    train, test = (_listed(folder, part) for part in ("train", "val"))
    ignored = [name for images in (train, test) for name in getattr(images.source, "ignored", ())]
    lacking = [train.classes[label] for label in sorted(set(range(len(train.classes))) - set(test.labels.tolist()))]
    for names, what in ((ignored, "files are no pictures and are left out"), (lacking, "classes have no test picture")):
        if names:
            more = ", ..." if len(names) > 5 else ""
            job.screen.say(f"{folder}: {len(names)} {what}: {', '.join(map(repr, names[:5]))}{more}")


def _identity(images: Photos) -> str:
    """Which images these are, by their names and labels."""
    names = hashlib.sha256("\0".join([*images.classes, "", *images.names]).encode("utf-8", "surrogateescape"))
    names.update(images.labels.numpy().tobytes())
    if isinstance(images.source, Shards):  # the same images, but read in another order
        names.update(b"shards")
    return names.hexdigest()


def _folder(job: Job) -> Path:
    if job.data is None and job.plan.generated:
        return job.out / "generated"
    if job.data is None:
        raise ValueError(
            f"{job.cell.recipe} needs --data DIR, a folder with train/CLASS/*.jpg and val/CLASS/*.jpg, or what "
            "`patchreorder shard` made of it"
        )
    return job.data


def identify(data: Path | None, plan: Plan, split: str) -> str:
    """Which images a cell is about."""
    if data is None:
        return ""
    parts = {"test": ("train", "val"), "validation": ("fit", "validation"), "series": ("train",)}[split]
    return digest([_identity(_listed(data, part)) for part in parts])


def network(job: Job) -> nn.Module:
    """The row's network for the classes of the images, with ImageNet-trained convolutions if the plan says so."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.cell.seed)  # the same weights whenever it is made
        model = _new(job)
    if job.plan.frozen:
        if _trained(job):
            alexnet.load_convolutions(model, _convolutions(job.means.weights))
        alexnet.freeze_convolutions(model)
    return model


def _new(job: Job) -> nn.Module:
    options = {**job.plan.options, **job.row.options}
    return create_model(job.row.model, dataset="imagenet", classes=len(classes(job)), **options)


@functools.lru_cache(maxsize=1)
def _convolutions(file: Path | None) -> dict[str, Tensor]:
    return weights.alexnet_convolutions(file=file)


@functools.lru_cache(maxsize=1)
def _fingerprint(file: Path | None) -> str:
    return checkpoint.fingerprint(_convolutions(file))


def count(row: Row, column: Column) -> int:
    """Parameters of a row's network for a thousand classes."""
    with torch.device("meta"):
        model = create_model(row.model, dataset="imagenet", **row.options)
        return sum(parameter.numel() for parameter in model.parameters())


def _trained(job: Job) -> bool:
    """Whether the convolutions are trained ones: a smoke run must not fetch them."""
    return not job.plan.generated


def _warps(job: Job) -> bool:
    return job.row.model == "alexnet_st"


measure = Measure(Whole())
measure_frozen = Measure(Frozen())
