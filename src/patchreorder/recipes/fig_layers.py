"""The paper's figure of where to reorder: at each of the five convolutions, in one level and in two.

    patchreorder run fig_layers [--rows none conv1_4x4 conv5_2x2] [--out runs/fig_layers]

The paper trains AlexNet on ImageNet for each; here it is the five-convolution network of table2_cifar10, trained as
there. 4x4: one level of 4x4 patches (the paper's l = 1); 2x2: 2x2 patches of 2x2 patches (its l = 2). Maps are 32x32 at
conv1, 16x16 at conv2 and 8x8 behind. About 80 seconds of one core a pass and row: 1.5 core-hours for the 11 rows.
"""

from __future__ import annotations

from patchreorder.engine.train import Training

from . import table2_cifar10
from .classification import changed
from .pictures import CURVES, Plan, measure, parameters
from .spec import Recipe, Row, Setting

LAYERS = ("conv1", "conv2", "conv3", "conv4", "conv5")
GRIDS = {"4x4": ("4x4 patches", {"grid": 4, "levels": 1}), "2x2": ("2x2 of 2x2 patches", {"grid": 2, "levels": 2})}
ROWS = (
    Row(name="none", title="none", model="cifar_cnn", about="no reordering"),
    *(
        Row(
            name=f"{layer}_{grid}",
            title=f"{layer}, {title}",
            model="cifar_pr",
            options={"place": layer, **options},
            about=f"{title} reordered after the ReLU of {layer}",
        )
        for grid, (title, options) in GRIDS.items()
        for layer in LAYERS
    ),
)
EPOCHS = 6


def _short(row: str, column: str) -> Plan:
    return Plan(training=Training(epochs=EPOCHS, batch=128, lr=0.03, weight_decay=0.0005), view="cifar10-train")


def _smoke(row: str, column: str) -> Plan:
    training = Training(steps=2, batch=4, lr=0.001)
    return Plan(training=training, view="cifar10-train", images=16, tested=8, curve_images=4, generated=True)


RECIPE = Recipe(
    name="fig_layers",
    title="Where to reorder: each convolution, one level and two",
    about="A five-convolution network on CIFAR-10, trained once for each place of the module on upright pictures, and "
    "tested on pictures as they are (Ori), turned (R) and shifted (T), the same for all. The paper's figure is of "
    "AlexNet on ImageNet.",
    metric="accuracy %",
    better="higher",
    rows=ROWS,
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
    compare=[(row.name, "none") for row in ROWS if row.name != "none"]
    + [(f"{layer}_2x2", f"{layer}_4x4") for layer in LAYERS],
    curves=CURVES,
    figure={
        "kind": "places",
        "x": "reordered after",
        "n": "test pictures",
        "places": list(LAYERS),
        "lines": {title: [f"{layer}_{grid}" for layer in LAYERS] for grid, (title, _) in GRIDS.items()},
        "level": "none",
    },
    trains_once=True,
)
