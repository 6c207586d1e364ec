"""Figure 2: do the weights of fully connected layers repeat each other, with reordering before them and without?

    patchreorder run fig_redundancy --trained runs/table2_grocery [--setting wide] [--out runs/fig_redundancy]

Log histograms of cosines between weights, of networks that Table 2 trained. The paper's figure has fc6 and fc7 of
AlexNet and does not say which weights are compared; so both: those of two places of the map within a neuron of fc6
(what Eq. 4 says must be alike in a network that has learned to ignore places), and those of two neurons, of fc6 and of
fc7. A cell is the mean size of the cosine; the histogram is its curve.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from patchreorder.metrics.redundancy import neuron_similarity, position_similarity
from patchreorder.models import alexnet
from patchreorder.results import Result, provenance

from .spec import Column, Job, Recipe, Row, Setting
from .trained import generated_network, trained_network

MAPS = 256  # of AlexNet before fc6
NETWORKS = {
    "cnn": ("CNN", "as it is"),
    "cnn_aug": ("CNN-Data-Aug", "trained on turned and shifted photographs"),
    "pr_cnn": ("PR-CNN", "reordering after conv5, as the paper"),
    "pr_cnn_fine": ("PR-CNN-fine", "every pixel a patch, reordered after pool5"),
}
COLUMNS = (
    Column(name="fc6_places", title="fc6, places", about="weights of two places of the map, in one neuron", dataset=""),
    Column(name="fc6", title="fc6, neurons", about="all weights of two neurons of fc6", dataset=""),
    Column(name="fc7", title="fc7, neurons", about="all weights of two neurons of fc7", dataset=""),
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Whose weights: the setting of the trainings; `first` those before any training; `generated` a small network."""

    trained: str = ""
    first: bool = False
    generated: bool = False
    note: str = ""


def measure(job: Job) -> Result:
    """Cosines between the weights of a layer of a trained network."""
    begun, cpu_begun = time.perf_counter(), time.process_time()
    model = generated_network(job) if job.plan.generated else trained_network(job, job.plan.trained)
    assert isinstance(model, alexnet.AlexNet)
    layer = model.get_submodule(model.layers[job.column.name.partition("_")[0]])
    assert isinstance(layer, nn.Linear)
    weight = layer.weight.detach()
    if job.plan.first:  # what chance gives: as many weights, drawn as they are before training
        weight = torch.randn(weight.shape, generator=torch.Generator().manual_seed(job.cell.seed))
    places = job.column.name.endswith("_places")
    found = position_similarity(weight, maps=MAPS) if places else neuron_similarity(weight)
    middles = (found.edges[1:] + found.edges[:-1]) / 2
    curve = [[round(x, 4), y] for x, y in zip(middles.tolist(), found.shares.tolist(), strict=True) if y]
    return Result(
        **job.cell._asdict(),
        metric="mean |cosine|",
        value=found.mean_magnitude,
        n=found.pairs,
        steps=0,
        seconds=round(time.perf_counter() - begun, 1),
        cpu_seconds=round(time.process_time() - cpu_begun, 1),
        parameters=layer.weight.numel(),
        curves={"cosines": curve},
        details={"mean": found.mean, "undefined": found.undefined, "shape": list(weight.shape), "resumed": 0},
        **provenance(),
    )


def _changed(plan: Plan, change: Mapping[str, Any]) -> Plan:
    if change:
        raise ValueError(f"change ({', '.join(change)}) is for trainings: nothing is trained here")
    return plan


RECIPE = Recipe(
    name="fig_redundancy",
    title="Figure 2: how alike the weights of fully connected layers are",
    about="Cosines between weights of fc6 and fc7 of the networks that Table 2 trained on groceries, where the "
    "convolutions are ImageNet's: other networks than the paper's.",
    metric="mean |cosine|",
    rows=[Row(name=name, title=title, about=about, model=name) for name, (title, about) in NETWORKS.items()],
    columns=COLUMNS,
    settings={
        "short": Setting(
            about="fc6 and fc7 of 512 (table2_grocery's setting short)",
            plan=lambda row, column: Plan(trained="short"),
            seeds=lambda row: (0, 1, 2),
        ),
        "wide": Setting(
            about="fc6 and fc7 of 4096 (table2_grocery's setting wide)",
            plan=lambda row, column: Plan(trained="wide"),
            rows=("cnn", "pr_cnn", "pr_cnn_fine"),
        ),
        "chance": Setting(
            about="random weights of the shapes of `short`: what there is to see before training",
            plan=lambda row, column: Plan(trained="short", first=True),
            rows=("cnn",),
        ),
        "smoke": Setting(about="seconds, random weights: does it run", plan=lambda row, column: Plan(generated=True)),
    },
    measure=measure,
    parameters=None,
    change=_changed,
    curves={"cosines": {"x": "cosine", "y": "part of all pairs", "log": True}},
    command="patchreorder run fig_redundancy --trained runs/table2_grocery",
)
