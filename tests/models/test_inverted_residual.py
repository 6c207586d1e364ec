"""Networks of inverted residual blocks: padding and shapes."""

import pytest
import torch
from torch import nn

from patchreorder.models.blur_pool import blur_pool
from patchreorder.models.inverted_residual import LITE0, InvertedResidualNet, SameConv2d, SmoothConv2d, smooth_strides


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


@pytest.mark.parametrize("size", [7, 8, 14, 15])
@pytest.mark.parametrize("conv", [SameConv2d(2, 3, 3, stride=2), SameConv2d(2, 3, 5, stride=2)])
def test_every_other_pixel_of_the_smooth_convolution_is_the_strided_one(size, conv):
    """Before the blur: both look at the same pixels, so that maps stay where the trained layers expect them."""
    x = torch.rand(1, 2, size, size, generator=torch.Generator().manual_seed(0))
    every = conv.strided(x, 1)
    torch.testing.assert_close(every[:, :, ::2, ::2], conv(x))
    torch.testing.assert_close(SmoothConv2d(conv)(x), blur_pool(every.clamp(0, 6)))


def test_smoothed_networks_keep_parameters_and_shapes():
    plain = InvertedResidualNet(LITE0).eval()
    own = set(plain.parameters())
    smooth = smooth_strides(plain)
    assert set(smooth.parameters()) == own
    with torch.inference_mode():
        assert smooth(torch.rand(1, 3, 64, 64)).shape == (1, 1280, 2, 2)
    with pytest.raises(ValueError, match="no convolution of stride 2"):
        smooth_strides(nn.Sequential(nn.Conv2d(1, 1, 3)))


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
