"""Measures how invariant a network is: all measures of `docs/measures.md` in one run over the images and their poses.

Every image passes through the network once in each pose, and once more unposed for the thresholds of the invariance
score. Memory does not grow with the number of images, except for one prediction per image and pose.
"""

from __future__ import annotations

import copy
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from patchreorder.data.poses import AS_IT_IS, UPRIGHT, Pose
from patchreorder.engine.batches import Dataset
from patchreorder.metrics.consistency import consistency
from patchreorder.metrics.equivariance import Equivariance
from patchreorder.metrics.invariance import FiringThresholds, Invariance, LocalFiring
from patchreorder.metrics.order import OrderStability, Stability
from patchreorder.metrics.rate import Rate, rate
from patchreorder.metrics.ratio import Ratio
from patchreorder.metrics.similarity import DifferentImages, Features, FeatureSimilarity, Similarity

from .activations import Activations, Recorder, record_activations
from .equivariance import Derivatives, MapScores, derivatives, few_images, generators
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
    """The scores of one layer."""

    invariance: dict[str, Invariance]  # by transform; empty for the input image, or if not requested
    similarity: dict[str, Similarity]  # between the features of the unposed image and of each other pose
    different: DifferentImages | None = None  # cosine between the features of different images; None if not requested
    equivariance: dict[str, Equivariance] = field(default_factory=dict)  # of maps, by pose
    derivative: dict[str, Ratio] = field(default_factory=dict)  # of maps as the image moves, by generator


class OverPoses(NamedTuple):
    """Wrong or changed predictions over the poses of a transform, in percent of the images."""

    mean: Rate  # of all poses; the interval is for the number of images
    worst: Rate  # in the worst pose of each image: wrong or changed in one pose or more
    missed: Tensor  # (images,), bool: the images that `worst` counts
    poses: int
    hardest: str  # the pose with the most


@dataclass(frozen=True, kw_only=True)
class NetworkScores:
    """The result of one run of `measure`."""

    images: int
    classes: int  # logits of the network
    transforms: dict[str, list[str]]  # the names of their poses
    poses: dict[str, Pose]
    predictions: Tensor  # (poses, images), int32: the class of the largest logit. All rates derive from these
    labels: Tensor | None  # (images,), or None if unknown
    layers: dict[str, LayerScores]  # the input image first, then the layers in the order of the network
    order_stability: dict[str, dict[str, Stability]]  # by reordering layer and small pose
    modules: dict[str, dict[str, Ratio]]  # the Lie derivative of each module alone, by generator
    kinds: dict[str, str]  # the classes of these modules
    forwards: int  # how many images passed through the network
    seconds: float
    cpu_seconds: float

    def predictions_in(self, pose: str) -> Tensor:
        """The predictions in a pose, (images,)."""
        return self.predictions[list(self.poses).index(pose)]

    def error(self, pose: str) -> Rate:
        """Wrong predictions in a pose, in percent, with Wilson's interval; raises ValueError without labels."""
        if self.labels is None:
            raise ValueError("the images have no labels, so there is no error: see `agreement`")
        return rate(int((self.predictions_in(pose) != self.labels).sum()), self.images)

    def agreement(self, pose: str) -> Rate:
        """Predictions in a pose that equal those for the unposed images, right or wrong, in percent."""
        return rate(int((self.predictions_in(pose) == self.predictions_in(AS_IT_IS)).sum()), self.images)

    def consistency(self, transform: str) -> Rate:
        """Pairs of poses with equal predictions, over all pairs of a transform; see `metrics.consistency`."""
        return consistency(torch.stack([self.predictions_in(pose) for pose in self.transforms[transform]]))

    def over(self, transform: str, *, right: Tensor) -> OverPoses:
        """The predictions in all poses of a transform but the unposed one, against the right ones, (images,)."""
        poses = [pose for pose in self.transforms[transform] if pose != AS_IT_IS] or [AS_IT_IS]
        hits = torch.stack([self.predictions_in(pose) == right for pose in poses])
        fewest = int(hits.sum(1).argmin())
        return OverPoses(
            mean=rate(int((~hits).sum()), hits.numel(), n=self.images),
            worst=rate(int((~hits.all(0)).sum()), self.images),
            missed=~hits.all(0),
            poses=len(poses),
            hardest=poses[fewest],
        )

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
    """How many images pass through the network in `measure`: the total of what its `report` receives.

    The few images of the derivatives are not counted.
    """
    return images * (len(_all_poses(transforms)) + invariance)


def measure(
    network: nn.Module | OnnxNetwork,
    data: Dataset,
    *,
    transforms: Transforms,
    layers: Sequence[str] | None = None,
    invariance: bool = True,
    similarity: bool = True,
    order: bool = True,
    equivariance: bool = True,
    fill: Sequence[float] | None = None,
    side: float = 1.0,
    batch: int | None = None,
    seed: int = 0,
    classes: int | None = None,
    report: Callable[[int], None] = lambda more: None,
) -> NetworkScores:
    """Run a network over unposed images and all poses of some transforms, and score its predictions and layers.

    Args:
        network: maps images (b, c, h, w) to logits (b, classes).
        data: images in [0, 1] or bytes, all of one size; a label below 0 is unknown. Photographs are posed before they
            are cropped, other images as they are in batches.
        transforms: such as `{"rotate": rotations(), "translate": translations()}`; equal names must be equal poses.
            The unposed image belongs to a transform only if it is among its poses.
        layers: names as in `named_modules`; None for `activations.default_layers`, [] for none.
        invariance: the invariance score of each layer and transform, which takes another pass over unposed images.
        similarity: of features, for each layer and pose, over about `SAMPLE` evenly spaced images.
        order: the stability of each reordering layer, if there are any, in the smallest poses, over the same images.
        equivariance: whether maps move with the image, for each layer with maps: in each pose, over up to 100 images,
            and by the Lie derivatives of layers and modules, over up to 16.
        fill: colour of uncovered pixels, one number per channel; black by default.
        side: below 1, images are shrunk to that part of their canvas before they are posed; see `sweeps.fitting_side`.
        batch: images per batch; by default as many as `BATCH_BYTES` allows.
        seed: of the `MAX_NEURONS` neurons that are drawn from larger layers for the invariance score.
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
    weight = next(network.parameters(), None) if isinstance(network, nn.Module) else None
    device = torch.device("cpu") if weight is None else weight.device
    indices = torch.arange(len(data))
    first = next(posed_batches(data, indices[:2], [UPRIGHT], fill=fill, side=side, device=device)[0])
    if isinstance(network, nn.Module):
        recording = record_activations(network, first, layers)
    else:
        recording = network.record_activations(first, layers)
    begun, cpu_begun = time.perf_counter(), time.process_time()
    with recording as recorder, torch.inference_mode():
        activations = recorder(first)
        outputs = activations.logits.shape[1]
        if classes is not None and outputs != classes:
            raise ValueError(
                f"the network has {outputs} outputs, but the labels have {classes} classes: measure it on images "
                "of its own classes, or without labels (--no-labels)"
            )
        if batch is None:
            size = sum(tensor.nbytes for tensor in (first, *activations.layers.values())) / len(first)
            batch = max(1, min(MAX_BATCH, int(BATCH_BYTES / size)))
        chosen = recorder.layers if invariance else ()
        thresholds = {name: FiringThresholds(images=len(data), max_neurons=MAX_NEURONS, seed=seed) for name in chosen}
        for part in indices.split(batch) if thresholds else ():
            (images,), _ = posed_batches(data, part, [UPRIGHT], fill=fill, side=side, device=device)
            activations = recorder(images)
            for name, threshold in thresholds.items():
                threshold.update(activations.layers[name])
            report(len(images))
        moved = generators(poses.values()) if equivariance else []
        small = Derivatives({}, {}, {})
        if moved:
            few = few_images(len(data))
            (images,), _ = posed_batches(data, few, [UPRIGHT], fill=fill, side=side, device=device)
            small = derivatives(network, recorder, images, moved)
        maps = MapScores(data, side=side, seed=seed) if equivariance else None
        scores = _Scores(
            transforms, recorder, thresholds, maps, small, images=len(data), similarity=similarity, order=order
        )
        for part in indices.split(batch):
            copies, labels = posed_batches(data, part, poses.values(), fill=fill, side=side, device=device)
            for name, images in zip(poses, copies, strict=True):
                activations = recorder(images)
                if name == AS_IT_IS:
                    scores.start_batch(part, images, labels, activations)
                scores.update(name, images, activations)
                del activations  # its memory is still in the processor's cache
                report(len(images))
        return scores.result(
            classes=outputs,
            forwards=forward_passes(len(data), transforms, invariance=bool(thresholds)),
            seconds=time.perf_counter() - begun,
            cpu_seconds=time.process_time() - cpu_begun,
        )


def _all_poses(transforms: Transforms) -> dict[str, Pose]:
    """The poses of all transforms, each once, the unposed image first."""
    if not transforms or not all(transforms.values()):
        raise ValueError(f"transforms ({', '.join(transforms) or 'none'}) must be one or more, with poses in each")
    poses = {AS_IT_IS: UPRIGHT}
    for transform, own in transforms.items():
        for name, pose in own.items():
            if poses.setdefault(name, pose) != pose:
                raise ValueError(
                    f"pose ({name!r}) of transform {transform!r} is {pose}, but {poses[name]} in another: rename it"
                )
    names = {pose: name for name, pose in poses.items()}
    for name, pose in poses.items():
        if names[pose] != name:
            raise ValueError(f"poses {name!r} and {names[pose]!r} are the same: give them one name, to compute it once")
    return poses


def _smallest(poses: Mapping[str, Pose]) -> list[str]:
    """The smallest poses other than upright."""
    sizes = {
        name: max(abs(pose.degrees) / 360, abs(pose.down), abs(pose.right), abs(math.log(pose.scale)), pose.flip)
        for name, pose in poses.items()
    }
    least = min(filter(None, sizes.values()), default=0)
    return [name for name, size in sizes.items() if 0 < size <= least * 1.001]


class _Scores:
    """All scores of a run, updated with one pose of one batch at a time, the unposed images first."""

    def __init__(
        self,
        transforms: Transforms,
        recorder: Recorder,
        thresholds: Mapping[str, FiringThresholds],
        maps: MapScores | None,
        small: Derivatives,
        *,
        images: int,
        similarity: bool,
        order: bool,
    ) -> None:
        self.transforms, self.poses, self.maps, self.small = transforms, _all_poses(transforms), maps, small
        others = [name for name, pose in self.poses.items() if pose != UPRIGHT]
        smallest = dict.fromkeys(name for own in transforms.values() for name in _smallest(own))
        found = {layer: threshold.result() for layer, threshold in thresholds.items()}
        self.layers = [IMAGE, *recorder.layers]
        self.invariance = {layer: {by: LocalFiring(own) for by in transforms} for layer, own in found.items()}
        self.similarity = {layer: {pose: FeatureSimilarity() for pose in others if similarity} for layer in self.layers}
        self.different = {layer: DifferentImages() for layer in self.layers if similarity}
        self.order = {
            layer: {pose: OrderStability(module) for pose in smallest}
            for layer, module in recorder.reorders.items()
            if order
        }
        self.predictions = torch.zeros(len(self.poses), images, dtype=torch.int32)
        self.labels = torch.zeros(images, dtype=torch.int64)

    def start_batch(self, part: Tensor, images: Tensor, labels: Tensor, activations: Activations) -> None:
        """Keep what the poses of a batch are compared with."""
        self.part = part
        self.labels[part] = labels
        self.firing = {}
        for layer, by_transform in self.invariance.items():
            pairs = next(iter(by_transform.values())).firing(activations.layers[layer])
            self.firing[layer] = {transform: copy.copy(pairs) for transform in by_transform}  # each counts its own
        unposed = {IMAGE: images, **activations.layers}
        self.features = [
            (run, {layer: Features.of(unposed[layer][run]) for layer, own in self.similarity.items() if own})
            for run in _sampled(part, len(self.labels))
        ]
        for _, features in self.features:
            for layer, own in features.items():
                self.different[layer].update(own)
        self.reorder_inputs = activations.reorder_inputs
        if self.maps is not None:
            self.maps.start_batch(part, images, activations.layers)

    def update(self, pose: str, copies: Tensor, activations: Activations) -> None:
        """Take the batch in one pose."""
        if bool(activations.logits.isnan().any()):
            raise ValueError(f"the network returns NaN for images in the pose {pose!r}: its weights are not finite")
        self.predictions[list(self.poses).index(pose), self.part] = activations.logits.argmax(1).int().cpu()
        for layer, by_transform in self.invariance.items():
            for transform, local in by_transform.items():
                if pose in self.transforms[transform]:
                    local.update(self.firing[layer][transform], activations.layers[layer])
        if self.maps is not None and pose != AS_IT_IS:
            self.maps.update(pose, self.poses[pose], activations.layers)
        for run, features in self.features:
            for layer, own in features.items():
                if pose in self.similarity[layer]:
                    values = copies if layer == IMAGE else activations.layers[layer]
                    self.similarity[layer][pose].update(own, values[run])
            for layer, by_pose in self.order.items():
                if pose in by_pose:
                    by_pose[pose].update(self.reorder_inputs[layer][run], activations.reorder_inputs[layer][run])

    def result(self, **facts: Any) -> NetworkScores:
        """The scores, after every pose of every batch."""
        maps = {} if self.maps is None else self.maps.result()
        return NetworkScores(
            images=len(self.labels),
            transforms={transform: list(own) for transform, own in self.transforms.items()},
            poses=self.poses,
            predictions=self.predictions,
            labels=None if bool((self.labels < 0).any()) else self.labels,
            layers={
                layer: LayerScores(
                    _results(self.invariance.get(layer, {})),
                    _results(self.similarity[layer]),
                    self.different.get(layer),
                    maps.get(layer, {}),
                    self.small.layers.get(layer, {}),
                )
                for layer in self.layers
            },
            order_stability={layer: _results(by_pose) for layer, by_pose in self.order.items()},
            modules=self.small.modules,
            kinds=self.small.kinds,
            **facts,
        )


def _results(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one.result() for name, one in found.items()}


def _sampled(part: Tensor, images: int) -> list[slice]:
    """Where a batch holds images of the sample: blocks of images, evenly spaced; all if there are no more."""
    step = max(1, round(images / SAMPLE))
    chosen = ((part // BLOCK) % step == 0).tolist()
    edges = [at for at in range(1, len(chosen)) if chosen[at] != chosen[at - 1]]
    runs = [slice(start, end) for start, end in itertools.pairwise([0, *edges, len(chosen)])]
    return [run for run in runs if chosen[run.start]]
