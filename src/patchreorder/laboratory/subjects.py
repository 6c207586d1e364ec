"""What figures are made of: networks that are trained already, images to show them, and the layers that are looked at.

Nothing is trained for a figure. MNIST's networks come with the package or from the output folder of table1; those for
CIFAR-10 and for photographs from the folders of table2_cifar10, table2_grocery and table2 (`--trained`).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from patchreorder.data import datasets, photos, transforms
from patchreorder.data.datasets import CANVAS, Digits
from patchreorder.data.generated import generate_colour_images
from patchreorder.data.images import MEAN, MEAN_COLOUR
from patchreorder.data.photos import Photos
from patchreorder.engine.batches import Dataset
from patchreorder.files import digest
from patchreorder.layers.patch_reorder import PatchReorder
from patchreorder.models import create_model
from patchreorder.search.describe import fingerprint
from patchreorder.untrusted import is_count

from .provenance import provenance
from .recipe import Job, Row, Setting
from .rows import Result
from .trained import CIFAR10, GROCERY, IMAGENET, MNIST, generated_network, trained_network

SHIPPED = ("cnn", "st_cnn", "pr_cnn")  # for MNIST, with trained weights
SOURCES = {"cifar10": CIFAR10, "grocery": GROCERY, "imagenet": IMAGENET}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Whose networks, and on which images.

    Args:
        of: mnist, cifar10, grocery (any class folders) or imagenet.
        trained: the setting of the trainings that `--trained` holds; without one MNIST's shipped weights.
        images: how many of the test images, evenly spread over all (None: all).
        posed: MNIST's digits are first turned or shifted as in Table 1, not plain.
        generated: generated images and random weights.
    """

    of: str
    trained: str = ""
    images: int | None = None
    posed: bool = False
    generated: bool = False
    note: str = ""


class Stage(NamedTuple):
    """Where a layer of the network ends."""

    module: str  # as in `named_modules`
    stride: int  # pixels of the image between two pixels of its maps; 0 where there are no maps


def settings(
    rows: Sequence[Row],
    *,
    digits: int | None,
    pictures: int | None,
    photographs: int | None,
    paper: int | None = None,
    digit_columns: Sequence[str] | None = None,
) -> dict[str, Setting]:
    """The settings that figures share.

    Args:
        rows: of the figure; a setting has those whose networks there are.
        digits, pictures, photographs, paper: how many images of MNIST, CIFAR-10, class folders and ImageNet.
        digit_columns: those that MNIST's networks have, if not all.
    """

    def setting(
        about: str,
        networks: Sequence[str] | None,
        columns: Sequence[str] | None = None,
        *,
        needs: str = "",
        **of: Any,
    ) -> Setting:
        plan = Plan(**of)
        names = [row.name for row in rows if networks is None or row.model in networks]
        return Setting(about=about, plan=lambda row, column: plan, rows=names, columns=columns, needs=needs)

    return {
        "short": setting(
            "MNIST's test digits as they are and the trained networks that come with the package",
            SHIPPED,
            digit_columns,
            of="mnist",
            images=digits,
        ),
        "trained": setting(
            "MNIST's test digits as they are and networks that table1 trained, PR-CNN-fine among them",
            (*SHIPPED, "pr_cnn_fine"),
            digit_columns,
            needs="--trained runs/table1",
            of="mnist",
            trained="short",
            images=digits,
        ),
        "cifar10": setting(
            "CIFAR-10's test pictures as they are and the networks that table2_cifar10 trained",
            None,
            needs="--trained runs/table2_cifar10",
            of="cifar10",
            trained="short",
            images=pictures,
        ),
        "grocery": setting(
            "test photographs of groceries, or any class folders, and the AlexNets that table2_grocery trained on them",
            None,
            needs="--trained runs/table2_grocery --data DIR",
            of="grocery",
            trained="short",
            images=photographs,
        ),
        "paper": setting(
            "ImageNet's validation photographs and the AlexNets that table2 trained; not run by us",
            None,
            needs="--trained runs/table2 --data IMAGENET",
            of="imagenet",
            trained="paper",
            images=paper,
        ),
        "smoke": setting(
            "seconds, generated pictures and random weights: does it run",
            None,
            of="cifar10",
            images=10,
            generated=True,
        ),
    }


def changed(plan: Plan, change: Mapping[str, Any]) -> Plan:
    """The plan with another number of images."""
    for name, value in change.items():
        if name != "images" or not is_count(value) or not value:
            raise ValueError(f"change ({name}={value!r}) must be images=N: nothing is trained here")
    return replace(plan, **change)


def identify(data: Path | None, plan: Plan, split: str) -> str:
    """Which photographs a cell is about, by their names; other images are known by the plan."""
    return digest(_opened(data).names) if data is not None and plan.of in ("grocery", "imagenet") else ""


def network(job: Job) -> nn.Module:
    """The row's network; of MNIST's, which have one for turned and one for shifted digits, that of `column.dataset`."""
    plan: Plan = job.plan
    if job.cell.split != "test":
        raise ValueError(f"split ({job.cell.split}) must be test: nothing is trained here, so nothing is held out")
    column = job.column.dataset if plan.of == "mnist" else "all"
    recipe = SOURCES.get(plan.of, MNIST)
    if plan.generated:
        model = generated_network(job, recipe, column=column)
    elif plan.trained:
        model = trained_network(job, plan.trained, recipe, column=column)
    else:
        model = create_model(job.row.model, dataset=f"mnist-{column.lower()}", pretrained=True)
    return model.eval().to(job.world.device)


def images(job: Job) -> Dataset:
    """The test images that the cell is about."""
    plan: Plan = job.plan
    if plan.of in ("grocery", "imagenet"):
        found = _photographs(job)
        return replace(found, chosen=found.chosen[_spread(len(found), plan.images)])
    if plan.of == "cifar10":
        own = (
            generate_colour_images("cifar10", count=plan.images or 64)
            if plan.generated
            else datasets.cifar10("cifar10", split="test", folder=job.data, say=job.screen.say)
        )
        return _Some(own, _spread(len(own), plan.images))
    variant = f"mnist-{job.column.dataset.lower()}"
    digits = datasets.mnist(variant, split="test", folder=job.data, say=job.screen.say)
    return _Some(digits if plan.posed else _Plain(digits), _spread(len(digits), plan.images))


def fill(plan: Plan) -> list[float] | None:
    """What a turn or a shift uncovers."""
    if plan.of == "mnist":
        return None
    return [value / 255 for value in MEAN_COLOUR] if plan.of == "cifar10" else list(MEAN)


def stages(model: nn.Module) -> dict[str, Stage]:
    """The layers of one of our networks by the paper's names, with the end of each.

    conv1, conv2, ... are the convolutions themselves; pool1, ... what the next one gets, where a pool is between them;
    maps what the first connected layer gets, reordered where the network reorders; fc6, fc7 behind their ReLU and fc8,
    or classifier, if it is the only connected layer.

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
    names = ["classifier"] if len(connected) == 1 else [f"fc{6 + place}" for place in range(len(connected))]
    return found | {name: Stage(module, 0) for name, module in zip(names, connected, strict=True)}


def result(
    job: Job, model: nn.Module, begun: tuple[float, float], *, details: Mapping[str, Any], **values: Any
) -> Result:
    """The cell's row; `begun` is what `clock` gave before, `values` are its value, n and curves."""
    now = clock()
    return Result(
        **job.cell._asdict(),
        metric=values.pop("metric"),
        steps=0,
        seconds=round(now[0] - begun[0], 1),
        cpu_seconds=round(now[1] - begun[1], 1),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        details={
            "dataset": job.plan.of,
            "weights": fingerprint(model),
            "threads": torch.get_num_threads(),
            "resumed": 0,
            "note": job.plan.note,
            **details,
        },
        **values,
        **provenance(),
    )


def clock() -> tuple[float, float]:
    """Seconds of the wall and of the processor."""
    return time.perf_counter(), time.process_time()


class _Plain:
    """Digits as they are; for the networks of shifted ones in the middle of their canvas."""

    def __init__(self, digits: Digits) -> None:
        self.digits = digits

    def __len__(self) -> int:
        return len(self.digits)

    def batch(self, indices: Tensor, *, epoch: int = 0) -> tuple[Tensor, Tensor]:
        found = self.digits.images[indices].to(torch.get_default_dtype()).div_(255)
        size = datasets.MNIST_VARIANTS[self.digits.variant].size
        if size != found.shape[2]:
            corner = torch.full((len(indices), 2), (CANVAS - found.shape[2]) // 2)
            found = transforms.place(found, corner=corner, size=(size, size))
        return found, self.digits.labels[indices]


class _Some:
    """Some images of a set."""

    def __init__(self, data: Dataset, chosen: Tensor) -> None:
        self.data, self.chosen = data, chosen

    def __len__(self) -> int:
        return len(self.chosen)

    def batch(self, indices: Tensor, *, epoch: int = 0) -> tuple[Tensor, Tensor]:
        return self.data.batch(self.chosen[indices], epoch=epoch)


def _spread(there: int, wanted: int | None) -> Tensor:
    """So many of the indices, evenly spread: photographs come class by class."""
    count = there if wanted is None else min(wanted, there)
    return torch.arange(count) * there // max(1, count)


def _photographs(job: Job) -> Photos:
    if job.data is None:
        raise ValueError(
            f"{job.cell.recipe} needs --data DIR here, a folder with train/CLASS/*.jpg and val/CLASS/*.jpg, or what "
            "`patchreorder shard` made of it"
        )
    return replace(_opened(job.data), workers=job.means.workers)


@functools.lru_cache(maxsize=2)
def _opened(folder: Path) -> Photos:
    return photos.Photos.open(folder, "val", view="Ori")


def _stride(module: nn.Module) -> int:
    stride = getattr(module, "stride", 1)
    return int(stride[0] if isinstance(stride, tuple) else stride)
