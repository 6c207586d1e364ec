"""The paper's figure of feature maps: one image as it is, turned and shifted, before and after reordering.

    patchreorder run fig_featuremaps                                       # MNIST, the network that is shipped
    patchreorder run fig_featuremaps --setting trained --trained runs/table1
    patchreorder run fig_featuremaps --setting cifar10 --trained runs/table2_cifar10
    patchreorder run fig_featuremaps --setting grocery --trained runs/table2_grocery --data GROCERY [--weights FILE]
    patchreorder run fig_featuremaps --setting paper --trained runs/table2 --data IMAGENET

A cell is the mean cosine, over many images, between a layer's maps of the image as it is and of the image turned by 36
degrees, or shifted to the right by 0.16 of its width; the picture shows the first image and the six strongest maps.
"""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from patchreorder.data.poses import AS_IT_IS, UPRIGHT, Pose, apply_pose
from patchreorder.engine.batches import Dataset, model_input
from patchreorder.files import write_whole
from patchreorder.laboratory import subjects
from patchreorder.laboratory.recipe import Column, Job, Recipe, Row
from patchreorder.laboratory.rows import Result
from patchreorder.laboratory.subjects import clock
from patchreorder.measuring import measure as engine
from patchreorder.measuring.activations import BEFORE, record_activations
from patchreorder.metrics.similarity import FeatureSimilarity

METRIC = "cosine"
POSES = {"turned": Pose(degrees=36.0), "shifted": Pose(right=0.16)}
MAPS = 6
SIDE = 96  # pixels of the image in the picture at most
# From nothing to the strongest: perceptually even, and the dark end is the strong one.
COLOURS = ((243, 243, 246), (170, 220, 50), (53, 183, 121), (33, 145, 140), (59, 82, 139), (68, 1, 84))


def _rows(name: str, title: str, network: str, where: str) -> tuple[Row, Row]:
    return (
        Row(
            name=f"{name}_before",
            title=f"{title}, before",
            about=f"the maps that the reordering layer of {title} gets, {where}",
            model=network,
            options={"after": False},
        ),
        Row(
            name=f"{name}_after",
            title=f"{title}, after",
            about=f"the same maps, reordered as in {title}",
            model=network,
            options={"after": True},
        ),
    )


ROWS = (
    *_rows("pr", "PR-CNN", "pr_cnn", "behind the last convolution"),
    *_rows("fine", "PR-CNN-fine", "pr_cnn_fine", "behind the last pool"),
)
COLUMNS = (
    Column(name="turned", title="turned", about="by 36 degrees", dataset="R"),
    Column(name="shifted", title="shifted", about="to the right by 0.16 of the width", dataset="T"),
)


def measure(job: Job) -> Result:
    """How alike the maps are, and a picture of those of the first image."""
    model, data = subjects.network(job), subjects.images(job)
    pose = POSES[job.column.name]
    transforms = {job.column.name: {AS_IT_IS: UPRIGHT, job.column.name: pose}}
    fill = subjects.fill(job.plan)
    begun = clock()
    first = model_input(data.batch(torch.tensor([0]))[0], job.world.device)
    with record_activations(model, first) as recorder:
        (reorder,) = recorder.reorders
    layer = reorder if job.row.options["after"] else BEFORE + reorder
    show = job.screen.count(f"{job.row.title}, {job.column.title}", 2 * len(data))
    found = engine.measure(
        model, data, transforms=transforms, layers=[layer], invariance=False, order=False, fill=fill, report=show
    )
    similar = found.layers[layer].similarity[job.column.name]
    shown, maps = _first(model, data, layer, pose, fill)
    alone = FeatureSimilarity()
    alone.update(*maps.split(1))
    if job.world.is_main:
        name = job.out / "pictures" / job.cell.folder
        write_whole(name.with_name(f"{name.name}.png"), _images(shown))
        write_whole(name.with_name(f"{name.name}.maps.png"), _tiles(maps))
    return subjects.result(
        job,
        model,
        begun,
        metric=METRIC,
        value=similar.mean,
        n=similar.n,
        details={
            "spread": similar.spread,
            "image": {"cosine": alone.result().mean, "tiles": min(MAPS, maps.shape[1])},
            "layer": layer,
            "shape": list(maps.shape[1:]),
        },
    )


def _first(
    model: torch.nn.Module, data: Dataset, layer: str, pose: Pose, fill: list[float] | None
) -> tuple[Tensor, Tensor]:
    """The first image as it is and in the pose, and its maps, both (2, c, h, w)."""
    device = next(model.parameters()).device
    image = model_input(data.batch(torch.tensor([0]))[0], device)
    both = torch.cat([image, apply_pose(image, pose, fill=fill)])
    with record_activations(model, both, [layer]) as recorder, torch.inference_mode():
        return both.cpu(), recorder(model_input(both, device)).layers[layer].cpu().float()


def _images(images: Tensor) -> bytes:
    """The two side by side; digits dark on light, as they were written."""
    shown = images if images.shape[2] <= SIDE else torch.nn.functional.interpolate(images, (SIDE, SIDE), mode="area")
    strip = torch.cat(list(shown if shown.shape[1] == 3 else 1 - shown), dim=2).permute(1, 2, 0)  # h w c
    values = (strip.clamp(0, 1) * 255).round().byte().numpy()
    return _png(values[:, :, 0] if values.shape[2] == 1 else values)


def _tiles(maps: Tensor) -> bytes:
    """The strongest maps of the image as it is, then the same ones of the posed image, in colours of one scale."""
    chosen = maps[0].square().sum((1, 2)).argsort(descending=True, stable=True)[:MAPS]
    strip = torch.cat([one for image in maps for one in image[chosen]], dim=1).clamp(min=0)  # h (2 maps w)
    place = (strip / strip.max().clamp(min=1e-12)).double().numpy() * (len(COLOURS) - 1)
    colours = np.array(COLOURS, dtype=float)
    low = np.minimum(place.astype(int), len(COLOURS) - 2)
    part = (place - low)[..., None]
    return _png((colours[low] * (1 - part) + colours[low + 1] * part).round().astype(np.uint8))


def _png(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(values)).save(file, "PNG", optimize=True)
    return file.getvalue()


RECIPE = Recipe(
    name="fig_featuremaps",
    title="Feature maps of one image, before and after reordering",
    about="The cosine between the maps of an image and of the same image turned or shifted; 1 is no change.",
    metric=METRIC,
    better="higher",
    rows=ROWS,
    columns=COLUMNS,
    settings=subjects.settings(ROWS, digits=1000, pictures=1000, photographs=100, paper=1000),
    measure=measure,
    parameters=None,
    change=subjects.changed,
    figure={"kind": "maps", "n": "images"},
    identify=subjects.identify,
)
