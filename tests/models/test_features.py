"""Activations of inner layers, alone and joined."""

import pytest
import torch
from torch import nn

from patchreorder.models.features import LayerActivation, PooledLayers, activations


def test_activations_are_copied_and_hooks_removed():
    network = nn.Sequential(nn.Identity(), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(2, 1))
    x = torch.tensor([[[-1.0], [2.0]]])
    first, flat = activations(network, x.clone(), names=["0", "2"])
    assert first.tolist() == x.tolist()  # the ReLU overwrites it
    assert flat.tolist() == [[0, 2]]
    (given,) = activations(network, x.clone(), names=["3"], inputs=True)
    assert given.tolist() == [[0, 2]]
    with pytest.raises(RuntimeError):
        activations(network, torch.ones(1, 3), names=["0"])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())


def test_a_module_that_is_not_called_is_named():
    unused = nn.ModuleDict({"used": nn.Identity(), "not": nn.Identity()})
    unused.forward = unused["used"].forward
    with pytest.raises(ValueError, match=r"layer \('not'\) is not called in the forward pass of ModuleDict"):
        LayerActivation(unused, "not")(torch.ones(1))


class Network(nn.Module):
    """Three layers: large values, one small value, zeros."""

    def __init__(self):
        super().__init__()
        self.large, self.small, self.zero = nn.Identity(), nn.Identity(), nn.Identity()

    def forward(self, x):
        return self.large(1e4 * x), self.small(-1e-4 * x[:, :1]), self.zero(0 * x)


def test_joined_layers_have_equal_weight_and_zeros_stay_zero():
    model = PooledLayers(Network(), {name: name for name in ("large", "small", "zero")}, pool="gap")
    x = torch.tensor([9.0, 16.0, 0.0]).view(1, 3, 1, 1)
    torch.testing.assert_close(model(x), torch.tensor([[9 / 25, 16 / 25, 0, -1, 0, 0, 0]]))
    assert model(torch.zeros_like(x)).eq(0).all()
    assert model(torch.full_like(x, torch.nan)).isnan().all()
    half = model(torch.full_like(x, 4).half())  # 40,000 each: their sum overflows half precision
    torch.testing.assert_close(half[:, :3], torch.full((1, 3), 1 / 3))


def test_an_unknown_module_is_named():
    with pytest.raises(ValueError, match=r"layer \('other'\) must be a module of Network: large, small, zero"):
        PooledLayers(Network(), {"other": "other"}, pool="gap")
