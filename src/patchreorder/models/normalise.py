"""Normalisation of colours inside a network, so that all networks take images in [0, 1]."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from patchreorder.data.images import MEAN

STD = (0.229, 0.224, 0.225)  # of red, green and blue over ImageNet's training images


class Normalise(nn.Module):
    """Subtract the mean colour and divide by the standard deviation.

    Both are left out of the state_dict, so that its names are the usual ones.

    Shape:
        images: (batch, 3, height, width), to the same.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: tuple[float, float, float] = MEAN, std: tuple[float, float, float] = STD) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std
