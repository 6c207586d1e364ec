"""Figure 2: do the weights of fully connected layers repeat each other, with reordering before them and without?

    patchreorder run fig_redundancy --trained runs/table2_grocery [--setting wide] [--out runs/fig_redundancy]
    patchreorder run fig_redundancy --setting mnist_r                     # or mnist_t: the networks that are shipped
    patchreorder run fig_redundancy --setting cifar10 --trained runs/table2_cifar10

Log histograms of cosines between weights of trained networks. The paper's figure has fc6 and fc7 of AlexNet and does
not say which weights are compared; so both: those of two positions of the map within a neuron of fc6 (Eq. 4 says that
they must be alike in a network that has learned to ignore positions), and those of two neurons, of fc6 and of fc7.
MNIST's networks have one fully connected layer, their classifier, which stands for fc6. A cell is the mean magnitude of
the cosine, the histogram its curve; `chance` in its details is that of random weights of the same length.
"""

from __future__ import annotations

from patchreorder.laboratory.figure import SHIPPED
from patchreorder.laboratory.recipe import Column, Plan, Recipe, Setting
from patchreorder.laboratory.redundancy import METRIC, RedundancyTask

from .rows import TRAINED

COLUMNS = (
    Column("fc6_places", "fc6, positions", "weights of two positions, in one neuron", ""),
    Column("fc6", "fc6, neurons", "all weights of two neurons of fc6", ""),
    Column("fc7", "fc7, neurons", "all weights of two neurons of fc7", ""),
)
RECIPE = Recipe(
    name="fig_redundancy",
    title="Figure 2: how alike the weights of fully connected layers are",
    about="Cosines between weights of fc6 and fc7 of networks that the tables trained: other networks than the "
    "paper's. Random weights give about 0.8 / sqrt(numbers compared); only what is above that means anything.",
    metric=METRIC,
    rows=tuple(TRAINED.values()),
    columns=COLUMNS,
    settings={
        "short": Setting(
            about="AlexNets with fc6 and fc7 of 512, trained on groceries (table2_grocery's setting short)",
            plan=lambda row, column: Plan(source="grocery", trained="short"),
            needs="--trained runs/table2_grocery",
            seeds=lambda row: (0,) if row == "st_cnn" else (0, 1, 2),
        ),
        "wide": Setting(
            about="AlexNets with fc6 and fc7 of 4096, trained on groceries (table2_grocery's setting wide)",
            plan=lambda row, column: Plan(source="grocery", trained="wide"),
            needs="--trained runs/table2_grocery",
            rows=("cnn", "pr_cnn", "pr_cnn_fine"),
        ),
        "cifar10": Setting(
            about="the networks that table2_cifar10 trained",
            plan=lambda row, column: Plan(source="cifar10", trained="short"),
            needs="--trained runs/table2_cifar10",
        ),
        "mnist_r": Setting(
            about="the shipped networks for rotated digits of MNIST; fc6 is here their classifier",
            plan=lambda row, column: Plan(source="mnist_r"),
            rows=SHIPPED,
            columns=("fc6_places", "fc6"),
        ),
        "mnist_t": Setting(
            about="the shipped networks for shifted digits of MNIST; fc6 is here their classifier",
            plan=lambda row, column: Plan(source="mnist_t"),
            rows=SHIPPED,
            columns=("fc6_places", "fc6"),
        ),
        "chance": Setting(
            about="random weights of the shapes of `short`: the distribution before training",
            plan=lambda row, column: Plan(source="grocery", trained="short", random_weights=True),
            needs="--trained runs/table2_grocery",
            rows=("cnn",),
        ),
        "smoke": Setting(
            about="seconds, random weights: does it run",
            plan=lambda row, column: Plan(source="grocery", synthetic=True),
        ),
    },
    task=RedundancyTask,
    curves={"cosines": {"x": "cosine", "y": "part of all pairs", "log": True}},
    figure={"kind": "lines", "curve": "cosines", "n": "pairs"},
)
