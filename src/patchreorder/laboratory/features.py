"""Features of frozen convolutions: computed once for every photograph and copy, and kept on the disk."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from patchreorder.data.loader import stream
from patchreorder.data.photos import Photos
from patchreorder.data.views import VIEWS
from patchreorder.engine import checkpoint
from patchreorder.engine.batches import model_input
from patchreorder.files import digest
from patchreorder.models import alexnet

from .cells import Job
from .recipe import Row

CHUNK = 512  # images in a file of features
BATCH = 32  # images in a forward pass
ROOM = 2 << 30  # bytes of feature maps that are kept in memory
OWN_TRUNK = ("alexnet_si", "alexnet_blur")  # models that differ from AlexNet before the output of conv5

Chunk = tuple[int, int]  # the copy, and the first image


class Features:
    """The features of every image, of one or several copies, as a data set to train on."""

    def __init__(self, values: Tensor, labels: Tensor) -> None:
        self.values, self.labels = values, labels  # (copies, n, d) and (n,)

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Tensor, *, epoch: int = 0) -> tuple[Tensor, Tensor]:
        return self.values[epoch % len(self.values), indices], self.labels[indices]


class FeatureCache:
    """Computes features, writes them to the output folder, and shares conv5's maps between rows while there is room."""

    def __init__(self) -> None:
        self.maps: OrderedDict[tuple[str, Chunk], Tensor] = OrderedDict()
        self.fingerprints: dict[int, str] = {}

    def fingerprint(self, tensors: Mapping[str, Tensor]) -> str:
        """A digest of weights that stay in memory, computed once."""
        if id(tensors) not in self.fingerprints:
            self.fingerprints[id(tensors)] = checkpoint.fingerprint(tensors)
        return self.fingerprints[id(tensors)]

    def features(
        self,
        job: Job,
        images: Photos,
        every: Photos,
        *,
        copies: int,
        facts: Mapping[str, Any],
        network: Callable[[], nn.Module],
    ) -> Features:
        """The features of a job's network.

        Args:
            job: whose row and output folder.
            images: what features are asked of.
            every: the images that features are kept of, a superset.
            copies: of every image, each in another pose if the view draws poses.
            facts: which weights and images these are.
            network: makes the row's network.
        """
        # Views that draw nothing are the same for all seeds.
        facts = {**facts, "view": images.view, "seed": images.seed if VIEWS[images.view].numbers else 0}
        folder = job.out / "features" / digest({"model": job.row.model, "options": dict(job.row.options)} | facts)
        show = job.screen.count(f"{job.row.title}: features ({images.view})", copies * len(every))
        chunks = [(copy, start) for copy in range(copies) for start in range(0, len(every), CHUNK)]
        found = {}
        for chunk in chunks:
            kept = _read(_file(folder, chunk), min(CHUNK, len(every) - chunk[1]))
            if kept is not None:
                found[chunk] = kept
                show(len(kept))
        missing = [chunk for chunk in chunks if chunk not in found]
        if missing:
            trunk, tail = alexnet.cut(alexnet.split(network())[0].to(job.world.device).eval())
            known = digest([facts, own_trunk(job.row)])
            for chunk, maps in self._maps(trunk, every, missing, known, job):
                with torch.inference_mode():
                    found[chunk] = torch.cat([tail(part.to(job.world.device)).cpu() for part in maps.split(BATCH)])
                checkpoint.write(_file(folder, chunk), {"features": found[chunk]}, {"chunk": chunk})
                show(len(maps))
        each = [torch.cat([found[chunk] for chunk in chunks if chunk[0] == copy]) for copy in range(copies)]
        if len(every) != len(images):
            positions = torch.searchsorted(every.chosen, images.chosen)
            each = [values[positions] for values in each]
        return Features(torch.stack(each), images.labels)

    def _maps(
        self, trunk: nn.Module, images: Photos, chunks: Sequence[Chunk], known: str, job: Job
    ) -> Iterator[tuple[Chunk, Tensor]]:
        """The output of conv5 for every chunk of images; rows that differ only behind it share it."""
        parts = {
            (copy, start): torch.arange(start, min(start + CHUNK, len(images))).split(BATCH)
            for copy, start in chunks
            if (known, (copy, start)) not in self.maps
        }
        batches = stream(
            images, [(part, chunk[0]) for chunk, own in parts.items() for part in own], workers=images.workers
        )
        for chunk in chunks:
            maps = self.maps.get((known, chunk))
            if maps is None and chunk not in parts:  # dropped since, to make room for another chunk
                again = torch.arange(chunk[1], min(chunk[1] + CHUNK, len(images))).split(BATCH)
                maps = _run(trunk, stream(images, [(part, chunk[0]) for part in again], workers=0), len(again), job)
            elif maps is None:
                maps = _run(trunk, batches, len(parts[chunk]), job)
            self.maps[known, chunk] = maps
            while sum(kept.nbytes for kept in self.maps.values()) > ROOM:
                self.maps.popitem(last=False)
            yield chunk, maps


def own_trunk(row: Row) -> Any:
    """What identifies the layers up to conv5's output where they differ from AlexNet's; else ""."""
    if row.options.get("place", "conv5") not in alexnet.BEHIND:
        return [row.model, dict(row.options)]
    return row.model if row.model in OWN_TRUNK else ""


def _file(folder: Path, chunk: Chunk) -> Path:
    return folder / f"{chunk[0]}.{chunk[1]}.safetensors"


def _read(file: Path, count: int) -> Tensor | None:
    """Features of an earlier run; a cut or damaged file counts as none."""
    try:
        kept = checkpoint.read(file)[0]["features"] if file.is_file() else None
    except (ValueError, KeyError):
        return None
    return kept if kept is not None and len(kept) == count else None


def _run(trunk: nn.Module, batches: Iterator[tuple[Tensor, Tensor]], count: int, job: Job) -> Tensor:
    with torch.inference_mode():
        return torch.cat([trunk(model_input(next(batches)[0], job.world.device)).cpu() for _ in range(count)])
