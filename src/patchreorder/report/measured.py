"""The result of `patchreorder measure`, for one network or several, as sentences and terminal tables."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from patchreorder.measuring.measurement import Measurement, UnstableImage
from patchreorder.untrusted import clean

from . import text
from .comparison import McNemar, mcnemar
from .measured_layers import (
    DEAD,
    different_images,
    layer_measures,
    mean_by_layer,
    modules_sheet,
    order_measure,
    pose_ratio,
)
from .measured_poses import AS_IT_IS, Extreme, extremes, in_words
from .sheets import Sheet
from .terminal import print_sheet

NOTABLE = 0.5  # points: the summary does not explain smaller losses
COLLAPSED = 90.0  # percent of the images with one answer, and at least so many points more than have one label
FEW = 100  # images


class MeasuredNetwork(NamedTuple):
    """A network, and what its measurement cost."""

    name: str
    weights: str
    classes: int
    forwards: int
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True, kw_only=True)
class Document:
    """The result of one run; `measured_files.write` saves all of it as JSON, except the unstable images."""

    images: str
    n: int
    labelled: bool
    models: Sequence[MeasuredNetwork]
    poses: Mapping[str, Sequence[float]]  # degrees, shifts down and right in parts of the sides, scale, flip
    transforms: Mapping[str, Sequence[str]]  # names of their poses
    measurements: Sequence[Measurement]
    unstable: Sequence[UnstableImage] = ()
    labels: Sequence[int] = ()  # of the images, if they are known
    side: float = 1.0  # of the images on their canvas; below 1 they are shrunk, so that no pose loses a part of them
    bad: Sequence[str] = ()  # files that could not be read, and why
    seed: int = 0
    command: str = ""
    origin: Mapping[str, Any] = field(default_factory=dict)  # commit, versions, machine, date

    def find(self, model: str, measure: str, **wanted: str) -> list[Measurement]:
        """The measurements of a network and a measure that have these values, in their order."""
        return [
            found
            for found in self.measurements
            if (found.model, found.measure) == (model, measure)
            and all(getattr(found, name) == value for name, value in wanted.items())
        ]

    def rate(self, model: str, pose: str) -> Rate:
        """Wrong predictions in a pose, in percent; without labels, predictions that differ from the unposed image's."""
        if self.labelled:
            (found,) = self.find(model, "error", pose=pose)
            return _rate(found)
        (found,) = self.find(model, "agreement", pose=pose)
        return Rate(100 - (found.value or 0.0), 100 - (found.high or 0.0), 100 - (found.low or 0.0))

    def over(self, model: str, transform: str, *, worst: bool) -> Rate | None:
        """The same over the poses of a transform: the mean, or in the worst pose of each image; None if unknown."""
        what = f"{'worst' if worst else 'mean'} {'error' if self.labelled else 'change'}"
        return next((_rate(found) for found in self.find(model, what, transform=transform)), None)

    @property
    def counted(self) -> str:
        """What rates count."""
        return "wrong predictions" if self.labelled else "changed predictions"

    def layers(self, model: str) -> list[str]:
        """The measured layers of a network, in its order."""
        # Measurements of order come last, whatever the position of their layer.
        own = sorted(
            (
                found
                for found in self.measurements
                if found.model == model and found.layer and found.measure != "module derivative"
            ),
            key=lambda found: found.measure == "order",
        )
        return list(dict.fromkeys(found.layer for found in own))


class Rate(NamedTuple):
    """In percent, with its 95 % interval."""

    value: float
    low: float
    high: float


def _rate(found: Measurement) -> Rate:
    return Rate(found.value or 0.0, found.low or 0.0, found.high or 0.0)


def mean_rate(document: Document, model: str, poses: Sequence[str]) -> Rate:
    """The mean of a network's rates over poses.

    The ends of its interval are the means of theirs, as if an image had the same answer in all of them: rather wide.
    """
    rates = [document.rate(model, pose) for pose in poses]
    return Rate(*(sum(part) / len(rates) for part in zip(*rates, strict=True)))


def warnings(document: Document) -> list[str]:
    """What makes the numbers worthless, uncertain or of other images: said before them."""
    found = []
    if document.n < FEW:
        found.append(f"Only {document.n} images: differences of several points are chance.")
    if document.side < 1:
        found.append(
            f"All images are shrunk to {100 * document.side:.0f} % of their canvas, also those as they are, so that no "
            "pose cuts them off: these numbers are for small images."
        )
    for model in document.models:
        if share := collapsed(document, model.name):
            found.append(
                f"{model.name} gives one answer to {share:.1f} % of the images: it hardly tells them apart, and that "
                "its answers stay the same says nothing."
            )
        dead = [layer for layer, value in different_images(document, model.name).items() if 1 - value <= DEAD]
        if dead:
            shown = f"{', '.join(dead[:3])}{f' and {len(dead) - 3} more' if len(dead) > 3 else ''}"
            found.append(
                f"{model.name} has the same features for all images in {shown}: their similarity says nothing."
            )
    return found


def collapsed(document: Document, model: str) -> float:
    """In percent, how many images get one answer, if it is nearly all, and more than have one label; 0 otherwise."""
    usual = max(Counter(document.labels).values()) / document.n * 100 if document.labels else 0.0
    share = max((found.value or 0.0 for found in document.find(model, "commonest answer")), default=0.0)
    return share if document.n > 1 and share >= max(COLLAPSED, min(100, usual + 10)) else 0.0


def rates_sheet(document: Document) -> Sheet:
    """A row for each kind of pose and for each transform, a column for each network; with 95 % intervals."""
    names = [model.name for model in document.models]
    groups = [Extreme(AS_IT_IS, [AS_IT_IS])] * document.labelled + extremes(document.poses)
    rows = [[words, *(_with_interval(mean_rate(document, name, poses)) for name in names)] for words, poses in groups]
    for transform, poses in document.transforms.items():
        count = sum(pose != AS_IT_IS for pose in poses)
        for worst, title in ((False, f"{transform}: mean of {count} poses"), (True, f"{transform}: worst of {count}")):
            found = [document.over(name, transform, worst=worst) for name in names]
            if all(found):
                rows.append([title, *(_with_interval(own) for own in found if own)])
    for transform in document.transforms:
        same = [document.find(name, "consistency", transform=transform) for name in names]
        if all(same):
            title = f"{transform}: same prediction in any two poses"
            rows.append([title, *(_with_interval(_rate(own[0])) for own in same)])
    return Sheet(f"Predictions{_few(document)}", [f"{document.counted}, % of the images", *names], rows)


def _few(document: Document) -> str:
    """The mark of scores over few images."""
    return f" (only {document.n} images)" if document.n < FEW else ""


def _with_interval(rate: Rate, unit: str = "") -> str:
    return f"{text.number(rate.value, 1)}{unit} ({text.number(rate.low, 1)} to {text.number(rate.high, 1)})"


def summary(document: Document) -> list[str]:
    """The result in sentences: one for each network and kind of pose, and one for each test of two networks."""
    sentences = warnings(document)
    for model in document.models:
        unposed = document.rate(model.name, AS_IT_IS).value
        if document.labelled:
            of = f"{text.number(unposed, 1)} % of {text.count(document.n)} images"
            sentences.append(f"{model.name} is wrong about {of} as they are.")
        for extreme in extremes(document.poses):
            there = mean_rate(document, model.name, extreme.poses).value
            if document.labelled:
                loss = there - unposed
                what = f"loses {loss:.1f} points" if loss >= 0.05 else "loses nothing" if loss > -0.05 else ""
                what = what or f"gains {-loss:.1f} points"
            else:
                loss = there
                what = f"changes its prediction for {there:.1f} % of the images"
            where = _where(document, model.name, extreme) if loss >= NOTABLE else ""
            sentences.append(f"{model.name} {what} when {extreme.words}{_void(document, model.name)}{where}.")
        sentences += _worst(document, model.name)
    return sentences + [_compared(document, pair) for pair in pairs(document)]


def _worst(document: Document, model: str) -> Iterator[str]:
    """The worst pose of each image, over the transform that has the most."""
    found = {
        transform: rate for transform in document.transforms if (rate := document.over(model, transform, worst=True))
    }
    if found:
        transform, rate = max(found.items(), key=lambda item: item[1].value)
        (mean,) = document.find(model, f"mean {'error' if document.labelled else 'change'}", transform=transform)
        hardest = mean.details.get("hardest", AS_IT_IS)
        what = "is wrong about" if document.labelled else "changes its prediction for"
        end = f"; the hardest for all is {in_words(document.poses[hardest])}, with "
        end += f"{document.rate(model, hardest).value:.1f} %"
        yield (
            f"{model} {what} {_with_interval(rate, ' %')} of the images in at least one of {mean.details.get('poses')} "
            f"poses ({transform}){_void(document, model)}{end if rate.value else ''}."
        )


def _void(document: Document, model: str) -> str:
    """What takes the comfort out of few changes."""
    return ", but nearly all get one answer" if not document.labelled and collapsed(document, model) else ""


def _where(document: Document, model: str, extreme: Extreme) -> str:
    """Where the pose weighs most, against different images; without these, where similarity falls the most."""
    similar = mean_by_layer(document, model, "similarity", extreme.poses)
    different = different_images(document, model)
    ratios = {layer: pose_ratio(value, different[layer]) for layer, value in similar.items() if layer in different}
    if len(ratios) > 1:
        farthest, last = max(ratios, key=lambda layer: ratios[layer]), list(ratios)[-1]
        end = "" if farthest == last else f", {ratios[last]:.2f} of it in {last}"
        return f"; features move by {ratios[farthest]:.2f} of the distance between different images in {farthest}{end}"
    found = list(similar.items())
    drops = {
        after: (before_value - value, before, before_value, value)
        for (before, before_value), (after, value) in itertools.pairwise(found)
    }
    drops = {layer: drop for layer, drop in drops.items() if drop[0] > 0.005}
    if not drops:
        return "; no layer's features change more than those of the layer before it" if len(found) > 1 else ""
    layer, (drop, before, high, low) = max(drops.items(), key=lambda item: item[1][0])
    most = drop > sum(other for other, *_ in drops.values()) / 2
    part = "most of the change in its features" if most else "the largest part of the change in its features"
    return f"; {part} appears after layer {layer} (cosine {high:.2f} in {before}, {low:.2f} there)"


class NetworkPair(NamedTuple):
    """Two networks over some poses: mean rates, and a test on the images that one gets wrong in more of the poses."""

    where: str  # AS_IT_IS or a transform
    first: float
    second: float
    test: McNemar
    names: tuple[str, str]
    verdict: str


def pairs(document: Document) -> list[NetworkPair]:
    """The first network with each other one by an exact sign test over images: unposed, and over each transform."""
    if len(document.models) < 2:
        return []
    posed = {where: [pose for pose in poses if pose != AS_IT_IS] for where, poses in document.transforms.items()}
    groups = ({AS_IT_IS: [AS_IT_IS]} if document.labelled else {}) | {where: own for where, own in posed.items() if own}
    a, *others = (model.name for model in document.models)
    return [_pair(document, where, poses, (a, b)) for b in others for where, poses in groups.items()]


def _pair(document: Document, where: str, poses: Sequence[str], names: tuple[str, str]) -> NetworkPair:
    wrong = [Counter(_counted(document, model, poses)) for model in names]
    images = wrong[0].keys() | wrong[1].keys()
    test = mcnemar(
        [image for image in images if wrong[0][image] > wrong[1][image]],
        [image for image in images if wrong[1][image] > wrong[0][image]],
    )
    first, second = (mean_rate(document, model, poses).value for model in names)
    same = [] if document.labelled else [model for model in names if collapsed(document, model)]
    if same:
        verdict = f"no comparison, as {' and '.join(same)} hardly tell{'s' * (len(same) == 1)} images apart"
    elif test.p >= 0.05:
        verdict = "no difference shown"
    else:
        verdict = f"{names[test.only_a > test.only_b]} {'is better' if document.labelled else 'changes less'}"
    return NetworkPair(where, first, second, test, names, verdict)


def _counted(document: Document, model: str, poses: Sequence[str]) -> Iterator[int]:
    for found in document.find(model, "error" if document.labelled else "agreement"):
        if found.pose in poses:
            yield from found.indices


def _compared(document: Document, pair: NetworkPair) -> str:
    a, b = pair.names
    where = "Of images as they are" if pair.where == AS_IT_IS else f"Over all poses of {pair.where}"
    rates = f"{where}, {a} has {pair.first:.1f} % {document.counted} and {b} {pair.second:.1f} %: {pair.verdict}"
    counts = f"{pair.test.only_a} images are worse for {a}, {pair.test.only_b} for {b}"
    return f"{rates} ({counts}, {text.chance(pair.test.p)})."


def show(document: Document, console: Console) -> None:
    """Print warnings, tables of rates and layers, and the summary."""
    first = warnings(document)
    for sentence in first:
        console.print(Text(clean(sentence), style="bold"), soft_wrap=True)
    print_sheet(rates_sheet(document), [], console)
    for model in document.models:
        print_sheet(_layers(document, model.name), [], console)
        print_sheet(modules_sheet(document, model.name), [], console)
    for sentence in summary(document)[len(first) :]:
        console.print(Text(clean(sentence)), soft_wrap=True)


def _layers(document: Document, model: str) -> Sheet:
    measures = [*layer_measures(document), order_measure(document, model)]
    measures = [measure for measure in measures if measure.values[model]]
    rows = [[layer, *(measure.cell(model, layer) for measure in measures)] for layer in document.layers(model)]
    return Sheet(
        f"Layers of {model}{_few(document)}", ["layer", *(measure.title for measure in measures)], rows, whole=True
    )
