"""Networks opened by name: ours, files of `fit`, functions, packages; inserted layers."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from patchreorder import ShiftAlign
from patchreorder.data.images import MEAN
from patchreorder.layers.layer import Layer
from patchreorder.measuring.activations import record_activations
from patchreorder.measuring.networks import common_classes, distinct_names, open_network
from patchreorder.models import create_model, saved
from patchreorder.models.backbones import open_backbone
from patchreorder.models.normalise import STD
from patchreorder.models.photo_classifier import Block, FeatureBlocks, PhotoClassifier
from tests import vision


def test_networks_of_ours(tmp_path):
    opened = open_network("pr_cnn", dataset="mnist")
    assert (opened.channels, opened.side, opened.weights, opened.reorders) == (1, 28, "trained on mnist-r", True)
    opened = open_network("cnn", dataset="mnist-t")
    assert (opened.side, opened.reorders) == (42, False)
    torch.save(create_model("pr_cnn_fine", dataset="mnist-r").state_dict(), tmp_path / "own.pth")
    assert open_network("pr_cnn_fine", weights=tmp_path / "own.pth").weights == "own.pth"
    with pytest.raises(ValueError, match=r"no trained weights of pr_cnn_fine .* give --weights FILE"):
        open_network("pr_cnn_fine")
    with pytest.raises(ValueError, match=r"own\.pth does not fit fcn for mnist-r: .*Missing key"):
        open_network("fcn", weights=tmp_path / "own.pth")
    with pytest.raises(ValueError, match=r"model \('resnet'\) must be a network of ours .* ours are fcn, cnn"):
        open_network("resnet")
    with pytest.raises(ValueError, match=r"mobilenet_v2\) classifies photographs as .*: give a folder, not mnist"):
        open_network("mobilenet_v2", dataset="mnist")


def test_a_file_of_fit(tmp_path):
    file, blocks = tmp_path / "classifier.safetensors", (Block("head"),)
    backbone = open_backbone("mobilenet_v2", trained=False)
    features = FeatureBlocks(backbone.model, backbone.layers, blocks).eval()
    model = PhotoClassifier(features, widths=features.widths(64), classes=2, directions=4)
    facts = saved.ClassifierFacts("mobilenet_v2", 192, 220, blocks, ("cat", "dog"), threshold=1.0, directions=4)
    saved.save_classifier(file, model, facts)
    opened = open_network(str(file))
    assert (opened.classes, opened.side, opened.channels) == (["cat", "dog"], 192, 3)
    assert opened.crop == 220 / 192
    with pytest.raises(ValueError, match=r"weights \(.*\) cannot be loaded into .*, which holds its own"):
        open_network(str(file), weights=file)


def test_a_function_of_a_module(module, tmp_path):
    before = list(sys.path)
    model = open_network(f"{module}:build").network
    assert isinstance(model, nn.Module)
    assert sys.path == before
    assert open_network(f"{module}:grey").channels == 1
    zeros = {name: torch.zeros(value.shape) for name, value in model.state_dict().items()}
    save_file(zeros, tmp_path / "own.safetensors")
    with torch.inference_mode():
        own = open_network(f"{module}:build", weights=tmp_path / "own.safetensors")
        assert own.network(torch.rand(1, 3, 32, 32)).eq(0).all()
    with pytest.raises(ValueError, match=r"\(mine_to_measure:text\) must build an nn.Module, got str"):
        open_network(f"{module}:text")
    with pytest.raises(
        ValueError, match=r"\(mine_to_measure:needy\) is called without arguments, and raises TypeError"
    ):
        open_network(f"{module}:needy")
    with pytest.raises(ValueError, match="no attribute 'other'"):
        open_network(f"{module}:other")
    with pytest.raises(ImportError, match="module 'nobody_has_this' is neither in this folder nor installed"):
        open_network("nobody_has_this:build")


def test_inserted_layers(module, tmp_path):
    torch.save(create_model("pr_cnn", layer="align", place="input").state_dict(), tmp_path / "own.pt")
    opened = open_network("pr_cnn", weights=tmp_path / "own.pt", layer="align", place="input")
    assert opened.name == "pr_cnn (align at input)"
    assert isinstance(opened.network.reorder, ShiftAlign)
    opened = open_network(f"{module}:build", layer="ranked:smooth=2,stride=2", place="0")
    assert [type(layer).__name__ for layer in opened.network.modules() if isinstance(layer, Layer)] == ["RankedPool"]
    with pytest.raises(ValueError, match=r"layer, place \(align, input\) of pr_cnn needs --weights FILE, trained with"):
        open_network("pr_cnn", layer="align", place="input")
    with pytest.raises(ValueError, match=r"layer \(align\) and place \(None\): .* both are needed"):
        open_network(f"{module}:build", layer="align")
    with pytest.raises(ValueError, match=r"layer \(align\) cannot be inserted after nowhere of .*:build: "):
        open_network(f"{module}:build", layer="align", place="nowhere")
    with pytest.raises(ValueError, match=r"some\.onnx holds a whole network"):
        open_network("some.onnx", layer="align", place="x")


def test_two_networks():
    cnn = open_network("cnn")
    renamed = distinct_names([cnn, cnn])
    assert [network.name for network in renamed] == ["cnn (trained on mnist-r)", "cnn (trained on mnist-r), 2"]
    assert distinct_names([cnn, open_network("pr_cnn")])[0].name == "cnn"
    three = [replace(cnn, classes=classes) for classes in (None, ["a", "b"], ["b", "a"])]
    assert (common_classes(three[:1]), common_classes(three[:2])) == (None, ["a", "b"])
    with pytest.raises(ValueError, match=r"cnn and cnn have other classes, .*--no-labels"):
        common_classes(three)


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
    with pytest.raises(ImportError, match=r"networks of timm need it .*: pip install 'patchreorder\[vision\]'"):
        open_network("timm:some")


def test_weights_that_cannot_be_downloaded(monkeypatch):
    def offline(name, pretrained):
        raise OSError("no connection")

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=offline))
    with pytest.raises(OSError, match=r"weights of timm:resnet18 cannot be downloaded: give a file .* \(no connection"):
        open_network("timm:resnet18")
