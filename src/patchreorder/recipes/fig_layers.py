"""The paper's figure of where to reorder: at each of the five convolutions, in one level and in two.

    patchreorder run fig_layers [--rows none conv1_4x4 conv5_2x2] [--out runs/fig_layers]

The paper trains AlexNet on ImageNet for each (fig_layers_imagenet); here it is the five-convolution network of
table2_cifar10, trained as there; fig_layers_mnist is the same on digits. 4x4: one level of 4x4 patches (the paper's
l = 1); 2x2: 2x2 patches of 2x2 patches (its l = 2). Maps are 32x32 at conv1, 16x16 at conv2 and 8x8 behind. About 80
seconds of one core a pass and row: 1.5 core-hours for the 11 rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from patchreorder.engine.options import Training
from patchreorder.laboratory.cifar10 import CURVES, Plan, measure, parameters
from patchreorder.laboratory.classification import changed
from patchreorder.laboratory.recipe import Recipe, Row, Setting

from . import table2_cifar10

GRIDS = {"4x4": ("4x4 patches", {"grid": 4, "levels": 1}), "2x2": ("2x2 of 2x2 patches", {"grid": 2, "levels": 2})}
EPOCHS = 6


def rows(plain: str, reordered: str, places: Mapping[str, str]) -> tuple[Row, ...]:
    """A row without the module, and for both grids one at every layer; `places` has what the models call it."""
    return (
        Row(name="none", title="none", model=plain, about="no reordering"),
        *(
            Row(
                name=f"{layer}_{grid}",
                title=f"{layer}, {title}",
                model=reordered,
                options={"place": place, **options},
                about=f"{title} reordered after the ReLU of {layer}",
            )
            for grid, (title, options) in GRIDS.items()
            for layer, place in places.items()
        ),
    )


def comparisons(layers: Sequence[str]) -> list[tuple[str, str]]:
    """Every place with none, and at every place two levels with one."""
    reordered = [(f"{layer}_{grid}", "none") for grid in GRIDS for layer in layers]
    return reordered + [(f"{layer}_2x2", f"{layer}_4x4") for layer in layers]


def figure(layers: Sequence[str], n: str) -> dict[str, Any]:
    return {
        "kind": "places",
        "x": "reordered after",
        "n": n,
        "places": list(layers),
        "lines": {title: [f"{layer}_{grid}" for layer in layers] for grid, (title, _) in GRIDS.items()},
        "level": "none",
    }


def _short(row: str, column: str) -> Plan:
    return Plan(training=Training(epochs=EPOCHS, batch=128, lr=0.03, weight_decay=0.0005), view="cifar10-train")


def _smoke(row: str, column: str) -> Plan:
    training = Training(steps=2, batch=4, lr=0.001)
    return Plan(training=training, view="cifar10-train", images=16, tested=8, curve_images=4, generated=True)


LAYERS = ("conv1", "conv2", "conv3", "conv4", "conv5")
RECIPE = Recipe(
    name="fig_layers",
    title="Where to reorder: each convolution, one level and two",
    about="A five-convolution network on CIFAR-10, trained once for each place of the module on upright pictures, and "
    "tested on pictures as they are (Ori), turned (R) and shifted (T), the same for all. The paper's figure is of "
    "AlexNet on ImageNet.",
    metric="accuracy %",
    better="higher",
    rows=rows("cifar_cnn", "cifar_pr", {layer: layer for layer in LAYERS}),
    columns=table2_cifar10.COLUMNS,
    settings={
        "short": Setting(
            about=f"Nesterov SGD 0.9, batch 128, one cycle up to 0.03, weight decay 0.0005, {EPOCHS} passes",
            plan=_short,
        ),
        "smoke": Setting(about="seconds, generated images: does it run", plan=_smoke),
    },
    measure=measure,
    parameters=parameters,
    change=changed,
    compare=comparisons(LAYERS),
    curves=CURVES,
    figure=figure(LAYERS, "test pictures"),
    trains_once=True,
)
