"""The task of a table of classifiers: make the network, train it, count its errors."""

from __future__ import annotations

import contextlib
import io
import json
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from patchreorder.engine import checkpoint, progress
from patchreorder.engine.batches import Dataset
from patchreorder.engine.predict import predict
from patchreorder.engine.state import NotFinite
from patchreorder.engine.train import Trained, train
from patchreorder.files import write_whole
from patchreorder.metrics.accuracy import error_rate, mistakes
from patchreorder.models import count_parameters

from .cells import Job
from .provenance import provenance
from .rows import Result
from .task import Task

TESTED = "tested.json"  # errors in the middle of a training, in the cell's folder
TILES = 16  # examples of errors
TILE = 64  # pixels a side at most


@dataclass
class Network:
    """A trained network, and its logits for the data sets that were tested."""

    folder: Path
    model: nn.Module
    done: Trained
    images: int
    logits: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)


class Classification(Task):
    """Trains and tests the network of a cell; the last one is kept for the other columns of its row."""

    metric = "error %"  # or "accuracy %"
    changeable: Sequence[str] = ("images", "tested")

    def __init__(self) -> None:
        self.last: Network | None = None

    @abstractmethod
    def training_set(self, job: Job) -> Dataset:
        """The images to train on."""

    @abstractmethod
    def test_set(self, job: Job) -> Dataset:
        """The images to test on, the same for every row."""

    @abstractmethod
    def model(self, job: Job) -> nn.Module:
        """The network to train, with its initial weights."""

    def parameters(self, job: Job, model: nn.Module) -> int:
        """How many parameters the row's network has."""
        return count_parameters(model)

    def curves(self, job: Job, model: nn.Module, test_set: Dataset) -> dict[str, list[list[float]]]:
        """Errors of the trained network over poses."""
        return {}

    def shown(self, job: Job) -> Dataset:
        """The test images as pixels."""
        return self.test_set(job)

    def names(self, job: Job) -> Sequence[str | int]:
        """What the classes are called; numbers by default."""
        return range(1_000_000)

    def prepare(self, job: Job) -> None:
        """Fetch or compute what all processes need; called by one of them first."""

    def measure(self, job: Job) -> Result:
        if job.world.is_main:
            self.prepare(job)
        job.world.barrier()
        network, plan, dataset = self.trained(job), job.plan, job.column.dataset
        assert plan.training is not None
        test_set = self.test_set(job)
        if dataset not in network.logits:
            network.logits[dataset] = predict(network.model, test_set, world=job.world)
        logits, labels = network.logits[dataset]
        wrong, answers = mistakes(logits, labels, top=job.column.top)
        share = 100 * len(wrong) / len(labels)
        if job.world.is_main:
            _write_tiles(job.out / "pictures" / f"{job.cell.folder}.png", self.shown(job), wrong[:TILES])
        curves = {"training loss": network.done.curve} | self.curves(job, network.model, test_set)
        if plan.tested_at:
            curves["error by step"] = [*map(list, _read_tested(job)), [float(network.done.steps), share]]
        shown = zip(wrong[:TILES].tolist(), labels[wrong[:TILES]].tolist(), answers[:TILES].tolist(), strict=True)
        names = self.names(job)
        return Result(
            **job.cell._asdict(),
            metric=self.metric,
            value=share if self.metric == "error %" else 100 - share,
            n=len(test_set),
            steps=network.done.steps,
            seconds=round(network.done.seconds, 1),
            cpu_seconds=round(network.done.cpu_seconds, 1),
            parameters=self.parameters(job, network.model),
            errors=wrong.tolist(),
            answers=answers.tolist(),
            curves=curves,
            details={
                "dataset": dataset,
                "options": dict(job.row.options),
                "training": asdict(plan.training),
                "batch": plan.training.batch,
                "epochs": network.done.steps * plan.training.batch / network.images,
                "training images": network.images,
                "threads": torch.get_num_threads(),
                "processes": job.world.size,
                "resumed": network.done.resumed,
                "note": plan.note,
                "mistakes": [
                    {"index": index, "label": names[own], "answer": names[answer]} for index, own, answer in shown
                ],
            },
            **provenance(),
        )

    def trained(self, job: Job) -> Network:
        """The network of this cell, trained now, earlier, or for another column."""
        if self.last is not None and self.last.folder == job.folder:
            return self.last
        self.last = None  # freed before the next one takes as much memory
        cell, world, plan = job.cell, job.world, job.plan
        assert plan.training is not None
        training_set = self.training_set(job)
        torch.manual_seed(cell.seed)
        model = self.model(job).to(world.device)
        if job.start is not None:
            _load_start(model, job)
        shares_training = job.folder.name != cell.folder
        title = ", ".join([job.row.title, *([] if shares_training else [job.column.title]), f"seed {cell.seed}"])
        callback = job.screen.training(title)
        if job.resources.tensorboard and world.is_main:
            callback = progress.both(callback, progress.tensorboard(job.folder / "tensorboard"))
        if plan.tested_at and world.is_main:
            callback = progress.both(callback, self.testing(job, model))
        try:
            done = train(
                model,
                training_set,
                plan.training,
                seed=cell.seed,
                file=job.folder / "checkpoint.safetensors",
                world=world,
                callback=callback,
                save_every=job.resources.save_every,
                accumulate=job.resources.accumulate,
            )
        except NotFinite as error:
            raise NotFinite(f"{title}: {error}") from error
        if world.is_main:
            made_by = {"cell": list(cell), "model": job.row.model, "options": dict(job.row.options)}
            checkpoint.write(job.folder / "weights.safetensors", model.state_dict(), made_by)
        self.last = Network(job.folder, model, done, len(training_set))
        return self.last

    def testing(self, job: Job, model: nn.Module) -> progress.Callback:
        """A callback that tests the network in the middle of its training; a resumed training goes on with the file."""
        tested, test_set = dict(_read_tested(job)), self.test_set(job)

        def test(reached: progress.Progress) -> None:
            if reached.step in job.plan.tested_at and reached.step < reached.total and reached.step not in tested:
                tested[reached.step] = error_rate(*predict(model, test_set))
                write_whole(job.folder / TESTED, json.dumps(sorted(tested.items())).encode())

        return test


def _read_tested(job: Job) -> list[tuple[float, float]]:
    """The steps after which the network of a cell was tested so far, and its errors then."""
    with contextlib.suppress(FileNotFoundError):
        return [(float(step), float(error)) for step, error in json.loads((job.folder / TESTED).read_text())]
    return []


def _load_start(model: nn.Module, job: Job) -> None:
    """Load the weights of another row's training; parameters that it lacks keep their initial values."""
    assert job.start is not None
    file = job.start / "weights.safetensors"
    if not job.world.from_main(file.is_file()):
        raise ValueError(
            f"{job.row.title}, seed {job.cell.seed}, begins with the weights of the row {job.plan.start}: measure that "
            f"row first, with the same --out ({file} is missing)"
        )
    weights, _ = checkpoint.read(file)
    own = model.state_dict()
    for name, value in weights.items():
        if name not in own or own[name].shape != value.shape:
            raise ValueError(f"{file} holds {name}, which {job.row.title} has not, or not of this shape")
    model.load_state_dict(weights, strict=False)


def _write_tiles(path: Path, images: Dataset, indices: Tensor) -> None:
    """Write the images side by side as a PNG; features that are no images give none."""
    if not len(indices):
        return
    tiles = images.batch(indices)[0]
    if tiles.dim() != 4:
        return
    if tiles.dtype != torch.uint8:
        tiles = (tiles * 255).round().byte()
    if tiles.shape[2] > TILE:
        tiles = F.interpolate(tiles.float(), size=(TILE, TILE), mode="bilinear", antialias=True).round().byte()
    write_whole(path, png(torch.cat(list(tiles), dim=2).permute(1, 2, 0).numpy()))


def png(values: np.ndarray) -> bytes:
    """An image (h, w, c) or (h, w), uint8, as a PNG file."""
    file = io.BytesIO()
    values = values[:, :, 0] if values.ndim == 3 and values.shape[2] == 1 else values
    Image.fromarray(np.ascontiguousarray(values)).save(file, "PNG", optimize=True)
    return file.getvalue()
