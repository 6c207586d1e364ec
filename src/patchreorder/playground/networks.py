"""Predictions of CNN, PR-CNN and ST-CNN with the weights that come with the package: in one pose, or in many."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from patchreorder.data import transforms
from patchreorder.data.datasets import MNIST_VARIANTS
from patchreorder.models import create_model, shipped
from patchreorder.operator.functional import PatchReorderOptions, patch_reorder

from .digits import Digit, samples
from .layer_view import layer_view, similarity
from .requests import DATASETS, MAX_SHIFT, DigitPose

NETWORKS = ("cnn", "pr_cnn", "st_cnn")
ANGLES = range(-180, 180, 5)
SHIFTS = range(-MAX_SHIFT, MAX_SHIFT + 1)
BATCH = 75  # between batches a job can be abandoned


class Networks:
    """Three networks, each trained on MNIST-R and on MNIST-T. Safe to use from several threads."""

    def __init__(self) -> None:
        self._models = {(name, dataset): _load(name, dataset) for name in NETWORKS for dataset in DATASETS.values()}
        self._samples = samples()
        self._sample_maps = {}
        for dataset in DATASETS.values():
            upright = torch.cat([pose_digit(sample, [DigitPose()], dataset) for sample in self._samples])
            self._sample_maps[dataset] = _before_reorder(self._models["pr_cnn", dataset])(upright)

    @torch.inference_mode()
    def answer(self, digit: Digit, pose: DigitPose, dataset: str, options: PatchReorderOptions) -> dict[str, Any]:
        """Return what the page shows of one pose: the image, probabilities of each network, PR-CNN's feature maps."""
        images = pose_digit(digit, [DigitPose(), pose], dataset)
        maps = _before_reorder(self._models["pr_cnn", dataset])(images)
        transformer, classifier = self._models["st_cnn", dataset]
        transformed = transformer(images)
        logits = {
            "cnn": self._models["cnn", dataset](images),
            "pr_cnn": _from_reorder(self._models["pr_cnn", dataset])(maps),
            "st_cnn": classifier(transformed),
        }
        probabilities = {name: values.softmax(1) for name, values in logits.items()}
        upright = {name: int(values[0].argmax()) for name, values in probabilities.items()}
        view = layer_view(maps, options)
        view["similarity"]["others"] = self._similarity_to_others(maps[:1], upright["pr_cnn"], dataset, options)
        return {
            "label": digit.label,
            "side": images.shape[2],
            "image": _encode(images[1]),
            "transformed": _encode(transformed[1]),
            "probabilities": {name: _rounded(values[1]) for name, values in probabilities.items()},
            "upright": upright,
            "layer": view,
        }

    def map_size(self, dataset: str) -> tuple[int, int]:
        """Return height and width of the feature maps that PR-CNN reorders."""
        height, width = self._sample_maps[dataset].shape[2:]
        return height, width

    def ring(self, digit: Digit, pose: DigitPose, *, check: Callable[[], None]) -> dict[str, Any]:
        """Return the predictions for every rotation of the shifted digit, by the networks of MNIST-R."""
        poses = [pose._replace(rotation=angle) for angle in ANGLES]
        return {"angles": list(ANGLES), "predictions": self._predictions(digit, poses, "mnist-r", check)}

    def shifts(self, digit: Digit, pose: DigitPose, *, check: Callable[[], None]) -> dict[str, Any]:
        """Return the predictions for every shift of the rotated digit, row by row, by the networks of MNIST-T."""
        poses = [DigitPose(pose.rotation, down, right) for down in SHIFTS for right in SHIFTS]
        return {"shifts": list(SHIFTS), "predictions": self._predictions(digit, poses, "mnist-t", check)}

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

    def _similarity_to_others(
        self, maps: Tensor, label: int, dataset: str, options: PatchReorderOptions
    ) -> dict[str, float]:
        """Return the mean similarity of the upright digit to the sample drawings of other classes."""
        others = self._sample_maps[dataset][[n for n, sample in enumerate(self._samples) if sample.label != label]]
        after = (patch_reorder(x, **options.arguments()) for x in (maps, others))
        return {"before": similarity(maps, others), "after": similarity(*after)}


def pose_digit(digit: Digit, poses: Iterable[DigitPose], dataset: str) -> Tensor:
    """Render the digit in each pose on the canvas of the data set: (b, 1, size, size) from 0 to 1."""
    size = MNIST_VARIANTS[dataset].size
    rotation, down, right = torch.tensor(list(poses), dtype=torch.float32).unbind(1)
    return transforms.warp(
        digit.image().expand(len(rotation), -1, -1, -1),
        degrees=rotation,
        scale=torch.ones_like(rotation),
        shift=torch.stack([down, right], dim=1),
        size=(size, size),
    )


def error_rates() -> dict[str, dict[str, float]]:
    """Return the error in % of the networks on MNIST's test digits, rotated (r) and shifted (t), as measured."""
    return {
        name: {short: shipped.row(name, dataset)["value"] for short, dataset in DATASETS.items()} for name in NETWORKS
    }


def _load(name: str, dataset: str) -> nn.Sequential:
    model = create_model(name, dataset=dataset, pretrained=True).eval().requires_grad_(False)
    assert isinstance(model, nn.Sequential)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # the fastest layout


def _reorder_index(model: nn.Sequential) -> int:
    return [name for name, _ in model.named_children()].index("reorder")


def _before_reorder(model: nn.Sequential) -> nn.Module:
    return model[: _reorder_index(model)]


def _from_reorder(model: nn.Sequential) -> nn.Module:
    """Return the trained reorder layer and all after it. The options of the page do not change them."""
    return model[_reorder_index(model) :]


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 4) for value in values.tolist()]


def _encode(image: Tensor) -> str:
    pixels = image.mul(255).round().clamp(0, 255).to(torch.uint8)
    return base64.b64encode(pixels.contiguous().numpy().tobytes()).decode()
