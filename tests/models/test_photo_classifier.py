"""Feature blocks: along a sequence of layers, or by hooks in any other network."""

import pytest
import torch
from torch import nn

from patchreorder.models.photo_classifier import Block, FeatureBlocks


class Hidden(nn.Module):
    """The same layers, whose order only the forward pass knows."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x):
        return self.layers(x)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.ReLU(), nn.Conv2d(4, 5, 3)), nn.ReLU())


BLOCKS = [Block("early", "ranked:quantiles=4"), Block("late", "gap", True)]


def test_a_sequence_and_hooks_agree():
    layers, x = network(), torch.rand(2, 3, 12, 12)
    chain = FeatureBlocks(layers, {"early": "1.0", "late": "2"}, BLOCKS)
    hooks = FeatureBlocks(Hidden(layers), {"early": "layers.1.0", "late": "layers.2"}, BLOCKS)
    assert chain.chain is not None
    assert hooks.chain is None
    for ours, theirs in zip(chain(x), hooks(x), strict=True):
        assert torch.equal(ours, theirs)
        torch.testing.assert_close(ours.norm(dim=1), torch.ones(2))


def test_blocks_are_pooled_and_normalised():
    layers, x = network(), torch.rand(1, 3, 12, 12)
    early = layers[1][0](layers[0](x))
    values = early.flatten(2).sort(descending=True).values.unflatten(2, (4, -1)).mean(3).flatten(1)
    late = layers(x).mean((2, 3)).sqrt()
    first, second = FeatureBlocks(layers, {"early": "1.0", "late": "2"}, BLOCKS)(x)
    torch.testing.assert_close(first, values / values.norm())
    torch.testing.assert_close(second, late / late.norm())


def test_unknown_layers_are_refused():
    with pytest.raises(ValueError, match=r"layer \('middle'\) must be one of early, late"):
        FeatureBlocks(network(), {"early": "1.0", "late": "2"}, [Block("middle")])
