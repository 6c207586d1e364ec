"""Which form of the aligned and unrolled networks is worth the test digits? Chosen here, measured in Table 1.

    patchreorder run family --split validation [--columns R] [--out runs/family]

Few epochs, one seed, validation digits.
"""

from __future__ import annotations

from typing import Any

from patchreorder.engine.options import Training
from patchreorder.laboratory.recipe import Plan, Recipe, Row, Setting
from patchreorder.laboratory.small_images import CURVES, DigitTask

from .rows import AUGMENT, AUGMENT_BENT, AUGMENT_RINGS, DIGITS, RINGS


def _aligned(name: str, title: str, about: str, layer: str, augment: str, **options: Any) -> Row:
    options = {"layer": layer, "place": "input", "augment": augment, **options}
    return Row(name, title, about, "pr_cnn", options=options, columns=("T",))


def _unrolled(name: str, title: str, about: str, augment: str | None = None, **options: Any) -> Row:
    # The digits of R are rotated about the middle of the image; those of T are anywhere.
    options = {"layer": RINGS, **({"augment": augment} if augment else {}), **options}
    return Row(name, title, about, "unrolled_cnn", options=options, columns=("R",))


STRAIGHT = "pose:by=shear,size=28"
ROWS = (
    _aligned("aligned_cut", "aligned, cropped", "centroid to the middle, 28x28 cropped", "align:size=28", "jitter=2"),
    _aligned("straightened", "straightened", "the same, and the slant removed", STRAIGHT, "jitter=2"),
    _aligned("straightened_augmented", "straightened, augmented", "rotated and scaled a little", STRAIGHT, AUGMENT),
    _aligned("straightened_bent", "straightened, bent by 1", "the same, and bent", STRAIGHT, AUGMENT_BENT),
    _aligned("straightened_bent_2", "straightened, bent by 2", "bent more", STRAIGHT, f"{AUGMENT},bend=2"),
    _aligned(
        "straightened_bent_fine",
        "straightened, bent by 1, fine",
        "without the second pool",
        STRAIGHT,
        AUGMENT_BENT,
        halve=False,
    ),
    _unrolled("unrolled", "unrolled", "rings about the middle, one classifier for all rotations"),
    _unrolled("unrolled_augmented", "unrolled, augmented", "shifted and scaled a little", AUGMENT_RINGS),
    _unrolled("unrolled_24", "unrolled, 24 rotations", "without the second pool", AUGMENT_RINGS, halve=False),
    _unrolled("unrolled_24_bent", "unrolled, 24 rotations, bent", "and bent", f"{AUGMENT_RINGS},bend=1", halve=False),
    _unrolled("unrolled_augmented_more", "unrolled, augmented more", "with the pool", "jitter=1,zoom=0.12"),
)
EPOCHS = {"R": 8, "T": 4}


def _short(row: str, column: str) -> Plan:
    return Plan(training=Training(epochs=EPOCHS[column]))


def _smoke(row: str, column: str) -> Plan:
    return Plan(training=Training(steps=3, batch=8), images=32, tested=20, curve_images=10, synthetic=True)


RECIPE = Recipe(
    name="family",
    title="Forms of the aligned and unrolled networks",
    about="Networks of nearly the same number of parameters are trained as in Table 1 but for fewer epochs.",
    metric="error %",
    rows=ROWS,
    columns=DIGITS,
    settings={
        "short": Setting(about=f"as in Table 1, but {EPOCHS['R']} (R) and {EPOCHS['T']} (T) epochs", plan=_short),
        "smoke": Setting(
            about="seconds, synthetic images: does it run", plan=_smoke, rows=("straightened_bent", "unrolled_24_bent")
        ),
    },
    task=DigitTask,
    compare=[
        ("straightened", "aligned_cut"),
        ("straightened_augmented", "straightened"),
        ("straightened_bent", "straightened_augmented"),
        ("straightened_bent_2", "straightened_bent"),
        ("straightened_bent_fine", "straightened_bent"),
        ("unrolled_augmented", "unrolled"),
        ("unrolled_augmented_more", "unrolled_augmented"),
        ("unrolled_24", "unrolled_augmented"),
        ("unrolled_24_bent", "unrolled_24"),
    ],
    curves=CURVES,
)
