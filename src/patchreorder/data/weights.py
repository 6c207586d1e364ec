"""Files of weights, read without running their code."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor


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
    return load_pickled(path, str(path))


def load_pickled(content: Path | io.BytesIO, name: str) -> dict[str, Tensor]:
    """Named tensors that torch saved, by torch's reader for tensors and plain containers; `name` is for errors."""
    try:
        tensors = torch.load(content, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file makes torch's readers raise errors of every kind
        raise ValueError(f"{name} cannot be read as weights: {' '.join(str(error).split())[:240]}") from error
    if not isinstance(tensors, dict) or not all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in tensors.items()
    ):
        raise ValueError(f"{name} holds no plain dict of tensors: store model.state_dict() and nothing else")
    return dict(tensors)


class ArrayUnpickler(pickle.Unpickler):
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


def to_safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """A safetensors file, byte by byte: another version of the library may write another header than the pinned one."""
    header, contents, end = {}, [], 0
    for name in sorted(tensors):
        contents.append(tensors[name].numpy().astype("<f4").tobytes())
        start, end = end, end + len(contents[-1])
        header[name] = {"dtype": "F32", "shape": list(tensors[name].shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(contents)
