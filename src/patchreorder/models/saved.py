"""A trained classifier as one file: weights, which network they belong to, and the names of the classes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import nn

from patchreorder.files import write_whole


def save(path: Path, model: nn.Module, *, name: str, options: Mapping[str, Any], classes: Sequence[str]) -> None:
    """Write a network of `create_model(name, dataset="imagenet", **options)`, whole or not at all."""
    facts = {"model": name, "options": dict(options), "classes": list(classes)}
    tensors = {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}
    write_whole(path, to_bytes(tensors, metadata={"classifier": json.dumps(facts)}))


def load_classifier(path: str | Path) -> tuple[nn.Module, list[str]]:
    """The network of a file that `patchreorder fit` wrote, in eval mode, and the names of its classes.

    It takes images (b, 3, 224, 224) from 0 to 1: a photograph scaled to a short side of 256 and cropped to its centre.

    Raises:
        ValueError: the file is truncated, damaged, or of another kind.
    """
    from . import create_model

    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {})["classifier"])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        name, options, classes = facts["model"], facts["options"], [str(name) for name in facts["classes"]]
        model = create_model(name, dataset="imagenet", **{**options, "classes": len(classes)})
        model.load_state_dict(tensors)
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{path} is not a classifier of `patchreorder fit`, or is damaged: {' '.join(str(error).split())[:200]}"
        ) from None
    return model.eval(), classes
