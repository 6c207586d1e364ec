"""A trained classifier as one file: its weights, what they belong to, and the names of the classes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor
from torch.overrides import TorchFunctionMode

from patchreorder.files import write_whole
from patchreorder.untrusted import clean, is_count, is_number

from .backbones import BACKBONES, open_backbone
from .familiarity import DIRECTIONS
from .packages import PACKAGES
from .photo_classifier import Block, FeatureBlocks, PhotoClassifier

FORMAT = 2
MOST_CLASSES, MOST_BLOCKS = 100_000, 32
POOL = re.compile(r"gap|ranked:quantiles=([1-9]|[1-5][0-9]|6[0-4])")  # what a file may ask for
NETWORK = re.compile(
    rf"({'|'.join(PACKAGES)}):[A-Za-z0-9_.]+"
)  # not timm's hf-hub: and local-dir:, which read elsewhere


@dataclass(frozen=True)
class ClassifierFacts:
    """What a classifier file says beside its weights.

    Args:
        backbone: its name, see `open_backbone`.
        size, short: pixels a side of the crop, and of the short side of the photograph before it.
        blocks: what the head reads.
        classes: their names.
        threshold: an image that is farther than this from all classes is none of them.
        directions: of `Familiarity`.
        rotations, flips: poses that mean the same thing, for `views`.
        report: numbers that were measured when it was made.
    """

    backbone: str
    size: int
    short: int
    blocks: tuple[Block, ...]
    classes: tuple[str, ...]
    threshold: float
    directions: int = 1
    rotations: float = 180.0
    flips: bool = False
    report: Mapping[str, Any] = field(default_factory=dict)


def save_classifier(path: Path, model: PhotoClassifier, facts: ClassifierFacts) -> None:
    """Write a classifier, whole or not at all."""
    tensors = {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}
    text = json.dumps({"format": FORMAT, **asdict(facts)})
    write_whole(path, to_bytes(tensors, metadata={"classifier": text}))


def read_classifier(path: str | Path) -> tuple[PhotoClassifier, ClassifierFacts]:
    """The network of a file that `patchreorder fit` wrote, in evaluation mode, and its facts.

    Nothing in the file is run, nothing is downloaded, and shapes are compared before weights are allocated.

    Raises:
        ValueError: the file is truncated, damaged, or of another kind.
        OSError: it cannot be opened.
    """
    Path(path).open("rb").close()  # or a missing file would be reported as a damaged one
    try:
        with safe_open(path, framework="pt") as file:
            facts = _facts(json.loads((file.metadata() or {})["classifier"]))
            shapes = {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118
            model = _network(facts, shapes)
            model.load_state_dict({key: file.get_tensor(key).float() for key in model.state_dict()})
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError, RecursionError) as error:
        reason = clean(" ".join(str(error).split())[:200])
        raise ValueError(f"{path} is not a classifier of `patchreorder fit`, or is damaged: {reason}") from None
    return model.requires_grad_(False).eval(), facts


def _facts(text: Any) -> ClassifierFacts:
    if not isinstance(text, dict) or text.get("format") != FORMAT:
        raise ValueError("it was made by another version: fit it again")
    classes, blocks = clean(text["classes"]), [Block(str(a), str(b), bool(c)) for a, b, c in text["blocks"]]
    if not (isinstance(classes, list) and 2 <= len(classes) <= MOST_CLASSES):
        raise ValueError(f"classes must be from 2 to {MOST_CLASSES}")
    if not 1 <= len(blocks) <= MOST_BLOCKS or not all(POOL.fullmatch(block.pool) for block in blocks):
        raise ValueError("its blocks are none that `fit` makes")
    if not (is_count(text["size"]) and is_count(text["short"]) and 32 <= text["size"] <= text["short"] <= 2048):
        raise ValueError(f"size ({text['size']!r}) and short ({text['short']!r}) must be from 32 to 2048")
    if not (is_count(text["directions"]) and 1 <= text["directions"] <= DIRECTIONS):
        raise ValueError(f"directions ({text['directions']!r}) must be from 1 to {DIRECTIONS}")
    if not is_number(text["threshold"]) or not is_number(text["rotations"]):
        raise ValueError("threshold and rotations must be numbers")
    if not is_backbone(text["backbone"]):
        raise ValueError(f"its backbone ({str(text['backbone'])[:80]!r}) is unknown")
    return ClassifierFacts(
        backbone=text["backbone"],
        size=text["size"],
        short=text["short"],
        blocks=tuple(blocks),
        classes=tuple(str(name) for name in classes),
        threshold=float(text["threshold"]),
        directions=text["directions"],
        rotations=float(text["rotations"]),
        flips=bool(text["flips"]),
        report=clean(text["report"]) if isinstance(text["report"], dict) else {},
    )


def is_backbone(name: Any) -> bool:
    """Whether a classifier file may name this backbone.

    >>> [is_backbone(name) for name in ("alexnet", "timm:resnet18.a1_in1k", "timm:hf-hub:somebody/model", 3)]
    [True, True, False, False]
    """
    return isinstance(name, str) and (name in BACKBONES or NETWORK.fullmatch(name) is not None)


def _network(facts: ClassifierFacts, shapes: Mapping[str, list[int]]) -> PhotoClassifier:
    """The network that a file describes, with new weights, if the file's tensors have its shapes."""
    numbers = {"classes": len(facts.classes), "directions": facts.directions}
    outline = _outline(facts)
    _compare(outline.state_dict(prefix="features."), shapes)
    features = _features(facts)
    widths = features.widths(facts.size)
    with torch.device("meta"):
        wanted = PhotoClassifier(outline, widths=widths, **numbers).state_dict()
    _compare(wanted, shapes)
    if more := [key for key in shapes if key not in wanted]:
        raise ValueError(f"it has more tensors than its network: {', '.join(more[:3])}")
    return PhotoClassifier(features, widths=widths, **numbers)


def _outline(facts: ClassifierFacts) -> FeatureBlocks:
    """The features' shapes, without memory for weights."""
    try:
        with torch.device("meta"):
            return _features(facts)
    except (ValueError, RuntimeError):  # RegNet computes its widths in tensors
        with torch.device("meta"), _NumbersInMemory():
            return _features(facts)


class _NumbersInMemory(TorchFunctionMode):
    """Inside its block, tensors that are made of numbers have values, also on the device "meta"."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        numbers = {"device": "cpu"} if func in (torch.arange, torch.tensor) else {}
        return func(*args, **numbers | (kwargs or {}))


def _compare(wanted: Mapping[str, Tensor], shapes: Mapping[str, list[int]]) -> None:
    for key, value in wanted.items():
        if shapes.get(key) != list(value.shape):
            raise ValueError(f"{key} is missing or has another shape than {tuple(value.shape)}")


def _features(facts: ClassifierFacts) -> FeatureBlocks:
    backbone = open_backbone(facts.backbone, trained=False)
    return FeatureBlocks(backbone.model, backbone.layers, facts.blocks).eval()
