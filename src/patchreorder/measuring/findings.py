"""The scores of a network as `Measurement`s, and the images whose prediction changes in the most poses."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from patchreorder.data.poses import AS_IT_IS, Pose
from patchreorder.metrics.rate import Rate, Z, rate
from patchreorder.metrics.ratio import Ratio

from .image_set import ImageSet, posed_batches
from .measure import NetworkScores
from .measurement import Measurement, PosedView, UnstableImage

SIDE = 96  # pixels of a PNG, at most
MAX_VIEWS = 5  # poses of an image that are shown


def measurements(scores: NetworkScores, model: str) -> Iterator[Measurement]:
    """Every number of a run; `model` is the name of the network."""

    def made(measure: str, value: float | Rate | Ratio, **facts: Any) -> Measurement:
        if isinstance(value, Rate | Ratio):
            facts |= {name: _finite(number) for name, number in value._asdict().items()}
        else:
            facts["value"] = _finite(value)
        return Measurement(model=model, measure=measure, **facts)

    for pose in scores.poses:
        if scores.labels is not None:
            wrong = scores.predictions_in(pose) != scores.labels
            yield made("error", scores.error(pose), pose=pose, indices=_indices(wrong))
        changed = scores.predictions_in(pose) != scores.predictions_in(AS_IT_IS)
        yield made("agreement", scores.agreement(pose), pose=pose, indices=_indices(changed))
    answers = scores.predictions_in(AS_IT_IS).bincount()
    details: dict[str, Any] = {"class": int(answers.argmax()), "distinct": int((answers > 0).sum())}
    yield made("commonest answer", rate(int(answers.max()), scores.images), pose=AS_IT_IS, details=details)
    for transform, poses in scores.transforms.items():
        if len(poses) > 1:
            yield made("consistency", scores.consistency(transform), transform=transform)
        for what, right in (("error", scores.labels), ("change", scores.predictions_in(AS_IT_IS))):
            if right is not None:
                over = scores.over(transform, right=right)
                details = {"poses": over.poses, "hardest": over.hardest}
                yield made(f"mean {what}", over.mean, transform=transform, details=details)
                yield made(f"worst {what}", over.worst, transform=transform, indices=_indices(over.missed))
    for layer, own in scores.layers.items():
        for transform, score in own.invariance.items():
            details = {name: getattr(score, name) for name in ("ceiling", "unselective", "silent")}
            facts = {"layer": layer, "transform": transform, "n": len(score.scores)}
            ends = _around(score.score, score.error, least=0.0, most=score.ceiling)
            yield made("invariance", score.score, details=details, **facts, **ends)
        if own.different is not None:
            ends = _around(own.different.mean, own.different.error, most=1.0)
            yield made("different", own.different.mean, layer=layer, n=own.different.n, **ends)
        for pose, similarity in own.similarity.items():
            details = {"spread": _finite(similarity.spread), "undefined": similarity.undefined}
            error = similarity.spread / math.sqrt(similarity.n) if similarity.n else math.nan
            facts = {"layer": layer, "pose": pose, "n": similarity.n, **_around(similarity.mean, error, most=1.0)}
            yield made("similarity", similarity.mean, details=details, **facts)
        for pose, found in own.equivariance.items():
            for measure, ratio in (("equivariance", found.moved), ("unmoved maps", found.stayed)):
                yield made(measure, ratio, layer=layer, pose=pose)
        for generator, ratio in own.derivative.items():
            yield made("derivative", ratio, layer=layer, transform=generator)
    for module, by_generator in scores.modules.items():
        for generator, ratio in by_generator.items():
            details = {"kind": scores.kinds[module]}
            yield made("module derivative", ratio, layer=module, transform=generator, details=details)
    for layer, stabilities in scores.order_stability.items():
        for pose, stability in stabilities.items():
            details = {
                "margin_at_flips": [_finite(level.flips.median) for level in stability.levels],
                "margin_of_neighbours": [_finite(level.neighbours.median) for level in stability.levels],
                "empty": stability.empty,
            }
            facts = {"layer": layer, "pose": pose, "n": stability.maps, "details": details}
            if stability.maps:
                interval = rate(stability.changed, stability.maps, n=stability.images)
                facts |= {"low": interval.low, "high": interval.high}
            yield made("order", stability.rate, **facts)


def unstable_images(
    scores: NetworkScores,
    model: str,
    images: ImageSet,
    count: int,
    *,
    classes: Sequence[str] = (),
    side: float = 1.0,
) -> list[UnstableImage]:
    """At most `count` of the least stable images, each in the nearest poses that change its prediction.

    `classes` are the names of the network's outputs, by default those of the images; `side` is that of `measure`.
    """
    names = classes or images.classes

    def class_name(index: int) -> str:
        return names[index] if index < len(names) else f"class {index}"

    changed = scores.changed()
    found = []
    for index in scores.least_stable(count):
        own = [name for name, other in zip(scores.poses, changed[index].tolist(), strict=True) if other]
        nearest: dict[tuple[int, ...], str] = {}  # by direction
        for name in sorted(own, key=lambda name: _size(scores.poses[name])):
            nearest.setdefault(_direction(scores.poses[name]), name)
        shown = [AS_IT_IS, *list(nearest.values())[:MAX_VIEWS]]
        poses = [scores.poses[name] for name in shown]
        copies, _ = posed_batches(images.data, torch.tensor([index]), poses, fill=images.fill, side=side)
        views = [
            PosedView(name, class_name(int(scores.predictions_in(name)[index])), _png(copy[0]))
            for name, copy in zip(shown, copies, strict=True)
        ]
        label = "" if scores.labels is None else class_name(int(scores.labels[index]))
        found.append(UnstableImage(model, images.names[index], label, len(own), views))
    return found


def _around(value: float, error: float, *, least: float = -1.0, most: float) -> dict[str, float | None]:
    """The ends of the 95 % interval of a number with this standard error, within bounds."""
    low, high = max(least, value - Z * error), min(most, value + Z * error)
    return {"low": _finite(low), "high": _finite(high)} if math.isfinite(error) else {}


def _finite(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None


def _indices(mask: Tensor) -> list[int]:
    return mask.nonzero()[:, 0].tolist()


def _size(pose: Pose) -> float:
    return max(abs(pose.degrees) / 90, abs(pose.down), abs(pose.right), abs(math.log(pose.scale)), pose.flip)


def _direction(pose: Pose) -> tuple[int, ...]:
    numbers = pose.degrees, pose.down, pose.right, pose.scale - 1, pose.flip
    return tuple((value > 0) - (value < 0) for value in numbers)


def _png(image: Tensor) -> bytes:
    """An image (c, h, w) in [0, 1], grey or RGB, as a small PNG file."""
    pixels = image.clamp(0, 1).mul(255).round().byte().permute(1, 2, 0).contiguous().numpy()
    small = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels[:, :, :3])
    small.thumbnail((SIDE, SIDE))
    content = io.BytesIO()
    small.save(content, "PNG", optimize=True)
    return content.getvalue()
