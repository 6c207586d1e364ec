"""A classifier for photographs in class folders, with reordering and without: a recipe of two rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from patchreorder.data.photos import Photos
from patchreorder.engine import checkpoint
from patchreorder.engine.options import Training
from patchreorder.laboratory.cells import Job
from patchreorder.laboratory.photographs import CURVES, FrozenPhotographTask
from patchreorder.laboratory.recipe import Column, Plan, Recipe, Row, Setting
from patchreorder.layers.registry import LAYER_TYPES, read_layer
from patchreorder.models import saved
from patchreorder.models.alexnet import BEHIND, PLACES, POOLED, convolutions
from patchreorder.models.inserted_layer import inserted_layer

MODELS = ("alexnet",)
COLUMNS = (
    Column("Ori", "Ori", "as they are", "Ori"),
    Column("R", "R", "rotated by U[-45, 45] degrees", "R"),
    Column("T", "T", "shifted by U[-0.2, 0.2] of the size", "T"),
)


def reordering(text: str) -> dict[str, Any]:
    """What `pool5:ranked:quantiles=16` or `conv5:grid=2,levels=2` asks for; without a layer's name it is reorder.

    >>> reordering("conv5:grid=2,levels=2")
    {'place': 'conv5', 'grid': 2, 'levels': 2}
    >>> reordering("pool5:ranked:quantiles=16")
    {'place': 'pool5', 'layer': 'ranked:quantiles=16'}
    >>> reordering("conv1+conv5:ranked:quantiles=8,centre=true")
    {'place': 'conv1+conv5', 'layer': 'ranked:quantiles=8,centre=true'}
    """
    place, _, layer = text.partition(":")
    joined = convolutions(place) if "+" in place else []
    if place not in PLACES and not joined:
        raise ValueError(f"reorder ({text!r}) must begin with one of {', '.join(PLACES)}, such as pool5:grid=pixels")
    first = layer.partition(":")[0]
    if "=" in first or first in ("", *LAYER_TYPES["reorder"].options_type.kinds):
        layer = f"reorder:{layer}"
    try:
        name, options = read_layer(layer)
        if joined and name == "reorder":
            raise ValueError(f"{place} are joined by a layer that leaves numbers, such as ranked:quantiles=8")
        for each in joined:
            inserted_layer(layer, side=POOLED[each], place=each)
        if not joined:
            inserted_layer(layer, side=PLACES[place][1], place=place, before_convolutions=place not in BEHIND)
    except ValueError as error:
        raise ValueError(f"reorder ({text!r}): {error}") from None
    return {"place": place, **(options if name == "reorder" else {"layer": layer})}


def recipe(data: Path, *, model: str, reorder: str, width: int, epochs: float, lr: float, seeds: int) -> Recipe:
    """The table of the two networks; its cells are known by everything that is asked for here."""
    if model not in MODELS:
        raise ValueError(f"model ({model!r}) must be one of {', '.join(MODELS)}")
    for name, value in (("width", width), ("epochs", epochs), ("seeds", seeds)):
        if not value > 0:
            raise ValueError(f"{name} ({value}) must be more than 0")
    options = {"variant": "torchvision", **reordering(reorder)}
    rows = (
        Row("plain", "AlexNet", "no reordering", "alexnet", options={"variant": "torchvision"}),
        Row("reordered", "AlexNet, reordered", f"the same with reordering at {reorder}", "alexnet_pr", options=options),
    )
    batch = max(1, min(64, len(Photos.open(data, "train", view="Ori")) // 4))
    training = Training(epochs=epochs, batch=batch, lr=lr, weight_decay=0.0005)
    plan = Plan(training=training, view="Ori", frozen=True, options={"width": width})
    about = f"fc6 and fc7 of {width}; Nesterov SGD 0.9, batch {batch}, one cycle up to {lr}, {epochs:g} epochs"
    return Recipe(
        name="fit",
        title="Your photographs as they are, rotated and shifted",
        about="ImageNet-trained convolutions are frozen; the classifier is trained on photographs as they are, "
        "and tested on others as they are (Ori), rotated by up to 45 degrees (R) and shifted by up to a fifth (T).",
        metric="accuracy %",
        better="higher",
        rows=rows,
        columns=COLUMNS,
        settings={"fit": Setting(about=about, plan=lambda row, column: plan, seeds=lambda row: range(seeds))},
        task=FrozenPhotographTask,
        compare=[("reordered", "plain")],
        curves=CURVES,
        command=f"patchreorder fit --data DIR --reorder {reorder}",
        trains_once=True,
    )


def save_classifier(task: FrozenPhotographTask, job: Job, path: Path) -> None:
    """Write the whole network of a finished job as a classifier to use."""
    weights, _ = checkpoint.read(job.folder / "weights.safetensors")
    model = task.network(job)
    model.load_state_dict(weights, strict=False)
    options = {**job.plan.options, **job.row.options}
    saved.save(path, model, name=job.row.model, options=options, classes=task.classes(job))
