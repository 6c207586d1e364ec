"""Measuring a cell of a table of classifiers: make the network, train it, count its mistakes."""

from __future__ import annotations

import io
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from patchreorder.engine import checkpoint, progress
from patchreorder.engine.batches import Dataset
from patchreorder.engine.options import Training
from patchreorder.engine.predict import predict
from patchreorder.engine.state import NotFinite
from patchreorder.engine.train import Trained, train
from patchreorder.files import write_whole
from patchreorder.metrics.accuracy import mistakes
from patchreorder.models import count_parameters

from .provenance import provenance
from .recipe import Job
from .rows import Result

TILES = 16  # examples of mistakes
TILE = 64  # pixels a side at most


class Task(ABC):
    """What a table of classifiers is about: its images, its networks, and what is drawn of them.

    A job's plan must have `training` and `note`; with `start`, the name of a row, the training begins with its weights.
    """

    metric = "error %"  # or "accuracy %"

    @abstractmethod
    def training_set(self, job: Job) -> Dataset:
        """The images to train on."""

    @abstractmethod
    def test_set(self, job: Job) -> Dataset:
        """The images to test on, the same for every row."""

    @abstractmethod
    def model(self, job: Job) -> nn.Module:
        """The network that is trained, with its first weights."""

    def parameters(self, job: Job, model: nn.Module) -> int:
        """How many numbers the row's network has."""
        return count_parameters(model)

    def curves(self, job: Job, model: nn.Module, test_set: Dataset) -> dict[str, list[list[float]]]:
        """How the trained network answers to poses."""
        return {}

    def shown(self, job: Job) -> Dataset:
        """The test images as pictures."""
        return self.test_set(job)

    def names(self, job: Job) -> Sequence[str | int]:
        """What the classes are called; numbers by default."""
        return range(1_000_000)

    def fetch(self, job: Job) -> None:  # noqa: B027  # most have nothing to fetch
        """Get what must be fetched, or found out about the images; done by one process before all others."""


@dataclass
class _Kept:
    """The last training, which the next column of the same row may want too."""

    folder: Path
    model: nn.Module
    done: Trained
    images: int
    answers: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)


class Measure:
    """Trains and tests one cell of a task; every process of the world calls this."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.kept: _Kept | None = None

    def __call__(self, job: Job) -> Result:
        if job.world.is_main:
            self.task.fetch(job)
        job.world.barrier()
        trained = self.trained(job)
        cell, plan, task = job.cell, job.plan, self.task
        test_set = task.test_set(job)
        if job.column.dataset not in trained.answers:
            trained.answers[job.column.dataset] = predict(trained.model, test_set, world=job.world)
        logits, labels = trained.answers[job.column.dataset]
        wrong, answers = mistakes(logits, labels, top=job.column.top)
        if job.world.is_main:
            _write_tiles(job.out / "pictures" / f"{cell.folder}.png", task.shown(job), wrong[:TILES])
        curves = {"training loss": trained.done.curve} | task.curves(job, trained.model, test_set)
        shown = zip(wrong[:TILES].tolist(), labels[wrong[:TILES]].tolist(), answers[:TILES].tolist(), strict=True)
        names = task.names(job)
        share = 100 * len(wrong) / len(labels)
        return Result(
            **cell._asdict(),
            metric=task.metric,
            value=share if task.metric == "error %" else 100 - share,
            n=len(test_set),
            steps=trained.done.steps,
            seconds=round(trained.done.seconds, 1),
            cpu_seconds=round(trained.done.cpu_seconds, 1),
            parameters=task.parameters(job, trained.model),
            errors=wrong.tolist(),
            answers=answers.tolist(),
            curves=curves,
            details={
                "dataset": job.column.dataset,
                "options": dict(job.row.options),
                "training": asdict(plan.training),
                "batch": plan.training.batch,
                "epochs": trained.done.steps * plan.training.batch / trained.images,
                "training images": trained.images,
                "threads": torch.get_num_threads(),
                "processes": job.world.size,
                "resumed": trained.done.resumed,
                "note": plan.note,
                "mistakes": [
                    {"index": index, "label": names[own], "answer": names[said]} for index, own, said in shown
                ],
            },
            **provenance(),
        )

    def trained(self, job: Job) -> _Kept:
        """The network of this cell, trained here and now, earlier, or for another column."""
        if self.kept is not None and self.kept.folder == job.folder and job.place:
            return self.kept
        self.kept = None  # gone before the next one takes as much memory
        cell, world, plan = job.cell, job.world, job.plan
        training_set = self.task.training_set(job)
        torch.manual_seed(cell.seed)
        model = self.task.model(job).to(world.device)
        if job.start is not None:
            _begin_with(model, job)
        title = ", ".join([job.row.title, *([] if job.place else [job.column.title]), f"seed {cell.seed}"])
        callback = job.screen.training(title)
        if job.tensorboard and world.is_main:
            callback = progress.both(callback, progress.tensorboard(job.folder / "tensorboard"))
        try:
            done = train(
                model,
                training_set,
                plan.training,
                seed=cell.seed,
                file=job.folder / "checkpoint.safetensors",
                world=world,
                callback=callback,
                save_every=job.means.save_every,
                accumulate=job.means.accumulate,
            )
        except NotFinite as error:
            raise NotFinite(f"{title}: {error}") from error
        if world.is_main:
            checkpoint.write(job.folder / "weights.safetensors", model.state_dict(), {"cell": list(cell)})
        self.kept = _Kept(job.folder, model, done, len(training_set))
        return self.kept


def _begin_with(model: nn.Module, job: Job) -> None:
    """Put the weights of another row's training where they have a place here; what is new keeps its first values."""
    assert job.start is not None
    file = job.start / "weights.safetensors"
    if not job.world.from_main(file.is_file()):
        raise ValueError(
            f"{job.row.title}, seed {job.cell.seed}, begins with the weights of the row {job.plan.start}: measure that "
            f"first, into the same folder ({file} is not there)"
        )
    weights, _ = checkpoint.read(file)
    own = model.state_dict()
    strange = [name for name, value in weights.items() if name not in own or own[name].shape != value.shape]
    if strange:
        raise ValueError(f"{file} holds {strange[0]}, for which {job.row.title} has no place of this shape")
    model.load_state_dict(weights, strict=False)


def changed(plan: Any, change: Mapping[str, Any]) -> Any:
    """The plan with other values of its training."""
    kinds = {field.name: field.type for field in fields(Training)}
    hints = get_type_hints(Training)
    for name, value in change.items():
        if name not in kinds:
            raise ValueError(f"change ({name}) must name a value of a training: {', '.join(kinds)}")
        if not _fits(value, hints[name]):
            raise ValueError(f"change ({name}={value!r}) must be of the kind {kinds[name]}")
    return replace(plan, training=replace(plan.training, **change))


def _fits(value: Any, kind: Any) -> bool:
    """Whether a JSON value is of the kind that a field of a dataclass states."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return value in parts
    if origin is Mapping:
        return isinstance(value, dict) and all(_fits(item, parts[1]) for item in value.values())
    if kind is float:  # a row cannot hold another number than a finite one
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return type(value) is kind


def _write_tiles(path: Path, images: Dataset, indices: Tensor) -> None:
    """The images side by side, as a PNG; data that are no images give none."""
    if not len(indices):
        return
    tiles = images.batch(indices)[0]
    if tiles.dim() != 4:
        return
    if tiles.dtype != torch.uint8:
        tiles = (tiles * 255).round().byte()
    if tiles.shape[2] > TILE:
        tiles = F.interpolate(tiles.float(), size=(TILE, TILE), mode="bilinear", antialias=True).round().byte()
    strip = torch.cat(list(tiles), dim=2).permute(1, 2, 0).numpy()  # h w c
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(strip[:, :, 0] if strip.shape[2] == 1 else strip)).save(file, "PNG")
    write_whole(path, file.getvalue())
