"""The paper's Figure 1 for rotations: how a rotation of the image travels through the layers, CNN against PR-CNN.

    patchreorder run fig_rotation --data DIR [--weights FILE]              # photographs, AlexNet's convolutions
    patchreorder run fig_rotation --setting cifar10 --trained runs/table2_cifar10

Images are rotated by -45, -36, ..., 45 degrees. For each image and layer we search the rotation, in steps of 4.5
degrees, that brings the maps of the image as it is nearest to those of the rotated one
(`patchreorder.metrics.propagation`). A cell is the slope of the line through zero: 1 if the whole rotation arrives, 0
if nothing does.
"""

from __future__ import annotations

from patchreorder.laboratory.propagation import ROTATION_CURVE, ROTATION_METRIC, RotationTask
from patchreorder.laboratory.recipe import Column, Plan, Recipe, Setting

from .rows import TRAINED

RECIPE = Recipe(
    name="fig_rotation",
    title="Figure 1 for rotations: how a rotation of the image travels through the layers",
    about="Which part of a rotation arrives in the maps of a layer: 1 is all of it, 0 nothing.",
    metric=ROTATION_METRIC,
    better="lower",
    rows=tuple(TRAINED[name] for name in ("cnn", "pr_cnn", "pr_cnn_fine")),
    columns=(
        *(Column(f"conv{number}", f"conv{number}", f"maps of convolution {number}", "R") for number in range(1, 6)),
        Column("maps", "last maps", "the input of the first fully connected layer, pooled and reordered", "R"),
    ),
    settings={
        "short": Setting(
            about="photographs in class folders, and AlexNet's convolutions as ImageNet trained them",
            plan=lambda row, column: Plan(source="imagenet", frozen=True, images=32),
            needs="--data DIR",
        ),
        "cifar10": Setting(
            about="CIFAR-10's upright test images and the networks that table2_cifar10 trained",
            plan=lambda row, column: Plan(source="cifar10", trained="short", images=200),
            needs="--trained runs/table2_cifar10",
        ),
        "smoke": Setting(
            about="seconds, synthetic images and random weights: does it run",
            plan=lambda row, column: Plan(source="cifar10", images=10, synthetic=True),
        ),
    },
    task=RotationTask,
    curves={ROTATION_CURVE: {"x": "rotation of the image (degrees)", "y": "rotation of the maps (degrees)"}},
    figure={"kind": "lines", "curve": ROTATION_CURVE, "panels": "rows", "diagonal": True, "n": "images"},
)
