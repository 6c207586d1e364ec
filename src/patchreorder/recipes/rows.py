"""Rows and columns that several recipes share. A recipe imports from here and from no other recipe."""

from __future__ import annotations

from patchreorder.laboratory.recipe import Column, Row
from patchreorder.models.mnist import UNROLLED

# ---- digits: the networks of patchreorder.models.mnist -------------------------------------------------------------

CNN = Row("cnn", "CNN", "9x9, pool, 7x7, pool, classifier; 64 filters", "cnn")
ST_CNN = Row("st_cnn", "ST-CNN", "a projective spatial transformer, then the CNN", "st_cnn")
PR_CNN = Row("pr_cnn", "PR-CNN", "2x2 patches reordered after the second convolution", "pr_cnn")
PR_CNN_FINE = Row(
    "pr_cnn_fine", "PR-CNN-fine", "every pixel a patch, reordered after the second pool; ours", "pr_cnn_fine"
)
CNN_GAP = Row("cnn_gap", "CNN, global average", "average over all positions", "cnn_gap")

DIGITS = (
    Column("R", "R", "28x28, rotated by U[-90, 90] degrees", "mnist-r"),
    Column("T", "T", "at a random position of a 42x42 canvas", "mnist-t"),
)

# What aligned and unrolled networks are trained with; in degrees and percent as CNN-Data-Aug.
AUGMENT = "jitter=2,tilt=12,zoom=0.12"
AUGMENT_BENT = f"{AUGMENT},bend=1"
RINGS = UNROLLED
AUGMENT_RINGS = "jitter=0.5,zoom=0.06"

# ---- photographs ---------------------------------------------------------------------------------------------------

PHOTOGRAPHS = tuple(
    Column(f"{view}{top if top > 1 else ''}", title, about, view, top=top)
    for top, of in ((1, ""), (5, " top-5"))
    for view, title, about in (
        ("Ori", f"Ori{of}", "as they are"),
        ("R", f"R{of}", "rotated by U[-45, 45] degrees"),
        ("T", f"T{of}", "shifted by U[-0.2, 0.2] of the size"),
    )
)
CIFAR10 = (
    Column("Ori", "Ori", "as they are", "cifar10"),
    Column("R", "R", "rotated by U[-45, 45] degrees", "cifar10-r"),
    Column("T", "T", "shifted by U[-0.2, 0.2] of the size", "cifar10-t"),
)

TINY = tuple(
    Column(column.name, column.title, column.about, dataset, top=column.top)
    for column, dataset in zip(PHOTOGRAPHS, ("tiny", "tiny-r", "tiny-t") * 2, strict=True)
)

# ---- figures: a row's model is the row of the table that trained it --------------------------------------------------

TRAINED = {
    row.name: row
    for row in (
        Row("cnn", "CNN", "no reordering", "cnn"),
        Row("cnn_aug", "CNN-Data-Aug", "trained on rotated and shifted images", "cnn_aug"),
        Row("st_cnn", "ST-CNN", "a spatial transformer before the CNN", "st_cnn"),
        Row("pr_cnn", "PR-CNN", "patches reordered after the last convolution", "pr_cnn"),
        Row("pr_cnn_fine", "PR-CNN-fine", "every pixel a patch, reordered after the last pool; ours", "pr_cnn_fine"),
    )
}


# ---- where to reorder: a network without the module, and with it at every layer, in one level and in two -----------

PATCHES = {"4x4": ("4x4 patches", {"grid": 4, "levels": 1}), "2x2": ("2x2 of 2x2 patches", {"grid": 2, "levels": 2})}


def at_each_layer(plain: str, reordered: str, layers: dict[str, str]) -> tuple[Row, ...]:
    """Rows of the figures `fig_layers`; `layers` has the option `place` of each layer."""
    return (
        Row("none", "none", "no reordering", plain),
        *(
            Row(
                f"{layer}_{patches}",
                f"{layer}, {title}",
                f"{title} reordered after the ReLU of {layer}",
                reordered,
                options={"place": place, **options},
            )
            for patches, (title, options) in PATCHES.items()
            for layer, place in layers.items()
        ),
    )


def layer_comparisons(layers: dict[str, str]) -> list[tuple[str, str]]:
    """Every layer with none, and at every layer two levels with one."""
    reordered = [(f"{layer}_{patches}", "none") for patches in PATCHES for layer in layers]
    return reordered + [(f"{layer}_2x2", f"{layer}_4x4") for layer in layers]


def layer_figure(layers: dict[str, str], n: str) -> dict[str, object]:
    """How the report draws them."""
    return {
        "kind": "places",
        "x": "reordered after",
        "n": n,
        "places": list(layers),
        "lines": {title: [f"{layer}_{patches}" for layer in layers] for patches, (title, _) in PATCHES.items()},
        "level": "none",
    }
