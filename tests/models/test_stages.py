"""Stages of networks of torchvision, and of networks made to mislead."""

import pytest
from torch import nn

from patchreorder.models.stages import stages
from tests.vision import torchvision


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet18", ["layer1", "layer2", "layer3", "layer4"]),
        ("mobilenet_v3_small", ["features.1", "features.3", "features.8", "features"]),
        ("googlenet", ["conv3", "inception3b", "inception4e", "inception5b"]),
        ("convnext_tiny", ["features.2.0", "features.4.0", "features.6.0", "features"]),
        ("swin_t", []),
    ],
)
def test_networks_of_torchvision(name, expected):
    options = {"init_weights": False} if name == "googlenet" else {}
    model = getattr(torchvision().models, name)(weights=None, **options).eval()
    assert stages(model, size=224) == expected


class Grows(nn.Module):
    """Maps of 8, 4, 2 and again 4 pixels; a square output that is no map of the image, inside a block."""

    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Identity(), nn.AvgPool2d(2), nn.AvgPool2d(2))
        self.up = nn.Upsample(scale_factor=2)
        self.end = nn.AdaptiveAvgPool2d(3)

    def forward(self, images):
        return self.end(self.up(self.down(images))).mean((2, 3))


def test_maps_that_grow_again_leave_no_smaller_stage():
    assert stages(Grows(), size=8) == ["down.0", "up", "end"]


def test_networks_without_enough_maps():
    assert stages(nn.Sequential(nn.AvgPool2d(2), nn.Flatten()), size=8) == []
    assert stages(nn.Sequential(nn.AvgPool2d((1, 2)), nn.AvgPool2d((1, 2)), nn.AvgPool2d((1, 2))), size=8) == []


def test_no_hook_stays():
    model = Grows()
    stages(model, size=8)
    assert not any(module._forward_hooks for module in model.modules())
