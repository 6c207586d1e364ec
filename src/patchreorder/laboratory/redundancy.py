"""The task of Figure 2: do the weights of fully connected layers repeat each other?"""

from __future__ import annotations

import math

import torch
from torch import nn

from patchreorder.metrics.redundancy import neuron_similarity, position_similarity

from .cells import Job
from .figure import Clock, FigureTask, result
from .rows import Result
from .trained import ALEXNETS, untrained

METRIC = "mean |cosine|"


class RedundancyTask(FigureTask):
    """Cosines between the weights of a fully connected layer of a trained network."""

    changeable = ()

    def network(self, job: Job) -> nn.Module:
        return untrained(job, ALEXNETS) if job.plan.synthetic else super().network(job)

    def measure(self, job: Job) -> Result:
        clock = Clock()
        model = self.network(job)
        convolution, connected = _layers(model)
        layer = connected[0 if job.column.name.startswith("fc6") else 1]
        weight = layer.weight.detach()
        if job.plan.random_weights:  # what chance gives: as many weights, drawn as they are before training
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
        return result(
            job,
            model,
            clock,
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


def _layers(model: nn.Module) -> tuple[nn.Conv2d, list[nn.Linear]]:
    """The last convolution and the connected layers behind it, without those of a transformer."""
    own = [module for name, module in model.named_modules() if "transformer" not in name.split(".")]
    convolutions = [module for module in own if isinstance(module, nn.Conv2d)]
    return convolutions[-1], [module for module in own if isinstance(module, nn.Linear)]
