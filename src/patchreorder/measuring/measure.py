"""How invariant a network is: all measures of `docs/measures.md` in one run over the images and their poses.

Every image is put into each pose once and goes through the network once in it; once more as it is, for the thresholds
of the invariance score. What is kept does not grow with the images, but for the network's answers: one number for each
image and pose.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from patchreorder.data.loader import stream
from patchreorder.data.poses import AS_IT_IS, UPRIGHT, Pose, apply_pose
from patchreorder.engine.train import Dataset, model_input
from patchreorder.metrics.consistency import consistency
from patchreorder.metrics.invariance import Firing, FiringThresholds, Invariance, LocalFiring
from patchreorder.metrics.order import OrderStability, Stability
from patchreorder.metrics.rate import Rate, rate
from patchreorder.metrics.similarity import Features, FeatureSimilarity, Similarity

from .activations import Outputs, Watched, check_logits, watch

BATCH = 500  # images that are computed together, at most
ROOM = 1 << 26  # bytes that a batch may take of what the layers say that are measured; fewer images make it fit
MOST = 1024  # neurons of a layer for its invariance score
SAMPLE = 1000  # images, evenly spread, for the similarity of features and for order stability
BLOCK = 50  # images in a row that these look at, or do not
IMAGE = "image"  # in place of a layer: what goes in
Grids = Mapping[str, Mapping[str, Pose]]


class Watchable(Protocol):
    """A network that is no nn.Module, such as an ONNX file's, and can be watched all the same; see `engine.watch`."""

    def watch(self, images: Tensor, layers: Sequence[str] | None = None) -> AbstractContextManager[Watched]: ...


@dataclass(frozen=True)
class LayerFound:
    """The numbers of one layer."""

    shape: tuple[int, ...]  # of its output for one image
    invariance: dict[str, Invariance]  # by grid; none if it was not asked for, nor of the image
    similarity: dict[str, Similarity]  # by pose, to the image as it is; that pose itself is left out


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one run found.

    `answers` are a network's first answers for each pose (in the order of `poses`) and image. Everything about answers
    is computed of them, so that two networks can be compared image by image.
    """

    images: int
    classes: int  # numbers that the network gives
    grids: dict[str, list[str]]  # the names of each grid's poses
    poses: dict[str, Pose]
    answers: Tensor  # (poses, images), int32
    labels: Tensor | None  # (images,), None if they are not known
    layers: dict[str, LayerFound]  # the image itself first, then in the order of the network
    orders: dict[str, dict[str, Stability]] = field(default_factory=dict)  # by reordering layer and small pose
    forwards: int = 0  # images that went through the network
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def answers_in(self, pose: str) -> Tensor:
        """The answers in a pose, (images,)."""
        return self.answers[list(self.poses).index(pose)]

    def error(self, pose: str) -> Rate:
        """Wrong answers in a pose, in percent, with Wilson's band.

        Raises:
            ValueError: the labels are not known.
        """
        if self.labels is None:
            raise ValueError("the images have no labels, so that there is no error: see `agreement`")
        return _rate(self.answers_in(pose) != self.labels)

    def agreement(self, pose: str) -> Rate:
        """Answers in a pose that are those of the image as it is, right or wrong, in percent."""
        return _rate(self.answers_in(pose) == self.answers_in(AS_IT_IS))

    def consistency(self, grid: str) -> Rate:
        """Pairs of poses with equal answers, over all pairs of a grid; see `metrics.consistency`."""
        return consistency(torch.stack([self.answers_in(pose) for pose in self.grids[grid]]))

    def changed(self) -> Tensor:
        """For each image and pose whether the answer is another than for the image as it is, (images, poses)."""
        return (self.answers != self.answers_in(AS_IT_IS)).T

    def worst(self, count: int) -> list[int]:
        """The images whose answer changes in the most poses, those that are right as they are before others."""
        poses = self.changed().sum(1)
        right = torch.ones_like(poses) if self.labels is None else (self.answers_in(AS_IT_IS) == self.labels).long()
        order = (poses + right * (poses > 0) * len(self.poses)).argsort(descending=True, stable=True)
        return [index for index in order[:count].tolist() if poses[index]]


class Plan(NamedTuple):
    """The poses of all grids, each once, and the grids that have them."""

    poses: dict[str, Pose]  # the image as it is first
    grids: dict[str, list[str]]  # by pose
    small: list[str]  # the poses next to the upright one in any grid


def forwards(images: int, grids: Grids, *, invariance: bool = True) -> int:
    """How many images go through the network in all; so much `report` is told by `measure`."""
    return images * (len(_plan(grids).poses) + invariance)


def measure(
    network: nn.Module | Watchable,
    data: Dataset,
    *,
    grids: Grids,
    layers: Sequence[str] | None = None,
    invariance: bool = True,
    similarity: bool = True,
    order: bool | None = None,
    most: int | None = MOST,
    fill: Sequence[float] | None = None,
    batch: int | None = None,
    seed: int = 0,
    classes: int | None = None,
    report: Callable[[int], None] = lambda more: None,
) -> Measured:
    """Run a network over images as they are and in all poses of some grids, and measure its answers and layers.

    Args:
        network: takes images (b, c, h, w) and gives logits (b, classes).
        data: images in [0, 1] or bytes, of one size; a label below 0 says that it is not known.
        grids: poses by name by name of the grid, such as `{"rotate": rotations(), "translate": translations()}`; equal
            names must be equal poses. The image as it is belongs to a grid if the grid has it.
        layers: names as of `named_modules`; None for those of `watch.usual_layers`, [] for none.
        invariance: the invariance score of each layer and grid, which needs another pass over the images as they are.
        similarity: of features, for each layer and pose; of about `SAMPLE` images, evenly spread.
        order: stability of each reordering layer in the smallest poses of the grids, of the same images; None
            where there are such layers.
        most: neurons of a layer that the invariance score looks at, drawn by `seed`; None for all.
        fill: what uncovered places show, one number for each channel; black without it.
        classes: how many the labels are of; a network that gives another number of answers is an error.
        batch: images that are computed together; without it as many as suit the sizes of the layers.
        report: gets how many images more went through the network, of `forwards(...)`.

    Raises:
        ValueError: there are no images, names or sizes do not fit, or the network gives no logits, or NaN.

    >>> from patchreorder.data.generated import generate_digits
    >>> from patchreorder.data.poses import rotations
    >>> network = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 10))
    >>> found = measure(network, generate_digits("mnist", count=20), grids={"rotate": rotations()})
    >>> found.agreement("as it is").value, list(found.layers), found.forwards
    (100.0, ['image', '1'], 240)
    """
    if batch is not None and batch < 1:
        raise ValueError(f"batch ({batch}) must be 1 or more")
    if not len(data):
        raise ValueError("there are no images to measure")
    plan = _plan(grids)
    device = _device(network)
    first = model_input(data.batch(torch.arange(min(2, len(data))))[0], device)
    opened = watch(network, first, layers) if isinstance(network, nn.Module) else network.watch(first, layers)
    begun, cpu_begun = time.perf_counter(), time.process_time()
    with opened as watched, torch.inference_mode():
        if order and not watched.reorders:
            raise ValueError("order stability is of reordering layers, and none is found here: leave order out")
        tried = watched(first)
        answers = tried.logits.shape[1]
        if classes is not None and answers != classes:
            raise ValueError(
                f"the network gives {answers} answers, but the labels are of {classes} classes: measure it on images "
                "of its own classes, or without labels (--no-labels)"
            )
        batch = batch or _fitting(first, tried)
        thresholds: dict[str, FiringThresholds] = {}
        if invariance and watched.layers:
            thresholds = {name: FiringThresholds(images=len(data), most=most, seed=seed) for name in watched.layers}
            for _, images, _ in _batches(data, batch, device):
                outputs = watched(images)
                for name, found in thresholds.items():
                    found.update(outputs.layers[name])
                report(len(images))
        tally = _Tally(plan, grids, watched, thresholds, images=len(data), similarity=similarity, order=order)
        for part, images, labels in _batches(data, batch, device):
            original: _Original | None = None
            for name, pose in plan.poses.items():
                copies = apply_pose(images, pose, fill=fill)
                outputs = watched(model_input(copies, device))
                if original is None:
                    original = tally.begin(part, images, labels, outputs)
                tally.take(name, original, copies, outputs)
                report(len(images))
        return tally.result(
            forwards=forwards(len(data), grids, invariance=bool(thresholds)),
            seconds=time.perf_counter() - begun,
            cpu_seconds=time.process_time() - cpu_begun,
        )


class _Original(NamedTuple):
    """A batch as it is: its place among all images, and what its copies are compared with."""

    part: Tensor
    firing: dict[tuple[str, str], Firing]  # by layer and grid
    features: list[tuple[slice, dict[str, Features]]]  # by layer, of the images whose features are looked at
    given: list[tuple[slice, dict[str, Tensor]]]  # to reordering layers, of the images whose order is


class _Tally:
    """The measures of a run, which take one pose of one batch at a time."""

    def __init__(
        self,
        plan: Plan,
        grids: Grids,
        watched: Watched,
        thresholds: Mapping[str, FiringThresholds],
        *,
        images: int,
        similarity: bool,
        order: bool | None,
    ) -> None:
        self.plan, self.grids = plan, {grid: list(poses) for grid, poses in grids.items()}
        self.layers = list(watched.layers)
        others = [name for name, pose in plan.poses.items() if pose != UPRIGHT]
        self.local = {
            (layer, grid): LocalFiring(found)
            for layer, found in ((layer, first.result()) for layer, first in thresholds.items())
            for grid in grids
        }
        self.similar = {
            (layer, pose): FeatureSimilarity()
            for layer in ([IMAGE, *self.layers] if similarity else [])
            for pose in others
        }
        self.orders = {
            (layer, pose): OrderStability.of(module)
            for layer, module in (() if order is False else watched.reorders.items())
            for pose in plan.small
        }
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.answers = torch.zeros(len(plan.poses), images, dtype=torch.int32)
        self.labels = torch.zeros(images, dtype=torch.int64)
        self.classes = 0

    def begin(self, part: Tensor, images: Tensor, labels: Tensor, outputs: Outputs) -> _Original:
        """Note what there is to know of a batch before its poses come."""
        self.labels[part] = labels
        self.classes = outputs.logits.shape[1]
        self.shapes = {IMAGE: tuple(images.shape[1:])}
        self.shapes |= {name: tuple(outputs.layers[name].shape[1:]) for name in self.layers}
        firing: dict[tuple[str, str], Firing] = {}
        for layer in {layer for layer, _ in self.local}:
            pairs: Firing | None = None
            for grid in self.grids:
                local = self.local[layer, grid]
                # The same pairs for every grid, but each counts its own copies.
                if pairs is None:
                    pairs = local.firing(outputs.layers[layer])
                else:
                    pairs = Firing(pairs.image, pairs.neuron, pairs.images, local.thresholds)
                firing[layer, grid] = pairs
        of = {IMAGE: images, **outputs.layers}
        runs = _runs(part, len(self.labels))
        features = [(run, {name: Features.of(of[name][run]) for name in of}) for run in (runs if self.similar else ())]
        given = [
            (run, {name: maps[run] for name, maps in outputs.given.items()}) for run in (runs if self.orders else ())
        ]
        return _Original(part, firing, features, given)

    def take(self, pose: str, original: _Original, copies: Tensor, outputs: Outputs) -> None:
        """Measure a batch in one pose."""
        check_logits(outputs.logits, copies)
        if bool(outputs.logits.isnan().any()):
            raise ValueError(f"the network gives NaN for images in the pose {pose!r}: its weights are not finite")
        self.answers[list(self.plan.poses).index(pose), original.part] = outputs.logits.argmax(1).int().cpu()
        for layer in self.layers:
            for grid in self.plan.grids[pose] if self.local else ():
                self.local[layer, grid].update(original.firing[layer, grid], outputs.layers[layer])
        for run, features in original.features:
            for layer, own in features.items():
                if (layer, pose) in self.similar:
                    self.similar[layer, pose].update(own, (copies if layer == IMAGE else outputs.layers[layer])[run])
        for run, given in original.given:
            for layer, maps in given.items():
                if (layer, pose) in self.orders:
                    self.orders[layer, pose].update(maps, outputs.given[layer][run])

    def result(self, **cost: Any) -> Measured:
        """All numbers, once every pose of every batch was taken."""
        layers = {}
        for name in [IMAGE, *self.layers]:
            local = {grid: self.local[layer, grid].result() for layer, grid in self.local if layer == name}
            similar = {pose: self.similar[layer, pose].result() for layer, pose in self.similar if layer == name}
            layers[name] = LayerFound(self.shapes[name], local, similar)
        orders: dict[str, dict[str, Stability]] = {}
        for (layer, pose), stability in self.orders.items():
            orders.setdefault(layer, {})[pose] = stability.result()
        return Measured(
            images=len(self.labels),
            classes=self.classes,
            grids=self.grids,
            poses=self.plan.poses,
            answers=self.answers,
            labels=None if bool((self.labels < 0).any()) else self.labels,
            layers=layers,
            orders=orders,
            **cost,
        )


def _plan(grids: Grids) -> Plan:
    if not grids or not all(grids.values()):
        raise ValueError(f"grids ({', '.join(grids) or 'none'}) must be one or more, with poses in each")
    poses = {AS_IT_IS: UPRIGHT}
    having: dict[str, list[str]] = {AS_IT_IS: []}
    small: dict[str, None] = {}
    for grid, members in grids.items():
        for name, pose in members.items():
            if poses.setdefault(name, pose) != pose:
                raise ValueError(f"pose ({name!r}) of grid {grid!r} is {pose}, but {poses[name]} in another: rename it")
            having.setdefault(name, []).append(grid)
        sizes = {name: max(abs(pose.degrees) / 360, abs(pose.down), abs(pose.right)) for name, pose in members.items()}
        least = min((size for size in sizes.values() if size), default=0)
        small |= dict.fromkeys(name for name, size in sizes.items() if size and size <= least * 1.001)
    return Plan(poses, having, list(small))


def _runs(part: Tensor, images: int) -> list[slice]:
    """Where a batch holds some of the `SAMPLE`: blocks of images, evenly spread; all if there are no more."""
    step = max(1, round(images / SAMPLE))
    chosen = ((part // BLOCK) % step == 0).tolist()
    edges = [place for place in range(1, len(chosen)) if chosen[place] != chosen[place - 1]]
    runs = [slice(start, end) for start, end in itertools.pairwise([0, *edges, len(chosen)])]
    return [run for run in runs if chosen[run.start]]


def _batches(data: Dataset, batch: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Indices, images and labels; images may be bytes until they are here."""
    parts = torch.arange(len(data)).split(batch)
    made = stream(data, [(part, 0) for part in parts], workers=getattr(data, "workers", 0))
    for part, (images, labels) in zip(parts, made, strict=True):
        yield part, model_input(images, device), labels


def _fitting(images: Tensor, outputs: Outputs) -> int:
    """How many images to compute together."""
    found = [images, *outputs.layers.values()]
    size = sum(tensor.numel() * tensor.element_size() for tensor in found) / len(images)
    return max(1, min(BATCH, int(ROOM / size)))


def _device(network: nn.Module | Watchable) -> torch.device:
    weight = next(network.parameters(), None) if isinstance(network, nn.Module) else None
    return torch.device("cpu") if weight is None else weight.device


def _rate(hits: Tensor) -> Rate:
    return rate(int(hits.sum()), len(hits))
