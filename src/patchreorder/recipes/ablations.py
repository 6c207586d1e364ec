"""What the paper leaves open about PR-CNN: where the module sits, what it ranks by, how fine, which way round.

    patchreorder run ablations --split validation [--columns R] [--out runs/ablations]

Each row changes one thing of PR-CNN; the last three are of the finest form, one pixel a patch after the pool. One
seed each, and seeds differ among themselves: only large differences mean anything.
"""

from __future__ import annotations

from typing import Any

from patchreorder.engine.options import Training
from patchreorder.laboratory.recipe import Plan, Recipe, Row, Setting
from patchreorder.laboratory.small_images import CURVES, DigitTask

from .rows import CNN, DIGITS


def _row(name: str, title: str, about: str, model: str = "pr_cnn", **options: Any) -> Row:
    return Row(name, title, about, model, options=options)


ROWS = (
    CNN,
    _row("pr_cnn", "PR-CNN", "2x2 patches after the second ReLU, per channel, by L2, strongest first"),
    _row("l1", "by L1", "energy is the sum of magnitudes", energy="l1"),
    _row("joint", "joint", "all channels move together", per_channel=False),
    _row("before_relu", "before ReLU", "right after the convolution", place="conv"),
    _row("after_pool", "after the pool", "2x2 patches after the second pool", place="pool"),
    _row("grid3", "3x3 patches", "after the second ReLU", grid=3),
    _row("pixels", "pixels before the pool", "every pixel a patch, after the second ReLU", grid="pixels"),
    _row("ascending", "weakest first", "ascending order", descending=False),
    _row("fine", "PR-CNN-fine", "every pixel a patch, after the second pool", "pr_cnn_fine"),
    _row("fine_joint", "PR-CNN-fine, joint", "all channels move together", "pr_cnn_fine", per_channel=False),
    _row("fine_ascending", "PR-CNN-fine, weakest first", "ascending order", "pr_cnn_fine", descending=False),
)
EPOCHS = {"R": 4, "T": 2}


def _short(row: str, column: str) -> Plan:
    return Plan(training=Training(epochs=EPOCHS[column]))


def _smoke(row: str, column: str) -> Plan:
    return Plan(training=Training(steps=3, batch=8), images=32, tested=20, curve_images=10, synthetic=True)


RECIPE = Recipe(
    name="ablations",
    title="Ablations: the settings of reordering that the paper leaves open",
    about="Networks are trained as in Table 1 but for fewer epochs, each changing one thing of PR-CNN or PR-CNN-fine.",
    metric="error %",
    rows=ROWS,
    columns=DIGITS,
    settings={
        "short": Setting(about=f"as in Table 1, but {EPOCHS['R']} (R) and {EPOCHS['T']} (T) epochs", plan=_short),
        "smoke": Setting(
            about="seconds, synthetic images: does it run", plan=_smoke, rows=("cnn", "before_relu", "fine_joint")
        ),
    },
    task=DigitTask,
    compare=[(row.name, "pr_cnn") for row in ROWS if row.name not in ("pr_cnn", "cnn")] + [("pr_cnn", "cnn")],
    curves=CURVES,
)
