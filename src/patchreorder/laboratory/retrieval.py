"""The task of tables of retrieval: describe every image, and count how many of its group are its nearest."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from patchreorder.data.generated import write_ukbench
from patchreorder.data.ukbench import GROUP, UKBench
from patchreorder.engine.batches import model_input
from patchreorder.engine.distributed import World
from patchreorder.files import digest
from patchreorder.metrics.retrieval import ns_score
from patchreorder.models import alexnet
from patchreorder.models.backbones import SIZE
from patchreorder.models.features import LayerActivation
from patchreorder.search.descriptors import (
    BATCH,
    Descriptor,
    backbone_of,
    create_descriptor,
    describe,
    fingerprint,
    for_inference,
    layer_descriptor,
    open_descriptor,
)

from .cells import Job
from .provenance import provenance
from .recipe import Plan
from .rows import Result
from .task import Task
from .trained import ALEXNETS, load_trained, seeded, trained, untrained

LAYERS = {"fc6": "relu6", "fc7": "relu7"}  # activations are taken after the ReLU
GALLERIES = 4  # of class folders, to choose on
ROOM = 1 << 29  # numbers of maps that are kept for the rows that share them


class RetrievalTask(Task):
    """Describes images and scores their neighbours.

    The last network is kept for the next column, and feature maps for rows that differ only in how they pool them.
    """

    changeable = ("groups", "layer")

    def __init__(self) -> None:
        self.last: tuple[Any, Descriptor] | None = None
        self.maps: dict[tuple[str, str], Tensor] = {}  # by network and images
        self.opened: dict[tuple[Path, bool], list[UKBench]] = {}
        self.described: set[Path] = set()

    def identify(self, data: Path | None, plan: Plan, split: str) -> str:
        return "" if data is None else digest([name for images in self._open(data, split) for name in images.names])

    def measure(self, job: Job) -> Result:
        galleries = self.galleries(job)
        model = self.model(job)
        show = job.screen.count(f"{job.row.title}, {job.column.title}", sum(map(len, galleries)))
        begun, cpu_begun = time.perf_counter(), time.process_time()
        features = [self.features(model, images, world=job.world, report=show) for images in galleries]
        seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - cpu_begun
        scores = [ns_score(own, images.groups)[0] for own, images in zip(features, galleries, strict=True)]
        counts = torch.cat(scores)
        return Result(
            **job.cell._asdict(),
            metric="NS-score",
            value=counts.double().mean().item(),
            n=len(counts),
            steps=0,
            seconds=round(seconds, 1),
            cpu_seconds=round(cpu_seconds, 1),
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            details={
                "dataset": job.column.dataset,
                "descriptor": model.name,
                "dimensions": model.dimensions,
                "weights": fingerprint(model),
                "scores": counts.tolist(),  # of every query, so that rows can be compared
                "together": GROUP,
                "groups": len(counts) // GROUP,
                "batch": BATCH,
                "threads": torch.get_num_threads(),
                "processes": job.world.size,
                "resumed": 0,
                "note": job.plan.note,
            },
            **provenance(),
        )

    def features(
        self, model: Descriptor, images: UKBench, *, world: World, report: Callable[[int], None] = lambda more: None
    ) -> Tensor:
        """Descriptors of all images; maps that were computed for another row are used again."""
        with torch.inference_mode():
            first = model.maps(model_input(images.batch(torch.tensor([0]))[0], world.device))
        if len(images) * first.numel() > ROOM // 4:  # four columns
            return describe(model, images, world=world, report=report)
        own = digest([images.view, images.photos.seed, images.names])
        key = digest([repr(model.maps), fingerprint(model.maps)]), own
        if key not in self.maps:
            while sum(map(Tensor.numel, self.maps.values())) + len(images) * first.numel() > ROOM:
                self.maps.pop(next(iter(self.maps)))
            self.maps[key] = describe(nn.Sequential(model.maps, nn.Flatten()), images, world=world, report=report)
        maps = self.maps[key].view(-1, *first.shape[1:])
        with torch.inference_mode():
            return torch.cat([model.pooled(_laid_out(part, world)).cpu() for part in maps.split(BATCH)])

    def galleries(self, job: Job) -> list[UKBench]:
        """The images to search among; for validation, parts of class folders, each by itself."""
        folder = job.data
        if folder is None and job.plan.synthetic:
            folder = job.out / "generated"
            if job.world.is_main and not folder.is_dir():
                write_ukbench(folder, groups=2)
            job.world.barrier()
        if folder is None:
            wanted = "a folder with UK-Bench's files ukbenchNNNNN.jpg" if job.cell.split == "test" else "class folders"
            raise ValueError(f"{job.cell.recipe} needs --data DIR, {wanted}")
        opened = self._open(folder, job.cell.split)
        for line in opened[0].remarks() if folder not in self.described else ():
            job.screen.say(line)
        self.described.add(folder)
        own: dict[str, Any] = {"workers": job.resources.workers}
        if job.plan.poses_by_seed:
            own["seed"] = job.cell.seed
        seen = [replace(images, view=job.column.dataset, photos=replace(images.photos, **own)) for images in opened]
        return seen if job.plan.groups is None else [images.first(job.plan.groups) for images in seen]

    def model(self, job: Job) -> Descriptor:
        """The row's network; one process fetches its weights before the others load them."""
        known = (job.row, job.cell.seed, job.plan)
        if self.last is None or self.last[0] != known:
            self.last = None  # freed before the next one takes as much memory
            first = _model(job) if job.world.is_main else None
            job.world.barrier()
            self.last = known, (first or _model(job)).to(job.world.device)
        return self.last[1]

    def _open(self, folder: Path, split: str) -> list[UKBench]:
        test = split == "test"
        if (folder, test) not in self.opened:
            self.opened[folder, test] = [UKBench.open(folder)] if test else UKBench.galleries(folder, most=GALLERIES)
        return self.opened[folder, test]


def _laid_out(maps: Tensor, world: World) -> Tensor:
    """As a network gives maps."""
    layout = torch.channels_last if maps.ndim == 4 else torch.contiguous_format
    return maps.to(world.device).contiguous(memory_format=layout)


def _model(job: Job) -> Descriptor:
    if "layer" not in job.row.options:
        if job.plan.layer:
            raise ValueError(f"change (layer={job.plan.layer}) is for layers of trained networks, not {job.row.title}")
        if job.plan.synthetic:
            return for_inference(seeded(job.cell.seed, lambda: create_descriptor(job.row.model)))
        # The given file is AlexNet's: rows of other networks fetch theirs.
        weights = job.resources.weights if backbone_of(job.row.model) == "alexnet" else None
        return open_descriptor(job.row.model, weights=weights, say=job.screen.say)
    layer = job.plan.layer or job.row.options["layer"]
    table = "table2" if job.plan.trained == "paper" else "table2_grocery"
    model = untrained(job, ALEXNETS) if job.plan.synthetic else trained(job, job.plan.trained, table)
    return _at(model, job.row.model, layer)


def connected(run: Path, network: str, *, layer: str, **which: Any) -> Descriptor:
    """The activations of a layer of a trained AlexNet as a descriptor; fc6 and fc7 after their ReLU.

    Args:
        run, network, **which: see `load_trained`.
        layer: fc6 or fc7; or another name in the network's `layers`, or of a module.
    """
    return _at(load_trained(run, network, **which), network, layer)


def _at(model: nn.Module, network: str, layer: str) -> Descriptor:
    assert isinstance(model, alexnet.AlexNet)
    name, place = f"{network}/{layer}", LAYERS.get(layer, layer)
    place = model.layers.get(place, place)
    front, classifier = alexnet.split(model.eval())
    inside = place.removeprefix("classifier.")
    names = [name for name, _ in classifier.named_children()]
    if inside not in names:
        return for_inference(layer_descriptor(name, LayerActivation(model, place)))
    # Cut in two, for the front is the same for all trainings that left it as it was.
    parts = nn.Sequential(*list(classifier.children())[: names.index(inside) + 1])
    with torch.no_grad():
        dimensions = parts(front(torch.zeros(1, 3, SIZE, SIZE))).shape[1]
    return for_inference(Descriptor(name, front, parts, dimensions=dimensions))
