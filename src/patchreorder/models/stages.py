"""The stages of any convolutional network: where its feature maps have their last form before they become smaller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

FEWEST, MOST = 3, 4  # stages that get a name: the last ones, as the inner layers of our own backbones


@torch.inference_mode()
def stages(model: nn.Module, *, size: int) -> list[str]:
    """The modules that end the last stages of a network, in order, by their names in `named_modules`.

    A stage ends with the last block whose output is a batch of square maps (b, c, h, w) of one size; layers inside a
    block that makes its maps smaller do not count. A network with fewer than three, as most transformers, has none.

    Args:
        model: in evaluation mode.
        size: pixels a side of the image that it is probed with.

    >>> stages(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.MaxPool2d(2), nn.ReLU(), nn.AvgPool2d(2)), size=8)
    ['1', '3', '4']
    """
    sides: dict[str, int] = {}  # of the square maps that modules give, in the order of their calls; 0 for other outputs

    def hook(name: str) -> Callable[..., None]:
        def store(module: nn.Module, given: tuple[Any, ...], output: Any) -> None:
            square = isinstance(output, Tensor) and output.dim() == 4 and output.shape[2] == output.shape[3]
            sides.pop(name, None)
            sides[name] = output.shape[2] if square else 0

        return store

    handles = [module.register_forward_hook(hook(name)) for name, module in model.named_modules() if name]
    try:
        model(torch.zeros(1, 3, size, size))
    finally:
        for handle in handles:
            handle.remove()
    blocks = {name: side for name, side in sides.items() if not isinstance(model.get_submodule(name), nn.Sequential)}
    ends: dict[int, str] = {}
    for name, side in sides.items():
        parents = (name[:end] for end, letter in enumerate(name) if letter == ".")
        if side > 1 and all(blocks.get(parent, side) == side for parent in parents):
            ends = {larger: end for larger, end in ends.items() if larger >= side} | {side: name}
    found = [ends[side] for side in sorted(ends, reverse=True)][-MOST:]
    return found if len(found) >= FEWEST else []
