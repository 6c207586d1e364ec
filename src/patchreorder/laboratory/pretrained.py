"""The task of networks with their own ImageNet classifiers: photographs in poses, and what helps without training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from patchreorder.data.generated import write_photos
from patchreorder.data.images import decode
from patchreorder.data.photos import Photos, open_source
from patchreorder.data.poses import UPRIGHT, Pose
from patchreorder.data.views import VIEWS, centre_crop, posed
from patchreorder.engine.batches import model_input
from patchreorder.engine.predict import for_inference
from patchreorder.files import digest
from patchreorder.layers.registry import create_layer
from patchreorder.metrics.accuracy import mistakes
from patchreorder.metrics.rate import rate
from patchreorder.models.backbones import BACKBONES, imagenet_classifier
from patchreorder.models.inverted_residual import smooth_strides
from patchreorder.surgery.insertion import insert_after

from .cells import Job
from .figure import Clock
from .photographs import image_digest
from .provenance import provenance
from .recipe import Plan
from .rows import Result
from .task import Task
from .trained import seeded

BATCH = 16
MARGIN = 32  # pixels a side around the crop, as these networks are usually tested
SMOKE = 64  # pixels a side, for smoke runs
COMBINED = ("mean", "confident")


class Answers(NamedTuple):
    """Probabilities (n, classes) of all photographs in one view, and what they cost."""

    probabilities: Tensor
    seconds: float
    cpu_seconds: float


class PretrainedTask(Task):
    """Tests networks as they are; answers to a view of the photographs serve all rows of a network.

    A row's model is a backbone. Its options: `layer`, by name, behind the normalisation, where grey is 0; `smooth`, see
    `smooth_strides`; `views`, degrees by which a photograph is rotated once more, and `combine` their answers: the mean
    probabilities, or those of the view with the highest one ("confident").
    """

    changeable: Sequence[str] = ("tested",)

    def __init__(self) -> None:
        self.opened: dict[Path, Photos] = {}
        self.network: tuple[Any, nn.Module] | None = None
        self.answers: dict[tuple[Any, str, float], Answers] = {}

    def identify(self, data: Path | None, plan: Plan, split: str) -> str:
        return "" if data is None else digest(image_digest(self._open(data)))

    def measure(self, job: Job) -> Result:
        if job.cell.split != "test":
            raise ValueError(f"split ({job.cell.split}) must be test: nothing is trained here, so nothing is held out")
        photos = self.photographs(job)
        options = dict(job.row.options)
        degrees, how = options.get("views", [0.0]), options.get("combine", "mean")
        found = [self.answered(job, photos, float(view)) for view in degrees]
        scores = combine(torch.stack([each.probabilities for each in found]), how)
        wrong, answers = mistakes(scores, photos.labels, top=job.column.top)
        right = rate(len(photos) - len(wrong), len(photos))
        return Result(
            **job.cell._asdict(),
            metric="right %",
            value=right.value,
            n=len(photos),
            steps=0,
            seconds=round(sum(each.seconds for each in found), 1),
            cpu_seconds=round(sum(each.cpu_seconds for each in found), 1),
            parameters=sum(parameter.numel() for parameter in self.opened_network(job).parameters()),
            errors=wrong.tolist(),
            answers=answers.tolist(),
            details={
                "dataset": job.column.dataset,
                "options": options,
                "low": right.low,
                "high": right.high,
                "batch": BATCH,
                "threads": torch.get_num_threads(),
                "processes": 1,
                "resumed": 0,
                "note": job.plan.note,
            },
            **provenance(),
        )

    def answered(self, job: Job, photos: Photos, degrees: float) -> Answers:
        """Probabilities of the photographs of the column, each rotated once more; computed once for all rows."""
        known, view = self.known(job), job.column.dataset
        if (known, view, degrees) not in self.answers:
            network = self.opened_network(job)
            shown = PosedAgain(replace(photos, view=view), Pose(degrees=degrees))
            count = job.screen.count(f"{job.row.title}, {job.column.title}, {degrees:g} degrees", len(photos))
            clock, parts = Clock(), []
            for indices in torch.arange(len(photos)).split(BATCH):
                with torch.inference_mode():
                    parts.append(network(model_input(shown.batch(indices), job.world.device)).softmax(1).cpu())
                count(len(indices))
            self.answers[known, view, degrees] = Answers(torch.cat(parts), **clock.seconds())
        return self.answers[known, view, degrees]

    def known(self, job: Job) -> tuple[str, str, bool]:
        """What decides about the network: its name, the layer before it, and whether strides are smoothed."""
        options = job.row.options
        return job.row.model, options.get("layer", ""), options.get("smooth", False)

    def opened_network(self, job: Job) -> nn.Module:
        name, layer, smooth = known = self.known(job)
        if self.network is None or self.network[0] != known:
            trained = not job.plan.synthetic
            model: nn.Module = seeded(0, lambda: imagenet_classifier(name, say=job.screen.say, trained=trained))
            model = smooth_strides(model) if smooth else model
            model = insert_after(model, "normalise", create_layer(layer)) if layer else model
            self.network = known, for_inference(model).to(job.world.device)
        return self.network[1]

    def photographs(self, job: Job) -> Photos:
        """The test photographs, for the size of the row's network."""
        folder, synthetic = job.data, job.plan.synthetic
        if folder is None and synthetic:
            folder = job.out / "generated"
            if not folder.is_dir():
                write_photos(folder, classes=3, images=2)
        if folder is None:
            raise ValueError(f"{job.cell.recipe} needs --data DIR, ImageNet's validation photographs in class folders")
        backbone = BACKBONES[job.row.model]
        found = self._open(folder)
        if len(found.classes) != backbone.classes and not synthetic:
            raise ValueError(
                f"{folder} has {len(found.classes)} class folders: {job.row.title} needs those of all "
                f"{backbone.classes} classes, which sorted by name have the order of its answers"
            )
        size = SMOKE if synthetic else backbone.size
        found = replace(found, size=size, short=size + MARGIN)
        return found if job.plan.tested is None else found.first(job.plan.tested)

    def _open(self, folder: Path) -> Photos:
        if folder not in self.opened:
            source = open_source(folder / "val" if (folder / "val").is_dir() else folder)
            self.opened[folder] = Photos(source, torch.arange(len(source)), "Ori")
        return self.opened[folder]


@dataclass(frozen=True)
class PosedAgain:
    """Photographs in their view, each put in one more pose before the crop, as somebody with the posed files can do."""

    photos: Photos
    pose: Pose

    def batch(self, indices: Tensor) -> Tensor:
        """Images (b, 3, size, size), uint8."""
        photos, view = self.photos, VIEWS[self.photos.view]
        numbers = photos.numbers(epoch=0)[photos.chosen[indices]].tolist()
        images = []
        for index, own in zip(photos.chosen[indices].tolist(), numbers, strict=True):
            image = decode(photos.source.read(index), name=photos.source.names[index])
            pose = view.pose(own)
            if UPRIGHT not in (pose, self.pose):
                image, pose = posed(image, pose), self.pose
            elif pose == UPRIGHT:
                pose = self.pose
            images.append(centre_crop(image, pose=pose, size=photos.size, short=photos.short))
        return torch.stack(images).permute(0, 3, 1, 2)


def combine(probabilities: Tensor, how: str) -> Tensor:
    """One answer from those to several views.

    Shape:
        probabilities: (views, n, classes), to (n, classes).

    Args:
        how: "mean", or "confident": the view with the highest probability decides alone.

    >>> views = torch.tensor([[[0.6, 0.4]], [[0.1, 0.9]], [[0.8, 0.2]]])
    >>> combine(views, "mean"), combine(views, "confident")
    (tensor([[0.5000, 0.5000]]), tensor([[0.1000, 0.9000]]))
    """
    if how not in COMBINED:
        raise ValueError(f"combine ({how!r}) must be one of {', '.join(COMBINED)}")
    if how == "mean":
        return probabilities.mean(0)
    surest = probabilities.amax(2).argmax(0)
    return probabilities[surest, torch.arange(probabilities.shape[1])]
