"""Features of photographs in poses, computed once by a frozen backbone and kept in files, so that a killed run goes on.

What is kept are the pools of the layers before they are normalised: four quantiles of the sorted values of a map
contain its average too. Every candidate for the head is made of them without another forward pass.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from patchreorder.engine import checkpoint
from patchreorder.engine.batches import model_input
from patchreorder.files import digest
from patchreorder.models.backbones import OpenedBackbone
from patchreorder.models.photo_classifier import Block, FeatureBlocks, normalised

from .photographs import Cropper, Crops, Photographs, Shown, crops

QUANTILES = 4
_OURS = re.compile(r"[0-9]{8}\.safetensors|\.[0-9]{8}\.safetensors\.[0-9a-f]{8}")  # written, and being written
CHUNK = 64  # photographs of a file
BATCH = 32  # images of a forward pass


@dataclass(frozen=True)
class Features:
    """Pools of the photographs of one part in all their poses.

    Args:
        kept: indices of the photographs that could be read.
        digests: of the contents of their files.
        faults: of the others: name -> reason.
        pools: blocks that were computed -> (photographs, poses, values), float16.
    """

    kept: list[int]
    digests: list[str]
    faults: dict[str, str]
    pools: Mapping[Block, Tensor]

    def block(self, wanted: Block, poses: slice | Sequence[int] = slice(None)) -> Tensor:
        """A block as the head reads it: (photographs, poses, values), float32, of unit length."""
        quarters = f"ranked:quantiles={QUANTILES}"
        for own, values in self.pools.items():
            same = own.pool == wanted.pool
            if own.layer == wanted.layer and (same or (own.pool, wanted.pool) == (quarters, "gap")):
                chosen = values[:, poses].float()
                if not same:
                    chosen = chosen.unflatten(2, (-1, QUANTILES)).mean(3)
                return normalised(chosen, root=wanted.root)
        raise ValueError(f"block ({wanted}) was not computed: {', '.join(map(str, self.pools))}")


def stored_blocks(backbone: OpenedBackbone) -> list[Block]:
    """What is computed for a backbone: quantiles of its last inner layers, and the average of its last maps."""
    names = list(backbone.layers)
    inner = [Block(name, f"ranked:quantiles={QUANTILES}") for name in names[-5:-1]] if len(names) > 4 else []
    return [*inner, Block(names[-1], "gap")]


class Pooled(nn.Module):
    """Images to the pools of blocks, joined: (batch, values); not normalised."""

    def __init__(self, features: FeatureBlocks) -> None:
        super().__init__()
        self.features = features

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat(self.features.pooled(images), 1)


def compute(
    backbone: OpenedBackbone,
    photographs: Photographs,
    shown: Sequence[Sequence[Shown]],
    *,
    folder: Path,
    workers: int = 0,
    report: Callable[[int], None] = lambda more: None,
    blocks: Sequence[Block] | None = None,
) -> Features:
    """The features of all photographs in their poses; what is in the folder already is not computed again.

    Args:
        backbone: in evaluation mode.
        photographs: of one part.
        shown: the poses of each, as many for each.
        folder: for the files of features.
        workers: processes that decode and pose photographs.
        report: called with the number of photographs that are done since the last call.
        blocks: what to pool; by default `stored_blocks`.
    """
    blocks = stored_blocks(backbone) if blocks is None else list(blocks)
    network = Pooled(FeatureBlocks(backbone.model, backbone.layers, blocks)).eval()
    facts = {
        "backbone": checkpoint.fingerprint(backbone.model.state_dict()),
        "blocks": [list(block) for block in blocks],
        "size": [backbone.size, backbone.short],
        "names": digest([photographs.names, photographs.labels.tolist(), _stamps(photographs)]),
        "poses": digest([[[*each.pose, *each.fill] for each in own] for own in shown]),
    }
    place = folder / f"{photographs.part}-{digest(facts)}"
    _remove_others(folder, photographs.part, place)
    parts = [range(begin, min(begin + CHUNK, len(photographs))) for begin in range(0, len(photographs), CHUNK)]
    found = {part: _read(_file(place, part), part) for part in parts}
    missing = [part for part in parts if found[part] is None]
    report(sum(len(part) for part in parts if found[part] is not None))
    cropper = Cropper(photographs, shown, backbone.size, backbone.short)
    stream = crops(cropper, [index for part in missing for index in part], workers=workers)
    widths = network.features.widths(backbone.size)
    empty = torch.empty(0, len(shown[0]) if shown else 1, sum(widths), dtype=torch.half)
    for part in missing:
        taken = (crop for _, crop in zip(part, stream, strict=False))
        made = _compute_part(network, part, taken, photographs, empty, report)
        _write(_file(place, part), made)
        found[part] = made
    every = [own for part in parts if (own := found[part]) is not None]
    pools = torch.cat([empty, *(own.values for own in every if own.kept)]).split(widths, 2)
    return Features(
        [index for own in every for index in own.kept],
        [text for own in every for text in own.digests],
        {name: reason for own in every for name, reason in own.faults.items()},
        dict(zip(blocks, pools, strict=True)),
    )


@dataclass(frozen=True)
class _Part:
    """The photographs of one file."""

    kept: list[int]
    digests: list[str]
    faults: dict[str, str]
    values: Tensor  # (kept, poses, values), float16


def _write(path: Path, part: _Part) -> None:
    checkpoint.write(path, {"values": part.values}, {"kept": part.kept, "digests": part.digests, "faults": part.faults})


def _read(path: Path, part: range) -> _Part | None:
    """The features of a file; None if it is not there or damaged, so that they are computed again."""
    try:
        tensors, facts = checkpoint.read(path)
        found = _Part(facts["kept"], facts["digests"], facts["faults"], tensors["values"])
    except (OSError, KeyError, ValueError):
        return None
    return found if len(found.kept) + len(found.faults) == len(part) and len(found.kept) == len(found.values) else None


@torch.inference_mode()
def _compute_part(
    network: Pooled,
    part: range,
    taken: Iterator[Crops],
    photographs: Photographs,
    empty: Tensor,
    report: Callable[[int], None],
) -> _Part:
    kept, digests, faults, values = [], [], {}, []
    waiting: list[np.ndarray] = []

    def forward(all_of_them: bool) -> None:
        nonlocal waiting
        images = np.concatenate(waiting) if waiting else np.empty((0, 1, 1, 3), np.uint8)
        count = len(images) if all_of_them else len(images) // BATCH * BATCH
        for begin in range(0, count, BATCH):
            batch = torch.from_numpy(images[begin : min(begin + BATCH, count)]).permute(0, 3, 1, 2)
            values.append(network(model_input(batch, torch.device("cpu"))).half())
        waiting = [images[count:]] if count < len(images) else []

    for index, crop in zip(part, taken, strict=True):
        if crop.pixels is None:
            faults[photographs.names[index]] = crop.fault
        else:
            kept.append(index)
            digests.append(crop.digest)
            waiting.append(crop.pixels)
            if sum(map(len, waiting)) >= 2 * BATCH:
                forward(all_of_them=False)
        report(1)
    forward(all_of_them=True)
    made = torch.cat(values).unflatten(0, (len(kept), -1)).contiguous() if values else empty
    return _Part(kept, digests, faults, made)


def _file(place: Path, part: range) -> Path:
    return place / f"{part.start:08d}.safetensors"


def _stamps(photographs: Photographs) -> list[list[int]]:
    """Sizes and times of the files: a photograph that was changed is computed again."""
    found = []
    for index in range(len(photographs)):
        try:
            state = photographs.path(index).stat()
            found.append([state.st_size, state.st_mtime_ns])
        except OSError:
            found.append([])
    return found


def _remove_others(folder: Path, part: str, place: Path) -> None:
    """Remove features of other settings, which are of no use any more; whatever else is there stays."""
    for other in folder.glob(f"{part}-*"):
        if re.fullmatch(r"[a-z]+-[0-9a-f]{8}", other.name) and other != place and not other.is_symlink():
            for file in other.glob("*.safetensors*"):
                if _OURS.fullmatch(file.name):
                    file.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # not empty
                other.rmdir()
