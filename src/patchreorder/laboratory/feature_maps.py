"""The task of the figure of feature maps: one image as it is, rotated and shifted, before and after reordering."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from patchreorder.data.poses import AS_IT_IS, UPRIGHT, Pose
from patchreorder.engine.batches import Dataset, model_input
from patchreorder.files import write_whole
from patchreorder.measuring import measure as measuring
from patchreorder.measuring.activations import BEFORE, record_activations
from patchreorder.measuring.image_set import posed_batches
from patchreorder.metrics.similarity import FeatureSimilarity

from .cells import Job
from .classification import png
from .figure import Clock, FigureTask, fill, result
from .rows import Result

METRIC = "cosine"
POSES = {"rotated": Pose(degrees=36.0), "shifted": Pose(right=0.16)}
MAPS = 6
SIDE = 96  # pixels of the image in the picture at most
# From zero to the strongest: perceptually even, and the dark end is the strong one.
COLOURS = ((243, 243, 246), (170, 220, 50), (53, 183, 121), (33, 145, 140), (59, 82, 139), (68, 1, 84))


class FeatureMapTask(FigureTask):
    """The mean cosine between the maps of an image and of the posed image, and a picture of those of the first one."""

    def measure(self, job: Job) -> Result:
        model, data = self.network(job), self.images(job)
        pose = POSES[job.column.name]
        transforms = {job.column.name: {AS_IT_IS: UPRIGHT, job.column.name: pose}}
        colour = fill(job.plan)
        clock = Clock()
        first = model_input(data.batch(torch.tensor([0]))[0], job.world.device)
        with record_activations(model, first) as recorder:
            (reorder,) = recorder.reorders
        layer = reorder if job.row.options["after"] else BEFORE + reorder
        show = job.screen.count(f"{job.row.title}, {job.column.title}", 2 * len(data))
        found = measuring.measure(
            model, data, transforms=transforms, layers=[layer], invariance=False, order=False, fill=colour, report=show
        )
        similar = found.layers[layer].similarity[job.column.name]
        shown, maps = _first(model, data, layer, pose, colour)
        alone = FeatureSimilarity()
        alone.update(*maps.split(1))
        if job.world.is_main:
            name = job.out / "pictures" / job.cell.folder
            write_whole(name.with_name(f"{name.name}.png"), _images(shown))
            write_whole(name.with_name(f"{name.name}.maps.png"), _tiles(maps))
        return result(
            job,
            model,
            clock,
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
    both = torch.cat(list(posed_batches(data, torch.tensor([0]), [UPRIGHT, pose], fill=fill, device=device)[0]))
    with record_activations(model, both, [layer]) as recorder, torch.inference_mode():
        return both.cpu(), recorder(model_input(both, device)).layers[layer].cpu().float()


def _images(images: Tensor) -> bytes:
    """The two side by side; digits dark on light, as they were written."""
    shown = images if images.shape[2] <= SIDE else torch.nn.functional.interpolate(images, (SIDE, SIDE), mode="area")
    strip = torch.cat(list(shown if shown.shape[1] == 3 else 1 - shown), dim=2).permute(1, 2, 0)  # h w c
    values = (strip.clamp(0, 1) * 255).round().byte().numpy()
    return png(values)


def _tiles(maps: Tensor) -> bytes:
    """The strongest maps of the image as it is, then the same ones of the posed image, in colours of one scale."""
    chosen = maps[0].square().sum((1, 2)).argsort(descending=True, stable=True)[:MAPS]
    strip = torch.cat([one for image in maps for one in image[chosen]], dim=1).clamp(min=0)  # h (2 maps w)
    place = (strip / strip.max().clamp(min=1e-12)).double().numpy() * (len(COLOURS) - 1)
    colours = np.array(COLOURS, dtype=float)
    low = np.minimum(place.astype(int), len(COLOURS) - 2)
    part = (place - low)[..., None]
    return png((colours[low] * (1 - part) + colours[low + 1] * part).round().astype(np.uint8))
