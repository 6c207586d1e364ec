"""Answers to photographs: a backbone with its ImageNet classifier, and the names of the classes."""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from patchreorder.data import sources
from patchreorder.data.backbone_weights import WEIGHTS
from patchreorder.engine.predict import for_inference
from patchreorder.models.backbones import imagenet_classifier

BACKBONE, TITLE = "efficientnet_lite0", "EfficientNet-lite0"
TOP = 3  # classes that are shown
ANGLES = range(-180, 180, 30)
NAMES = "_IMAGENET_CATEGORIES"  # in torchvision's models/_meta.py


@functools.cache
def class_names() -> list[str]:
    """The names of ImageNet's 1,000 classes from the file of an installed torchvision, which is read, not run.

    "class 0" and so on without it.
    """
    found = importlib.util.find_spec("torchvision")
    file = Path(found.origin).parent / "models" / "_meta.py" if found and found.origin else None
    if file is not None and file.is_file():
        for part in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(part, ast.Assign) and any(getattr(name, "id", "") == NAMES for name in part.targets):
                names = ast.literal_eval(part.value)
                if len(names) == 1000:
                    return [str(name) for name in names]
    return [f"class {number}" for number in range(1000)]


class ImagenetClassifier:
    """What a network trained on ImageNet takes photographs for; `reason` says what to do without its weights.

    `network` takes the place of `BACKBONE`: images (b, 3, 224, 224) in [0, 1] to 1,000 logits.
    """

    def __init__(
        self,
        *,
        fetch: bool = False,
        say: Callable[[str], None] = lambda text: None,
        network: nn.Module | None = None,
    ) -> None:
        self.reason = ""
        self._network = network
        if network is not None:
            return
        try:
            file = None
            if not fetch:
                (file,) = sources.fetch(WEIGHTS[BACKBONE], folder=sources.cache_folder(WEIGHTS[BACKBONE])).values()
            self._network = for_inference(imagenet_classifier(BACKBONE, weights=file, say=say))
        except (ValueError, OSError):
            if fetch:
                raise
            self.reason = (
                f"{TITLE} is not on this machine, so that photographs get no answer: start `patchreorder play --fetch` "
                "to download it (18 MB)."
            )

    @torch.inference_mode()
    def answers(self, crops: Tensor) -> list[list[dict[str, Any]]]:
        """For every photograph (b, 224, 224, 3), uint8, the likeliest classes, and their probabilities."""
        if self._network is None:
            return []
        images = crops.permute(0, 3, 1, 2).float().div(255).contiguous(memory_format=torch.channels_last)
        best = self._network(images).softmax(1).topk(TOP)
        names = class_names()
        return [
            [
                {"name": names[index], "probability": round(value, 4)}
                for value, index in zip(values, indices, strict=True)
            ]
            for values, indices in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]
