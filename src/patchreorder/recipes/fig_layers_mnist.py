"""Where to reorder, on digits: at both convolutions of Table 1's CNN, in one level and in two.

    patchreorder run fig_layers_mnist [--columns R] [--out runs/fig_layers_mnist]

Trained as in Table 1 but for fewer passes, on turned (R) or shifted (T) digits. On R conv1 has maps of 20x20 and conv2
of 4x4, so that 4x4 patches are its pixels; on T they are 34x34 and 11x11. About 0.6 core-hours for the five rows.
"""

from __future__ import annotations

from dataclasses import replace

from patchreorder.engine.options import Training
from patchreorder.laboratory.classification import changed
from patchreorder.laboratory.digits import CURVES, Plan, measure, parameters
from patchreorder.laboratory.recipe import Recipe, Setting

from . import table1
from .fig_layers import comparisons, figure, rows

EPOCHS = {"R": 4, "T": 2}


def _short(row: str, column: str) -> Plan:
    return Plan(training=Training(epochs=EPOCHS[column]))


LAYERS = ("conv1", "conv2")
RECIPE = Recipe(
    name="fig_layers_mnist",
    title="Where to reorder on digits: both convolutions, one level and two",
    about="The CNN of Table 1 with the module at each convolution, trained and tested on turned (R) or shifted (T) "
    "digits. The paper's figure is of AlexNet on ImageNet.",
    metric="error %",
    rows=rows("cnn", "pr_cnn", {"conv1": "conv1", "conv2": "relu"}),
    columns=table1.COLUMNS,
    settings={
        "short": Setting(about=f"as in Table 1, but {EPOCHS['R']} (R) and {EPOCHS['T']} (T) passes", plan=_short),
        "smoke": replace(table1.RECIPE.settings["smoke"], rows=("none", "conv1_4x4")),
    },
    measure=measure,
    parameters=parameters,
    change=changed,
    compare=comparisons(LAYERS),
    curves=CURVES,
    figure=figure(LAYERS, "test digits"),
)
