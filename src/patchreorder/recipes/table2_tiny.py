"""Table 2 on 64x64 photographs of ImageNet: a five-convolution AlexNet from scratch on Tiny-ImageNet.

    patchreorder run table2_tiny --data tiny-imagenet-200 --threads 1 [--rows cnn pr_cnn] [--out runs/table2_tiny]

Made for the usual folder (train/CLASS/images/*.JPEG, val/images/*.JPEG, val/val_annotations.txt; 200 classes, 100,000
and 10,000 photographs). Trained on upright photographs (flipped, shifted by up to 4 pixels), tested on val/ as it is
(Ori), rotated by U[-45, 45] degrees (R) and shifted by U[-0.2, 0.2] of the size (T), top-1 and top-5. The last three
convolutions have maps of 8x8. All rows compute in bfloat16 in training, which takes half the time here.

The nearest that we come to the paper's ImageNet, where its numbers are, top-1:

              Ori   R     T
    CNN      57.1  36.6  46.5
    PR-CNN   60.4  40.7  54.9

Processes with the same --out share the work, and a stopped one goes on from its checkpoint. One seed of all rows and
two more of five rows take about 20 hours of one core.
"""

from __future__ import annotations

from typing import Any

from patchreorder.engine.options import Training
from patchreorder.laboratory.recipe import Plan, Recipe, Row, Setting
from patchreorder.laboratory.small_images import CURVES, TinyTask

from .rows import TINY

BROAD = (256, 256, 192)  # filters of the last three convolutions; the fully connected layers are so much narrower
QUANTILES = "ranked:quantiles=4"
ROWS = (
    Row("cnn", "CNN", "no reordering", "tiny_cnn"),
    Row("cnn_aug", "CNN-Data-Aug", "a third of the training images rotated, a third shifted", "tiny_cnn"),
    Row("si_cnn", "SI-CNN", "conv1, conv2 and conv5 with rotated copies of their filters, and as they are", "tiny_si"),
    Row("st_cnn", "ST-CNN", "an affine spatial transformer before the CNN", "tiny_st"),
    Row("pr_cnn", "PR-CNN", "2x2 of 2x2 patches reordered after conv5", "tiny_pr"),
    Row("pr_cnn_fine", "PR-CNN-fine", "every pixel a patch, reordered after pool5; ours", "tiny_pr_fine"),
    Row("cnn_gap", "CNN, global average", "average over all positions before fc6", "tiny_gap"),
    Row(
        "three_layers_sorted",
        "three layers sorted",
        "fc6 gets the means of 4 quantiles of the sorted values of conv3, conv4 and conv5; ours",
        "tiny_pr",
        options={"layer": QUANTILES, "place": "conv3+conv4+conv5"},
    ),
    Row(
        "quantiles_broad",
        "4 quantiles, broad",
        "conv3 to conv5 of 256, 256 and 192 filters; 4 quantiles instead of pool5; ours",
        "tiny_pr",
        options={"layer": QUANTILES, "place": "conv5", "filters": BROAD},
    ),
    Row(
        "gap_broad",
        "global average, broad",
        "conv3 to conv5 of 256, 256 and 192 filters; average over all positions",
        "tiny_gap",
        options={"filters": BROAD},
    ),
)
THRICE = ("cnn", "cnn_aug", "pr_cnn", "pr_cnn_fine", "three_layers_sorted")
EPOCHS, RATE = 15, 0.06
NOTES = {
    "st_cnn": "the transformer learns at 0.1 of the rate",
    "cnn_aug": "of its training images a third is rotated and a third shifted",
}


def _plan(row: str, training: Training, **options: Any) -> Plan:
    view = "tiny-train-aug" if row == "cnn_aug" else ""
    return Plan(training=training, view=view, note=NOTES.get(row, ""), **options)


def _scales(row: str) -> dict[str, float]:
    return {"transformer": 0.1} if row == "st_cnn" else {}


def _short(row: str, column: str) -> Plan:
    return _plan(row, Training(epochs=EPOCHS, lr=RATE, weight_decay=0.0005, amp=True, scales=_scales(row)))


def _smoke(row: str, column: str) -> Plan:
    training = Training(steps=2, batch=4, lr=0.001, amp=True, scales=_scales(row))
    return _plan(row, training, images=16, tested=8, curve_images=4, synthetic=True)


RECIPE = Recipe(
    name="table2_tiny",
    title="Table 2 on Tiny-ImageNet, rotated and shifted",
    about="Every network is trained once, on upright photographs (CNN-Data-Aug: rotated and shifted too), and tested "
    "on photographs as they are (Ori), rotated (R) and shifted (T), the same for all.",
    metric="accuracy %",
    better="higher",
    rows=ROWS,
    columns=TINY,
    settings={
        "short": Setting(
            about=f"Nesterov SGD 0.9, batch 128, one cycle up to {RATE}, weight decay 0.0005, {EPOCHS} epochs; "
            "computed in bfloat16",
            plan=_short,
            seeds=lambda row: (0, 1, 2) if row in THRICE else (0,),
        ),
        "smoke": Setting(about="seconds, synthetic images: does it run", plan=_smoke),
    },
    task=TinyTask,
    compare=[(row.name, "cnn") for row in ROWS if row.name != "cnn"]
    + [
        (row, other)
        for row in ("three_layers_sorted", "quantiles_broad")
        for other in ("cnn_gap", "cnn_aug", "pr_cnn_fine")
    ]
    + [("quantiles_broad", "gap_broad"), ("pr_cnn_fine", "pr_cnn"), ("pr_cnn", "st_cnn")],
    curves=CURVES,
    command="patchreorder run table2_tiny --data DIR --threads 1",
    trains_once=True,
)
