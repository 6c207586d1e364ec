"""Few images: error on rotated (R) and shifted (T) digits after training on 250 to 10,000 of them.

    patchreorder run few --setting generated [--rows cnn pr_cnn_fine] [--columns T500] [--out runs/few]
    patchreorder run few --setting drawn
    patchreorder run few --setting generated --split validation --columns R1000 T1000 --seeds 0 1 --change lr=0.02

The last one is a trial to choose learning rates by.

`generated` gives every training digit one pose for the whole training, as a set of photographs has it; `drawn` draws
poses anew in every epoch. A seed draws the digits, their poses and the weights; every row of a seed gets the same
digits. For a number of digits all networks are trained for the same number of steps, none with an augmentation. The
paper gives no numbers for this.
"""

from __future__ import annotations

from patchreorder.engine.options import Training
from patchreorder.laboratory.recipe import Column, Plan, Recipe, Row, Setting
from patchreorder.laboratory.small_images import DigitTask

from .rows import CNN, CNN_GAP, DIGITS, PR_CNN, PR_CNN_FINE, RINGS, ST_CNN

COUNTS = (250, 500, 1000, 2000, 5000, 10_000)


def _only(letter: str) -> tuple[str, ...]:
    return tuple(f"{letter}{count}" for count in COUNTS)


def _input(name: str, title: str, about: str, layer: str, letter: str) -> Row:
    return Row(name, title, about, "pr_cnn", options={"layer": layer, "place": "input"}, columns=_only(letter))


ROWS = (
    Row("fcn", "FCN", "two fully connected hidden layers", "fcn"),
    CNN,
    ST_CNN,
    PR_CNN,
    PR_CNN_FINE,
    CNN_GAP,
    _input("aligned", "CNN, aligned", "centroid moved to the middle, 28x28 cropped; ours", "align:size=28", "T"),
    _input("straightened", "CNN, straightened", "the same, and the slant removed; ours", "pose:by=shear,size=28", "T"),
    _input("posed", "CNN, posed", "principal axis rotated to the vertical; ours", "pose", "R"),
    Row(
        "unrolled",
        "CNN, unrolled",
        "read in rings, one classifier for all rotations; ours",
        "unrolled_cnn",
        options={"layer": RINGS},
        columns=_only("R"),
    ),
)
COLUMNS = tuple(
    Column(f"{own.name}{count}", f"{own.title} {count:,}", f"{own.about}; {count:,} training digits", own.dataset)
    for own in DIGITS
    for count in COUNTS
)
BATCH = 64
STEPS = {250: 400, 500: 400, 1000: 400, 2000: 600, 5000: 1000, 10_000: 1500}  # more digits take longer to learn
LENGTH = f"{min(STEPS.values())} to {max(STEPS.values()):,} steps of {BATCH}, more for more digits"
RATE = 0.07
# Where another one of 0.02, 0.07 and 0.2 makes fewer errors on validation digits: means of two seeds, 1,000 training
# digits, one pose each (results/trials/few.jsonl).
RATES = {
    ("fcn", "R"): 0.2,
    ("fcn", "T"): 0.2,
    ("cnn", "R"): 0.2,
    ("cnn", "T"): 0.02,
    ("pr_cnn_fine", "T"): 0.02,
    ("cnn_gap", "T"): 0.2,
    ("aligned", "T"): 0.2,
    ("straightened", "T"): 0.2,
    ("posed", "R"): 0.2,
}


def _plan(row: str, column: str, *, fixed: bool) -> Plan:
    rate, digits = RATES.get((row, column[0]), RATE), int(column[1:])
    scales = {"transformer": 0.1} if row == "st_cnn" else {}
    note = "; ".join(
        [f"learning rate up to {rate}"] * (rate != RATE) + ["the transformer learns at 0.1 of the rate"] * bool(scales)
    )
    return Plan(
        training=Training(steps=STEPS[digits], batch=BATCH, lr=rate, scales=scales),
        images=digits,
        images_by_seed=True,
        fixed_poses=fixed,
        note=note,
    )


def _smoke(row: str, column: str) -> Plan:
    return Plan(training=Training(steps=3, batch=8), images=16, images_by_seed=True, tested=20, synthetic=True)


def _seeds(row: str) -> tuple[int, ...]:
    return (0, 1, 2)


RECIPE = Recipe(
    name="few",
    title="Few images: error on rotated and shifted MNIST digits",
    about="Networks trained on few digits, tested on all 10,000 test digits.",
    metric="error %",
    rows=ROWS,
    columns=COLUMNS,
    settings={
        "generated": Setting(
            about=f"every training digit has one pose; {LENGTH}",
            plan=lambda row, column: _plan(row, column, fixed=True),
            seeds=_seeds,
        ),
        "drawn": Setting(
            about=f"poses are drawn anew in every epoch; {LENGTH}",
            plan=lambda row, column: _plan(row, column, fixed=False),
            seeds=_seeds,
        ),
        "demo": Setting(
            about="minutes: as generated, 500 digits",
            plan=lambda row, column: _plan(row, column, fixed=True),
            rows=("cnn", "st_cnn", "pr_cnn", "pr_cnn_fine"),
            columns=("T500",),
            seeds=lambda row: (0, 1),
            meaning="each network saw 500 digits, each at one place, and is tested on 10,000 digits at other places. "
            "Sorting every pixel of the last maps (PR-CNN-fine) makes up for places that training lacks. Where poses "
            "are drawn anew in every epoch from 60,000 digits, these networks are within half a point (Table 1).",
        ),
        "smoke": Setting(
            about="seconds, synthetic images: does it run",
            plan=_smoke,
            columns=("R250", "T250"),
            rows=[row.name for row in ROWS],
        ),
    },
    task=DigitTask,
    compare=[
        *((row.name, "cnn") for row in ROWS if row.name != "cnn"),
        *((name, "pr_cnn_fine") for name in ("aligned", "straightened", "posed", "unrolled", "cnn_gap", "st_cnn")),
    ],
    curves={"training loss": {"x": "epoch", "y": "training loss", "log": True}},
    figure={
        "kind": "counts",
        "x": "training digits",
        "y": "error %",
        "panels": {"R": "rotated", "T": "shifted"},
        "n": "test digits",
    },
)
