"""The paper's figure of where to reorder, as the paper has it: AlexNet on ImageNet, or on any class folders.

    patchreorder run fig_layers_imagenet --data IMAGENET --setting paper [--rows none conv5_2x2] [--workers 8]
    torchrun --nnodes N --nproc-per-node G -m patchreorder run fig_layers_imagenet --data IMAGENET --setting paper

Eleven trainings of the whole network, each as the row CNN of table2. Nobody has run the settings `paper` and `short`
with this code: here is no ImageNet.
"""

from __future__ import annotations

from dataclasses import replace

from patchreorder.laboratory.classification import changed
from patchreorder.laboratory.photographs import CURVES, count, identify, measure
from patchreorder.laboratory.recipe import Recipe

from . import table2
from .fig_layers import LAYERS, comparisons, figure, rows

RECIPE = Recipe(
    name="fig_layers_imagenet",
    title="Where to reorder in AlexNet: each convolution, one level and two",
    about="AlexNet with the module after each convolution, trained once each on photographs as they are, and tested on "
    "photographs as they are (Ori), turned (R) and shifted (T), the same for all.",
    metric="accuracy %",
    better="higher",
    rows=rows("alexnet", "alexnet_pr", {layer: layer for layer in LAYERS}),
    columns=tuple(column for column in table2.COLUMNS if column.top == 1),
    settings={
        **{name: table2.RECIPE.settings[name] for name in ("short", "paper")},
        "smoke": replace(table2.RECIPE.settings["smoke"], rows=("none", "conv3_2x2")),
    },
    measure=measure,
    parameters=count,
    change=changed,
    compare=comparisons(LAYERS),
    curves=CURVES,
    figure=figure(LAYERS, "photographs"),
    command="patchreorder run fig_layers_imagenet --data IMAGENET",
    trains_once=True,
    identify=identify,
)
