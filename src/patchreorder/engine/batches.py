"""Batches of images: which images, in which order, and as which tensors a network takes them."""

from __future__ import annotations

import itertools
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

AnyModule = TypeVar("AnyModule", bound=nn.Module)


class Dataset(Protocol):
    """Images and labels by index; a batch depends on its indices and the epoch only.

    Images of bytes (0 to 255) become floats (0 to 1) on the device. A dataset may also have `workers`, the number of
    processes that prepare its batches, and `order(seed=, epoch=)`, the order in which it is best read (None: any).
    """

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor, *, epoch: int = 0) -> tuple[Tensor, Tensor]: ...


def epoch_order(data: Dataset, *, seed: int, epoch: int) -> Tensor:
    """The indices of all images, in the dataset's own order if it has one, or shuffled."""
    own = getattr(data, "order", None)  # shards, for example, are read one after the other
    order = own(seed=seed, epoch=epoch) if own is not None else None
    if order is not None:
        return order
    # The last number keeps this random stream apart from those of augmentation.
    stream = np.random.Philox(np.random.SeedSequence([seed, epoch, 1]))
    return torch.from_numpy(np.random.Generator(stream).permutation(len(data)))


def model_input(images: Tensor, device: torch.device) -> Tensor:
    """Images on the device, as floats, channels last."""
    images = images.to(device, non_blocking=True)
    if images.dtype == torch.uint8:
        images = images.to(torch.get_default_dtype()).div_(255)
    return images.contiguous(memory_format=torch.channels_last) if images.dim() == 4 else images


def channels_last(model: AnyModule) -> AnyModule:
    """The model with its kernels channels last, in which convolutions are fastest."""
    # `Module.to()` raises for tensors of five dimensions.
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        if tensor.dim() == 4:
            tensor.data = tensor.data.to(memory_format=torch.channels_last)
    return model
