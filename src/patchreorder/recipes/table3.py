"""Table 3: UK-Bench. How many of its own four does an image find among its four nearest?

    patchreorder run table3 --data UKBENCH [--weights FILE] [--out runs/table3]
    patchreorder run table3 --data UKBENCH --setting draws  # eight draws of every turn and shift
    patchreorder run table3 --data UKBENCH --setting trained --trained runs/table2_grocery [--weights FILE]
    ... --change layer=pool5  # any other layer of the trained networks
    patchreorder run table3 --setting candidates --split validation --data GROCERY [--weights FILE]
    patchreorder run table3 --setting views --split validation --data GROCERY [--weights FILE]  # 16 minutes

The paper's table, for 2,550 groups and networks trained on ImageNet:

    NS-score       FC6    FC7
    CNN            3.381  3.438
    CNN-Data-Aug   3.340  3.441
    SI-CNN         3.431  3.452
    ST-CNN         3.430  3.446
    PR-CNN         3.574  3.539

Here a network and a layer make a row, and the columns are views: as they are (Ori, the paper's), all turned (R), all
shifted (T), and mixed: of each group one turned, one shifted, two as they are. Features are square-rooted, with their
sign, and brought to unit length; the distance is Euclidean, the search exact. A score of fewer groups is higher, for
there is less to be mistaken for: numbers of 250 groups cannot be compared with the paper's.

`draws` repeats R, T and mixed with other turns and shifts for the rows that matter most: one draw of 1,000 shifts
leaves chance in a comparison that eight do not.

`short` asks how to make a descriptor of what a trained network says, in its last maps or in several layers, with no
further training; each row is compared with global averages. `trained` and `wide` have the paper's layers, of the
classifiers that table2_grocery trained on ImageNet's convolutions. `candidates` are pools to choose among, on
photographs that are not UK-Bench's: of every class folder the first four training photographs are a group, and the next
four one of another gallery, for four galleries. `views` are groups of four views of one training photograph, made by
bending, turning and cropping it: the same thing, as in UK-Bench, and not the same kind of thing. `paper` is the paper's
table: all groups, and networks that `table2 --setting paper` trained; not run by us.
"""

from __future__ import annotations

from patchreorder.laboratory.recipe import Column, Recipe, Row, Setting
from patchreorder.laboratory.retrieval import Drawn, Plan, Viewed, changed, identify, measure

_ALEXNET = {
    "flatten": ("AlexNet (CNN)", "the last pool's 6x6 maps as they are"),
    "pr": ("AlexNet, PR (paper)", "as the paper: 2x2 of 2x2 patches sorted before the last pool"),
    "pr_grid4": ("AlexNet, PR 4x4", "4x4 patches sorted before the last pool"),
    "pr_joint": ("AlexNet, PR joint", "as the paper's, all channels together"),
    "ranked": ("AlexNet, PR fine", "every pixel a patch, sorted after the last pool; ours"),
    "gap": ("AlexNet, global average", "the mean over all places"),
    "gem": ("AlexNet, GeM", "generalised mean, power 3"),
    "rmac": ("AlexNet, R-MAC", "sum of the maxima of 14 regions"),
    "weighted": (
        "AlexNet, ranked averages",
        "averages of 3x3 at every second place, sorted, weighted by rank ** -0.5; ours",
    ),
}
# Windows of so many pixels at every second place, sorted and weighted by rank ** -0.5, or their mean.
_CANDIDATES = {
    f"{name}{side}": (
        f"AlexNet, {title} of {side}x{side}",
        f"{side}x{side} averages, {about}",
        f"smooth={side},stride=2,{last}",
    )
    for side in (3, 5, 7, 9, 11)
    for name, title, about, last in (
        ("windows", "ranked averages", "sorted, weighted by rank ** -0.5", "weights=-0.5"),
        ("mean", "mean of averages", "their mean: the border counts less", "mean=true"),
    )
}
_EFFICIENTNET = {
    "flatten": ("EfficientNet-lite0", "its last 7x7 maps as they are"),
    "ranked": ("EfficientNet-lite0, PR fine", "every pixel a patch, sorted"),
    "gap": ("EfficientNet-lite0, global average", "the mean over all places"),
}
_NETWORKS = {
    "cnn": "CNN",
    "cnn_aug": "CNN-Data-Aug",
    "si_cnn": "SI-CNN",
    "st_cnn": "ST-CNN",
    "pr_cnn": "PR-CNN",
    "pr_cnn_fine": "PR-CNN-fine",
}
_WIDE = ("cnn", "pr_cnn", "pr_cnn_fine")  # the networks that table2_grocery has with 4096 features

MAPS = tuple(
    Row(name=f"{backbone}_{pool}", title=title, about=f"{of}: {about}", model=f"{backbone}/{pool}")
    for backbone, of, pools in (
        ("alexnet", "AlexNet's conv5", _ALEXNET),
        ("efficientnet", "EfficientNet-lite0", _EFFICIENTNET),
    )
    for pool, (title, about) in pools.items()
)
# Four shares of sorted 3x3 averages, weighted by rank ** -0.5, of the last layer and of several; and plain averages.
_SHARES = "ranked:smooth=3,stride=2,quantiles=4,weights=-0.5"
_SHARES_ABOUT = "four shares of sorted 3x3 averages, weighted by rank ** -0.5; ours"
_LAYERS = (
    ("layers", "AlexNet, ranked layers", "conv1, conv3 and conv5", _SHARES_ABOUT, f"@conv1+conv3+conv5/{_SHARES}"),
    ("layers_gap", "AlexNet, averages of layers", "conv1, conv3 and conv5", "their means", "@conv1+conv3+conv5/gap"),
    ("shares4", "AlexNet, four shares", "AlexNet's conv5", _SHARES_ABOUT, f"/{_SHARES}"),
    ("layers15", "AlexNet, ranked layers 1 and 5", "conv1 and conv5", _SHARES_ABOUT, f"@conv1+conv5/{_SHARES}"),
    ("layers15_gap", "AlexNet, averages of layers 1 and 5", "conv1 and conv5", "their means", "@conv1+conv5/gap"),
)
# Forms of sorted averages, by window, and what is left of them.
_FORMS = {
    "shares8": ("AlexNet, eight shares", "3x3", "smooth=3,stride=2,quantiles=8,weights=-1"),
    "falling": ("AlexNet, ranked averages, 1 / rank", "3x3", "smooth=3,stride=2,weights=-1"),
    "between": ("AlexNet, mean by rank", "3x3", "smooth=3,stride=2,weights=-0.5,mean=true"),
}
FORMS = tuple(
    Row(
        name=f"alexnet_{name}",
        title=title,
        about=f"AlexNet's conv5: averages of {window}, {options}",
        model=f"alexnet/ranked:{options}",
    )
    for name, (title, window, options) in _FORMS.items()
)
CANDIDATES = tuple(
    Row(name=f"alexnet_{name}", title=title, about=f"AlexNet's conv5: {about}", model=f"alexnet/ranked:{options}")
    for name, (title, about, options) in _CANDIDATES.items()
) + tuple(
    Row(name=f"alexnet_{name}", title=title, about=f"{of}: {about}", model=f"alexnet{rest}")
    for name, title, of, about, rest in _LAYERS
)
# Of the sorted windows, and of their means, those with the highest score over all columns (validation rows).
_WINDOWS = ("alexnet_windows9", "alexnet_mean9")
# Candidates that are rows of the table too.
CHOSEN = (*_WINDOWS, "alexnet_layers", "alexnet_layers_gap", "alexnet_shares4")
CONNECTED = tuple(
    Row(
        name=f"{network}_{layer}",
        title=f"{title}, {layer}",
        about=f"what {layer} of the row {network} of Table 2 says, after its ReLU",
        model=network,
        options={"layer": layer},
    )
    for network, title in _NETWORKS.items()
    for layer in ("fc6", "fc7")
)
# Each kind of row once: the others differ in options.
_SMOKE = (
    *(f"alexnet_{pool}" for pool in ("flatten", "pr", "ranked", "gap", "gem", "rmac", "weighted", "layers", "shares8")),
    "efficientnet_gap",
    *("cnn_fc6", "si_cnn_fc7", "st_cnn_fc6", "pr_cnn_fc7", "pr_cnn_fine_fc6"),
)
DRAWS = 8
COLUMNS = (
    Column(name="Ori", title="Ori", about="the images as they are", dataset="Ori"),
    Column(name="R", title="R", about="every image turned by up to 45 degrees either way", dataset="R"),
    Column(name="T", title="T", about="every image shifted by up to a fifth of its sides", dataset="T"),
    Column(
        name="mixed", title="mixed", about="of each group one turned, one shifted, two as they are", dataset="mixed"
    ),
)
PAPER = {
    "cnn_fc6": {"Ori": 3.381},
    "cnn_fc7": {"Ori": 3.438},
    "cnn_aug_fc6": {"Ori": 3.340},
    "cnn_aug_fc7": {"Ori": 3.441},
    "si_cnn_fc6": {"Ori": 3.431},
    "si_cnn_fc7": {"Ori": 3.452},
    "st_cnn_fc6": {"Ori": 3.430},
    "st_cnn_fc7": {"Ori": 3.446},
    "pr_cnn_fc6": {"Ori": 3.574},
    "pr_cnn_fc7": {"Ori": 3.539},
}
COMPARE = (
    [
        (row.name, "alexnet_gap")
        for row in MAPS + CANDIDATES + FORMS
        if row.name.startswith("alexnet_") and row.name != "alexnet_gap"
    ]
    + [(name, "efficientnet_gap") for name in ("efficientnet_flatten", "efficientnet_ranked")]
    + [("efficientnet_gap", "alexnet_gap"), ("alexnet_windows9", "alexnet_mean9")]
    + [(name, other) for name in (*_WINDOWS, "alexnet_layers") for other in ("alexnet_gem", "alexnet_rmac")]
    + [("alexnet_layers", other) for other in ("alexnet_weighted", "alexnet_layers_gap")]
    + [("alexnet_layers15", "alexnet_layers15_gap")]
    + [("alexnet_weighted", f"alexnet_{other}") for other in ("gem", "rmac")]
    + [(name, "alexnet_flatten") for name in ("alexnet_pr", "alexnet_ranked")]
    + [(f"{network}_{layer}", f"cnn_{layer}") for layer in ("fc6", "fc7") for network in _NETWORKS if network != "cnn"]
    + [(f"{network}_fc6", f"{network}_fc7") for network in _NETWORKS]
)

RECIPE = Recipe(
    name="table3",
    title="Table 3: UK-Bench retrieval",
    about="Every image looks for the other three of its group: the mean number of its group among its four nearest, "
    "itself included. Scores of fewer groups than the paper's 2,550 are higher, and cannot be compared with it.",
    metric="NS-score",
    better="higher",
    rows=MAPS + CANDIDATES + FORMS + CONNECTED,
    columns=COLUMNS,
    settings={
        "short": Setting(
            about="descriptors of ImageNet-trained maps, no further training",
            plan=lambda row, column: Plan(),
            rows=[*(row.name for row in MAPS), *CHOSEN],
        ),
        "candidates": Setting(
            about="pools of AlexNet's maps to choose among, on class folders (--split validation)",
            plan=lambda row, column: Plan(),
            rows=["alexnet_gap", "alexnet_gem", "alexnet_rmac", "alexnet_ranked", *(row.name for row in CANDIDATES)],
            like_paper=False,
        ),
        "views": Setting(
            about="pools of AlexNet's maps to choose among, on views of one photograph each (--split validation)",
            plan=lambda row, column: Viewed(),
            rows=[
                *(row.name for row in MAPS if row.name.startswith("alexnet_")),
                *(f"alexnet_{name}" for name in ("mean3", "mean9", "windows9", "shares4")),
                *(row.name for row in FORMS),
                "alexnet_layers",
            ],
            like_paper=False,
        ),
        "draws": Setting(
            about=f"as short, each photograph turned and shifted in {DRAWS} ways, one a seed (0: those of short)",
            plan=lambda row, column: Drawn(),
            seeds=lambda row: range(DRAWS),
            rows=[f"alexnet_{pool}" for pool in ("pr", "ranked", "gap", "gem", "rmac", "weighted")],
            columns=["R", "T", "mixed"],
            like_paper=False,
        ),
        "trained": Setting(
            about="fc6 and fc7 of 512 of the classifiers that table2_grocery trained on groceries (--trained DIR), on "
            "ImageNet's convolutions: other networks than the paper's",
            plan=lambda row, column: Plan(trained="short"),
            rows=[row.name for row in CONNECTED],
            seeds=lambda row: (0,) if row.startswith("st_cnn") else (0, 1, 2),
            like_paper=False,
        ),
        "wide": Setting(
            about="the same with fc6 and fc7 of 4096 (table2_grocery's setting wide)",
            plan=lambda row, column: Plan(trained="wide"),
            like_paper=False,
            rows=[row.name for row in CONNECTED if row.model in _WIDE],
        ),
        "paper": Setting(
            about="all 2,550 groups; fc6 and fc7 of networks that table2 trained on ImageNet (--trained DIR)",
            plan=lambda row, column: Plan(groups=2550, trained="paper"),
            rows=list(PAPER),
        ),
        "smoke": Setting(
            about="seconds, generated images and random weights: does it run",
            plan=lambda row, column: Plan(generated=True),
            rows=_SMOKE,
        ),
    },
    measure=measure,
    parameters=None,
    change=changed,
    paper=PAPER,
    compare=COMPARE,
    command="patchreorder run table3 --data UKBENCH",
    identify=identify,
)
