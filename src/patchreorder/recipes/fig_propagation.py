"""Figure 1 as numbers: how much of a shift of the image arrives in the maps of each layer.

    patchreorder run fig_propagation                                       # MNIST, the networks that are shipped
    patchreorder run fig_propagation --setting trained --trained runs/table1
    patchreorder run fig_propagation --setting cifar10 --trained runs/table2_cifar10
    patchreorder run fig_propagation --setting grocery --trained runs/table2_grocery --data GROCERY [--weights FILE]
    patchreorder run fig_propagation --setting paper --trained runs/table2 --data IMAGENET

Images are shifted to the right and to the left by up to a fifth of their width, in whole pixels. For each image and
layer that displacement is looked for which brings the maps of the image as it is nearest to those of the shifted one
(`patchreorder.metrics.propagation`), in whole pixels of the image: map pixels times the layer's stride. A cell is the
slope of the line through zero: 1 if the whole shift arrives, 0 if nothing does.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from patchreorder.data.poses import Pose, apply_pose
from patchreorder.engine.batches import model_input
from patchreorder.laboratory import subjects
from patchreorder.laboratory.recipe import Column, Job, Recipe, Row
from patchreorder.laboratory.rows import Result
from patchreorder.laboratory.subjects import clock, stages
from patchreorder.measuring.activations import record_activations
from patchreorder.metrics.propagation import MapShift, map_shift, propagated_fraction

METRIC = "part of the shift"
CURVE = "shift of the maps"
SHIFTS = [step / 25 for step in range(-5, 6)]  # of the width, as in the paper's translations
REACH = 0.3  # of the width: the largest displacement that is looked for, but no more than half of the map
BATCH = 16
ROWS = (
    Row(name="cnn", title="CNN", model="cnn", about="no reordering"),
    Row(name="pr_cnn", title="PR-CNN", model="pr_cnn", about="patches reordered after the last convolution"),
    Row(
        name="pr_cnn_fine",
        title="PR-CNN-fine",
        model="pr_cnn_fine",
        about="every pixel a patch, reordered after the last pool; ours",
    ),
)
COLUMNS = (
    *(
        Column(name=f"conv{number}", title=f"conv{number}", about=f"maps of convolution {number}", dataset="T")
        for number in range(1, 6)
    ),
    Column(
        name="maps", title="last maps", about="what the first connected layer gets, pooled and reordered", dataset="T"
    ),
)


class Found(NamedTuple):
    """How far one layer's maps moved for each shift, in pixels of the image."""

    shifts: list[int]
    moved: list[float]
    correlation: float
    undefined: int  # pairs of image and shift without an answer: flat maps
    stride: int


class Measure:
    """Measures all layers of a network at once; the columns that follow get what was found."""

    def __init__(self) -> None:
        self.kept: tuple[object, dict[str, Found]] | None = None

    def __call__(self, job: Job) -> Result:
        model = subjects.network(job)
        known = (job.row, job.cell.seed, job.plan, job.data, job.means)
        begun = clock()
        if self.kept is None or self.kept[0] != known:
            self.kept = known, follow(job, model)
        found = self.kept[1]
        layer = found[job.column.name]
        return subjects.result(
            job,
            model,
            begun,
            metric=METRIC,
            value=propagated_fraction(layer.shifts, layer.moved),
            n=len(subjects.images(job)),
            curves={CURVE: [[float(shift), moved] for shift, moved in zip(layer.shifts, layer.moved, strict=True)]},
            details={
                "stride": layer.stride,
                "correlation": layer.correlation,
                "undefined": layer.undefined,
                "measured together": list(found),
            },
        )


def follow(job: Job, model: torch.nn.Module) -> dict[str, Found]:
    """How far the maps of every layer move, on average over the images."""
    data = subjects.images(job)
    wanted = {column.name for column in COLUMNS}
    ends = {name: stage for name, stage in stages(model).items() if name in wanted}
    first = model_input(data.batch(torch.tensor([0]))[0], job.world.device)
    width = first.shape[3]
    shifts = [round(shift * width) for shift in SHIFTS]
    reach = round(REACH * width)
    moved: dict[tuple[str, int], list[MapShift]] = {(name, shift): [] for name in ends for shift in shifts}
    show = job.screen.count(f"{job.row.title}: shifted", len(data) * (1 + len(shifts)))
    modules = [stage.module for stage in ends.values()]
    with record_activations(model, first, modules) as recorder, torch.inference_mode():
        for part in torch.arange(len(data)).split(BATCH):
            images = model_input(data.batch(part)[0], job.world.device)
            as_they_are = recorder(images).layers
            show(len(part))
            for shift in shifts:
                copies = apply_pose(images, Pose(right=shift / width), fill=subjects.fill(job.plan))
                outputs = recorder(model_input(copies, job.world.device)).layers
                for name, (module, stride) in ends.items():
                    most = min(reach, outputs[module].shape[3] * stride // 2)  # half of the maps must be in common
                    steps = [pixels / stride for pixels in range(-most, most + 1)]
                    moved[name, shift].append(map_shift(as_they_are[module], outputs[module], steps=steps))
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


RECIPE = Recipe(
    name="fig_propagation",
    title="Figure 1: how a shift of the image travels through the layers",
    about="Which part of a shift to the right or left arrives in the maps of a layer: 1 is all of it, 0 nothing.",
    metric=METRIC,
    better="lower",
    rows=ROWS,
    columns=COLUMNS,
    settings=subjects.settings(
        ROWS, digits=200, pictures=200, photographs=16, paper=200, digit_columns=("conv1", "conv2", "maps")
    ),
    measure=Measure(),
    parameters=None,
    change=subjects.changed,
    curves={CURVE: {"x": "shift of the image (pixels)", "y": "shift of the maps (pixels of the image)"}},
    figure={"kind": "lines", "curve": CURVE, "panels": "rows", "diagonal": True, "n": "images"},
    identify=subjects.identify,
)
