"""Networks of inverted residual blocks: padding and shapes."""

import pytest
import torch
from torch import nn

from patchreorder.models.inverted_residual import LITE0, InvertedResidualNet, SameConv2d


@pytest.mark.parametrize("size", [7, 8, 14, 15])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("side", [3, 5])
def test_padding_is_that_of_tensorflow(size, stride, side):
    """One output for every `stride` pixels; the larger half of an odd number of zeros is at the end."""
    layer = SameConv2d(1, 1, side, stride=stride)
    nn.init.ones_(layer.weight)
    nn.init.zeros_(layer.bias)
    x = torch.rand(1, 1, size, size, generator=torch.Generator().manual_seed(0))
    out = -(-size // stride)
    zeros = max((out - 1) * stride + side - size, 0)
    first = zeros // 2
    wanted = [
        [
            x[
                0,
                0,
                max(0, r * stride - first) : r * stride - first + side,
                max(0, c * stride - first) : c * stride - first + side,
            ]
            .sum()
            .item()
            for c in range(out)
        ]
        for r in range(out)
    ]
    torch.testing.assert_close(layer(x)[0, 0], torch.tensor(wanted))


def test_efficientnet_has_its_shapes():
    model = InvertedResidualNet(LITE0).eval()
    assert sum(parameter.numel() for parameter in model.parameters()) == 3_350_000
    sides = []
    for block in model.get_submodule("blocks"):
        block.register_forward_hook(lambda layer, given, output: sides.append((output.shape[1], output.shape[2])))
    with torch.inference_mode():
        assert model(torch.rand(1, 3, 224, 224)).shape == (1, 1280, 7, 7)
    assert sides == [
        (16, 112),
        *[(24, 56)] * 2,
        *[(40, 28)] * 2,
        *[(80, 14)] * 3,
        *[(112, 14)] * 3,
        *[(192, 7)] * 4,
        (320, 7),
    ]
