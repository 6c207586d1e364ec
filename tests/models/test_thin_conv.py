"""The convolution with a fast gradient of its input: the gradients of any convolution, and a plain one elsewhere."""

import pytest
import torch
from torch.nn import functional as F

from patchreorder.models.thin_conv import ThinConv2d


@pytest.mark.parametrize("channels", [1, 3])
def test_a_thin_convolution_has_the_gradients_of_any(channels):
    layer = ThinConv2d(channels, 2, 3).double()
    x = torch.rand(2, channels, 5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.equal(layer(x), F.conv2d(x, layer.weight, layer.bias))
    towards = torch.rand(2, 2, 3, 2, dtype=torch.float64)
    wanted = torch.autograd.grad(F.conv2d(x, layer.weight, layer.bias), (x, layer.weight, layer.bias), towards)
    for got, want in zip(torch.autograd.grad(layer(x), (x, layer.weight, layer.bias), towards), wanted, strict=True):
        assert torch.allclose(got, want)
    assert torch.autograd.gradcheck(layer, (x,))
    assert torch.autograd.gradgradcheck(layer, (x,))


def test_a_thin_convolution_is_a_plain_one_without_a_gradient():
    layer, x = ThinConv2d(1, 5, 3), torch.rand(2, 1, 7, 7)
    assert "ThinConv" not in layer(x).grad_fn.name()
    assert "ThinConv" in layer(x.requires_grad_()).grad_fn.name()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer(x).sum().backward()
    assert x.grad is not None
