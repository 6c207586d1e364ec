"""torchvision and timm for tests, which are skipped if they are not installed."""

import functools
from types import ModuleType

import pytest
import torch


@functools.cache
def torchvision() -> ModuleType:
    try:
        return pytest.importorskip("torchvision")
    except RuntimeError:
        # PyPI's torchvision is built for CUDA. With a CPU build of torch its operators are missing and its import
        # fails, though the models that we use need none of them. The library object has to stay alive.
        torchvision.library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            torchvision.library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return pytest.importorskip("torchvision")


@functools.cache
def timm() -> ModuleType:
    torchvision()
    return pytest.importorskip("timm")
