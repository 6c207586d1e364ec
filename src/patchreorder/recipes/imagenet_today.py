"""Today's networks on ImageNet's photographs, rotated and shifted: what they lose, and what helps without training.

    patchreorder run imagenet_today --data IMAGENET_VAL [--rows lite0 mobilenet] [--out runs/imagenet_today]

IMAGENET_VAL holds validation photographs in a folder for each of the 1,000 classes, which sorted by name have
torchvision's order, as the usual folders n01440764 and so on have. The networks are backbones of ours with their own
classifiers; nothing is trained. A photograph is posed as in Table 2 and cropped afterwards; in the column `any` each is
rotated by one angle of all 360 degrees. The paper's AlexNet, for comparison (top-1): Ori 57.1, R 36.6, T 46.5.

The rows below the networks change EfficientNet-lite0 without training. Reordering before the average
that these networks end with is not among them: an average does not depend on the order, so the answers are the same.
"""

from __future__ import annotations

from typing import Any

from patchreorder.laboratory.pretrained import PretrainedTask
from patchreorder.laboratory.recipe import Column, Plan, Recipe, Row, Setting

from .rows import PHOTOGRAPHS

LITE0 = "efficientnet_lite0"
QUARTERS = [0.0, 90.0, 180.0, 270.0]
EIGHTHS = [*QUARTERS, 45.0, 135.0, 225.0, 315.0]
COLUMNS = (
    *PHOTOGRAPHS[:3],
    Column("any", "any rotation", "rotated by U[0, 360] degrees", "any"),
    *PHOTOGRAPHS[3:],
    Column("any5", "any rotation top-5", "rotated by U[0, 360] degrees", "any", top=5),
)


def _views(name: str, title: str, about: str, views: list[float], columns: str, **options: Any) -> Row:
    names = columns.split()
    return Row(
        name,
        f"lite0, {title}",
        about,
        LITE0,
        options={"views": views, **options},
        columns=[*names, *(f"{column}5" for column in names)],
    )


def _layer(name: str, about: str) -> Row:
    return Row(f"lite0_{name}", f"lite0, {name} first", about, LITE0, options={"layer": name})


NETWORKS = (
    Row("lite0", "EfficientNet-lite0", "as it is", LITE0),
    Row("lite1", "EfficientNet-lite1", "as it is", "efficientnet_lite1"),
    Row("lite2", "EfficientNet-lite2", "as it is", "efficientnet_lite2"),
    Row("mobilenet", "MobileNetV2", "as it is", "mobilenet_v2"),
)
CHANGED = (
    _views("three", "3 copies", "rotated by -30, 0 and 30 degrees, answers averaged", [0.0, -30.0, 30.0], "Ori R any"),
    _views("quarters", "4 copies", "rotated by 0, 90, 180 and 270 degrees, answers averaged", QUARTERS, "Ori any"),
    _views("eighths", "8 copies", "rotated in steps of 45 degrees, answers averaged", EIGHTHS, "Ori any"),
    _views("surest", "surest of 8", "the copy with the surest answer decides", EIGHTHS, "Ori any", combine="confident"),
    Row("lite0_smooth", "lite0, smoothed", "strides blur first (Zhang 2019)", LITE0, options={"smooth": True}),
    _layer("align", "the photograph shifted until the centroid of its energy is in the middle; ours"),
    _layer("pose", "shifted likewise and rotated until its principal axis is vertical; ours"),
    _layer("unroll", "the photograph read in rings; ours"),
)
RECIPE = Recipe(
    name="imagenet_today",
    title="Today's networks on ImageNet's photographs, rotated and shifted",
    about="Networks with their own classifiers, as they are and changed without training, on the same photographs: as "
    "they are (Ori), rotated (R, any rotation) and shifted (T).",
    metric="right %",
    better="higher",
    rows=(*NETWORKS, *CHANGED),
    columns=COLUMNS,
    settings={
        "short": Setting(about="all photographs of the folder, one pose each", plan=lambda row, column: Plan()),
        "smoke": Setting(
            about="seconds, synthetic images and random weights: does it run",
            plan=lambda row, column: Plan(synthetic=True),
            rows=[row.name for row in (*NETWORKS, *CHANGED) if row.name not in ("lite1", "lite2", "eighths")],
        ),
    },
    task=PretrainedTask,
    compare=[(row.name, "lite0") for row in (*NETWORKS[1:], *CHANGED)]
    + [("eighths", "quarters"), ("surest", "eighths")],
    command="patchreorder run imagenet_today --data DIR",
    splits=("test",),
)
