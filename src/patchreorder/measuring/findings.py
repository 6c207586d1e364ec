"""What `measure` found as rows of plain numbers, and the images that a network's answer is least sure of."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from patchreorder.data.poses import AS_IT_IS, Pose, apply_pose
from patchreorder.engine.train import Dataset, model_input

from .measure import Measured

SHOWN = 96  # pixels a side of a picture, at most
TURNS = 5  # poses of an image that are shown


def rows(found: Measured, model: str) -> Iterator[dict[str, Any]]:
    """One row for each number; `indices` are the images with a wrong or another answer, to compare networks by."""
    for pose in found.poses:
        if found.labels is not None:
            wrong = found.answers_in(pose) != found.labels
            yield _row(model, "error", found.error(pose), pose=pose, indices=_indices(wrong))
        other = found.answers_in(pose) != found.answers_in(AS_IT_IS)
        yield _row(model, "agreement", found.agreement(pose), pose=pose, indices=_indices(other))
    for grid, poses in found.grids.items():
        if len(poses) > 1:
            yield _row(model, "consistency", found.consistency(grid), grid=grid)
    for layer, measured in found.layers.items():
        for grid, score in measured.invariance.items():
            facts: dict[str, Any] = {"ceiling": score.ceiling, "unselective": score.unselective, "silent": score.silent}
            yield _row(model, "invariance", score.score, layer=layer, grid=grid, n=len(score.scores), **facts)
        for pose, similarity in measured.similarity.items():
            facts = {"spread": _number(similarity.spread), "undefined": similarity.undefined}
            yield _row(model, "similarity", similarity.mean, layer=layer, pose=pose, n=similarity.n, **facts)
    for layer, stabilities in found.orders.items():
        for pose, stability in stabilities.items():
            flips, neighbours = (
                [_number(getattr(level, name).quantiles[0.5]) for level in stability.levels]
                for name in ("flips", "neighbours")
            )
            facts = {"margin_at_flips": flips, "margin_of_neighbours": neighbours, "empty": stability.empty}
            yield _row(model, "order", stability.rate, layer=layer, pose=pose, n=stability.maps, **facts)


class Broken(NamedTuple):
    """An image whose answer changes, and some of the poses in which it does, the smallest of each kind first."""

    image: int  # its index
    label: int | None
    answer: int  # as it is
    poses: list[tuple[str, int]]  # and the answer there
    changed: int  # poses in which the answer is another, of all
    pictures: list[bytes]  # PNG files: as it is, then in these poses


def broken(found: Measured, data: Dataset, count: int, *, fill: Sequence[float] | None = None) -> list[Broken]:
    """The worst images of a network, with pictures of the poses that break them."""
    changed = found.changed()
    names = list(found.poses)
    shown = []
    for index in found.worst(count):
        own = [name for place, name in enumerate(names) if changed[index, place]]
        nearest: dict[tuple[int, ...], str] = {}
        for name in sorted(own, key=lambda name: _size(found.poses[name])):
            nearest.setdefault(_direction(found.poses[name]), name)
        poses = [(name, int(found.answers_in(name)[index])) for name in list(nearest.values())[:TURNS]]
        image = model_input(data.batch(torch.tensor([index]))[0], torch.device("cpu"))
        copies = [
            apply_pose(image, found.poses[name], fill=fill)[0] for name in (AS_IT_IS, *(name for name, _ in poses))
        ]
        shown.append(
            Broken(
                image=index,
                label=None if found.labels is None else int(found.labels[index]),
                answer=int(found.answers_in(AS_IT_IS)[index]),
                poses=poses,
                changed=len(own),
                pictures=[_png(copy) for copy in copies],
            )
        )
    return shown


def _row(model: str, measure: str, value: Any, **facts: Any) -> dict[str, Any]:
    """Facts that a measure does not have stand there as nothing, so that all rows have the same first columns."""
    row: dict[str, Any] = {"model": model, "measure": measure, "layer": "", "grid": "", "pose": ""}
    if hasattr(value, "low"):
        row |= {"value": value.value, "low": value.low, "high": value.high, "n": value.n}
    else:
        row |= {"value": _number(value), "low": None, "high": None}
    return row | facts


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None


def _indices(of: Tensor) -> list[int]:
    return of.nonzero()[:, 0].tolist()


def _size(pose: Pose) -> float:
    return max(abs(pose.degrees) / 90, abs(pose.down), abs(pose.right))


def _direction(pose: Pose) -> tuple[int, ...]:
    return tuple((value > 0) - (value < 0) for value in pose)


def _png(image: Tensor) -> bytes:
    """An image (c, h, w) in [0, 1], grey or of colours, as a small PNG file."""
    pixels = image.clamp(0, 1).mul(255).round().byte().permute(1, 2, 0).contiguous().numpy()
    picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels[:, :, :3])
    picture.thumbnail((SHOWN, SHOWN))
    content = io.BytesIO()
    picture.save(content, "PNG", optimize=True)
    return content.getvalue()
