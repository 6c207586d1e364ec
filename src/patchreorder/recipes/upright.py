"""Trained on upright digits in the middle of the canvas only: which network still reads rotated and shifted ones?

    patchreorder run upright [--rows cnn posed] [--split validation] [--out runs/upright]
    patchreorder run upright --setting long  # 24 epochs instead of 4; tested at all 360 degrees as well

For comparison: H-NeXt, trained upright as well, makes 1.40 % errors on digits at any rotation (Karella et al., 2023).
"""

from __future__ import annotations

from patchreorder.engine.options import Training
from patchreorder.laboratory.recipe import Column, Plan, Recipe, Row, Setting
from patchreorder.laboratory.small_images import CURVES, DigitTask

from .rows import AUGMENT_RINGS, CNN, CNN_GAP, PR_CNN, PR_CNN_FINE, RINGS, ST_CNN

ROWS = (
    CNN,
    ST_CNN,
    PR_CNN,
    CNN_GAP,
    PR_CNN_FINE,
    Row(
        "aligned",
        "aligned",
        "the image rolled so that its centroid is in the middle",
        "pr_cnn",
        options={"layer": "align", "place": "input"},
    ),
    Row(
        "posed",
        "posed",
        "the image moved and rotated: centroid in the middle, principal axis upright",
        "pr_cnn",
        options={"layer": "pose", "place": "input"},
    ),
    Row(
        "c4_aligned_oriented",
        "C4, aligned, oriented",
        "aligned, the middle 28x28 cropped; group convolutions, the strongest orientation first",
        "c4_cnn",
        options={"layer": "orient", "first": "align:size=28"},
    ),
    Row(
        "unrolled",
        "unrolled",
        "read in rings about the centroid, one classifier for all rotations, which it does not tell apart",
        "unrolled_cnn",
        options={"layer": f"{RINGS},about=centroid", "augment": AUGMENT_RINGS, "any_turn": True},
    ),
    Row(
        "unrolled_bent",
        "unrolled, bent",
        "the same without the second pool, and bent by the augmentation",
        "unrolled_cnn",
        options={
            "layer": f"{RINGS},about=centroid",
            "augment": f"{AUGMENT_RINGS},bend=1",
            "any_turn": True,
            "halve": False,
        },
    ),
)
COLUMNS = (
    Column("Ori", "Ori", "upright, in the middle of a 42x42 canvas", "mnist-c"),
    Column("T", "T", "at a random position of the canvas", "mnist-t"),
    Column("R", "R", "in the middle, rotated by U[-90, 90] degrees", "mnist-cr"),
    Column("any", "360°", "in the middle, rotated by U[-180, 180] degrees", "mnist-c360"),
)
EPOCHS, LONG = 4, 24
FIRST = [row.name for row in ROWS if row.name != "unrolled_bent"]


def _plan(row: str, epochs: int) -> Plan:
    slower = row == "st_cnn"
    note = "the transformer learns at 0.1 of the rate" if slower else ""
    training = Training(epochs=epochs, scales={"transformer": 0.1} if slower else {})
    return Plan(training=training, view="mnist-c", note=note)


def _smoke(row: str, column: str) -> Plan:
    training = Training(steps=3, batch=8)
    return Plan(training=training, images=32, tested=20, curve_images=10, synthetic=True, view="mnist-c")


RECIPE = Recipe(
    name="upright",
    title="Trained upright: error on upright, shifted and rotated digits",
    about="Every network is trained once, on upright digits in the middle of the canvas, and tested on test digits as "
    "they are (Ori), shifted (T) and rotated (R), the same for all.",
    metric="error %",
    rows=ROWS,
    columns=COLUMNS,
    settings={
        "short": Setting(
            about=f"Nesterov SGD 0.9, batch 128, learning rate as in Table 1, {EPOCHS} epochs",
            plan=lambda row, column: _plan(row, EPOCHS),
            seeds=lambda row: (0, 1, 2),
            rows=FIRST,
            columns=("Ori", "T", "R"),
        ),
        "long": Setting(
            about=f"as short, {LONG} epochs",
            plan=lambda row, column: _plan(row, LONG),
            seeds=lambda row: (0, 1, 2),
            rows=("cnn", "posed", "unrolled", "unrolled_bent"),
        ),
        "smoke": Setting(about="seconds, synthetic images: does it run", plan=_smoke, rows=("cnn", "aligned")),
    },
    task=DigitTask,
    compare=[(row.name, "cnn") for row in ROWS if row.name != "cnn"]
    + [("posed", "aligned"), ("unrolled", "posed"), ("unrolled_bent", "unrolled")],
    curves=CURVES,
    figure={"kind": "lines", "curve": "error by angle", "n": "test digits, the first 2,000 in the curve"},
    trains_once=True,
)
