"""What a network answers, by dataset index: padding or a second process never counts an image twice."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

from patchreorder.data.loader import stream

from .distributed import World
from .train import Dataset, model_input

_ALONE = World()
AnyModule = TypeVar("AnyModule", bound=nn.Module)


def ready(model: AnyModule) -> AnyModule:
    """The model for answers only, its kernels in the layout that is fastest."""
    model.requires_grad_(False).eval()
    for tensor in model.parameters():
        if tensor.dim() == 4:
            tensor.data = tensor.data.to(memory_format=torch.channels_last)
    return model


@torch.inference_mode()
def predict(model: nn.Module, data: Dataset, *, world: World = _ALONE, batch: int = 250) -> tuple[Tensor, Tensor]:
    """Logits (n, classes) of all images in order, and their labels (n,), the same in every process."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    logits = labels = torch.empty(0)
    try:
        parts = world.share(torch.arange(len(data))).split(batch)
        wanted = [
            (part if len(part) else torch.tensor([0]), 0) for part in parts
        ]  # with no image of its own: the shape
        batches = stream(data, wanted, workers=getattr(data, "workers", 0))
        for part, (images, truth) in zip(parts, batches, strict=True):
            answers = model(model_input(images, world.device)).cpu()
            if not len(logits):
                logits = answers.new_zeros(len(data), answers.shape[1])
                labels = truth.new_zeros(len(data))
            logits[part], labels[part] = answers[: len(part)], truth[: len(part)]
    finally:
        for module, mode in modes.items():
            module.training = mode
    if world.size > 1:
        return world.total(logits.to(world.device)).cpu(), world.total(labels.to(world.device)).cpu()
    return logits, labels
