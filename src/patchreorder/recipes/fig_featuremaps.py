"""The paper's figure of feature maps: one image as it is, rotated and shifted, before and after reordering.

    patchreorder run fig_featuremaps                                       # MNIST, the network that is shipped
    patchreorder run fig_featuremaps --setting trained --trained runs/table1
    patchreorder run fig_featuremaps --setting cifar10 --trained runs/table2_cifar10
    patchreorder run fig_featuremaps --setting grocery --trained runs/table2_grocery --data GROCERY [--weights FILE]
    patchreorder run fig_featuremaps --setting photographs --data DIR [--weights FILE]

A cell is the mean cosine, over many images, between a layer's maps of the image as it is and of the image rotated by 36
degrees, or shifted to the right by 0.16 of its width; the picture shows the first image and the six strongest maps.
"""

from __future__ import annotations

from patchreorder.laboratory.feature_maps import METRIC, FeatureMapTask
from patchreorder.laboratory.recipe import Column, Plan, Recipe, Row, Setting

ROWS = tuple(
    Row(
        f"{name}_{when}",
        f"{title}, {when}",
        f"the input of the reordering layer of {title}, {where}" if when == "before" else "the same, reordered",
        model,
        options={"after": when == "after"},
    )
    for name, title, model, where in (
        ("pr", "PR-CNN", "pr_cnn", "after the last convolution"),
        ("fine", "PR-CNN-fine", "pr_cnn_fine", "after the last pool"),
    )
    for when in ("before", "after")
)
COLUMNS = (
    Column("rotated", "rotated", "by 36 degrees", "R"),
    Column("shifted", "shifted", "to the right by 0.16 of the width", "T"),
)
RECIPE = Recipe(
    name="fig_featuremaps",
    title="Feature maps of one image, before and after reordering",
    about="The cosine between the maps of an image and of the same image rotated or shifted; 1 is no change.",
    metric=METRIC,
    better="higher",
    rows=ROWS,
    columns=COLUMNS,
    settings={
        "short": Setting(
            about="MNIST's upright test digits and the trained networks that come with the package",
            plan=lambda row, column: Plan(source="mnist", images=1000),
            rows=("pr_before", "pr_after"),
        ),
        "trained": Setting(
            about="MNIST's upright test digits and networks that table1 trained, PR-CNN-fine among them",
            plan=lambda row, column: Plan(source="mnist", trained="short", images=1000),
            needs="--trained runs/table1",
        ),
        "cifar10": Setting(
            about="CIFAR-10's upright test images and the networks that table2_cifar10 trained",
            plan=lambda row, column: Plan(source="cifar10", trained="short", images=1000),
            needs="--trained runs/table2_cifar10",
        ),
        "grocery": Setting(
            about="test photographs of groceries, or any class folders, and the AlexNets that table2_grocery trained",
            plan=lambda row, column: Plan(source="grocery", trained="short", images=100),
            needs="--trained runs/table2_grocery --data DIR",
        ),
        "photographs": Setting(
            about="photographs in class folders, and AlexNet's convolutions as ImageNet trained them",
            plan=lambda row, column: Plan(source="imagenet", frozen=True, images=200),
            needs="--data DIR",
        ),
        "smoke": Setting(
            about="seconds, synthetic images and random weights: does it run",
            plan=lambda row, column: Plan(source="cifar10", images=10, synthetic=True),
        ),
    },
    task=FeatureMapTask,
    figure={"kind": "maps", "n": "images"},
)
