"""The paper's figure of invariance: the score of Goodfellow et al. at the end of every layer, CNN against PR-CNN.

    patchreorder run fig_invariance                                       # MNIST, the networks that are shipped
    patchreorder run fig_invariance --setting trained --trained runs/table1
    patchreorder run fig_invariance --setting cifar10 --trained runs/table2_cifar10
    patchreorder run fig_invariance --setting grocery --trained runs/table2_grocery --data GROCERY [--weights FILE]

Rotations from -45 to 45 degrees in steps of 9, translations from -0.2 to 0.2 in steps of 0.04 along x and along y, as
in the paper (docs/measures.md has the definition). A cell is the score of the input of the first fully connected layer;
its curve has every layer. Of MNIST's networks the one for rotated digits (R) is tested on rotations, the one for
shifted digits (T) on translations. Scores of unequal numbers of images cannot be compared: the highest possible score
stands in each row.
"""

from __future__ import annotations

from patchreorder.laboratory.figure import SHIPPED
from patchreorder.laboratory.invariance import METRIC, InvarianceTask
from patchreorder.laboratory.recipe import Column, Plan, Recipe, Setting

from .rows import TRAINED

COLUMNS = (
    Column("rotation", "rotation", "rotated by -45, -36, ..., 45 degrees", "R"),
    Column("translation", "translation", "shifted by -0.2, -0.16, ..., 0.2 of the width, and of the height", "T"),
)
RECIPE = Recipe(
    name="fig_invariance",
    title="Invariance of every layer",
    about="How often the neurons of a layer go on firing when an image is rotated or shifted, relative to how often "
    "they fire at all: the mean of the best fifth (docs/measures.md). In the table: of the input of the first fully "
    "connected layer.",
    metric=METRIC,
    better="higher",
    rows=tuple(TRAINED.values()),
    columns=COLUMNS,
    settings={
        "short": Setting(
            about="MNIST's upright test digits and the trained networks that come with the package",
            plan=lambda row, column: Plan(source="mnist", images=2000),
            rows=SHIPPED,
        ),
        "trained": Setting(
            about="MNIST's upright test digits and networks that table1 trained, PR-CNN-fine among them",
            plan=lambda row, column: Plan(source="mnist", trained="short", images=2000),
            rows=(*SHIPPED, "pr_cnn_fine"),
            needs="--trained runs/table1",
        ),
        "cifar10": Setting(
            about="CIFAR-10's upright test images and the networks that table2_cifar10 trained",
            plan=lambda row, column: Plan(source="cifar10", trained="short", images=2000),
            needs="--trained runs/table2_cifar10",
        ),
        "grocery": Setting(
            about="test photographs of groceries, or any class folders, and the AlexNets that table2_grocery trained",
            plan=lambda row, column: Plan(source="grocery", trained="short", images=200),
            needs="--trained runs/table2_grocery --data DIR",
        ),
        "smoke": Setting(
            about="seconds, synthetic images and random weights: does it run",
            plan=lambda row, column: Plan(source="cifar10", images=10, synthetic=True),
        ),
    },
    task=InvarianceTask,
    curves={METRIC: {"x": "layer, by its number from the first", "y": METRIC}},
    figure={"kind": "lines", "curve": METRIC, "labels": "layers", "x": "end of layer", "n": "images"},
)
