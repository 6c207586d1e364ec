"""Measures how invariant a network is: all measures of `docs/measures.md` in one run over the images and their poses.

Every image passes through the network once in each pose, and once more unposed for the thresholds of the invariance
score. Memory does not grow with the number of images, except for one prediction per image and pose.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from patchreorder.data.poses import AS_IT_IS, UPRIGHT, Pose
from patchreorder.engine.batches import Dataset
from patchreorder.metrics.consistency import consistency
from patchreorder.metrics.invariance import Firing, FiringThresholds, Invariance, LocalFiring
from patchreorder.metrics.order import OrderStability, Stability
from patchreorder.metrics.rate import Rate, rate
from patchreorder.metrics.similarity import Features, FeatureSimilarity, Similarity

from .activations import Activations, Recorder, check_logits, record_activations
from .image_set import posed_batches
from .onnx_network import OnnxNetwork

MAX_BATCH = 500  # images
BATCH_BYTES = 1 << 26  # of the images and recorded activations of a batch, at most
MAX_NEURONS = 1024  # of a layer, for its invariance score
SAMPLE = 1000  # images, evenly spaced, for feature similarity and order stability
BLOCK = 50  # the sample consists of blocks of so many consecutive images
IMAGE = "image"  # stands for the network's input among its layers
Transforms = Mapping[str, Mapping[str, Pose]]  # poses by name, by the name of their transform


@dataclass(frozen=True)
class LayerScores:
    """The scores of one layer.

    Args:
        shape: of its output for one image.
        invariance: by transform; empty for the input image, or if not requested.
        similarity: between the features of the unposed image and of each other pose.
    """

    shape: tuple[int, ...]
    invariance: dict[str, Invariance]
    similarity: dict[str, Similarity]


@dataclass(frozen=True, kw_only=True)
class NetworkScores:
    """The result of one run of `measure`.

    Args:
        images: how many.
        classes: how many logits the network returns.
        transforms: the names of the poses of each transform.
        poses: by name.
        predictions: (poses, images), int32: the class of the largest logit. All rates derive from these.
        labels: (images,), or None if unknown.
        layers: the input image first, then the layers in the order of the network.
        order_stability: by reordering layer and small pose.
        forwards: how many images passed through the network.
        seconds, cpu_seconds: of the run.
    """

    images: int
    classes: int
    transforms: dict[str, list[str]]
    poses: dict[str, Pose]
    predictions: Tensor
    labels: Tensor | None
    layers: dict[str, LayerScores]
    order_stability: dict[str, dict[str, Stability]]
    forwards: int
    seconds: float
    cpu_seconds: float

    def predictions_in(self, pose: str) -> Tensor:
        """The predictions in a pose, (images,)."""
        return self.predictions[list(self.poses).index(pose)]

    def error(self, pose: str) -> Rate:
        """Wrong predictions in a pose, in percent, with Wilson's interval.

        Raises:
            ValueError: the images have no labels.
        """
        if self.labels is None:
            raise ValueError("the images have no labels, so there is no error: see `agreement`")
        return _rate(self.predictions_in(pose) != self.labels)

    def agreement(self, pose: str) -> Rate:
        """Predictions in a pose that equal those for the unposed images, right or wrong, in percent."""
        return _rate(self.predictions_in(pose) == self.predictions_in(AS_IT_IS))

    def consistency(self, transform: str) -> Rate:
        """Pairs of poses with equal predictions, over all pairs of a transform; see `metrics.consistency`."""
        return consistency(torch.stack([self.predictions_in(pose) for pose in self.transforms[transform]]))

    def changed(self) -> Tensor:
        """Whether the prediction differs from that for the unposed image, (images, poses), bool."""
        return (self.predictions != self.predictions_in(AS_IT_IS)).T

    def least_stable(self, count: int) -> list[int]:
        """The images whose prediction changes in the most poses; those that are right when unposed come first."""
        poses = self.changed().sum(1)
        right = torch.ones_like(poses) if self.labels is None else (self.predictions_in(AS_IT_IS) == self.labels).long()
        order = (poses + right * (poses > 0) * len(self.poses)).argsort(descending=True, stable=True)
        return [index for index in order[:count].tolist() if poses[index]]


def forward_passes(images: int, transforms: Transforms, *, invariance: bool = True) -> int:
    """How many images pass through the network in `measure`: the total of what its `report` receives."""
    return images * (len(_all_poses(transforms).poses) + invariance)


def measure(
    network: nn.Module | OnnxNetwork,
    data: Dataset,
    *,
    transforms: Transforms,
    layers: Sequence[str] | None = None,
    invariance: bool = True,
    similarity: bool = True,
    order: bool | None = None,
    max_neurons: int | None = MAX_NEURONS,
    fill: Sequence[float] | None = None,
    batch: int | None = None,
    seed: int = 0,
    classes: int | None = None,
    report: Callable[[int], None] = lambda more: None,
) -> NetworkScores:
    """Run a network over unposed images and all poses of some transforms, and score its predictions and layers.

    Args:
        network: maps images (b, c, h, w) to logits (b, classes).
        data: images in [0, 1] or bytes, all of one size; a label below 0 is unknown. Photographs are posed before they
            are cropped (see `image_set.PosedDataset`), other images as they are in batches.
        transforms: such as `{"rotate": rotations(), "translate": translations()}`; equal names must be equal poses.
            The unposed image belongs to a transform only if it is among its poses.
        layers: names as in `named_modules`; None for `activations.default_layers`, [] for none.
        invariance: the invariance score of each layer and transform, which takes another pass over unposed images.
        similarity: of features, for each layer and pose, over about `SAMPLE` evenly spaced images.
        order: the stability of each reordering layer in the smallest poses, over the same images; None if there are
            such layers.
        max_neurons: of a layer for the invariance score, drawn by `seed`; None for all.
        fill: colour of uncovered pixels, one number per channel; black by default.
        batch: images per batch; by default as many as `BATCH_BYTES` allows.
        classes: of the labels; raises if the network has another number of outputs.
        report: receives how many more images passed through the network, out of `forward_passes(...)`.

    Raises:
        ValueError: there are no images, names or sizes do not match, or the network returns no logits, or NaN.

    >>> from patchreorder.data.generated import generate_digits
    >>> from patchreorder.data.poses import rotations
    >>> network = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 10))
    >>> found = measure(network, generate_digits("mnist", count=20), transforms={"rotate": rotations()})
    >>> found.agreement("as it is").value, list(found.layers), found.forwards
    (100.0, ['image', '1'], 240)
    """
    if batch is not None and batch < 1:
        raise ValueError(f"batch ({batch}) must be 1 or more")
    if not len(data):
        raise ValueError("there are no images to measure")
    poses = _all_poses(transforms)
    device = _device(network)
    indices = torch.arange(len(data))
    first = next(posed_batches(data, indices[:2], [UPRIGHT], device=device)[0])
    recording = (
        record_activations(network, first, layers)
        if isinstance(network, nn.Module)
        else network.record_activations(first, layers)
    )
    begun, cpu_begun = time.perf_counter(), time.process_time()
    with recording as recorder, torch.inference_mode():
        if order and not recorder.reorders:
            raise ValueError("order stability needs a reordering layer, and the network has none: leave order out")
        activations = recorder(first)
        outputs = activations.logits.shape[1]
        if classes is not None and outputs != classes:
            raise ValueError(
                f"the network has {outputs} outputs, but the labels have {classes} classes: measure it on images "
                "of its own classes, or without labels (--no-labels)"
            )
        batch = batch or _batch_size(first, activations)
        thresholds: dict[str, FiringThresholds] = {}
        if invariance and recorder.layers:
            thresholds = {
                name: FiringThresholds(images=len(data), most=max_neurons, seed=seed) for name in recorder.layers
            }
            for part in indices.split(batch):
                (images,), _ = posed_batches(data, part, [UPRIGHT], device=device)
                activations = recorder(images)
                for name, threshold in thresholds.items():
                    threshold.update(activations.layers[name])
                report(len(images))
        scores = _Scores(poses, recorder, thresholds, images=len(data), similarity=similarity, order=order)
        for part in indices.split(batch):
            copies, labels = posed_batches(data, part, poses.poses.values(), fill=fill, device=device)
            unposed: _Unposed | None = None
            for name, images in zip(poses.poses, copies, strict=True):
                activations = recorder(images)
                if unposed is None:
                    unposed = scores.start_batch(part, images, labels, activations)
                scores.update(name, unposed, images, activations)
                report(len(images))
        return scores.result(
            forwards=forward_passes(len(data), transforms, invariance=bool(thresholds)),
            seconds=time.perf_counter() - begun,
            cpu_seconds=time.process_time() - cpu_begun,
        )


class _AllPoses(NamedTuple):
    """The poses of all transforms, each once."""

    poses: dict[str, Pose]  # the unposed image first
    transforms: dict[str, list[str]]  # the names of their poses
    small: list[str]  # the smallest poses of each transform, other than upright


def _all_poses(transforms: Transforms) -> _AllPoses:
    if not transforms or not all(transforms.values()):
        raise ValueError(f"transforms ({', '.join(transforms) or 'none'}) must be one or more, with poses in each")
    poses = {AS_IT_IS: UPRIGHT}
    small: dict[str, None] = {}
    for transform, own in transforms.items():
        for name, pose in own.items():
            if poses.setdefault(name, pose) != pose:
                raise ValueError(
                    f"pose ({name!r}) of transform {transform!r} is {pose}, but {poses[name]} in another: rename it"
                )
        sizes = {name: max(abs(pose.degrees) / 360, abs(pose.down), abs(pose.right)) for name, pose in own.items()}
        least = min((size for size in sizes.values() if size), default=0)
        small |= dict.fromkeys(name for name, size in sizes.items() if size and size <= least * 1.001)
    return _AllPoses(poses, {transform: list(own) for transform, own in transforms.items()}, list(small))


class _Unposed(NamedTuple):
    """What the posed copies of a batch are compared with."""

    part: Tensor  # indices of the images
    firing: dict[tuple[str, str], Firing]  # by layer and transform
    features: list[tuple[slice, dict[str, Features]]]  # by layer, of the images in the sample
    reorder_inputs: list[tuple[slice, dict[str, Tensor]]]  # by layer, of the images in the sample


class _Scores:
    """All scores of a run, updated with one pose of one batch at a time."""

    def __init__(
        self,
        poses: _AllPoses,
        recorder: Recorder,
        thresholds: Mapping[str, FiringThresholds],
        *,
        images: int,
        similarity: bool,
        order: bool | None,
    ) -> None:
        self.poses, self.layers = poses, list(recorder.layers)
        others = [name for name, pose in poses.poses.items() if pose != UPRIGHT]
        self.invariance = {
            (layer, transform): LocalFiring(found)
            for layer, found in ((layer, threshold.result()) for layer, threshold in thresholds.items())
            for transform in poses.transforms
        }
        self.similarity = {
            (layer, pose): FeatureSimilarity()
            for layer in ([IMAGE, *self.layers] if similarity else [])
            for pose in others
        }
        self.order = {
            (layer, pose): OrderStability(module)
            for layer, module in (() if order is False else recorder.reorders.items())
            for pose in poses.small
        }
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.predictions = torch.zeros(len(poses.poses), images, dtype=torch.int32)
        self.labels = torch.zeros(images, dtype=torch.int64)
        self.classes = 0

    def start_batch(self, part: Tensor, images: Tensor, labels: Tensor, activations: Activations) -> _Unposed:
        """Keep what the poses of a batch are compared with."""
        self.labels[part] = labels
        self.classes = activations.logits.shape[1]
        features = {IMAGE: images, **activations.layers}
        self.shapes = {name: tuple(values.shape[1:]) for name, values in features.items()}
        firing: dict[tuple[str, str], Firing] = {}
        for layer in {layer for layer, _ in self.invariance}:
            pairs: Firing | None = None
            for transform in self.poses.transforms:
                local = self.invariance[layer, transform]
                # The pairs are the same for all transforms, but each counts its own copies.
                if pairs is None:
                    pairs = local.firing(activations.layers[layer])
                else:
                    pairs = Firing(pairs.image, pairs.neuron, pairs.images, local.thresholds)
                firing[layer, transform] = pairs
        runs = _sampled(part, len(self.labels))
        return _Unposed(
            part,
            firing,
            [(run, {name: Features.of(features[name][run]) for name in features}) for run in runs if self.similarity],
            [(run, {name: x[run] for name, x in activations.reorder_inputs.items()}) for run in runs if self.order],
        )

    def update(self, pose: str, unposed: _Unposed, copies: Tensor, activations: Activations) -> None:
        """Take a batch in one pose."""
        check_logits(activations.logits, copies)
        if bool(activations.logits.isnan().any()):
            raise ValueError(f"the network returns NaN for images in the pose {pose!r}: its weights are not finite")
        index = list(self.poses.poses).index(pose)
        self.predictions[index, unposed.part] = activations.logits.argmax(1).int().cpu()
        for layer in self.layers:
            for transform, names in self.poses.transforms.items():
                if self.invariance and pose in names:
                    firing = unposed.firing[layer, transform]
                    self.invariance[layer, transform].update(firing, activations.layers[layer])
        for run, features in unposed.features:
            for layer, own in features.items():
                if (layer, pose) in self.similarity:
                    values = copies if layer == IMAGE else activations.layers[layer]
                    self.similarity[layer, pose].update(own, values[run])
        for run, inputs in unposed.reorder_inputs:
            for layer, maps in inputs.items():
                if (layer, pose) in self.order:
                    self.order[layer, pose].update(maps, activations.reorder_inputs[layer][run])

    def result(self, **cost: Any) -> NetworkScores:
        """The scores, after every pose of every batch."""
        layers = {}
        for name in [IMAGE, *self.layers]:
            invariance = {by: found.result() for (layer, by), found in self.invariance.items() if layer == name}
            similarity = {pose: found.result() for (layer, pose), found in self.similarity.items() if layer == name}
            layers[name] = LayerScores(self.shapes[name], invariance, similarity)
        stability: dict[str, dict[str, Stability]] = {}
        for (layer, pose), found in self.order.items():
            stability.setdefault(layer, {})[pose] = found.result()
        return NetworkScores(
            images=len(self.labels),
            classes=self.classes,
            transforms=self.poses.transforms,
            poses=self.poses.poses,
            predictions=self.predictions,
            labels=None if bool((self.labels < 0).any()) else self.labels,
            layers=layers,
            order_stability=stability,
            **cost,
        )


def _sampled(part: Tensor, images: int) -> list[slice]:
    """Where a batch holds images of the sample: blocks of images, evenly spaced; all if there are no more."""
    step = max(1, round(images / SAMPLE))
    chosen = ((part // BLOCK) % step == 0).tolist()
    edges = [at for at in range(1, len(chosen)) if chosen[at] != chosen[at - 1]]
    runs = [slice(start, end) for start, end in itertools.pairwise([0, *edges, len(chosen)])]
    return [run for run in runs if chosen[run.start]]


def _batch_size(images: Tensor, activations: Activations) -> int:
    tensors = [images, *activations.layers.values()]
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors) / len(images)
    return max(1, min(MAX_BATCH, int(BATCH_BYTES / size)))


def _device(network: nn.Module | OnnxNetwork) -> torch.device:
    weight = next(network.parameters(), None) if isinstance(network, nn.Module) else None
    return torch.device("cpu") if weight is None else weight.device


def _rate(hits: Tensor) -> Rate:
    return rate(int(hits.sum()), len(hits))
