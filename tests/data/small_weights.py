"""Weights like AlexNet's, of small tensors, in the formats that packages have them in."""

import io
from collections import OrderedDict

import numpy as np
import torch

from patchreorder.data.backbone_weights import CONVOLUTIONS

SHAPES = ((4, 3, 2, 2), (5, 4, 2, 1), (2, 5, 1, 1), (3, 2, 1, 1), (2, 3, 1, 2))


def small() -> dict[str, torch.Tensor]:
    """A dict like AlexNet's, of small tensors."""
    generator, tensors = torch.Generator().manual_seed(0), {}
    for name, shape in zip(CONVOLUTIONS, SHAPES, strict=True):
        tensors[f"{name}.weight"] = torch.randn(shape, generator=generator)
        tensors[f"{name}.bias"] = torch.randn(shape[0], generator=generator)
    return tensors


def flax(tensors: dict[str, torch.Tensor]) -> dict[str, object]:
    layers = {
        f"Conv_{number}": {
            "kernel": np.ascontiguousarray(tensors[f"{name}.weight"].permute(2, 3, 1, 0).numpy()),
            "bias": tensors[f"{name}.bias"].numpy(),
        }
        for number, name in enumerate(CONVOLUTIONS)
    }
    return {"AlexNet_0": layers, "NetLinLayer_0": {"kernel": np.zeros((1, 1, 2, 1), np.float32)}}


def pth(tensors: dict[str, torch.Tensor]) -> bytes:
    buffer = io.BytesIO()
    torch.save(OrderedDict(tensors), buffer)
    return buffer.getvalue()


def same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> bool:
    return found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)
