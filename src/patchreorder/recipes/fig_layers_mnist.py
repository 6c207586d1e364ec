"""Where to reorder, on digits: at both convolutions of Table 1's CNN, in one level and in two.

    patchreorder run fig_layers_mnist [--columns R] [--out runs/fig_layers_mnist]

Trained as in Table 1 but for fewer epochs, on rotated (R) or shifted (T) digits. On R conv1 has maps of 20x20 and conv2
of 4x4, so that 4x4 patches are its pixels; on T they are 34x34 and 11x11. About 0.6 core-hours for the five rows.
"""

from __future__ import annotations

from patchreorder.engine.options import Training
from patchreorder.laboratory.recipe import Plan, Recipe, Setting
from patchreorder.laboratory.small_images import CURVES, DigitTask

from .rows import DIGITS, at_each_layer, layer_comparisons, layer_figure

LAYERS = {"conv1": "conv1", "conv2": "relu"}
EPOCHS = {"R": 4, "T": 2}


def _short(row: str, column: str) -> Plan:
    return Plan(training=Training(epochs=EPOCHS[column]))


def _smoke(row: str, column: str) -> Plan:
    return Plan(training=Training(steps=3, batch=8), images=32, tested=20, curve_images=10, synthetic=True)


RECIPE = Recipe(
    name="fig_layers_mnist",
    title="Where to reorder on digits: both convolutions, one level and two",
    about="The CNN of Table 1 with the module at each convolution, trained and tested on rotated (R) or shifted (T) "
    "digits. The paper's figure is of AlexNet on ImageNet.",
    metric="error %",
    rows=at_each_layer("cnn", "pr_cnn", LAYERS),
    columns=DIGITS,
    settings={
        "short": Setting(about=f"as in Table 1, but {EPOCHS['R']} (R) and {EPOCHS['T']} (T) epochs", plan=_short),
        "smoke": Setting(about="seconds, synthetic images: does it run", plan=_smoke, rows=("none", "conv1_4x4")),
    },
    task=DigitTask,
    compare=layer_comparisons(LAYERS),
    curves=CURVES,
    figure=layer_figure(LAYERS, "test digits"),
)
