"""torchvision and timm for tests, skipped where they are not installed."""

import functools
from types import ModuleType

import pytest
import torch


@functools.cache
def torchvision() -> ModuleType:
    try:
        return pytest.importorskip("torchvision")
    except RuntimeError:
        # PyPI's torchvision is built for CUDA: beside a CPU torch its operators are missing, and its import asks for
        # them, though no model that we use does. The library object has to stay alive.
        torchvision.library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            torchvision.library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return pytest.importorskip("torchvision")


@functools.cache
def timm() -> ModuleType:
    torchvision()
    return pytest.importorskip("timm")
