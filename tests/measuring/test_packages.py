"""Networks of torchvision and timm, with their own layer names and normalisation."""

import sys
from types import SimpleNamespace

import pytest
import torch

from patchreorder.data.images import MEAN
from patchreorder.measuring.activations import record_activations
from patchreorder.measuring.networks import open_network
from patchreorder.models.normalise import STD
from tests import vision


def test_networks_of_packages_are_normalised_and_keep_their_layer_names(monkeypatch, tmp_path):
    torchvision = vision.torchvision()
    monkeypatch.setitem(sys.modules, "torchvision", torchvision)
    plain = torchvision.models.squeezenet1_1().eval()
    torch.save(plain.state_dict(), tmp_path / "own.pth")
    opened = open_network("torchvision:squeezenet1_1", weights=tmp_path / "own.pth")
    assert (opened.side, opened.crop, opened.weights) == (224, 256 / 224, "own.pth")
    images = torch.rand(1, 3, 64, 64)
    mean, std = (torch.tensor(colour).view(3, 1, 1) for colour in (MEAN, STD))
    with torch.inference_mode():
        torch.testing.assert_close(opened.network(images), plain((images - mean) / std))
    with record_activations(opened.network, images) as recorder:
        assert (recorder.layers[0], recorder.layers[-1], len(recorder.layers)) == ("features.2", "classifier.3", 12)


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ImportError, match=r"networks of timm need it, .*: pip install 'patchreorder\[vision\]'"):
        open_network("timm:some")


def test_weights_that_cannot_be_downloaded(monkeypatch):
    def offline(name, pretrained):
        raise OSError("no connection")

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=offline))
    with pytest.raises(OSError, match=r"weights of timm:resnet18 cannot be downloaded: give a file .* \(no connection"):
        open_network("timm:resnet18")
