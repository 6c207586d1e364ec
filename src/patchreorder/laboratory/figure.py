"""What figures are measured on: trained networks, the images they see, and the layers that are looked at.

Nothing is trained for a figure. MNIST's networks come with the package or from the output folder of table1; those for
CIFAR-10 and for photographs from the folders of table2_cifar10, table2_grocery and table2 (`--trained`), or they are
AlexNet's convolutions as ImageNet trained them, up to the last maps.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from patchreorder.data.backbone_weights import alexnet_convolutions
from patchreorder.data.datasets import Cifar10, LabelledImages, Mnist
from patchreorder.data.generated import generate_colour_images
from patchreorder.data.images import MEAN, MEAN_COLOUR
from patchreorder.data.photos import Photos
from patchreorder.engine.batches import Dataset
from patchreorder.files import digest
from patchreorder.layers.patch_reorder import PatchReorder
from patchreorder.models import alexnet, create_model
from patchreorder.search.descriptors import fingerprint

from .cells import Job
from .provenance import provenance
from .recipe import Plan
from .rows import Result
from .task import Task
from .trained import ALEXNETS, SMALL, TABLES, trained, untrained

SHIPPED = ("cnn", "st_cnn", "pr_cnn")  # networks for MNIST with shipped weights


class Stage(NamedTuple):
    """Where a layer of the network ends."""

    module: str  # as in `named_modules`
    stride: int  # pixels of the image between two pixels of its maps; 0 where there are no maps


class FigureTask(Task):
    """Opens the networks and images of a figure; subclasses measure."""

    changeable: Sequence[str] = ("images",)

    def __init__(self) -> None:
        self.opened: dict[Path, Photos] = {}
        self.loaded: dict[str, Mnist | Cifar10] = {}

    def identify(self, data: Path | None, plan: Plan, split: str) -> str:
        if data is None or plan.source not in ("grocery", "imagenet"):
            return ""
        return digest(self._photographs(data).names)

    def network(self, job: Job) -> nn.Module:
        """The row's network; MNIST has one for rotated and one for shifted digits, that of `column.dataset`."""
        plan = job.plan
        if job.cell.split != "test":
            raise ValueError(f"split ({job.cell.split}) must be test: nothing is trained here, so nothing is held out")
        column = {"mnist": job.column.dataset, "mnist_r": "R", "mnist_t": "T"}.get(plan.source, "all")
        if plan.synthetic:
            model = untrained(job, SMALL)
        elif plan.frozen:  # what follows the last maps is not trained
            model = untrained(job, ALEXNETS)
            alexnet.load_convolutions(model, alexnet_convolutions(file=job.resources.weights, say=job.screen.say))
        elif plan.trained:
            model = trained(job, plan.trained, TABLES[plan.source], column=column)
        else:
            model = create_model(job.row.model, dataset=f"mnist-{column.lower()}", pretrained=True)
        return model.eval().to(job.world.device)

    def images(self, job: Job) -> Dataset:
        """The test images of the cell."""
        plan = job.plan
        if plan.source in ("grocery", "imagenet"):
            if job.data is None:
                raise ValueError(
                    f"{job.cell.recipe} needs --data DIR here, a folder with train/CLASS/*.jpg and val/CLASS/*.jpg, "
                    "or what `patchreorder shard` made of it"
                )
            found = replace(self._photographs(job.data), workers=job.resources.workers)
            return replace(found, chosen=found.chosen[_spread(len(found), plan.images)])
        if plan.synthetic:
            return generate_colour_images("cifar10", count=plan.images or 64)
        if plan.source not in self.loaded:
            open_files = Cifar10 if plan.source == "cifar10" else Mnist
            self.loaded[plan.source] = open_files(folder=job.data, say=job.screen.say)
        shifts_digits = plan.source == "mnist" and job.column.dataset == "T"  # on the large canvas, in its middle
        own: LabelledImages = self.loaded[plan.source].load("mnist-c" if shifts_digits else plan.source, split="test")
        chosen = _spread(len(own), plan.images)
        return replace(own, images=own.images[chosen], labels=own.labels[chosen])

    def _photographs(self, folder: Path) -> Photos:
        if folder not in self.opened:
            self.opened[folder] = Photos.open(folder, "val", view="Ori")
        return self.opened[folder]


def fill(plan: Plan) -> list[float] | None:
    """The colour where a rotation or a shift uncovers the canvas; None for black."""
    if plan.source == "mnist":
        return None
    return [value / 255 for value in MEAN_COLOUR] if plan.source == "cifar10" else list(MEAN)


def stages(model: nn.Module) -> dict[str, Stage]:
    """The layers of one of our networks by the paper's names, with the end of each.

    conv1, conv2, ... are the convolutions; pool1, ... the input of the next one, where a pool is between them; maps the
    input of the first fully connected layer, reordered where the network reorders; fc6, fc7 after their ReLU and fc8,
    or classifier, if it is the only fully connected layer.

    >>> {name: stage.stride for name, stage in stages(create_model("pr_cnn", dataset="mnist-t")).items()}
    {'conv1': 1, 'pool1': 2, 'conv2': 2, 'maps': 4, 'classifier': 0}
    """
    found: dict[str, Stage] = {}
    last, stride, number, pooled = "", 1, 0, False
    connected: list[str] = []
    for name, module in model.named_modules():
        inside = [child for child in module.children() if not isinstance(child, PatchReorder)]
        if inside or isinstance(module, nn.Sequential) or "transformer" in name.split("."):
            continue
        if isinstance(module, nn.Linear):
            connected.append(name)
        elif connected and isinstance(module, nn.ReLU):
            connected[-1] = name
        elif isinstance(module, nn.Flatten):
            found["maps"] = Stage(last, stride)
        elif not connected:
            if isinstance(module, nn.Conv2d):
                if pooled:
                    found[f"pool{number}"] = Stage(last, stride)
                number, pooled = number + 1, False
            stride *= _stride(module)
            pooled |= not isinstance(module, nn.Conv2d) and _stride(module) > 1
            last = name
            if isinstance(module, nn.Conv2d):
                found[f"conv{number}"] = Stage(name, stride)
    names = ["classifier"] if len(connected) == 1 else [f"fc{6 + index}" for index in range(len(connected))]
    return found | {name: Stage(module, 0) for name, module in zip(names, connected, strict=True)}


class Clock:
    """Seconds since it was made: of the wall clock and of the processor."""

    def __init__(self) -> None:
        self.begun = time.perf_counter(), time.process_time()

    def seconds(self) -> dict[str, Any]:
        now = time.perf_counter(), time.process_time()
        return {"seconds": round(now[0] - self.begun[0], 1), "cpu_seconds": round(now[1] - self.begun[1], 1)}


def result(job: Job, model: nn.Module, clock: Clock, *, details: Mapping[str, Any], **values: Any) -> Result:
    """The cell's row; `values` are its metric, value, n and curves."""
    return Result(
        **job.cell._asdict(),
        steps=0,
        **clock.seconds(),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        details={
            "dataset": job.plan.source,
            "weights": fingerprint(model),
            "threads": torch.get_num_threads(),
            "resumed": 0,
            "note": job.plan.note,
            **details,
        },
        **values,
        **provenance(),
    )


def _spread(there: int, wanted: int | None) -> Tensor:
    """So many of the indices, evenly spread: photographs are listed class by class."""
    count = there if wanted is None else min(wanted, there)
    return torch.arange(count) * there // max(1, count)


def _stride(module: nn.Module) -> int:
    stride = getattr(module, "stride", 1)
    return int(stride[0] if isinstance(stride, tuple) else stride)
