"""The paper's Figure 1: how a shift of the image travels through the layers, CNN against PR-CNN.

    patchreorder run fig_propagation                                       # MNIST, the networks that are shipped
    patchreorder run fig_propagation --setting trained --trained runs/table1
    patchreorder run fig_propagation --setting cifar10 --trained runs/table2_cifar10
    patchreorder run fig_propagation --setting grocery --trained runs/table2_grocery --data GROCERY [--weights FILE]
    patchreorder run fig_propagation --setting photographs --data DIR [--weights FILE]

Images are shifted to the right and to the left by up to a fifth of their width, in whole pixels. For each image and
layer we search the displacement that brings the maps of the image as it is nearest to those of the shifted one
(`patchreorder.metrics.propagation`), in whole pixels of the image: map pixels times the layer's stride. A cell is the
slope of the line through zero: 1 if the whole shift arrives, 0 if nothing does.
"""

from __future__ import annotations

from patchreorder.laboratory.propagation import CURVE, METRIC, PropagationTask
from patchreorder.laboratory.recipe import Column, Plan, Recipe, Setting

from .rows import TRAINED

ROWS = tuple(TRAINED[name] for name in ("cnn", "pr_cnn", "pr_cnn_fine"))
COLUMNS = (
    *(
        Column(f"conv{number}", f"conv{number}", f"maps of convolution {number}", "T")
        for number in range(1, 6)
    ),
    Column("maps", "last maps", "the input of the first fully connected layer, pooled and reordered", "T"),
)  # fmt: skip
OF_DIGITS = ("conv1", "conv2", "maps")
RECIPE = Recipe(
    name="fig_propagation",
    title="Figure 1: how a shift of the image travels through the layers",
    about="Which part of a shift to the right or left arrives in the maps of a layer: 1 is all of it, 0 nothing.",
    metric=METRIC,
    better="lower",
    rows=ROWS,
    columns=COLUMNS,
    settings={
        "short": Setting(
            about="MNIST's upright test digits and the trained networks that come with the package",
            plan=lambda row, column: Plan(source="mnist", images=200),
            rows=("cnn", "pr_cnn"),
            columns=OF_DIGITS,
        ),
        "trained": Setting(
            about="MNIST's upright test digits and networks that table1 trained, PR-CNN-fine among them",
            plan=lambda row, column: Plan(source="mnist", trained="short", images=200),
            columns=OF_DIGITS,
            needs="--trained runs/table1",
        ),
        "cifar10": Setting(
            about="CIFAR-10's upright test images and the networks that table2_cifar10 trained",
            plan=lambda row, column: Plan(source="cifar10", trained="short", images=200),
            needs="--trained runs/table2_cifar10",
        ),
        "grocery": Setting(
            about="test photographs of groceries, or any class folders, and the AlexNets that table2_grocery trained",
            plan=lambda row, column: Plan(source="grocery", trained="short", images=16),
            needs="--trained runs/table2_grocery --data DIR",
        ),
        "photographs": Setting(
            about="photographs in class folders, and AlexNet's convolutions as ImageNet trained them",
            plan=lambda row, column: Plan(source="imagenet", frozen=True, images=32),
            needs="--data DIR",
        ),
        "smoke": Setting(
            about="seconds, synthetic images and random weights: does it run",
            plan=lambda row, column: Plan(source="cifar10", images=10, synthetic=True),
        ),
    },
    task=PropagationTask,
    curves={CURVE: {"x": "shift of the image (pixels)", "y": "shift of the maps (pixels of the image)"}},
    figure={"kind": "lines", "curve": CURVE, "panels": "rows", "diagonal": True, "n": "images"},
)
