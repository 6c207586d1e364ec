"""Figure 2: do the weights of fully connected layers repeat each other, with reordering before them and without?

    patchreorder run fig_redundancy --trained runs/table2_grocery [--setting wide] [--out runs/fig_redundancy]
    patchreorder run fig_redundancy --setting mnist_r                     # or mnist_t: the networks that are shipped
    patchreorder run fig_redundancy --setting cifar10 --trained runs/table2_cifar10
    patchreorder run fig_redundancy --setting paper --trained runs/table2

Log histograms of cosines between weights, of networks that are trained. The paper's figure has fc6 and fc7 of AlexNet
and does not say which weights are compared; so both: those of two places of the map within a neuron of fc6 (what Eq. 4
says must be alike in a network that has learned to ignore places), and those of two neurons, of fc6 and of fc7. MNIST's
networks have one connected layer, their classifier, which stands for fc6. A cell is the mean size of the cosine, the
histogram its curve; `chance` in its details is what random weights of that length give.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from patchreorder.laboratory import subjects
from patchreorder.laboratory.recipe import Column, Job, Recipe, Row, Setting
from patchreorder.laboratory.rows import Result
from patchreorder.laboratory.subjects import SHIPPED, clock
from patchreorder.laboratory.trained import CIFAR10, generated_network, trained_network
from patchreorder.metrics.redundancy import neuron_similarity, position_similarity
from patchreorder.models import create_model

METRIC = "mean |cosine|"
NETWORKS = {
    "cnn": ("CNN", "as it is"),
    "cnn_aug": ("CNN-Data-Aug", "trained on turned and shifted images"),
    "st_cnn": ("ST-CNN", "behind a spatial transformer"),
    "pr_cnn": ("PR-CNN", "reordering after the last convolution, as the paper"),
    "pr_cnn_fine": ("PR-CNN-fine", "every pixel a patch, reordered after the last pool"),
}
COLUMNS = (
    Column(name="fc6_places", title="fc6, places", about="weights of two places of the map, in one neuron", dataset=""),
    Column(name="fc6", title="fc6, neurons", about="all weights of two neurons of fc6", dataset=""),
    Column(name="fc7", title="fc7, neurons", about="all weights of two neurons of fc7", dataset=""),
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Whose weights.

    Args:
        of: grocery, imagenet, cifar10, mnist_r or mnist_t.
        trained: the setting of the trainings; those of MNIST are shipped.
        first: random ones instead, as before any training.
        generated: those of a small network.
    """

    of: str
    trained: str = ""
    first: bool = False
    generated: bool = False
    note: str = ""


def measure(job: Job) -> Result:
    """Cosines between the weights of a layer of a trained network."""
    begun = clock()
    model = _network(job)
    convolution, connected = _layers(model)
    layer = connected[0 if job.column.name.startswith("fc6") else 1]
    weight = layer.weight.detach()
    if job.plan.first:  # what chance gives: as many weights, drawn as they are before training
        weight = torch.randn(weight.shape, generator=torch.Generator().manual_seed(job.cell.seed))
    places, length = 0, weight.shape[1]
    if job.column.name.endswith("_places"):
        places, length = weight.shape[1] // convolution.out_channels, convolution.out_channels
        bins = _bins(len(weight) * math.comb(places, 2))
        found = position_similarity(weight, maps=convolution.out_channels, bins=bins)
    else:
        found = neuron_similarity(weight, bins=_bins(math.comb(len(weight), 2)))
    middles = (found.edges[1:] + found.edges[:-1]) / 2
    curve = [[round(x, 4), y] for x, y in zip(middles.tolist(), found.shares.tolist(), strict=True) if y]
    return subjects.result(
        job,
        model,
        begun,
        metric=METRIC,
        value=found.mean_magnitude,
        n=found.pairs,
        curves={"cosines": curve},
        details={
            "mean": found.mean,
            "undefined": found.undefined,
            "shape": list(weight.shape),
            "places": places,
            "chance": math.sqrt(2 / (math.pi * length)),
        },
    )


def _bins(pairs: int) -> int:
    """As many as the pairs can fill; an odd number, so that zero lies in the middle of one."""
    return 201 if pairs >= 50_000 else 41 if pairs >= 1000 else 11


def _network(job: Job) -> nn.Module:
    plan: Plan = job.plan
    if plan.of in ("mnist_r", "mnist_t"):
        return create_model(job.row.model, dataset=plan.of.replace("_", "-"), pretrained=True)
    recipe = CIFAR10 if plan.of == "cifar10" else ""
    return generated_network(job) if plan.generated else trained_network(job, plan.trained, recipe)


def _layers(model: nn.Module) -> tuple[nn.Conv2d, list[nn.Linear]]:
    """The last convolution and the connected layers behind it, without those of a transformer."""
    own = [module for name, module in model.named_modules() if "transformer" not in name.split(".")]
    convolutions = [module for module in own if isinstance(module, nn.Conv2d)]
    return convolutions[-1], [module for module in own if isinstance(module, nn.Linear)]


def _changed(plan: Plan, change: Mapping[str, Any]) -> Plan:
    if change:
        raise ValueError(f"change ({', '.join(change)}) is for trainings: nothing is trained here")
    return plan


def _setting(about: str, **options: Any) -> Setting:
    plan = Plan(**{name: options.pop(name) for name in list(options) if name in Plan.__dataclass_fields__})
    return Setting(about=about, plan=lambda row, column: plan, **options)


def _digits(variant: str, what: str) -> Setting:
    return _setting(
        f"the shipped networks for {what} digits of MNIST; fc6 is here their classifier, the only connected layer",
        of=variant,
        rows=SHIPPED,
        columns=("fc6_places", "fc6"),
    )


RECIPE = Recipe(
    name="fig_redundancy",
    title="Figure 2: how alike the weights of fully connected layers are",
    about="Cosines between weights of fc6 and fc7 of networks that the tables trained: other networks than the "
    "paper's. Random weights give about 0.8 / sqrt(numbers compared); only what is above that tells anything.",
    metric=METRIC,
    rows=[Row(name=name, title=title, about=about, model=name) for name, (title, about) in NETWORKS.items()],
    columns=COLUMNS,
    settings={
        "short": _setting(
            "AlexNets with fc6 and fc7 of 512, trained on groceries (table2_grocery's setting short)",
            of="grocery",
            trained="short",
            needs="--trained runs/table2_grocery",
            seeds=lambda row: (0,) if row == "st_cnn" else (0, 1, 2),
        ),
        "wide": _setting(
            "AlexNets with fc6 and fc7 of 4096, trained on groceries (table2_grocery's setting wide)",
            of="grocery",
            trained="wide",
            needs="--trained runs/table2_grocery",
            rows=("cnn", "pr_cnn", "pr_cnn_fine"),
        ),
        "paper": _setting(
            "AlexNets that table2 trained on ImageNet; not run by us",
            of="imagenet",
            trained="paper",
            needs="--trained runs/table2",
        ),
        "cifar10": _setting(
            "the networks that table2_cifar10 trained",
            of="cifar10",
            trained="short",
            needs="--trained runs/table2_cifar10",
        ),
        "mnist_r": _digits("mnist_r", "turned"),
        "mnist_t": _digits("mnist_t", "shifted"),
        "chance": _setting(
            "random weights of the shapes of `short`: what there is to see before training",
            of="grocery",
            trained="short",
            first=True,
            needs="--trained runs/table2_grocery",
            rows=("cnn",),
        ),
        "smoke": _setting("seconds, random weights: does it run", of="grocery", generated=True),
    },
    measure=measure,
    parameters=None,
    change=_changed,
    curves={"cosines": {"x": "cosine", "y": "part of all pairs", "log": True}},
    figure={"kind": "lines", "curve": "cosines", "n": "pairs"},
)
