"""Checkpoints: one safetensors file whose header holds the state as JSON, written whole or not at all; never pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from patchreorder.results import write_whole


def write(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Replace the file by these tensors and this state (JSON values)."""
    whole = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    write_whole(path, save(whole, metadata={"state": json.dumps(state)}))


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write` wrote.

    Raises:
        ValueError: if the file is cut, damaged, or no checkpoint.
    """
    try:
        with safe_open(path, framework="pt") as file:
            state = json.loads((file.metadata() or {})["state"])
            return {name: file.get_tensor(name) for name in file.keys()}, state  # noqa: SIM118
    except (SafetensorError, KeyError, ValueError) as error:
        raise ValueError(
            f"{path} is no checkpoint or is damaged ({error}): remove it to train from the start"
        ) from None


def copy_into(target: Mapping[str, Tensor], source: Mapping[str, Tensor], prefix: str) -> None:
    """Copy the tensors whose names start with the prefix into those of the target, in place.

    Raises:
        ValueError: if a name or a shape does not fit.
    """
    found = {name[len(prefix) :]: tensor for name, tensor in source.items() if name.startswith(prefix)}
    if found.keys() != target.keys():
        names = ", ".join(sorted(found.keys() ^ target.keys())[:4])
        raise ValueError(f"the checkpoint is of another network: {names} are in one of them only")
    with torch.no_grad():
        for name, tensor in target.items():
            if tensor.shape != found[name].shape:
                raise ValueError(
                    f"the checkpoint is of another network: {name} is {tuple(found[name].shape)} there, "
                    f"{tuple(tensor.shape)} here"
                )
            tensor.copy_(found[name])
