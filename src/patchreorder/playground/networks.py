"""Predictions of five networks with the weights that come with the package: in one pose, or in many.

CNN, PR-CNN and ST-CNN have learned the poses they know. Two have one built in: the aligned CNN moves the centroid of
the digit to the middle first, and the unrolled CNN reads it in rings. Both were trained on digits in the middle only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from patchreorder.data import transforms
from patchreorder.data.datasets import MNIST_VARIANTS
from patchreorder.layers.registry import create_layer
from patchreorder.models import create_model, shipped
from patchreorder.operator.functional import PatchReorderOptions, patch_reorder

from .digits import Digit, samples
from .layer_view import layer_view, similarity, to_base64
from .requests import DATASETS, MAX_SHIFT, DigitPose

NETWORKS = ("cnn", "pr_cnn", "st_cnn", "aligned_cnn", "unrolled_cnn")
ALIGN = "align:size=28"
ALIGNED_ERRORS = shipped.FOLDER / "aligned.json"  # python benchmarks/playground.py --errors
ANGLES = range(-180, 180, 5)
SHIFTS = range(-MAX_SHIFT, MAX_SHIFT + 1)
BATCH = 75  # between batches a job can be abandoned


class Networks:
    """All networks, for the canvas of MNIST-R and for that of MNIST-T. Safe to use from several threads."""

    def __init__(self) -> None:
        self._models = {
            (name, dataset): load_network(name, dataset) for name in NETWORKS for dataset in DATASETS.values()
        }
        self._samples = samples()
        self._sample_maps = {}
        for dataset in DATASETS.values():
            upright = torch.cat([pose_digit(sample, [DigitPose()], dataset) for sample in self._samples])
            before, _ = _halves(self._models["pr_cnn", dataset])
            self._sample_maps[dataset] = before(upright)

    @torch.inference_mode()
    def answer(self, digit: Digit, pose: DigitPose, dataset: str, options: PatchReorderOptions) -> dict[str, Any]:
        """Return what the page shows of one pose: the image, probabilities of each network, PR-CNN's feature maps."""
        images = pose_digit(digit, [DigitPose(), pose], dataset)
        before, reorder = _halves(self._models["pr_cnn", dataset])
        transformer, classifier = self._models["st_cnn", dataset]
        maps, transformed = before(images), transformer(images)
        # The options of the page change its view of the layer, not the network.
        known = {"pr_cnn": lambda: reorder(maps), "st_cnn": lambda: classifier(transformed)}
        logits = {name: known[name]() if name in known else self._models[name, dataset](images) for name in NETWORKS}
        probabilities = {name: values.softmax(1) for name, values in logits.items()}
        upright = {name: int(values[0].argmax()) for name, values in probabilities.items()}
        view = layer_view(maps, options)
        # The baseline: the mean similarity of the upright digit to the sample drawings of other classes.
        others = self._sample_maps[dataset][[s.label != upright["pr_cnn"] for s in self._samples]]
        after = (patch_reorder(x, **options.arguments()) for x in (maps[:1], others))
        view["similarity"]["others"] = {"before": similarity(maps[:1], others), "after": similarity(*after)}
        return {
            "label": digit.label,
            "side": images.shape[2],
            "image": to_base64(images[1]),
            "transformed": to_base64(transformed[1]),
            "probabilities": {name: _rounded(values[1]) for name, values in probabilities.items()},
            "upright": upright,
            "layer": view,
        }

    def map_size(self, dataset: str) -> tuple[int, int]:
        """Return height and width of the feature maps that PR-CNN reorders."""
        return tuple(self._sample_maps[dataset].shape[2:])

    def ring(self, digit: Digit, pose: DigitPose, dataset: str, *, check: Callable[[], None]) -> dict[str, Any]:
        """Return the predictions for every rotation of the shifted digit."""
        poses = [pose._replace(rotation=angle) for angle in ANGLES]
        return {"angles": list(ANGLES), "predictions": self._predictions(digit, poses, dataset, check)}

    def shifts(self, digit: Digit, pose: DigitPose, dataset: str, *, check: Callable[[], None]) -> dict[str, Any]:
        """Return the predictions for every shift of the rotated digit, row by row."""
        poses = [DigitPose(pose.rotation, down, right) for down in SHIFTS for right in SHIFTS]
        return {"shifts": list(SHIFTS), "predictions": self._predictions(digit, poses, dataset, check)}

    @torch.inference_mode()
    def _predictions(
        self, digit: Digit, poses: Sequence[DigitPose], dataset: str, check: Callable[[], None]
    ) -> dict[str, dict[str, list[Any]]]:
        """Return the class and its probability in each pose, by network."""
        found: dict[str, dict[str, list[Any]]] = {name: {"labels": [], "probabilities": []} for name in NETWORKS}
        for begin in range(0, len(poses), BATCH):
            images = pose_digit(digit, poses[begin : begin + BATCH], dataset)
            for name, predictions in found.items():
                check()
                best = self._models[name, dataset](images).softmax(1).max(1)
                predictions["labels"] += best.indices.tolist()
                predictions["probabilities"] += _rounded(best.values)
        return found


def pose_digit(digit: Digit, poses: Iterable[DigitPose], dataset: str) -> Tensor:
    """Render the digit in each pose on the canvas of the data set: (b, 1, size, size) from 0 to 1."""
    size = MNIST_VARIANTS[dataset].size
    table = torch.tensor(list(poses), dtype=torch.float32)
    images, upright = digit.image().expand(len(table), -1, -1, -1), torch.ones(len(table))
    return transforms.warp(images, degrees=table[:, 0], scale=upright, shift=table[:, 1:], size=(size, size))


def error_rates() -> dict[str, dict[str, float]]:
    """Return the error in % of the networks on MNIST's test digits, rotated (r) and shifted (t), as measured."""
    aligned = json.loads(ALIGNED_ERRORS.read_text())["errors"]

    def error(name: str, short: str, dataset: str) -> float:
        return aligned[name][short] if short in aligned.get(name, {}) else shipped.row(name, dataset)["value"]

    return {name: {short: error(name, short, dataset) for short, dataset in DATASETS.items()} for name in NETWORKS}


def load_network(name: str, dataset: str) -> nn.Sequential:
    """A network for the canvas of a data set.

    The aligned CNN is the CNN of MNIST-R behind `align`, on both; so is the unrolled one on the larger canvas.
    """
    aligned = name == "aligned_cnn" or (name, dataset) == ("unrolled_cnn", "mnist-t")
    network, data = ("cnn" if name == "aligned_cnn" else name), ("mnist-r" if aligned else dataset)
    model: nn.Module = create_model(network, dataset=data, pretrained=True)
    model = nn.Sequential(create_layer(ALIGN), model) if aligned else model
    model.eval().requires_grad_(False)
    assert isinstance(model, nn.Sequential)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # the fastest layout


def _halves(model: nn.Sequential) -> tuple[nn.Module, nn.Module]:
    """Return what comes before the reorder layer, and this layer with all after it."""
    index = [name for name, _ in model.named_children()].index("reorder")
    return model[:index], model[index:]


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 4) for value in values.tolist()]
