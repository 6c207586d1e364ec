"""Table 2: AlexNet on photographs as they are (Ori), rotated (R) and shifted (T).

    patchreorder run table2 --data IMAGENET --setting paper [--rows cnn pr_cnn] [--workers 8] [--out runs/table2]
    torchrun --nnodes N --nproc-per-node G -m patchreorder run table2 --data IMAGENET --setting paper

IMAGENET holds train/CLASS/*.jpg and val/CLASS/*.jpg, or what `patchreorder shard` made of them (docs/scaling.md).

The paper (Shen et al., AAAI-17, section ImageNet-2012), % correct, top-1 / top-5:

                     Ori        R          T
    CNN           57.1/80.2  36.6/57.7  46.5/70.8
    CNN-Data-Aug  56.6/79.8  36.5/58.3  50.0/73.9
    SI-CNN        57.2/80.2  36.8/58.9      -
    ST-CNN        59.1/81.7  37.3/59.3  51.4/75.3
    PR-CNN        60.4/82.4  40.7/63.3  54.9/78.0

Its text calls top-5 an error; the table shows the share of right answers, as we do. What it does not say, and what we
take: a batch of 256; CNN and CNN-Data-Aug trained like SI-CNN and PR-CNN; CNN-Data-Aug rotated by U[-45, 45] degrees,
shifted by U[-0.2, 0.2], or neither, each a third of the time; "weight clip of 35" as Caffe's clip_gradients, the
longest gradient. The setting `paper` was not run by us.
"""

from __future__ import annotations

from typing import Any

from patchreorder.engine.options import Training
from patchreorder.laboratory.photographs import CURVES, PhotographTask
from patchreorder.laboratory.recipe import Plan, Recipe, Row, Setting

from .rows import PHOTOGRAPHS

ROWS = (
    Row("cnn", "CNN", "AlexNet as Caffe trains it", "alexnet"),
    Row("cnn_aug", "CNN-Data-Aug", "trained on images of which a third is rotated and a third shifted", "alexnet"),
    Row(
        "si_cnn",
        "SI-CNN",
        "six rotated copies of the filters of conv1, conv2 and conv5, the maximum counts",
        "alexnet_si",
    ),
    Row(
        "st_cnn",
        "ST-CNN",
        "an affine spatial transformer before the CNN, which begins with the weights of the row CNN",
        "alexnet_st",
    ),
    Row("pr_cnn", "PR-CNN", "2x2 patches of 2x2 patches reordered after conv5", "alexnet_pr"),
    Row(
        "pr_cnn_fine",
        "PR-CNN-fine",
        "every pixel a patch, reordered after pool5; ours",
        "alexnet_pr",
        options={"place": "pool5", "grid": "pixels", "levels": 1},
    ),
    Row("cnn_blur", "CNN, BlurPool", "pools that blur first (Zhang 2019)", "alexnet_blur"),
    Row("cnn_gap", "CNN, global average", "average over all positions before fc6", "alexnet_gap"),
)
PAPER = {
    "cnn": {"Ori": 57.1, "R": 36.6, "T": 46.5, "Ori5": 80.2, "R5": 57.7, "T5": 70.8},
    "cnn_aug": {"Ori": 56.6, "R": 36.5, "T": 50.0, "Ori5": 79.8, "R5": 58.3, "T5": 73.9},
    "si_cnn": {"Ori": 57.2, "R": 36.8, "Ori5": 80.2, "R5": 58.9},
    "st_cnn": {"Ori": 59.1, "R": 37.3, "T": 51.4, "Ori5": 81.7, "R5": 59.3, "T5": 75.3},
    "pr_cnn": {"Ori": 60.4, "R": 40.7, "T": 54.9, "Ori5": 82.4, "R5": 63.3, "T5": 78.0},
}
BIAS = {"bias": 2.0}  # times the learning rate, as Caffe's AlexNet
TRANSFORMER = BIAS | {"transformer": 0.01}
AUGMENTED = "of its training images a third is rotated and a third shifted"
FINE_TUNED = "fine-tuned from the row CNN, as in the paper; the transformer learns at 0.01 of the rate"


def _plan(row: str, training: Training, **options: Any) -> Plan:
    augmented = row == "cnn_aug"
    start, note = ("cnn", FINE_TUNED) if row == "st_cnn" else (None, AUGMENTED if augmented else "")
    return Plan(training=training, view="train-aug" if augmented else "", start=start, note=note, **options)


def _paper(row: str, column: str) -> Plan:
    fine_tuned = row == "st_cnn"
    training = Training(
        steps=200_000 if fine_tuned else 700_000,
        batch=256,
        lr=0.001 if fine_tuned else 0.01,
        momentum=0.9,
        nesterov=False,
        weight_decay=0.0005,
        schedule="step",
        decay_every=50_000 if fine_tuned else 200_000,
        clip=35.0,
        scales=TRANSFORMER if fine_tuned else BIAS,
    )
    return _plan(row, training)


def _smoke(row: str, column: str) -> Plan:
    training = Training(steps=2, batch=4, lr=0.001, clip=35.0, scales=TRANSFORMER if row == "st_cnn" else BIAS)
    return _plan(row, training, synthetic=True, options={"width": 16}, tested=6)


RECIPE = Recipe(
    name="table2",
    title="Table 2: AlexNet on photographs, rotated and shifted",
    about="Every network is trained once, on photographs as they are (CNN-Data-Aug: rotated and shifted too), and "
    "tested on photographs as they are (Ori), rotated (R) and shifted (T), the same for all.",
    metric="accuracy %",
    better="higher",
    rows=ROWS,
    columns=PHOTOGRAPHS,
    settings={
        "paper": Setting(
            about="as the paper: SGD 0.9, 700,000 steps, learning rate 0.01 divided by 10 every 200,000, twice for "
            "biases, weight decay 0.0005, gradients clipped at 35",
            plan=_paper,
        ),
        "smoke": Setting(
            about="seconds, synthetic images: does it run",
            plan=_smoke,
            rows=("cnn", "cnn_aug", "si_cnn", "st_cnn", "pr_cnn"),
        ),
    },
    task=PhotographTask,
    paper=PAPER,
    compare=[(row.name, "cnn") for row in ROWS if row.name != "cnn"] + [("pr_cnn", "st_cnn")],
    curves=CURVES,
    command="patchreorder run table2 --data IMAGENET --setting paper",
    trains_once=True,
)
