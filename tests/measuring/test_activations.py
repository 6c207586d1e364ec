"""Layers recorded by name: the defaults, overwritten outputs, inputs of reordering layers."""

import pytest
import torch
from torch import Tensor, nn

from patchreorder import PatchReorder
from patchreorder.measuring.activations import default_layers, record_activations
from patchreorder.models import create_model


def test_overwritten_outputs_are_copied():
    def recorded(inplace: bool) -> dict[str, Tensor]:
        torch.manual_seed(0)
        network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(inplace=inplace), nn.Flatten(), nn.Linear(4 * 49, 3))
        images = torch.rand(2, 1, 9, 9)
        with record_activations(network, images) as recorder:
            assert recorder.layers == ["1", "3"]
        with torch.inference_mode(), record_activations(network, torch.rand(2, 1, 9, 9), ["0", "1"]) as recorder:
            return recorder(images).layers

    overwritten, separate = recorded(True), recorded(False)
    for name in ("0", "1"):
        assert torch.equal(overwritten[name], separate[name])
    assert overwritten["0"].min() < 0 <= overwritten["1"].min()


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("pr_cnn", ["relu1", "before reorder", "reorder", "relu3", "classifier"]),
        ("cnn", ["relu1", "relu2", "classifier"]),
        ("fcn", ["2", "4", "5"]),
    ],
)
def test_default_layers_of_our_networks(name, layers):
    with record_activations(create_model(name, dataset="mnist"), torch.rand(1, 1, 28, 28)) as recorder:
        assert recorder.layers == layers


def test_default_layers_of_a_deep_network():
    deep = nn.Sequential(nn.Flatten(), *(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(40)), nn.Linear(4, 2))
    with record_activations(deep, torch.rand(2, 4)) as recorder:
        assert (len(recorder.layers), recorder.layers[0], recorder.layers[-1]) == (12, "1.1", "41")
    assert default_layers([]) == []


class Gated(nn.Module):
    """Squeeze-and-excitation between two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.second = nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)
        self.squeeze, self.gate = nn.Conv2d(4, 2, 1), nn.Sequential(nn.Conv2d(2, 4, 1), nn.Sigmoid())
        self.pool, self.last = nn.AdaptiveAvgPool2d(1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.first(x))
        x = self.second(x * self.gate(self.squeeze(x.mean((2, 3), keepdim=True))))
        return self.last(self.pool(x).flatten(1))


def test_gates_are_recorded_only_by_name():
    network, images = Gated(), torch.rand(2, 1, 9, 9)
    with record_activations(network, images) as recorder:
        assert recorder.layers == ["act", "pool", "last"]
    with record_activations(network, images, ["squeeze", "gate.1"]) as recorder:
        assert recorder.layers == ["squeeze", "gate.1"]


def test_inputs_of_reordering_layers():
    network = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), PatchReorder(grid="pixels"), nn.Flatten(), nn.Linear(2 * 9, 2)
    )
    with record_activations(network, torch.rand(2, 1, 5, 5), ["2", "before 2", "1"]) as recorder:
        logits, layers, inputs = recorder(torch.rand(3, 1, 5, 5))
        assert recorder.layers == list(layers) == ["1", "before 2", "2"]
        assert logits.shape == (3, 2)
        assert torch.equal(layers["before 2"], layers["1"])
        assert torch.equal(inputs["2"], layers["1"])
        assert torch.equal(layers["2"].flatten(2).sort().values, layers["1"].flatten(2).sort().values)


def test_the_network_is_restored():
    network = create_model("pr_cnn", dataset="mnist").train()
    with record_activations(network, torch.rand(1, 1, 28, 28)):
        assert not any(module.training for module in network.modules())
    assert all(module.training for module in network.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean()


class Unused(nn.Sequential):
    """Calls only its first layer."""

    def forward(self, x: Tensor) -> Tensor:
        return self[0](x)


@pytest.mark.parametrize(
    ("network", "layers", "message"),
    [
        (nn.Conv2d(1, 2, 3), None, r"output \(\(2, 2, 26, 26\) torch.float32\) for 2 images must be logits"),
        (Mean(), None, r"output \(\(\) torch.float32\) .* must be logits"),
        (nn.Conv2d(3, 2, 3), None, r"cannot take images of 1x28x28: .* give images of the size and channels it was"),
        (nn.Flatten(), ["fc"], r"layer \('fc'\) is not a layer of the network: choose from none"),
        (Unused(nn.Flatten(), nn.ReLU()), ["1"], r"layer \('1'\) is not called in the forward pass: choose from 0"),
        (nn.Sequential(nn.Flatten()), ["before 0"], r"layer \('before 0'\): 'before ' is for reordering layers, 0 is"),
        (
            nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (2, 784))),
            ["0"],
            r"layer \('0'\) does not return a tensor with one row per image",
        ),
    ],
)
def test_errors(network, layers, message):
    with pytest.raises(ValueError, match=message), record_activations(network, torch.rand(2, 1, 28, 28), layers):
        pass
