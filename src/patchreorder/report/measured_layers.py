"""The measures of layers and modules in the result of `patchreorder measure`, as columns of tables."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

from . import text
from .measured_poses import Extreme, extremes
from .sheets import Sheet

if TYPE_CHECKING:
    from .measured import Document

DEAD = 1e-4  # one minus the cosine of different images: a layer with less has the same features for all
MODULES = 10  # that are shown, those that break equivariance the most
Ends = tuple[float, float]


class LayerMeasure(NamedTuple):
    """One measure of the layers of all networks."""

    title: str
    ceiling: float  # the highest possible value, or one that the scale shows
    digits: int  # to print
    values: Mapping[str, Mapping[str, float]]  # by network and layer
    ends: Mapping[str, Mapping[str, Ends]] = {}  # of the 95 % intervals, where they are known

    def cell(self, model: str, layer: str) -> str:
        """A value with half of its interval."""
        value, ends = self.values[model].get(layer), self.ends.get(model, {}).get(layer)
        half = f" ±{text.number((ends[1] - ends[0]) / 2, self.digits)}" if ends and value is not None else ""
        return text.number(value, self.digits) + half


def layer_measures(document: Document) -> list[LayerMeasure]:
    """The measures that some layer has: in the farthest poses, for infinitely small ones, and invariance scores."""
    names = [model.name for model in document.models]
    found = [_over_poses(document, "cosine", "similarity", extreme) for extreme in extremes(document.poses)]
    different = LayerMeasure(
        "cosine, different images",
        1.0,
        2,
        {name: different_images(document, name) for name in names},
        {name: _ends(document, name, "different") for name in names},
    )
    similar = found.copy()
    found.append(different)
    if any(different.values.values()):
        found += [_ratios(measure, different) for measure in similar]
    for measure, title in (("equivariance", "maps, pose undone"), ("unmoved maps", "maps as they are")):
        found += [_over_poses(document, title, measure, extreme) for extreme in extremes(document.poses)]
    moving = dict.fromkeys(one.transform for name in names for one in document.find(name, "derivative"))
    found += [_by_transform(document, "Lie derivative", "derivative", generator, 1.0, 2) for generator in moving]
    for transform in document.transforms:
        scores = [one for name in names for one in document.find(name, "invariance", transform=transform)]
        ceiling = max((one.details.get("ceiling", 0.0) for one in scores), default=0.0)
        found.append(_by_transform(document, "invariance score", "invariance", transform, ceiling, 1))
    return [measure for measure in found if any(measure.values.values())]


def different_images(document: Document, model: str) -> dict[str, float]:
    """The mean cosine of the features of different images, by layer; 1 if they are zero for all images."""
    found = {
        own.layer: 1.0 if own.value is None and own.n == 0 and document.n > 1 else own.value
        for own in document.find(model, "different")
    }
    return {layer: value for layer, value in found.items() if value is not None}


def pose_ratio(similar: float, different: float) -> float:
    """How far a pose moves the features, over how far apart different images are; 1 where these cannot be told apart.

    >>> pose_ratio(0.9, 0.5), pose_ratio(1.0, 1.0)
    (0.2, 1.0)
    """
    return round((1 - similar) / (1 - different), 6) if 1 - different > DEAD else 1.0


def mean_by_layer(document: Document, model: str, measure: str, poses: Collection[str]) -> dict[str, float]:
    """The mean over poses for each layer with a known value, in the order of the network."""
    found: dict[str, list[float]] = {}
    for own in document.find(model, measure):
        if own.pose in poses and own.value is not None:
            found.setdefault(own.layer, []).append(own.value)
    return {layer: sum(values) / len(values) for layer, values in found.items()}


def order_measure(document: Document, model: str) -> LayerMeasure:
    """How often the order of a reordering layer changes in the smallest poses."""
    values = {model: mean_by_layer(document, model, "order", document.poses)}
    return LayerMeasure("order changed, %", 100.0, 1, values, {model: _ends(document, model, "order")})


def modules_sheet(document: Document, model: str) -> Sheet:
    """The modules that move least with their own input, the worst first."""
    found: dict[str, dict[str, str]] = {}
    worst: dict[str, float] = {}
    kinds: dict[str, str] = {}
    for own in document.find(model, "module derivative"):
        if own.value is not None:
            half = "" if own.low is None or own.high is None else f" ±{text.number((own.high - own.low) / 2)}"
            found.setdefault(own.layer, {})[own.transform] = text.number(own.value) + half
            worst[own.layer] = max(worst.get(own.layer, 0.0), own.value)
            kinds[own.layer] = str(own.details.get("kind", ""))
    heads = list(dict.fromkeys(generator for own in found.values() for generator in own))
    order = sorted(worst, key=lambda name: -worst[name])[:MODULES]
    rows = [[name, kinds[name], *(found[name].get(head, text.NONE) for head in heads)] for name in order]
    title = f"Modules of {model} that move least with their input ({len(rows)} of {len(found)})"
    return Sheet(title, ["module", "kind", *(f"Lie derivative, {head}" for head in heads)], rows, texts=2, whole=True)


def _over_poses(document: Document, title: str, measure: str, extreme: Extreme) -> LayerMeasure:
    names = [model.name for model in document.models]
    values = {name: mean_by_layer(document, name, measure, extreme.poses) for name in names}
    ends = {name: _ends(document, name, measure, extreme.poses) for name in names}
    return LayerMeasure(f"{title}, {extreme.words}", 1.0, 2, values, ends)


def _by_transform(
    document: Document, title: str, measure: str, transform: str, ceiling: float, digits: int
) -> LayerMeasure:
    names = [model.name for model in document.models]
    own = {name: document.find(name, measure, transform=transform) for name in names}
    values = {name: {one.layer: one.value for one in found if one.value is not None} for name, found in own.items()}
    ends = {
        name: {one.layer: (one.low, one.high) for one in found if one.low is not None and one.high is not None}
        for name, found in own.items()
    }
    return LayerMeasure(f"{title}, {transform}", ceiling, digits, values, ends)


def _ends(document: Document, model: str, measure: str, poses: Collection[str] | None = None) -> dict[str, Ends]:
    """The means over poses of both ends, as if an image changed alike in all of them: rather wide."""
    found: dict[str, list[Ends]] = {}
    unknown = set()
    for own in document.find(model, measure):
        if poses is not None and own.pose not in poses:
            continue
        if own.low is None or own.high is None:
            unknown.add(own.layer)
        else:
            found.setdefault(own.layer, []).append((own.low, own.high))
    return {
        layer: (sum(low for low, _ in ends) / len(ends), sum(high for _, high in ends) / len(ends))
        for layer, ends in found.items()
        if layer not in unknown
    }


def _ratios(similar: LayerMeasure, different: LayerMeasure) -> LayerMeasure:
    """How far a pose moves the features, over how far apart different images are."""
    values: dict[str, dict[str, float]] = {}
    ends: dict[str, dict[str, Ends]] = {}
    for model, own in similar.values.items():
        values[model], ends[model] = {}, {}
        for layer, value in own.items():
            other = different.values[model].get(layer)
            if other is None:
                continue
            ratio = values[model][layer] = pose_ratio(value, other)
            above, below = (one.ends.get(model, {}).get(layer) for one in (similar, different))
            if 1 - other <= DEAD:
                ends[model][layer] = ratio, ratio
            elif above and below:  # to first order, and as if both were independent
                half = math.hypot((above[1] - above[0]) / 2, ratio * (below[1] - below[0]) / 2) / (1 - other)
                ends[model][layer] = max(0.0, ratio - half), ratio + half
    title = similar.title.replace("cosine", "pose / identity", 1)
    return LayerMeasure(title, 1.0, 2, values, ends)
