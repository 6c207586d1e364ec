"""Trained on upright digits in the middle of the canvas only: which network still reads turned and shifted ones?

patchreorder run upright [--rows cnn pose] [--split validation] [--out runs/upright]
"""

from __future__ import annotations

from patchreorder.engine.options import Training
from patchreorder.laboratory.classification import changed
from patchreorder.laboratory.digits import CURVES, OneTraining, measure, parameters
from patchreorder.laboratory.recipe import Column, Recipe, Row, Setting
from patchreorder.models.mnist import UNROLLED

from . import family, table1

ROWS = (
    *(row for row in table1.ROWS if row.name in ("cnn", "st_cnn", "pr_cnn", "cnn_gap")),
    *(row for row in family.ROWS if row.name in ("fine", "align", "pose", "align_orient")),
    Row(
        name="unrolled",
        title="unrolled",
        model="unrolled_cnn",
        options={"layer": f"{UNROLLED},about=centroid", "augment": table1.RINGS, "any_turn": True},
        about="read in rings about the centroid, one classifier for all turns, which knows none from another",
    ),
)
COLUMNS = (
    Column(name="Ori", title="Ori", dataset="mnist-c", about="upright, in the middle of a 42x42 canvas"),
    Column(name="T", title="T", dataset="mnist-t", about="at a random place of the canvas"),
    Column(name="R", title="R", dataset="mnist-cr", about="in the middle, turned by U[-90, 90] degrees"),
)
EPOCHS = 4


def _short(row: str, column: str) -> OneTraining:
    scales, note = table1.SLOWER.get(row, {}), table1.NOTES.get(row, "")
    return OneTraining(training=Training(epochs=EPOCHS, scales=scales), view="mnist-c", note=note)


def _smoke(row: str, column: str) -> OneTraining:
    training = Training(steps=3, batch=8)
    return OneTraining(training=training, images=32, tested=20, curve_images=10, generated=True, view="mnist-c")


RECIPE = Recipe(
    name="upright",
    title="Trained upright: error on upright, shifted and turned digits",
    about="Every network is trained once, on upright digits in the middle of the canvas, and tested on test digits as "
    "they are (Ori), shifted (T) and turned (R), the same for all.",
    metric="error %",
    rows=ROWS,
    columns=COLUMNS,
    settings={
        "short": Setting(
            about=f"Nesterov SGD 0.9, batch 128, learning rate as in Table 1, {EPOCHS} passes",
            plan=_short,
            seeds=lambda row: (0, 1, 2),
        ),
        "smoke": Setting(about="seconds, generated images: does it run", plan=_smoke, rows=("cnn", "align")),
    },
    measure=measure,
    parameters=parameters,
    change=changed,
    compare=[(row.name, "cnn") for row in ROWS if row.name != "cnn"] + [("pose", "align"), ("unrolled", "pose")],
    curves=CURVES,
    figure={"kind": "lines", "curve": "error by angle", "n": "test digits, the first 2,000 in the curve"},
    trains_once=True,
)
