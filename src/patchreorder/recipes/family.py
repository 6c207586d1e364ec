"""Past the paper: which layer that chooses a permutation by energy is worth the test digits?

    patchreorder run family --split validation [--columns R] [--out runs/family]

Candidates: few passes, one seed, validation digits. What does well here is measured in Table 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from patchreorder.engine.options import Training
from patchreorder.laboratory.classification import changed
from patchreorder.laboratory.digits import CURVES, Plan, measure, parameters
from patchreorder.laboratory.recipe import Recipe, Row, Setting
from patchreorder.models.mnist import UNROLLED

from . import ablations, table1


def _cnn(name: str, title: str, about: str, layer: str, place: str, **options: Any) -> Row:
    options = {"layer": layer, "place": place, **options}
    return Row(name=name, title=title, about=about, model="pr_cnn", options=options)


def _c4(name: str, title: str, about: str, **options: Any) -> Row:
    return Row(name=name, title=title, about=about, model="c4_cnn", options=options)


def _rings(name: str, title: str, about: str, layer: str, **options: Any) -> Row:
    # The digits of R are turned about the middle; those of T are anywhere.
    options = {"layer": layer, **options}
    return Row(name=name, title=title, about=about, model="unrolled_cnn", options=options, columns=("R",))


ROWS = (
    Row(name="cnn", title="CNN", model="cnn", about="no layer of the family"),
    Row(name="fine", title="PR-CNN-fine", model="pr_cnn_fine", about="every pixel a patch, after the second pool"),
    _cnn("shares", "16 shares", "means of 16 shares of the sorted values, for the pool", "ranked:quantiles=16", "relu"),
    _cnn("windows", "sorted windows", "2x2 averages, sorted, for the pool", "ranked:smooth=2,stride=2", "relu"),
    _cnn("align", "aligned", "the image's centroid rolled to the middle", "align", "input"),
    _cnn(
        "jitter",
        "aligned, jitter",
        "the same, and shifted by up to 2 pixels in training",
        "align",
        "input",
        augment="jitter=2",
    ),
    _cnn("cut", "aligned, cut", "the same, and the middle 28x28 cut out", "align:size=28", "input", augment="jitter=2"),
    _cnn(
        "straight",
        "straightened, cut",
        "the same, and slants taken out before",
        "pose:by=shear,size=28",
        "input",
        augment="jitter=2",
    ),
    _cnn(
        "sway",
        "straightened, swayed",
        "the same, and in training turned and scaled by a little",
        **table1.STRAIGHT,
    ),
    _cnn("bend1", "straightened, bent by 1", "the same, and bent", **table1.BENT),
    _cnn(
        "bend",
        "straightened, bent by 2",
        "the same, bent more",
        **{**table1.STRAIGHT, "augment": table1.STRAIGHT["augment"] + ",bend=2"},
    ),
    _cnn("bend_fine", "straightened, bent by 1, fine", "without the second pool", halve=False, **table1.BENT),
    _cnn("align_maps", "aligned maps", "the maps' centroid rolled to the middle, before the pool", "align", "relu"),
    _cnn(
        "pose", "posed", "the image moved and turned: centroid in the middle, principal axis upright", "pose", "input"
    ),
    _cnn("pose_nearest", "posed, nearest", "the same by the smaller turn", "pose:ends=nearest", "input"),
    _rings("unroll", "unrolled", "rings about the middle, one classifier for all turns", UNROLLED),
    _rings(
        "unroll_mild",
        "unrolled, swayed a little",
        "the same, off the middle and scaled in training",
        UNROLLED,
        augment=table1.RINGS,
    ),
    _rings(
        "unroll_turns",
        "unrolled, 24 turns",
        "the same without the second pool",
        UNROLLED,
        augment=table1.RINGS,
        halve=False,
    ),
    _rings(
        "unroll_bend",
        "unrolled, 24 turns, bent",
        "the same, bent by a pixel",
        UNROLLED,
        augment=f"{table1.RINGS},bend=1",
        halve=False,
    ),
    _rings(
        "unroll_sway",
        "unrolled, swayed",
        "swayed by twice as much, with the pool",
        UNROLLED,
        augment=f"jitter=1,zoom={table1.AUG_RANGE / 100}",
    ),
    _c4("c4", "C4", "group convolutions of quarter turns, the strongest orientation at every place"),
    _c4("orient", "C4, oriented", "the strongest orientation of all to the front, maps turned back", layer="orient"),
    _c4(
        "align_orient",
        "C4, aligned, oriented",
        "the same, and first the image's centroid rolled to the middle, and the middle 28x28 cut out",
        layer="orient",
        first="align:size=28",
    ),
)
EPOCHS = {"R": 8, "T": 4}


def _short(row: str, column: str) -> Plan:
    return Plan(training=Training(epochs=EPOCHS[column]))


RECIPE = Recipe(
    name="family",
    title="Candidates past the paper: permutations by energy",
    about="Networks of nearly the same number of parameters are trained as in Table 1 but for fewer passes.",
    metric="error %",
    rows=ROWS,
    columns=table1.COLUMNS,
    settings={
        "short": Setting(about=f"as in Table 1, but {EPOCHS['R']} (R) and {EPOCHS['T']} (T) passes", plan=_short),
        "smoke": replace(ablations.RECIPE.settings["smoke"], rows=("cnn", "shares", "align_orient")),
    },
    measure=measure,
    parameters=parameters,
    change=changed,
    compare=[(row.name, "cnn") for row in ROWS if row.name != "cnn"] + [("orient", "c4")],
    curves=CURVES,
)
