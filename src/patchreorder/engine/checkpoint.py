"""Checkpoints: one safetensors file whose header holds the state as JSON, written whole or not at all; never pickle."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from patchreorder.files import write_whole


def write(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Replace the file by these tensors and this state (JSON values)."""
    whole: dict[str, Tensor] = {}
    places: set[int] = set()
    for name, tensor in tensors.items():
        own = tensor.detach().to("cpu").contiguous()
        place = own.untyped_storage().data_ptr()
        whole[name] = own.clone() if place in places else own  # shared weights: safetensors refuses shared memory
        places.add(place)
    text = json.dumps(state)
    write_whole(path, save(whole, metadata={"state": text, "checksum": fingerprint(whole, text)}))


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write` wrote.

    Raises:
        ValueError: if the file is cut, damaged, or no checkpoint.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state = json.loads(metadata["state"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if not isinstance(state, dict):
            raise ValueError("its state is no JSON object")
        if metadata.get("checksum") not in (None, fingerprint(tensors, metadata["state"])):
            raise ValueError("its checksum does not fit")
    except (SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is no checkpoint or is damaged ({error}): remove it to train from the start"
        ) from None
    return tensors, state


def copy_into(target: Mapping[str, Tensor], source: Mapping[str, Tensor]) -> None:
    """Copy the tensors into those of the target, in place: all of them or none.

    Raises:
        ValueError: if a name, a shape or a type does not fit.
    """
    if source.keys() != target.keys():
        names = ", ".join(sorted(source.keys() ^ target.keys())[:4])
        raise ValueError(f"another network: {names} in one of them only")
    for name, tensor in target.items():
        there, here = source[name], tensor
        if there.shape != here.shape or there.dtype != here.dtype:
            raise ValueError(
                f"another network: {name} is {tuple(there.shape)} {there.dtype} there, "
                f"{tuple(here.shape)} {here.dtype} here"
            )
    with torch.no_grad():
        for name, tensor in target.items():
            tensor.copy_(source[name])


def fingerprint(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """Of everything in a file; safetensors has none, and a damaged weight is a number like any other."""
    value = zlib.crc32(text.encode())
    for name, tensor in sorted(tensors.items()):
        value = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), value)
        value = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, value)
    return f"{value:08x}"
