"""CNN, PR-CNN and ST-CNN with the weights that are shipped: what they answer, over all angles and all shifts too."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from patchreorder.data import transforms
from patchreorder.data.datasets import MNIST_VARIANTS
from patchreorder.models import create_model, shipped
from patchreorder.operator.functional import Settings, patch_reorder

from . import layer
from .asked import SHIFTS, TRAINED, Pose
from .digits import Digit, samples

NAMES = {"cnn": "CNN", "pr_cnn": "PR-CNN", "st_cnn": "ST-CNN"}
ANGLES = range(-180, 180, 5)
PLACES = range(SHIFTS[0], SHIFTS[1] + 1)
BATCH = 75  # images that are computed together: between batches a request can be given up


class Networks:
    """The six networks, ready to answer; they may be asked by many threads at once."""

    def __init__(self) -> None:
        self._models = {(name, dataset): _ready(name, dataset) for name in NAMES for dataset in TRAINED.values()}
        self._samples = samples()
        self._sample_maps = {dataset: self._maps(dataset, self._upright(dataset)) for dataset in TRAINED.values()}

    @torch.inference_mode()
    def answer(self, digit: Digit, pose: Pose, dataset: str, settings: Settings) -> dict[str, Any]:
        """Probabilities of every network for the posed digit, what they see of it, and PR-CNN's maps."""
        images = posed(digit, [Pose(), pose], dataset)
        maps = self._maps(dataset, images)
        transformer, behind_transformer = self._models["st_cnn", dataset]
        seen = transformer(images)
        logits = {
            "cnn": self._models["cnn", dataset](images),
            "pr_cnn": _behind(self._models["pr_cnn", dataset])(maps),
            "st_cnn": behind_transformer(seen),
        }
        probabilities = {name: answers.softmax(1) for name, answers in logits.items()}
        upright = {name: int(answers[0].argmax()) for name, answers in probabilities.items()}
        view = layer.view(maps, settings)
        view["similarity"]["others"] = self._similarity_to_others(maps[:1], upright["pr_cnn"], dataset, settings)
        return {
            "label": digit.label,
            "side": images.shape[2],
            "image": _bytes(images[1]),
            "transformed": _bytes(seen[1]),
            "probabilities": {name: _rounded(answers[1]) for name, answers in probabilities.items()},
            "upright": upright,
            "layer": view,
        }

    def map_size(self, dataset: str) -> tuple[int, int]:
        """Height and width of the maps that PR-CNN sorts."""
        height, width = self._sample_maps[dataset].shape[2:]
        return height, width

    def ring(self, digit: Digit, pose: Pose, *, check: Callable[[], None]) -> dict[str, Any]:
        """What the networks trained on R say of the digit at every angle, moved as it is."""
        poses = [pose._replace(turn=angle) for angle in ANGLES]
        return {"angles": list(ANGLES), "answers": self._winners(digit, poses, "mnist-r", check)}

    def shifts(self, digit: Digit, pose: Pose, *, check: Callable[[], None]) -> dict[str, Any]:
        """What the networks trained on T say of the digit at every place on the canvas, turned as it is; row by row."""
        poses = [Pose(pose.turn, down, right) for down in PLACES for right in PLACES]
        return {"places": list(PLACES), "answers": self._winners(digit, poses, "mnist-t", check)}

    @torch.inference_mode()
    def _winners(
        self, digit: Digit, poses: Sequence[Pose], dataset: str, check: Callable[[], None]
    ) -> dict[str, dict[str, list[Any]]]:
        """Of each network the winning class in every pose, and its probability."""
        found: dict[str, dict[str, list[Any]]] = {name: {"labels": [], "probabilities": []} for name in NAMES}
        for begin in range(0, len(poses), BATCH):
            images = posed(digit, poses[begin : begin + BATCH], dataset)
            for name, answers in found.items():
                check()
                best = self._models[name, dataset](images).softmax(1).max(1)
                answers["labels"] += best.indices.tolist()
                answers["probabilities"] += _rounded(best.values)
        return found

    def _maps(self, dataset: str, images: Tensor) -> Tensor:
        """What PR-CNN's layer gets to sort."""
        return _before(self._models["pr_cnn", dataset])(images)

    @torch.inference_mode()
    def _upright(self, dataset: str) -> Tensor:
        return torch.cat([posed(sample, [Pose()], dataset) for sample in self._samples])

    def _similarity_to_others(self, maps: Tensor, label: int, dataset: str, settings: Settings) -> dict[str, float]:
        """Mean similarity of the upright digit to the shipped drawings of other digits, before and after."""
        others = self._sample_maps[dataset][[n for n, sample in enumerate(self._samples) if sample.label != label]]
        named: dict[str, Any] = settings._asdict()

        def mean(one: Tensor, many: Tensor) -> float:
            return round(float(F.cosine_similarity(one.flatten(1), many.flatten(1)).mean()), 4)

        return {
            "before": mean(maps, others),
            "after": mean(patch_reorder(maps, **named), patch_reorder(others, **named)),
        }


def posed(digit: Digit, poses: Iterable[Pose], dataset: str) -> Tensor:
    """The digit in these poses in the middle of the data set's canvas: (b, 1, size, size) from 0 to 1."""
    size = MNIST_VARIANTS[dataset].size
    turn, down, right = torch.tensor(list(poses), dtype=torch.float32).unbind(1)
    return transforms.warp(
        digit.image().expand(len(turn), -1, -1, -1),
        degrees=turn,
        scale=torch.ones_like(turn),
        shift=torch.stack([down, right], dim=1),
        size=(size, size),
    )


def measured() -> dict[str, dict[str, float]]:
    """Error in % of the shipped weights on MNIST's test digits, turned (r) and shifted (t), from their result rows."""
    return {name: {short: shipped.row(name, dataset)["value"] for short, dataset in TRAINED.items()} for name in NAMES}


def _ready(name: str, dataset: str) -> nn.Sequential:
    model = create_model(name, dataset=dataset, pretrained=True).eval().requires_grad_(False)
    assert isinstance(model, nn.Sequential)
    for tensor in model.parameters():
        if tensor.dim() == 4:  # the layout that is fastest
            tensor.data = tensor.data.to(memory_format=torch.channels_last)
    return model


def _place(model: nn.Sequential) -> int:
    return [name for name, _ in model.named_children()].index("reorder")


def _before(model: nn.Sequential) -> nn.Module:
    return model[: _place(model)]


def _behind(model: nn.Sequential) -> nn.Module:
    """From its own layer on, which sorts as it did in training whatever the page is set to."""
    return model[_place(model) :]


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 4) for value in values.tolist()]


def _bytes(image: Tensor) -> str:
    return base64.b64encode(
        image.mul(255).round().clamp(0, 255).to(torch.uint8).contiguous().numpy().tobytes()
    ).decode()
