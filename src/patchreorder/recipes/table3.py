"""Table 3: UK-Bench. How many of its own group of four does an image find among its four nearest?

    patchreorder run table3 --data UKBENCH [--weights FILE] [--out runs/table3]
    patchreorder run table3 --data UKBENCH --setting draws  # eight draws of every rotation and shift
    patchreorder run table3 --data UKBENCH --setting trained --trained runs/table2_grocery [--weights FILE]
    ... --change layer=pool5  # any other layer of the trained networks
    patchreorder run table3 --split validation --data GROCERY [--weights FILE]  # to choose a pool on

The paper's table, for 2,550 groups and networks trained on ImageNet:

    NS-score       FC6    FC7
    CNN            3.381  3.438
    CNN-Data-Aug   3.340  3.441
    SI-CNN         3.431  3.452
    ST-CNN         3.430  3.446
    PR-CNN         3.574  3.539

Here a network and a layer make a row, and the columns are views: as they are (Ori, the paper's), all rotated (R), all
shifted (T), and mixed: of each group one rotated, one shifted, two as they are. Features are square-rooted, with their
sign, and brought to unit length; the distance is Euclidean, the search exact. A score of fewer groups is higher, for
there are fewer wrong images to find: numbers of 500 groups cannot be compared with the paper's.

`short` pools the feature maps of a trained network, of its last layer or of several, with no further training; each row
is compared with global averages. `draws` repeats R, T and mixed with other rotations and shifts for the main rows: one
draw of 1,000 shifts leaves chance in a comparison that eight do not. `trained` and `wide` have the paper's layers, of
the classifiers that table2_grocery trained on ImageNet's convolutions. `paper` is the paper's table: all groups, and
networks that `table2 --setting paper` trained; not run by us. With `--split validation` a group is four training
photographs of one class folder: the first four of every class are one gallery, the next four another, for four of them.
"""

from __future__ import annotations

from patchreorder.laboratory.recipe import Column, Plan, Recipe, Row, Setting
from patchreorder.laboratory.retrieval import RetrievalTask


def _row(name: str, title: str, about: str, model: str) -> Row:
    return Row(name, title, about, model)


_WINDOWS = "ranked:smooth=9,stride=2"
_QUANTILES = "ranked:smooth=3,stride=2,quantiles=4,weights=-0.5"
_QUANTILES_ABOUT = "four quantiles of sorted 3x3 averages, weighted by rank ** -0.5; ours"
MAPS = (
    _row("alexnet_flatten", "AlexNet (CNN)", "the 6x6 maps after the last pool, as they are", "alexnet/flatten"),
    _row("alexnet_pr", "AlexNet, PR (paper)", "2x2 of 2x2 patches sorted before the last pool", "alexnet/pr"),
    _row("alexnet_pr_4x4", "AlexNet, PR 4x4", "4x4 patches sorted before the last pool", "alexnet/pr_grid4"),
    _row("alexnet_pr_joint", "AlexNet, PR joint", "as the paper's, all channels together", "alexnet/pr_joint"),
    _row(
        "alexnet_pr_fine", "AlexNet, PR fine", "every pixel a patch, sorted after the last pool; ours", "alexnet/ranked"
    ),
    _row("alexnet_gap", "AlexNet, global average", "the mean over all positions", "alexnet/gap"),
    _row("alexnet_gem", "AlexNet, GeM", "generalised mean, power 3", "alexnet/gem"),
    _row("alexnet_rmac", "AlexNet, R-MAC", "sum of the maxima of 14 regions", "alexnet/rmac"),
    _row(
        "alexnet_ranked_averages",
        "AlexNet, ranked averages",
        "averages of 3x3 at every second position, sorted, weighted by rank ** -0.5; ours",
        "alexnet/weighted",
    ),
    _row("efficientnet_flatten", "EfficientNet-lite0", "its last 7x7 maps as they are", "efficientnet_lite0/flatten"),
    _row(
        "efficientnet_pr_fine",
        "EfficientNet-lite0, PR fine",
        "every pixel a patch, sorted",
        "efficientnet_lite0/ranked",
    ),
    _row(
        "efficientnet_gap",
        "EfficientNet-lite0, global average",
        "the mean over all positions",
        "efficientnet_lite0/gap",
    ),
    _row(
        "alexnet_ranked_averages_9x9",
        "AlexNet, ranked averages of 9x9",
        "9x9 averages, sorted, weighted by rank ** -0.5",
        f"alexnet/{_WINDOWS},weights=-0.5",
    ),
    _row(
        "alexnet_mean_of_averages_9x9",
        "AlexNet, mean of averages of 9x9",
        "their mean: the border counts less",
        f"alexnet/{_WINDOWS},mean=true",
    ),
    _row(
        "alexnet_layers_sorted",
        "AlexNet, ranked layers",
        f"conv1, conv3 and conv5: {_QUANTILES_ABOUT}",
        f"alexnet@conv1+conv3+conv5/{_QUANTILES}",
    ),
    _row(
        "alexnet_layers_averaged",
        "AlexNet, averages of layers",
        "conv1, conv3 and conv5: their means",
        "alexnet@conv1+conv3+conv5/gap",
    ),
    _row("alexnet_quantiles", "AlexNet, four quantiles", f"conv5: {_QUANTILES_ABOUT}", f"alexnet/{_QUANTILES}"),
)
NETWORKS = {
    "cnn": "CNN",
    "cnn_aug": "CNN-Data-Aug",
    "si_cnn": "SI-CNN",
    "st_cnn": "ST-CNN",
    "pr_cnn": "PR-CNN",
    "pr_cnn_fine": "PR-CNN-fine",
}
CONNECTED = tuple(
    Row(
        f"{network}_{layer}",
        f"{title}, {layer}",
        f"{layer} of the row {network} of Table 2, after its ReLU",
        network,
        options={"layer": layer},
    )
    for network, title in NETWORKS.items()
    for layer in ("fc6", "fc7")
)
COLUMNS = (
    Column("Ori", "Ori", "the images as they are", "Ori"),
    Column("R", "R", "every image rotated by up to 45 degrees either way", "R"),
    Column("T", "T", "every image shifted by up to a fifth of its sides", "T"),
    Column("mixed", "mixed", "of each group one rotated, one shifted, two as they are", "mixed"),
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
OURS = (
    "alexnet_ranked_averages",
    "alexnet_ranked_averages_9x9",
    "alexnet_mean_of_averages_9x9",
    "alexnet_layers_sorted",
)
COMPARE = [
    *((row.name, "alexnet_gap") for row in MAPS if row.name.startswith("alexnet_") and row.name != "alexnet_gap"),
    *((name, "efficientnet_gap") for name in ("efficientnet_flatten", "efficientnet_pr_fine")),
    ("efficientnet_gap", "alexnet_gap"),
    ("alexnet_ranked_averages_9x9", "alexnet_mean_of_averages_9x9"),
    *((name, other) for name in OURS for other in ("alexnet_gem", "alexnet_rmac")),
    ("alexnet_layers_sorted", "alexnet_ranked_averages"),
    ("alexnet_layers_sorted", "alexnet_layers_averaged"),
    *((name, "alexnet_flatten") for name in ("alexnet_pr", "alexnet_pr_fine")),
    *((f"{network}_{layer}", f"cnn_{layer}") for layer in ("fc6", "fc7") for network in NETWORKS if network != "cnn"),
    *((f"{network}_fc6", f"{network}_fc7") for network in NETWORKS),
]
DRAWS = 8

RECIPE = Recipe(
    name="table3",
    title="Table 3: UK-Bench retrieval",
    about="Every image looks for the other three of its group: the mean number of its group among its four nearest, "
    "itself included. Scores of fewer groups than the paper's 2,550 are higher, and cannot be compared with it.",
    metric="NS-score",
    better="higher",
    rows=MAPS + CONNECTED,
    columns=COLUMNS,
    settings={
        "short": Setting(
            about="descriptors from ImageNet-trained feature maps, no further training",
            plan=lambda row, column: Plan(),
            rows=[row.name for row in MAPS],
        ),
        "draws": Setting(
            about=f"as short, each photograph rotated and shifted in {DRAWS} ways, one a seed (0: those of short)",
            plan=lambda row, column: Plan(poses_by_seed=True),
            seeds=lambda row: range(DRAWS),
            rows=[f"alexnet_{pool}" for pool in ("pr", "pr_fine", "gap", "gem", "rmac", "ranked_averages")],
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
            rows=[row.name for row in CONNECTED if row.model in ("cnn", "pr_cnn", "pr_cnn_fine")],
            like_paper=False,
        ),
        "paper": Setting(
            about="all 2,550 groups; fc6 and fc7 of networks that table2 trained on ImageNet (--trained DIR)",
            plan=lambda row, column: Plan(groups=2550, trained="paper"),
            rows=list(PAPER),
        ),
        "smoke": Setting(
            about="seconds, synthetic images and random weights: does it run",
            plan=lambda row, column: Plan(synthetic=True),
            rows=(
                *("alexnet_flatten", "alexnet_pr", "alexnet_pr_fine", "alexnet_gap", "alexnet_gem", "alexnet_rmac"),
                *("alexnet_ranked_averages", "alexnet_layers_sorted", "efficientnet_gap"),
                *("cnn_fc6", "si_cnn_fc7", "st_cnn_fc6", "pr_cnn_fc7", "pr_cnn_fine_fc6"),
            ),
        ),
    },
    task=RetrievalTask,
    paper=PAPER,
    compare=COMPARE,
    command="patchreorder run table3 --data UKBENCH",
)
