"""Measuring a cell of a table of classifiers: make the network, train it, count its mistakes."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from patchreorder.data import datasets, transforms
from patchreorder.data.datasets import Digits
from patchreorder.engine import checkpoint, progress
from patchreorder.engine.distributed import World
from patchreorder.engine.predict import predict
from patchreorder.engine.train import NotFinite, Training, train
from patchreorder.metrics.accuracy import error_rate, mistakes
from patchreorder.models import count_parameters, create_model
from patchreorder.results import Result, provenance, write_whole

from .spec import Column, Job, Row

ANGLES = range(-180, 181, 15)
SHIFTS = range(-7, 8)  # pixels to the right; on T that is the whole canvas
CURVES: Mapping[str, Mapping[str, Any]] = {
    "training loss": {"x": "epoch", "y": "training loss", "log": True},
    "error by angle": {"x": "digits turned by (degrees)", "y": "error %"},
    "error by shift": {"x": "digits shifted right by (pixels)", "y": "error %"},
}
TILES = 16  # examples of mistakes


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a cell of a table of digits costs: its training, and how many images of the sets are used (None: all)."""

    training: Training
    images: int | None = None
    tested: int | None = None
    curve_images: int = 2000
    generated: bool = False
    note: str = ""


def changed(plan: Plan, change: Mapping[str, Any]) -> Plan:
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


def parameters(row: Row, column: Column) -> int:
    """How many parameters the row's network has for the column's images."""
    with torch.device("meta"):
        return count_parameters(create_model(row.model, dataset=column.dataset, **row.options))


def measure(job: Job) -> Result:
    """Train and test one cell; every process of the world calls this."""
    plan: Plan = job.plan
    cell, world = job.cell, job.world
    if world.leads:
        sets = _digits(job)  # what must be fetched is fetched once
    world.wait()
    training_set, test_set = sets if world.leads else _digits(job)
    torch.manual_seed(cell.seed)
    model = create_model(job.row.model, dataset=job.column.dataset, **job.row.options).to(world.device)
    title = f"{job.row.title}, {job.column.title}, seed {cell.seed}"
    report = job.screen.watch(title)
    if job.tensorboard and world.leads:
        report = progress.both(report, progress.tensorboard(job.folder / "tensorboard"))
    try:
        done = train(
            model,
            training_set,
            plan.training,
            seed=cell.seed,
            file=job.folder / "checkpoint.safetensors",
            world=world,
            report=report,
        )
    except NotFinite as error:
        raise NotFinite(f"{title}: {error}") from error
    logits, labels = predict(model, test_set, world=world)
    wrong, answers = mistakes(logits, labels)
    if world.leads:
        checkpoint.write(job.folder / "weights.safetensors", model.state_dict(), {"cell": list(cell)})
        _write_tiles(job.out / "pictures" / f"{cell.folder}.png", test_set, wrong[:TILES])
    curves = {"training loss": done.curve} | _responses(model, test_set.first(plan.curve_images), world)
    shown = zip(wrong[:TILES].tolist(), answers[:TILES].tolist(), strict=True)
    return Result(
        **cell._asdict(),
        metric="error %",
        value=error_rate(logits, labels),
        n=len(test_set),
        steps=done.steps,
        seconds=round(done.seconds, 1),
        cpu_seconds=round(done.cpu_seconds, 1),
        parameters=count_parameters(model),
        errors=wrong.tolist(),
        answers=answers.tolist(),
        curves=curves,
        details={
            "dataset": job.column.dataset,
            "options": dict(job.row.options),
            "training": asdict(plan.training),
            "batch": plan.training.batch,
            "epochs": done.steps * plan.training.batch / len(training_set),
            "training images": len(training_set),
            "threads": torch.get_num_threads(),
            "processes": world.size,
            "resumed": done.resumed,
            "note": plan.note,
            "mistakes": [{"index": i, "label": int(labels[i]), "answer": a} for i, a in shown],
        },
        **provenance(),
    )


def _digits(job: Job) -> tuple[Digits, Digits]:
    """The digits to train on, and those to test on."""
    plan: Plan = job.plan
    variant, seed = job.column.dataset, job.cell.seed
    if plan.generated:
        training = datasets.generated(variant, count=plan.images or 64, seed=seed + 1)
        return training, datasets.generated(variant, count=plan.tested or 64)
    parts = ("train", "test") if job.cell.split == "test" else ("fit", "validation")
    # What was drawn for training must not come again in the test: the seeds are apart.
    training, test = (
        datasets.mnist(variant, split=part, seed=own, folder=job.data, say=job.screen.say)
        for part, own in zip(parts, (seed + 1, datasets.TEST_SEED), strict=True)
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
        size = datasets.VARIANTS[self.digits.variant].size
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


def _write_tiles(path: Path, digits: Digits, indices: Tensor) -> None:
    """The images side by side, as a PNG."""
    if not len(indices):
        return
    images = digits.batch(indices)[0][:, 0]
    strip = (torch.cat(list(images), dim=1) * 255).round().byte().numpy()
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(strip)).save(file, "PNG")
    write_whole(path, file.getvalue())
