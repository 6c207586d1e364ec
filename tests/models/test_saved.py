"""Saved classifiers: the same network again; files that are damaged, hostile or of another kind are refused."""

import json
from collections import OrderedDict
from dataclasses import asdict, replace

import pytest
import torch
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import nn

from patchreorder.models.backbones import BACKBONES, open_backbone
from patchreorder.models.photo_classifier import Block, FeatureBlocks, PhotoClassifier
from patchreorder.models.saved import FORMAT, ClassifierFacts, read_classifier, save_classifier
from tests.allocations import LargestTensor
from tests.vision import torchvision

FACTS = ClassifierFacts(
    backbone="mobilenet_v2",
    size=64,
    short=73,
    blocks=(Block("stage2", "ranked:quantiles=4"), Block("head", "gap", True)),
    classes=("cat", "dog"),
    threshold=1.5,
    directions=3,
    rotations=45.0,
    flips=True,
    report={"verdict": "good"},
)


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    backbone = open_backbone("mobilenet_v2", trained=False)
    features = FeatureBlocks(backbone.model, backbone.layers, FACTS.blocks).eval()
    return PhotoClassifier(features, widths=features.widths(64), classes=2, directions=3).eval()


@pytest.fixture
def file(network, tmp_path):
    save_classifier(tmp_path / "c.safetensors", network, FACTS)
    return tmp_path / "c.safetensors"


def rewritten(file, **changed):
    """The file with other facts."""
    facts = {"format": FORMAT, **asdict(FACTS), **changed}
    tensors = from_bytes(file.read_bytes())
    file.write_bytes(to_bytes(tensors, metadata={"classifier": json.dumps(facts)}))
    return file


def test_a_saved_classifier_is_the_same_again(network, file):
    again, facts = read_classifier(file)
    x = torch.rand(2, 3, 64, 64)
    assert facts == FACTS
    with torch.no_grad():
        for ours, theirs in zip(again.judge(x), network.judge(x), strict=True):
            assert torch.equal(ours, theirs)
    assert not any(parameter.requires_grad for parameter in again.parameters())


def test_a_network_that_computes_its_widths_in_tensors(tmp_path):
    """Shapes are compared on a device without memory, where tensors have no values."""
    torchvision()
    facts = replace(FACTS, backbone="torchvision:regnet_y_400mf", blocks=(Block("features", "gap"),))
    backbone = open_backbone(facts.backbone, trained=False)
    features = FeatureBlocks(backbone.model, backbone.layers, facts.blocks)
    model = PhotoClassifier(features, widths=features.widths(64), classes=2, directions=3).eval()
    save_classifier(tmp_path / "c.safetensors", model, facts)
    again, _ = read_classifier(tmp_path / "c.safetensors")
    with torch.no_grad():
        assert torch.equal(again(torch.ones(1, 3, 64, 64)), model(torch.ones(1, 3, 64, 64)))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"format": 1}, "another version: fit it again"),
        ({"classes": ["one"]}, "classes must be from 2"),
        ({"classes": ["a", "b", "c"]}, "missing or has another shape"),
        ({"blocks": []}, "none that `fit` makes"),
        ({"blocks": [["head", "ranked:quantiles=1000000000", False]]}, "none that `fit` makes"),
        ({"blocks": [["head", "reorder:levels=10000000000", False]]}, "none that `fit` makes"),
        ({"blocks": [["nowhere", "gap", False]]}, "must be one of stage1"),
        ({"blocks": [["head", "flatten", False]]}, "none that `fit` makes"),
        ({"size": 10**9}, "must be from 32 to 2048"),
        ({"size": "64"}, "must be from 32 to 2048"),
        ({"directions": 10**9}, "directions"),
        ({"threshold": None}, "must be numbers"),
        ({"backbone": "os:system"}, "backbone .* is unknown"),
        ({"backbone": "timm:hf-hub:somebody/model"}, "backbone .* is unknown"),
        ({"backbone": "timm:local-dir:/tmp"}, "backbone .* is unknown"),
        ({"backbone": "torchvision:../x"}, "backbone .* is unknown"),
        ({"backbone": ["alexnet"]}, "backbone .* is unknown"),
        ({"backbone": "x" * 10**6}, "backbone .* is unknown"),
    ],
)
def test_other_facts_are_refused(changed, reason, file):
    with pytest.raises(ValueError, match=rf"is not a classifier of `patchreorder fit`.*{reason}") as caught:
        read_classifier(rewritten(file, **changed))
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("text", ["[]", "[1, 2]", "3", "null", '"x"', "{}", "[" * 100_000, "{"])
def test_other_metadata_are_refused(text, file):
    file.write_bytes(to_bytes(from_bytes(file.read_bytes()), metadata={"classifier": text}))
    with pytest.raises(ValueError, match="is not a classifier"):
        read_classifier(file)


def test_a_file_that_claims_many_classes_is_refused_before_memory_is_allocated(file):
    """The head alone would have 164 million values."""
    claimed = {"classes": ["x"] * 2000, "blocks": [["head", "ranked:quantiles=64", False]], "size": 256, "short": 256}
    with LargestTensor() as made, pytest.raises(ValueError, match=r"head\.weight is missing or .* \(2000, 81920\)"):
        read_classifier(rewritten(file, **claimed))
    assert made.values < 5_000_000


def test_a_file_that_claims_a_large_backbone_is_refused_before_memory_is_allocated(file, monkeypatch):
    """A network of a package may have a billion weights."""
    large = replace(BACKBONES["alexnet"], create=lambda: nn.Sequential(OrderedDict(features=nn.Linear(9000, 9000))))
    monkeypatch.setitem(BACKBONES, "alexnet", replace(large, layers={"head": "features"}))
    with LargestTensor() as made, pytest.raises(ValueError, match="missing or has another shape than"):
        read_classifier(rewritten(file, backbone="alexnet", blocks=[["head", "gap", False]]))
    assert made.values < 5_000_000


def test_names_of_classes_lose_escape_sequences(file):
    _, facts = read_classifier(rewritten(file, classes=["\x1b[31mred", "dog"]))
    assert facts.classes == (" [31mred", "dog")


@pytest.mark.parametrize("content", [b"", b"no safetensors", b"\xff" * 100])
def test_other_files_are_refused(content, tmp_path):
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match="is not a classifier"):
        read_classifier(tmp_path / "x.safetensors")


def test_a_truncated_file_is_refused(file):
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(ValueError, match="is not a classifier"):
        read_classifier(file)


def test_more_tensors_are_refused(file):
    tensors = {**from_bytes(file.read_bytes()), "more": torch.zeros(1)}
    text = json.dumps({"format": FORMAT, **asdict(replace(FACTS))})
    file.write_bytes(to_bytes(tensors, metadata={"classifier": text}))
    with pytest.raises(ValueError, match="more tensors than its network: more"):
        read_classifier(file)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.safetensors"):
        read_classifier(tmp_path / "none.safetensors")
