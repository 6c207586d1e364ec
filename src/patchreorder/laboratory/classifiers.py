"""The task of the table of classifiers: heads on features of a frozen backbone, tested in poses that they never saw."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from patchreorder.classifier import choose, evaluate
from patchreorder.classifier.choose import Candidate, Scored
from patchreorder.classifier.classifier import views_of
from patchreorder.classifier.features import Features, compute, stored_blocks
from patchreorder.classifier.finetune import finetuned
from patchreorder.classifier.fit import FitOptions, Part, fit_head
from patchreorder.classifier.photographs import (
    ANGLES,
    Cropper,
    Photographs,
    SamePoses,
    Shown,
    crop,
    crops,
    first_of_each,
    open_photographs,
    swept,
    training_poses,
)
from patchreorder.data.generated import write_photos
from patchreorder.data.poses import UPRIGHT, Pose
from patchreorder.data.views import posed
from patchreorder.engine.batches import model_input
from patchreorder.files import digest
from patchreorder.layers.registry import create_layer
from patchreorder.models.backbones import OpenedBackbone, open_backbone
from patchreorder.models.photo_classifier import Block

from .cells import Job
from .provenance import provenance
from .recipe import Plan
from .rows import Result
from .task import Task

SWEPT = 6  # of the 24 rotations for each test photograph; photographs take turns
COPIES = 4
TEST_SEED = 1
SMOKE = 128  # pixels a side, for smoke runs
VIEWED = 4  # test poses of several views: as they are, R, T, and one of the rotations


@dataclass(frozen=True)
class Tested:
    """Scores of a row's classifier for every test photograph in every pose, and what they cost."""

    scores: Tensor  # (photographs, poses, classes)
    labels: Tensor
    parameters: int
    seconds: float
    cpu_seconds: float
    facts: Mapping[str, Any]


class ClassifierTask(Task):
    """Fits a classifier for each row and seed, and tests it in all columns.

    The features of the photographs are kept in files of the output folder, and shared by the rows of a backbone. A seed
    draws the posed copies that are trained on; test poses are the same for all.
    """

    changeable = ("per_class",)

    def __init__(self) -> None:
        self.opened: dict[tuple[Path, int | None], tuple[Photographs, Photographs]] = {}
        self.backbones: dict[tuple[str, str], OpenedBackbone] = {}
        self.parts: dict[Any, Part] = {}
        self.last: tuple[Path, Tested] | None = None

    def identify(self, data: Path | None, plan: Plan, split: str) -> str:
        if data is None:
            return ""
        return digest([[part.names, part.labels.tolist()] for part in self.open(data, plan.per_class)])

    def measure(self, job: Job) -> Result:
        if self.last is None or self.last[0] != job.folder:
            self.last = None
            self.last = job.folder, self.tested(job)
        tested = self.last[1]
        right = tested.scores.argmax(2) == tested.labels[:, None]
        value, n, errors, details = column_value(right, job.column.dataset)
        answers = tested.scores.argmax(2)[errors, _POSES[job.column.dataset]].tolist() if errors else []
        return Result(
            **job.cell._asdict(),
            metric="right %",
            value=value,
            n=n,
            steps=0,
            seconds=round(tested.seconds, 1),
            cpu_seconds=round(tested.cpu_seconds, 1),
            parameters=tested.parameters,
            errors=errors,
            answers=answers,
            details={
                "dataset": job.column.dataset,
                **tested.facts,
                **details,
                "threads": torch.get_num_threads(),
                "processes": 1,
                "resumed": 0,
                "note": job.plan.note,
            },
            **provenance(),
        )

    def tested(self, job: Job) -> Tested:
        options = dict(job.row.options)
        backbone = self.backbone(job)
        extra = [Block(*block) for block in options.get("maps", ())]
        known, unseen = self.features(job, backbone, extra)
        begun, cpu = time.perf_counter(), time.process_time()
        classes = len(known.photographs.classes)
        facts: dict[str, Any] = {}
        if job.row.model == "neighbours":
            (block,) = stored_blocks(backbone)[-1:]
            vectors, test = known.features.block(block, [0])[:, 0], unseen.features.block(block)
            votes = evaluate.nearest_neighbours(vectors, known.labels, test.flatten(0, 1), classes=classes)
            scores, parameters = votes.unflatten(0, test.shape[:2]), vectors.numel()
        elif job.row.model == "head":
            blocks = tuple(Block(*block) for block in options["blocks"]) if "blocks" in options else tuple(extra)
            chosen = self.best(known, Candidate(job.row.name, blocks), copies=options.get("copies", False))
            head = choose.train(known.features, known.labels, chosen, classes=classes)
            poses = range(next(iter(unseen.features.pools.values())).shape[1])
            every = [torch.cat([unseen.features.block(block, [p]) for block in blocks], 2) for p in poses]
            scores = torch.cat([head(each) for each in every], 1)
            parameters = head.weight.numel() + head.bias.numel()
            facts = {"strength": chosen.strength}
        else:
            scores, parameters, facts = self.fitted(job, backbone, known, unseen)
        own = _new(known.features, unseen.features)
        seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - cpu
        return Tested(scores[own], unseen.labels[own], parameters, seconds, cpu_seconds, facts)

    def best(self, known: Part, candidate: Candidate, *, copies: bool) -> Scored:
        """A candidate at the strength that cross-validation prefers."""
        classes = len(known.photographs.classes)
        last = next(block for block in reversed(list(known.features.pools)) if block.pool == "gap")
        folds = choose.folds_of(known.features, known.labels, last)
        tried = choose.cross_validate(known.features, known.labels, folds, classes=classes, candidates=[candidate])
        return next(each for each in tried if each.copies == copies)

    def fitted(
        self, job: Job, backbone: OpenedBackbone, known: Part, unseen: Part
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """What `fit` chooses by itself; answers of several views are averaged, or all layers are trained further."""
        options = FitOptions(seed=job.cell.seed, copies=COPIES, workers=job.resources.workers)
        made = fit_head(backbone, known, unseen, options)
        facts: dict[str, Any] = {"chosen": made.report["chosen"]}
        views, epochs = job.row.options.get("views", 1), job.row.options.get("finetune", 0)
        if epochs:
            made = finetuned(made, job.folder, options, epochs=epochs, screen=job.screen)
            facts["finetune"] = made.report["finetune"]
        if views == 1 and not epochs:
            blocks = made.chosen.candidate.blocks
            joined = [torch.cat([unseen.features.block(block, [p]) for block in blocks], 2) for p in range(3 + SWEPT)]
            weight, bias = made.network.head.weight, made.network.head.bias
            scores = torch.cat([each @ weight.T + bias for each in joined], 1)
        else:
            poses = VIEWED if views > 1 else 3 + SWEPT
            shown = [own[:poses] for own in test_poses(len(unseen.photographs))]
            cropper = ViewCropper(
                unseen.photographs, shown, made.facts.size, made.facts.short, tuple(views_of(made.facts, views))
            )
            count = job.screen.count(f"{job.row.title}: testing", len(unseen.features.kept))
            logits = network_logits(made.network, cropper, unseen.features.kept, job.resources.workers, count)
            scores = logits.unflatten(1, (poses, views)).mean(2)
        return scores, sum(value.numel() for value in made.network.parameters()), facts

    def open(self, data: Path, per_class: int | None) -> tuple[Photographs, Photographs]:
        if (data, per_class) not in self.opened:
            training, testing = open_photographs(data)
            self.opened[data, per_class] = first_of_each(training, per_class or len(training)), testing
        return self.opened[data, per_class]

    def photographs(self, job: Job) -> tuple[Photographs, Photographs]:
        folder = job.data
        if folder is None and job.plan.synthetic:
            folder = job.out / "generated"
            for part, images in (("train", 4), ("val", 2)):
                if not (folder / part).is_dir():
                    write_photos(folder / part, classes=3, images=images, seed=len(part))
        if folder is None:
            raise ValueError(f"{job.cell.recipe} needs --data DIR, a folder with CLASS/*.jpg, or with train/ and val/")
        return self.open(folder, job.plan.per_class)

    def backbone(self, job: Job) -> OpenedBackbone:
        """The row's backbone, with a layer of the family before it if the row has one."""
        name, front = job.row.options.get("backbone", "efficientnet_lite0"), job.row.options.get("input", "")
        if (name, front) not in self.backbones:
            trained = not job.plan.synthetic
            opened = open_backbone(
                name, size=SMOKE if job.plan.synthetic else None, say=job.screen.say, trained=trained
            )
            if front:
                model = nn.Sequential(create_layer(front), opened.model).eval()
                layers = {layer: f"1.{module}" for layer, module in opened.layers.items()}
                opened = dataclasses.replace(opened, model=model, layers=layers)
            self.backbones[name, front] = opened
        return self.backbones[name, front]

    def features(self, job: Job, backbone: OpenedBackbone, extra: list[Block]) -> tuple[Part, Part]:
        """Features of the training and the test photographs; blocks of whole maps have upright training alone."""
        training, testing = self.photographs(job)
        copies = 0 if extra or "input" in job.row.options else COPIES
        seed = job.cell.seed if copies else 0
        blocks = [*extra, *stored_blocks(backbone)[-1:]] if extra else stored_blocks(backbone)
        key = backbone.name, job.row.options.get("input", ""), tuple(blocks)
        for part, name in ((training, "train"), (testing, "test")):
            own = (*key, name, seed if name == "train" else 0)
            if own in self.parts:
                continue
            for other in [each for each in self.parts if each[:3] != key or each[3] == name]:
                del self.parts[other]  # of other rows: the memory is needed
            shown = (
                training_poses(len(part), SamePoses(), copies=copies, seed=seed)
                if name == "train"
                else test_poses(len(part))
            )
            count = job.screen.count(f"{job.row.title}: {len(part)} {name} photographs", len(part))
            known = [*key[:2], [list(block) for block in blocks], own[-1], part.names]  # no set removes another's
            folder = job.out / "features" / digest(known)
            workers = job.resources.workers
            found = compute(backbone, part, shown, folder=folder, workers=workers, report=count, blocks=blocks)
            self.parts[own] = Part(part, found)
        train, test = (*key, "train", seed), (*key, "test", 0)
        return self.parts[train], self.parts[test]


@dataclass(frozen=True)
class ViewCropper(Cropper):
    """Shows every posed photograph in several views, as `predict --views` does with a file."""

    views: tuple[Shown, ...] = ()

    def crops(self, image: Image.Image, shown: Sequence[Shown]) -> list[np.ndarray]:
        in_pose = [posed(image, each.pose, fill=each.fill) for each in shown]
        return [crop(each, view, size=self.size, short=self.short) for each in in_pose for view in self.views]


_POSES = {"Ori": 0, "R": 1, "T": 2}


def test_poses(count: int) -> list[list[Shown]]:
    """For each photograph: as it is, rotated by up to 45 degrees, shifted by up to a fifth, `SWEPT` of 24 rotations."""
    found = []
    for index in range(count):
        random = np.random.default_rng([TEST_SEED, index])
        degrees, (down, right) = float(random.uniform(-45, 45)), map(float, random.uniform(-0.2, 0.2, 2))
        poses = [UPRIGHT, Pose(degrees), Pose(0.0, down, right), *map(Pose, swept(index, SWEPT))]
        found.append([Shown(pose) for pose in poses])
    return found


@torch.inference_mode()
def network_logits(
    network: nn.Module,
    cropper: Cropper,
    indices: Sequence[int],
    workers: int,
    report: Callable[[int], None] = lambda more: None,
) -> Tensor:
    """Logits (photographs, poses, classes) in the poses of a cropper."""
    logits = []
    for own in crops(cropper, indices, workers=workers):
        if own.pixels is None:
            raise ValueError(f"{own.fault}: it was changed since its features were computed; run it again")
        images = torch.from_numpy(own.pixels).permute(0, 3, 1, 2)
        logits.append(network(model_input(images, torch.device("cpu"))))
        report(1)
    return torch.stack(logits)


def column_value(right: Tensor, column: str) -> tuple[float, int, list[int], dict[str, Any]]:
    """Percentage of right answers, out of how many, the wrong ones, and details, of (photographs, poses).

    `any` averages over the rotations of each photograph; `worst` is the rotation of the 24 with the fewest right.
    """
    if column in _POSES:
        own = right[:, _POSES[column]]
        return 100 * float(own.double().mean()), len(own), (~own).nonzero()[:, 0].tolist(), {}
    turned = right[:, 3:]
    if column == "any":
        scores = (100 * turned.double().mean(1)).tolist()
        return sum(scores) / len(scores), len(scores), [], {"scores": [round(each, 3) for each in scores]}
    hits: dict[float, list[bool]] = {angle: [] for angle in ANGLES}
    for index, own in enumerate(turned.tolist()):
        for angle, hit in zip(swept(index, SWEPT), own, strict=False):
            hits[angle].append(hit)
    shares = {angle: 100 * sum(own) / len(own) for angle, own in hits.items() if own}
    worst = min(shares, key=lambda angle: shares[angle])
    return shares[worst], len(hits[worst]), [], {"degrees": worst, "angles": shares}


def _new(known: Features, unseen: Features) -> Tensor:
    """Which test photographs are not also in the training, by content."""
    seen = set(known.digests)
    return torch.tensor([each not in seen for each in unseen.digests], dtype=torch.bool)
