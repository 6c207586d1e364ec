"""Measuring a cell of a table of classifiers: make the network, train it, count its mistakes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from patchreorder.data import datasets, transforms
from patchreorder.data.datasets import Digits
from patchreorder.engine import checkpoint, progress
from patchreorder.engine.distributed import World
from patchreorder.engine.predict import predict
from patchreorder.engine.train import Training, train
from patchreorder.metrics.accuracy import error_rate, mistakes
from patchreorder.models import count_parameters, create_model
from patchreorder.results import Result, provenance

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
    try:
        return replace(plan, training=replace(plan.training, **change))
    except TypeError as error:
        names = ", ".join(field.name for field in fields(Training))
        raise ValueError(f"change ({', '.join(change)}) must name values of a training: {names}") from error


def parameters(row: Row, column: Column) -> int:
    """How many parameters the row's network has for the column's images."""
    with torch.device("meta"):
        return count_parameters(create_model(row.model, dataset=column.dataset, **row.options))


def measure(job: Job) -> Result:
    """Train and test one cell; every process of the world calls this."""
    plan: Plan = job.plan
    cell, world = job.cell, job.world
    training_set, test_set = _digits(job)
    torch.manual_seed(cell.seed)
    model = create_model(job.row.model, dataset=job.column.dataset, **job.row.options).to(world.device)
    report = job.screen.watch(f"{job.row.title}, {job.column.title}, seed {cell.seed}")
    if job.tensorboard and world.leads:
        report = progress.both(report, progress.tensorboard(job.folder / "tensorboard"))
    done = train(
        model,
        training_set,
        plan.training,
        seed=cell.seed,
        file=job.folder / "checkpoint.safetensors",
        world=world,
        report=report,
    )
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
        return datasets.generated(variant, count=plan.images or 64, seed=seed), datasets.generated(
            variant, count=plan.tested or 64
        )
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
    path.parent.mkdir(parents=True, exist_ok=True)
    images = digits.batch(indices)[0][:, 0]
    strip = (torch.cat(list(images), dim=1) * 255).round().byte().numpy()
    Image.fromarray(np.ascontiguousarray(strip)).save(path)
