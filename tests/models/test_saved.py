"""Saved classifiers: the same network again, from new and from old files; bad files are named."""

import json
import re

import pytest
import torch
from safetensors.torch import save as to_bytes

import patchreorder
from patchreorder import create_model
from patchreorder.models import saved
from patchreorder.operator.functional import patch_reorder


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("alexnet_pr", {"place": "pool5", "layer": "ranked:quantiles=3,weights=-0.5"}),
        ("alexnet_pr", {"place": "conv5", "layer": "ranked:keep=5"}),
        ("alexnet_pr", {"place": "input", "layer": "align"}),
        ("alexnet_pr", {"place": "conv1+conv4", "layer": "ranked:quantiles=2,centre=true"}),
        # As `fit` wrote them before there were other layers, and still does for these.
        ("alexnet_pr", {"place": "pool5", "grid": "pixels", "levels": 1}),
        ("alexnet_pr", {"place": "conv5", "grid": 2, "levels": 2, "per_channel": False}),
        ("alexnet", {}),
        ("alexnet_gap", {}),
    ],
)
def test_a_saved_classifier_is_the_same_again(name, options, tmp_path):
    options = {"variant": "torchvision", "width": 8, **options}
    model = create_model(name, classes=2, **options).eval()
    saved.save(tmp_path / "c.safetensors", model, name=name, options=options, classes=["cat", "dog"])
    again, classes = patchreorder.load_classifier(tmp_path / "c.safetensors")
    x = torch.rand(2, 3, 224, 224)
    assert classes == ["cat", "dog"]
    with torch.no_grad():
        assert torch.equal(again(x), model(x))


def test_an_old_file_is_read(tmp_path):
    """Its bytes put together here: names, shapes and facts as `fit` wrote them before layers had names."""
    shapes = {0: (64, 3, 11, 11), 3: (192, 64, 5, 5), 6: (384, 192, 3, 3), 8: (256, 384, 3, 3), 10: (256, 256, 3, 3)}
    weights = {f"features.{place}": shape for place, shape in shapes.items()}
    weights |= {"classifier.1": (4, 9216), "classifier.4": (4, 4), "classifier.6": (2, 4)}
    tensors = {f"{name}.weight": 0.01 * torch.randn(shape) for name, shape in weights.items()}
    tensors |= {f"{name}.bias": torch.zeros(shape[0]) for name, shape in weights.items()}
    options = {"width": 4, "variant": "torchvision", "place": "pool5", "grid": "pixels", "levels": 1}
    facts = {"model": "alexnet_pr", "options": options, "classes": ["cat", "dog"]}
    (tmp_path / "old.safetensors").write_bytes(to_bytes(tensors, metadata={"classifier": json.dumps(facts)}))
    model, _ = patchreorder.load_classifier(tmp_path / "old.safetensors")
    plain = create_model("alexnet", variant="torchvision", width=4, classes=2).eval()
    plain.load_state_dict(tensors)
    x = torch.rand(1, 3, 224, 224)
    with torch.no_grad():
        features = patch_reorder(plain.features(plain.normalise(x)), grid="pixels").flatten(1)
        torch.testing.assert_close(model(x), plain.classifier(features))


def test_a_file_with_a_layer_that_nobody_knows_is_named(tmp_path):
    facts = {"model": "alexnet_pr", "options": {"layer": "later:x=1", "place": "pool5"}, "classes": ["cat"]}
    (tmp_path / "c.safetensors").write_bytes(
        to_bytes({"x": torch.zeros(1)}, metadata={"classifier": json.dumps(facts)})
    )
    with pytest.raises(ValueError, match=re.escape("layer ('later:x=1') must begin with one of reorder")):
        patchreorder.load_classifier(tmp_path / "c.safetensors")
