"""Logits by dataset index: with many processes and incomplete batches, every image counts once."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from patchreorder.data.loader import stream

from .batches import AnyModule, Dataset, channels_last, model_input
from .distributed import ALONE, World


def for_inference(model: AnyModule) -> AnyModule:
    """The model in evaluation mode, without gradients, channels last."""
    return channels_last(model.requires_grad_(False).eval())


@torch.inference_mode()
def predict(model: nn.Module, data: Dataset, *, world: World = ALONE, batch: int = 250) -> tuple[Tensor, Tensor]:
    """Logits (n, classes) of all images in order, and their labels (n,); the same in every process."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    logits = labels = torch.empty(0)
    try:
        parts = world.share(torch.arange(len(data))).split(batch)
        # A process without images predicts one, for the number of classes.
        indices = [(part if len(part) else torch.tensor([0]), 0) for part in parts]
        batches = stream(data, indices, workers=getattr(data, "workers", 0))
        for part, (images, truth) in zip(parts, batches, strict=True):
            outputs = model(model_input(images, world.device)).cpu()
            if not len(logits):
                logits = outputs.new_zeros(len(data), outputs.shape[1])
                labels = truth.new_zeros(len(data))
            logits[part], labels[part] = outputs[: len(part)], truth[: len(part)]
    finally:
        for module, mode in modes.items():
            module.training = mode
    if world.size > 1:
        return world.sum(logits.to(world.device)).cpu(), world.sum(labels.to(world.device)).cpu()
    return logits, labels
