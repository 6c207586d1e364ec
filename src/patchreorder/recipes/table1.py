"""Table 1: error on turned (R) and shifted (T) digits.

    patchreorder run table1 [--setting short] [--rows cnn pr_cnn] [--columns R] [--seeds 0 1 2] [--out runs/table1]

The paper (Shen et al., AAAI-17, section MNIST), % error:

                R    T
    FCN        2.1  2.9
    CNN        1.2  1.3
    SI-CNN     0.9   -
    ST-CNN     0.8  0.8    (the projective one: "the most general")
    PR-CNN     0.8  0.7
"""

from __future__ import annotations

from typing import Any

from patchreorder.data.datasets import AUG_RANGE
from patchreorder.engine.options import Training
from patchreorder.laboratory.classification import changed
from patchreorder.laboratory.digits import CURVES, OneTraining, Plan, measure, parameters
from patchreorder.laboratory.recipe import Column, Recipe, Row, Setting
from patchreorder.models.mnist import UNROLLED

STRAIGHT = {
    "layer": "pose:by=shear,size=28",
    "place": "input",
    "augment": f"jitter=2,tilt={AUG_RANGE},zoom={AUG_RANGE / 100}",
}
BENT = {**STRAIGHT, "augment": STRAIGHT["augment"] + ",bend=1"}
RINGS = f"jitter=0.5,zoom={AUG_RANGE / 200}"
ROWS = (
    Row(name="fcn", title="FCN", model="fcn", about="two fully connected hidden layers"),
    Row(name="cnn", title="CNN", model="cnn", about="9x9, pool, 7x7, pool, classifier; 64 filters"),
    Row(
        name="si_cnn", title="SI-CNN", model="si_cnn", about="six rotated copies of every filter, the strongest counts"
    ),
    Row(
        name="st_cnn",
        title="ST-CNN",
        model="st_cnn",
        about="a projective spatial transformer before the CNN, which the paper compares with",
    ),
    Row(
        name="st_cnn_affine",
        title="ST-CNN affine",
        model="st_cnn_affine",
        about="an affine spatial transformer before the CNN",
    ),
    Row(name="pr_cnn", title="PR-CNN", model="pr_cnn", about="2x2 patches reordered after the second convolution"),
    Row(
        name="pr_cnn_fine",
        title="PR-CNN-fine",
        model="pr_cnn_fine",
        about="every pixel a patch, reordered after the second pool; ours",
    ),
    Row(
        name="pixels",
        title="PR-CNN, pixels",
        model="pr_cnn",
        options={"grid": "pixels"},
        columns=("T",),
        about="every pixel a patch, reordered after the second convolution, before the pool; ours",
    ),
    Row(
        name="straight",
        title="CNN, straightened",
        model="pr_cnn",
        options=STRAIGHT,
        columns=("T",),  # slants are no turns
        about="the image's centroid moved to the middle, its slant taken out, the middle 28x28 cut out; in training "
        "moved on by up to 2 pixels, turned and scaled as for CNN-Data-Aug; ours",
    ),
    Row(
        name="bent",
        title="CNN, straightened, bent",
        model="pr_cnn",
        options=BENT,
        columns=("T",),
        about="the same, and in training bent as well; ours",
    ),
    Row(
        name="bent_fine",
        title="CNN, straightened, bent, fine",
        model="pr_cnn",
        options={**BENT, "halve": False},
        columns=("T",),
        about="the same without the second pool; ours",
    ),
    Row(
        name="unrolled_cnn",
        title="CNN, unrolled",
        model="unrolled_cnn",
        options={"layer": UNROLLED, "augment": RINGS},
        columns=("R",),  # about the middle of the image
        about="the image read in rings, convolutions that wrap around, one classifier for all turns; in training off "
        f"the middle by up to half a pixel and scaled by up to {AUG_RANGE // 2} %; ours",
    ),
    Row(
        name="unrolled_bent",
        title="CNN, unrolled, bent",
        model="unrolled_cnn",
        options={"layer": UNROLLED, "augment": f"{RINGS},bend=1", "halve": False},
        columns=("R",),
        about="the same without the second pool, 24 turns told apart instead of 12, and in training bent as well; ours",
    ),
    Row(
        name="cnn_aug",
        title="CNN-Data-Aug",
        model="cnn",
        columns=("T",),  # for rows that sway on T to be compared with
        about=f"training digits turned by up to {AUG_RANGE} degrees, scaled by up to {AUG_RANGE} %; today's choice",
    ),
    Row(name="cnn_gap", title="CNN, global average", model="cnn_gap", about="average over all places; today's choice"),
    Row(name="cnn_gmp", title="CNN, global max", model="cnn_gmp", about="maximum over all places; today's choice"),
    Row(name="cnn_blur", title="CNN, BlurPool", model="cnn_blur", about="pools that blur first (Zhang 2019)"),
    Row(name="c4_cnn", title="CNN, C4", model="c4_cnn", about="group convolutions of quarter turns (Cohen 2016)"),
)
COLUMNS = (
    Column(name="R", title="R", dataset="mnist-r", about="28x28, turned by U[-90, 90] degrees"),
    Column(name="T", title="T", dataset="mnist-t", about="at a random place of a 42x42 canvas"),
)
PAPER = {
    "fcn": {"R": 2.1, "T": 2.9},
    "cnn": {"R": 1.2, "T": 1.3},
    "si_cnn": {"R": 0.9},
    "st_cnn": {"R": 0.8, "T": 0.8},
    "pr_cnn": {"R": 0.8, "T": 0.7},
}
OURS = ("straight", "bent", "bent_fine", "unrolled_cnn", "unrolled_bent")
MAIN = ("cnn", "st_cnn", "pr_cnn", "pr_cnn_fine", *OURS)  # three seeds


def _paper(row: str, column: str) -> Plan:
    training = Training(
        steps=150_000, batch=256, lr=0.01, momentum=0.9, nesterov=False, schedule="step", decay_every=50_000
    )
    return _plan(row, column, training=training)


def _plan(row: str, column: str, **what: Any) -> Plan:
    """CNN-Data-Aug is trained on other digits than those of the column."""
    if row != "cnn_aug":
        return Plan(**what)
    note = f"trained on digits that are turned by up to {AUG_RANGE} degrees and scaled by up to {AUG_RANGE} % before"
    return OneTraining(view=f"mnist-{column.lower()}-aug", **{**what, "note": note})


EPOCHS = {"R": 24, "T": 8}
SHORTER = {"R": 8, "T": 2}  # SI-CNN costs six times as much as the CNN
# Passes over T of a CNN for what is cut out of it: 32 take about the time of the others' 8, 24 somewhat less.
LONGER = {"straight": 24, "bent": 32, "bent_fine": 32}


# At the learning rate of the rest ST-CNN made 89 % errors on validation digits after 4 passes over R, and 1.37 % on the
# test digits after 24; why was not looked into. Of 1, 0.1 and 0.01 the best on validation R (results/trials). No other
# row's settings were tried like this.
SLOWER = {"st_cnn": {"transformer": 0.1}, "st_cnn_affine": {"transformer": 0.1}}
RATE = 0.07
# At this rate SI-CNN on T ended with one answer for all digits (results/trials); 0.035 learns on validation digits.
GENTLER = {("si_cnn", "T"): 0.035}
NOTES = dict.fromkeys(SLOWER, "the transformer learns at 0.1 of the rate")


def _short(row: str, column: str) -> Plan:
    note, epochs = NOTES.get(row, ""), EPOCHS[column]
    rate = GENTLER.get((row, column), RATE)
    if row == "si_cnn":
        note, epochs = f"shorter: {SHORTER[column]} epochs instead of {epochs}", SHORTER[column]
    if rate != RATE:
        note += f"; learning rate up to {rate}: it does not learn at {RATE}"
    if row in LONGER:
        longer = LONGER[row]
        note, epochs = f"{longer} epochs instead of {epochs}, in about the same time: a CNN for 28x28 pixels", longer
    return _plan(row, column, training=Training(epochs=epochs, lr=rate, scales=SLOWER.get(row, {})), note=note)


def _demo(row: str, column: str) -> Plan:
    training = Training(epochs=2, batch=64, lr=0.05, scales=SLOWER.get(row, {}))
    images = {"R": 30_000, "T": 14_000}[column]  # all within 10 minutes on a slow day, setting up included
    return Plan(training=training, images=images, tested=2000, curve_images=500, note=NOTES.get(row, ""))


def _smoke(row: str, column: str) -> Plan:
    training = Training(steps=3, batch=8)
    return _plan(row, column, training=training, images=32, tested=20, curve_images=10, generated=True)


RECIPE = Recipe(
    name="table1",
    title="Table 1: error on turned and shifted MNIST digits",
    about="Every network is trained on digits that are turned (R) or shifted (T) anew for each epoch, and tested on "
    "test digits whose turn or shift is fixed, the same for all.",
    metric="error %",
    rows=ROWS,
    columns=COLUMNS,
    settings={
        "short": Setting(
            about=f"Nesterov SGD 0.9, batch 128, learning rate up to {RATE} in 15 % of the steps and down to 0 on a "
            f"cosine; {EPOCHS['R']} passes over R, {EPOCHS['T']} over T",
            plan=_short,
            seeds=lambda row: (0, 1, 2) if row in MAIN else (0,),
        ),
        "paper": Setting(
            about="as the paper: SGD 0.9, batch 256, 150,000 steps, learning rate 0.01 divided by 10 every 50,000",
            plan=_paper,
        ),
        "demo": Setting(
            about="minutes: a part of the digits, two passes; too little for a comparison",
            plan=_demo,
            rows=("cnn", "st_cnn", "pr_cnn", "pr_cnn_fine"),
            meaning="each number says how many of 2,000 turned (R) or shifted (T) test digits, in percent, a network "
            "names wrongly after a minute of training. The paper trained hundreds of times as long, so its numbers are "
            "lower. With so few digits and one seed, differences below about one point are chance: where the "
            "comparison says that no difference is shown, read none into the table. Results of longer "
            "training are in results/ and in the README.",
        ),
        "smoke": Setting(about="seconds, generated images: does it run", plan=_smoke),
    },
    measure=measure,
    parameters=parameters,
    change=changed,
    paper=PAPER,
    compare=[
        ("pr_cnn", "cnn"),
        ("pr_cnn_fine", "cnn"),
        ("st_cnn", "cnn"),
        ("pr_cnn", "st_cnn"),
        ("pr_cnn_fine", "st_cnn"),
        ("straight", "cnn"),
        ("straight", "st_cnn"),
        ("straight", "cnn_aug"),
        *(("bent", other) for other in ("cnn", "st_cnn", "straight", "cnn_aug")),
        *(("bent_fine", other) for other in ("cnn", "st_cnn", "straight", "bent", "cnn_aug")),
        *(("unrolled_cnn", other) for other in ("cnn", "st_cnn", "st_cnn_affine", "c4_cnn")),
        *(("unrolled_bent", other) for other in ("cnn", "st_cnn", "st_cnn_affine", "c4_cnn", "unrolled_cnn")),
        ("pixels", "cnn"),
        ("pixels", "st_cnn"),
        *((row, "cnn") for row in ("si_cnn", "st_cnn_affine", "cnn_aug", "cnn_gap", "cnn_gmp", "cnn_blur", "c4_cnn")),
    ],
    curves=CURVES,
)
