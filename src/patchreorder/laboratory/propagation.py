"""The tasks of Figure 1: how far the feature maps of every layer move when the image is shifted, or rotated."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from patchreorder.data.photos import Photos
from patchreorder.data.poses import UPRIGHT, Pose
from patchreorder.engine.batches import Dataset, model_input
from patchreorder.measuring.activations import record_activations
from patchreorder.measuring.image_set import posed_batches
from patchreorder.metrics.propagation import MapRotation, MapShift, map_rotation, map_shift, propagated_fraction

from .cells import Job
from .figure import Clock, FigureTask, fill, result, stages
from .rows import Result

METRIC, ROTATION_METRIC = "part of the shift", "part of the rotation"
CURVE, ROTATION_CURVE = "shift of the maps", "rotation of the maps"
SHIFTS = [step / 25 for step in range(-5, 6)]  # of the width, as in the paper's translations
# Of the width: the largest displacement that is searched, but no more than half of the map. Photographs move further.
REACH, PHOTO_REACH = 0.3, 0.45
BATCH = 16
ANGLES = list(range(-45, 46, 9))  # degrees, as in the paper's rotations
SEARCHED = [4.5 * step for step in range(-14, 15)]  # degrees, among which that of the maps is searched
TURNED = 4  # images at a time: their maps are kept for all angles


class Found(NamedTuple):
    """How far one layer's maps moved for each shift, in pixels of the image, or each rotation, in degrees."""

    shifts: list[int]
    moved: list[float]
    correlation: float
    undefined: int  # pairs of image and shift without an answer: flat maps
    stride: int


class PropagationTask(FigureTask):
    """Measures all layers of a network at once; the other columns of its row get theirs from there."""

    metric, curve = METRIC, CURVE

    def __init__(self) -> None:
        super().__init__()
        self.last: tuple[Any, dict[str, Found]] | None = None

    def measure(self, job: Job) -> Result:
        model, clock = self.network(job), Clock()
        known = (job.row, job.cell.seed, job.plan)
        if self.last is None or self.last[0] != known:
            self.last = known, self.follow(job, model)
        found = self.last[1]
        layer = found[job.column.name]
        return result(
            job,
            model,
            clock,
            metric=self.metric,
            value=propagated_fraction(layer.shifts, layer.moved),
            n=len(self.images(job)),
            curves={
                self.curve: [[float(shift), moved] for shift, moved in zip(layer.shifts, layer.moved, strict=True)]
            },
            details={
                "stride": layer.stride,
                "correlation": layer.correlation,
                "undefined": layer.undefined,
                "measured together": list(found),
            },
        )

    def follow(self, job: Job, model: torch.nn.Module) -> dict[str, Found]:
        """How far the maps of every layer move, on average over the images."""
        data = self.images(job)
        ends = {name: stage for name, stage in stages(model).items() if name.startswith("conv") or name == "maps"}
        first = model_input(data.batch(torch.tensor([0]))[0], job.world.device)
        width = first.shape[3]
        shifts = [round(shift * width) for shift in SHIFTS]
        reach = round((PHOTO_REACH if isinstance(data, Photos) else REACH) * width)
        moved: dict[tuple[str, int], list[MapShift]] = {(name, shift): [] for name in ends for shift in shifts}
        show = job.screen.count(f"{job.row.title}: shifted", len(data) * (1 + len(shifts)))
        modules = [stage.module for stage in ends.values()]
        with record_activations(model, first, modules) as recorder, torch.inference_mode():
            for part in torch.arange(len(data)).split(BATCH):
                poses = [UPRIGHT, *(Pose(right=shift / width) for shift in shifts)]
                copies, _ = posed_batches(data, part, poses, fill=fill(job.plan), device=job.world.device)
                as_they_are = recorder(next(copies)).layers
                scale = _pixels_of_shift(data, part, width)
                show(len(part))
                for shift, images in zip(shifts, copies, strict=True):
                    outputs = recorder(images).layers
                    for name, (module, stride) in ends.items():
                        most = min(reach, outputs[module].shape[3] * stride // 2)  # half of the maps must be in common
                        steps = [pixels / stride for pixels in range(-most, most + 1)]
                        found = map_shift(as_they_are[module], outputs[module], steps=steps)
                        moved[name, shift].append(found._replace(right=found.right / scale))
                    show(len(part))
        answers = {}
        for name, stage in ends.items():
            right = torch.stack([torch.cat([batch.right for batch in moved[name, shift]]) for shift in shifts])
            correlation = torch.cat([batch.correlation for shift in shifts for batch in moved[name, shift]])
            if bool(right.isnan().all(1).any()):
                raise ValueError(f"{job.row.title}: the maps of {name} are flat, so that no shift of them can be seen")
            answers[name] = Found(
                shifts=shifts,
                moved=(right.nanmean(1) * stage.stride).tolist(),
                correlation=float(correlation.nanmean()),
                undefined=int(right.isnan().sum()),
                stride=stage.stride,
            )
        return answers


class RotationTask(PropagationTask):
    """Measures rotations instead of shifts."""

    metric, curve = ROTATION_METRIC, ROTATION_CURVE

    def follow(self, job: Job, model: torch.nn.Module) -> dict[str, Found]:
        """By how many degrees the maps of every layer rotate, on average over the images."""
        data = self.images(job)
        ends = {name: stage for name, stage in stages(model).items() if name.startswith("conv") or name == "maps"}
        first = model_input(data.batch(torch.tensor([0]))[0], job.world.device)
        moved: dict[str, list[MapRotation]] = {name: [] for name in ends}
        show = job.screen.count(f"{job.row.title}: rotated", len(data))
        with record_activations(model, first, [stage.module for stage in ends.values()]) as recorder:
            for part in torch.arange(len(data)).split(TURNED):
                poses = [UPRIGHT, *(Pose(degrees=float(angle)) for angle in ANGLES)]
                copies, _ = posed_batches(data, part, poses, fill=fill(job.plan), device=job.world.device)
                with torch.inference_mode():
                    as_they_are, *rotated = [recorder(images).layers for images in copies]
                    for name, (module, _) in ends.items():
                        others = torch.stack([outputs[module] for outputs in rotated])
                        moved[name].append(map_rotation(as_they_are[module], others, degrees=SEARCHED))
                show(len(part))
        answers = {}
        for name, stage in ends.items():
            degrees = torch.cat([batch.degrees for batch in moved[name]], 1)  # angle image
            if bool(degrees.isnan().all(1).any()):
                raise ValueError(f"{job.row.title}: the maps of {name} are flat, so that no rotation can be seen")
            answers[name] = Found(
                shifts=ANGLES,
                moved=degrees.nanmean(1).tolist(),
                correlation=float(torch.cat([batch.correlation for batch in moved[name]], 1).nanmean()),
                undefined=int(degrees.isnan().sum()),
                stride=stage.stride,
            )
        return answers


def _pixels_of_shift(data: Dataset, part: torch.Tensor, width: int) -> torch.Tensor:
    """By how many pixels each image moves for a shift of one pixel.

    A photograph is shifted by a part of its own width and then cropped: one that is wider than the crop moves by more.
    """
    if not isinstance(data, Photos):
        return torch.ones(len(part))
    sizes = torch.tensor([data.stored_size(index) for index in part.tolist()], dtype=torch.float32)
    return sizes[:, 0] * data.short / sizes.amin(1) / width
