"""Spatial transformers for tests."""

import torch
from torch import Tensor, nn

from patchreorder.models.spatial_transformer import SpatialTransformer


class ChannelMeans(nn.Module):
    """The smallest localisation: means of the channels."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def random_transformer(transform: str, channels: int) -> SpatialTransformer:
    """A transformer that is not the identity, so that every part of it has an effect."""
    layer = SpatialTransformer(ChannelMeans(channels), transform=transform)
    nn.init.uniform_(layer.head.weight, -0.2, 0.2)
    layer.head.bias.data += torch.empty_like(layer.head.bias).uniform_(-0.1, 0.1)
    return layer
