"""Checkpoints: one safetensors file with the state as JSON in its header, written atomically; never pickle."""

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
    stored: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        own = tensor.detach().to("cpu").contiguous()
        storage = own.untyped_storage().data_ptr()
        stored[name] = own.clone() if storage in storages else own  # safetensors refuses tensors that share memory
        storages.add(storage)
    text = json.dumps(state)
    write_whole(path, save(stored, metadata={"state": text, "checksum": fingerprint(stored, text)}))


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the state of a checkpoint.

    Raises:
        ValueError: if the file is truncated, damaged, or not a checkpoint.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state = json.loads(metadata["state"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if not isinstance(state, dict):
            raise ValueError("its state is not a JSON object")
        if metadata.get("checksum") != fingerprint(tensors, metadata["state"]):
            raise ValueError("its checksum is wrong")
    except (SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is not a checkpoint or is damaged ({error}): remove it to train from the start"
        ) from None
    return tensors, state


def copy_into(target: Mapping[str, Tensor], source: Mapping[str, Tensor]) -> None:
    """Copy the tensors into those of the target, in place: all of them or none.

    Raises:
        ValueError: if names, shapes or types differ.
    """
    if source.keys() != target.keys():
        names = ", ".join(sorted(source.keys() ^ target.keys())[:4])
        raise ValueError(f"another network: {names} in one of them only")
    for name, here in target.items():
        there = source[name]
        if there.shape != here.shape or there.dtype != here.dtype:
            raise ValueError(
                f"another network: {name} is {tuple(there.shape)} {there.dtype} there, "
                f"{tuple(here.shape)} {here.dtype} here"
            )
    with torch.no_grad():
        for name, tensor in target.items():
            tensor.copy_(source[name])


def fingerprint(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """A checksum of names, types, shapes, values and the text; safetensors has none."""
    value = zlib.crc32(text.encode())
    for name, tensor in sorted(tensors.items()):
        value = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), value)
        value = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, value)
    return f"{value:08x}"
