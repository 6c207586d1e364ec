"""What `patchreorder fit` chooses, against simpler classifiers on the same photographs in poses that none has seen.

    patchreorder run classifiers --setting grocery --data GROCERY [--out runs/classifiers]
    patchreorder run classifiers --setting coins --data COINS
    patchreorder run classifiers --setting flowers --data FLOWERS
    patchreorder run classifiers --setting aerial --data AERIAL
    patchreorder run classifiers --setting objects --data OBJECTS
    patchreorder run classifiers --setting coins --data COINS --change per_class=5  # with so many of each class

Each setting is a set of photographs: a folder with train/CLASS/*.jpg and val/CLASS/*.jpg, or with CLASS/*.jpg, of which
a fifth is for the test. Backbones are frozen but for the last row. Every linear head has its strength of regularisation
chosen by the same cross-validation inside the training photographs. A row with copies is trained on every photograph as
it is and in four poses (any rotation, shifted and zoomed by up to a tenth), which a seed draws; without copies, seeds
would repeat themselves. Test poses are the same for all: as they are, rotated by up to 45 degrees either way (R),
shifted by up to a fifth of the sides (T), and six of 24 rotations. The paper gives no numbers for this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from patchreorder.laboratory.classifiers import ClassifierTask
from patchreorder.laboratory.recipe import Column, Plan, Recipe, Row, Setting

SORTED = "ranked:quantiles=4"
INNER = ("stage4", "stage5", "stage6", "stage7")
LAST, LAST_MAPS = ("head", "gap", True), "stage7"  # the maps before the last convolution: 320 channels of 7x7
FOUR = tuple(f"conv{number}" for number in range(1, 5))


def _head(name: str, title: str, about: str, blocks: Sequence[Sequence[Any]], *, copies: bool = True) -> Row:
    options: dict[str, Any] = {"blocks": [list(block) for block in blocks]}
    return Row(name, title, about, "head", options=options | ({"copies": True} if copies else {}))


def _maps(name: str, title: str, about: str, pool: str) -> Row:
    return Row(name, title, about, "head", options={"maps": [[LAST_MAPS, pool]]})


def _input(name: str, title: str, about: str, layer: str) -> Row:
    return Row(name, title, about, "head", options={"input": layer, "blocks": [["head", "gap"]]})


ROWS = (
    _head("plain", "plain average", "linear head on the average of the last maps", [["head", "gap"]], copies=False),
    _head("plain_copies", "plain average, copies", "the same with posed copies", [["head", "gap"]]),
    Row("neighbours", "5 nearest", "vote of the nearest training photographs, by the plain average", "neighbours"),
    Row(
        "alexnet",
        "AlexNet, sorted",
        "sorted quarters of four convolutions and the average of the fifth, with posed copies: near `fit` as it was",
        "head",
        options={
            "backbone": "alexnet",
            "blocks": [*([layer, SORTED] for layer in FOUR), ["conv5", "gap", True]],
            "copies": True,
        },
    ),
    _maps("maps", "maps", "the last 7x7 maps as they are", "flatten"),
    _maps("maps_average", "maps, average", "their averages", "gap"),
    _maps("maps_reorder", "maps, PR (paper)", "2x2 of 2x2 patches sorted by energy", "reorder:grid=2,levels=2"),
    _maps("maps_fine", "maps, PR fine", "every pixel a patch, sorted by energy", "ranked"),
    _maps("maps_align", "maps, align", "shifted so that they begin at the same place", "align"),
    _maps("maps_pose", "maps, pose", "rotated and shifted to a standard pose", "pose"),
    _input("input_align", "image, align", "the image shifted to a standard place, plain average", "align"),
    _input("input_pose", "image, pose", "the image rotated to a standard pose, plain average", "pose"),
    _head("averages", "averages", "averages of stages 4 to 7 and the last", [*([s] for s in INNER), LAST]),
    _head(
        "sorted_upright",
        "sorted, no copies",
        "sorted quarters of stages 4 to 7, average of the last",
        [*([s, SORTED] for s in INNER), LAST],
        copies=False,
    ),
    _head("sorted", "sorted", "the same with posed copies", [*([s, SORTED] for s in INNER), LAST]),
    Row("fit", "fit", "what `fit` chooses by itself", "fit"),
    Row(
        "fit_views",
        "fit, 8 views",
        "answers of eight rotated views averaged (`predict --views 8`)",
        "fit",
        options={"views": 8},
        columns=("Ori", "R", "T"),
    ),
    Row("fit_tuned", "fit, fine-tuned", "trained further (`--finetune 10`)", "fit", options={"finetune": 10}),
)
UPRIGHT = ("plain", "neighbours", "sorted_upright", *(row.name for row in ROWS if "maps" in row.options))
ONCE = (*UPRIGHT, "input_align", "input_pose", "fit_views", "fit_tuned")
NOT_TUNED = [row.name for row in ROWS if row.name != "fit_tuned"]
COLUMNS = (
    Column("Ori", "Ori", "the photographs as they are", "Ori"),
    Column("R", "R", "rotated by up to 45 degrees either way", "R"),
    Column("T", "T", "shifted by up to a fifth of the sides", "T"),
    Column("any", "360°", "the mean over 24 rotations, each photograph in six", "any"),
    Column("worst", "worst", "the worst of the 24 rotations, each on a quarter of the photographs", "worst", top=0),
)
OTHERS = [row.name for row in ROWS if not row.name.startswith("fit")]


def _setting(about: str, rows: Sequence[str] | None = None, per_class: int | None = None) -> Setting:
    return Setting(
        about=about,
        plan=lambda row, column: Plan(frozen=True, per_class=per_class),
        seeds=lambda row: (0,) if row in ONCE else (0, 1, 2),
        rows=rows,
        needs="--data DIR",
    )


RECIPE = Recipe(
    name="classifiers",
    title="Classifiers for photographs",
    about="Percentage of test photographs that are right, as they are and in other poses. EfficientNet-lite0 at 224 "
    "pixels but where AlexNet is named, one view but where several are.",
    metric="right %",
    better="higher",
    rows=ROWS,
    columns=COLUMNS,
    settings={
        "grocery": _setting("Grocery Store dataset, 81 classes"),
        "coins": _setting("euro coins photographed in any rotation, 8 classes"),
        "flowers": _setting("17 Category Flower dataset, a fifth for the test", NOT_TUNED),
        "aerial": _setting("RSSCN7, 60 aerial photographs of each of 7 classes, tested on a fifth", NOT_TUNED, 60),
        "objects": _setting(
            "Caltech-101 without its background, 15 photographs of each class, tested on a fifth", NOT_TUNED, 15
        ),
        "smoke": Setting(
            about="seconds, synthetic images and random weights: does it run",
            plan=lambda row, column: Plan(frozen=True, synthetic=True),
            rows=[
                *("plain", "plain_copies", "neighbours", "alexnet", "maps", "maps_reorder", "maps_pose", "input_align"),
                *("averages", "sorted", "fit", "fit_views"),
            ],
        ),
    },
    task=ClassifierTask,
    compare=[("fit", name) for name in OTHERS]
    + [(name, "plain") for name in OTHERS if name != "plain"]
    + [(name, "maps_average") for name in OTHERS if name.startswith("maps") and name != "maps_average"]
    + [("sorted", "averages"), ("fit_views", "fit"), ("fit_tuned", "fit"), ("sorted", "plain_copies")],
    trains_once=True,
    splits=("test",),
)
