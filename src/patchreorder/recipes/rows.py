"""Rows and columns that several recipes share. A recipe imports from here and from no other recipe."""

from __future__ import annotations

from patchreorder.laboratory.recipe import Column, Row
from patchreorder.models.mnist import UNROLLED

# ---- digits: the networks of patchreorder.models.mnist -------------------------------------------------------------

CNN = Row(name="cnn", title="CNN", model="cnn", about="9x9, pool, 7x7, pool, classifier; 64 filters")
ST_CNN = Row(name="st_cnn", title="ST-CNN", model="st_cnn", about="a projective spatial transformer, then the CNN")
PR_CNN = Row(name="pr_cnn", title="PR-CNN", model="pr_cnn", about="2x2 patches reordered after the second convolution")
PR_CNN_FINE = Row(
    name="pr_cnn_fine",
    title="PR-CNN-fine",
    model="pr_cnn_fine",
    about="every pixel a patch, reordered after the second pool; ours",
)
CNN_GAP = Row(name="cnn_gap", title="CNN, global average", model="cnn_gap", about="average over all positions")

DIGITS = (
    Column(name="R", title="R", dataset="mnist-r", about="28x28, rotated by U[-90, 90] degrees"),
    Column(name="T", title="T", dataset="mnist-t", about="at a random position of a 42x42 canvas"),
)

# What aligned and unrolled networks are trained with; in degrees and percent as CNN-Data-Aug.
AUGMENT = "jitter=2,tilt=12,zoom=0.12"
AUGMENT_BENT = f"{AUGMENT},bend=1"
RINGS = UNROLLED
AUGMENT_RINGS = "jitter=0.5,zoom=0.06"

# ---- photographs ---------------------------------------------------------------------------------------------------

PHOTOGRAPHS = tuple(
    Column(name=f"{view}{top if top > 1 else ''}", title=title, dataset=view, about=about, top=top)
    for top, of in ((1, ""), (5, " top-5"))
    for view, title, about in (
        ("Ori", f"Ori{of}", "as they are"),
        ("R", f"R{of}", "rotated by U[-45, 45] degrees"),
        ("T", f"T{of}", "shifted by U[-0.2, 0.2] of the size"),
    )
)
CIFAR10 = (
    Column(name="Ori", title="Ori", dataset="cifar10", about="as they are"),
    Column(name="R", title="R", dataset="cifar10-r", about="rotated by U[-45, 45] degrees"),
    Column(name="T", title="T", dataset="cifar10-t", about="shifted by U[-0.2, 0.2] of the size"),
)

# ---- figures: a row's model is the row of the table that trained it --------------------------------------------------

TRAINED = {
    row.name: row
    for row in (
        Row(name="cnn", title="CNN", model="cnn", about="no reordering"),
        Row(name="cnn_aug", title="CNN-Data-Aug", model="cnn_aug", about="trained on rotated and shifted images"),
        Row(name="st_cnn", title="ST-CNN", model="st_cnn", about="a spatial transformer before the CNN"),
        Row(name="pr_cnn", title="PR-CNN", model="pr_cnn", about="patches reordered after the last convolution"),
        Row(
            name="pr_cnn_fine",
            title="PR-CNN-fine",
            model="pr_cnn_fine",
            about="every pixel a patch, reordered after the last pool; ours",
        ),
    )
}


# ---- where to reorder: a network without the module, and with it at every layer, in one level and in two -----------

PATCHES = {"4x4": ("4x4 patches", {"grid": 4, "levels": 1}), "2x2": ("2x2 of 2x2 patches", {"grid": 2, "levels": 2})}


def at_each_layer(plain: str, reordered: str, layers: dict[str, str]) -> tuple[Row, ...]:
    """Rows of the figures `fig_layers`; `layers` has the option `place` of each layer."""
    return (
        Row(name="none", title="none", model=plain, about="no reordering"),
        *(
            Row(
                name=f"{layer}_{patches}",
                title=f"{layer}, {title}",
                model=reordered,
                options={"place": place, **options},
                about=f"{title} reordered after the ReLU of {layer}",
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
