"""From folders of photographs to a classifier and what it is worth."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from patchreorder.engine.progress import SILENT, Screen
from patchreorder.models.backbones import OpenedBackbone, open_backbone
from patchreorder.models.familiarity import Familiarity
from patchreorder.models.photo_classifier import Block, FeatureBlocks, PhotoClassifier
from patchreorder.models.saved import ClassifierFacts, is_backbone, save_classifier

from .choose import (
    Scored,
    best,
    candidates,
    cross_validate,
    folds_of,
    out_of_fold_scores,
    posed,
    scaled,
    scores_of_copies,
    train,
)
from .evaluate import (
    calibration_error,
    classes_report,
    difference,
    mislabelled,
    mistakes_report,
    nearest_neighbours,
    poses_report,
)
from .features import Features, compute, stored_blocks
from .head import Head, temperature
from .photographs import Photographs, SamePoses, layout, open_photographs, sweep_poses, training_poses
from .refusal import Refusal, choose_threshold

BACKBONE = "efficientnet_lite0"
COST, LOSS = 0.5, 8.0  # points on photographs as they are, and in other poses, before it is said


@dataclass(frozen=True)
class FitOptions:
    """What `fit` is asked for.

    Args:
        same: poses that mean the same thing.
        backbone: see `open_backbone`.
        size: pixels a side of the images; by default the backbone's.
        copies: posed copies of each training photograph; by default 4, fewer for many photographs.
        test: fraction of the photographs that are for the test, if there is no val/.
        angles: rotations out of 24 that each test photograph is tested in.
        weights: file with the backbone's weights.
        workers: processes that decode photographs.
        seed: of the poses.
    """

    same: SamePoses = field(default_factory=SamePoses)
    backbone: str = BACKBONE
    size: int | None = None
    copies: int | None = None
    test: float = 0.2
    angles: int = 6
    weights: Path | None = None
    workers: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.copies is not None and not 0 <= self.copies <= 64:
            raise ValueError(f"copies ({self.copies}) must be from 0 to 64")
        if self.angles not in (1, 2, 3, 4, 6, 8, 12, 24):
            raise ValueError(f"angles ({self.angles}) must divide 24")
        if ":" in self.backbone and not is_backbone(self.backbone):  # its file could not be read again
            raise ValueError(
                f"backbone ({self.backbone!r}) must be timm:NAME or torchvision:NAME, of letters, digits, _ ."
            )


@dataclass(frozen=True)
class Part:
    """Photographs that could be read, with their features."""

    photographs: Photographs
    features: Features

    @property
    def labels(self) -> Tensor:
        return self.photographs.labels[torch.tensor(self.features.kept, dtype=torch.int64)]

    @property
    def names(self) -> list[str]:
        every = self.photographs.names
        return [every[index] for index in self.features.kept]

    def faults(self) -> dict[str, str]:
        """Why photographs cannot be read, by their names in the data's folder."""
        inside, every = self.photographs.inside, self.features.faults
        return {f"{inside}{name}": reason.removeprefix(f"{name} ") for name, reason in every.items()}

    def paths(self) -> list[str]:
        return [str(self.photographs.path(index)) for index in self.features.kept]


@dataclass(frozen=True)
class Fitted:
    """A classifier, its report (JSON values), and what both were made from."""

    network: PhotoClassifier
    facts: ClassifierFacts
    report: dict[str, Any]
    known: Part
    unseen: Part
    chosen: Scored
    plain: Scored


def default_copies(count: int) -> int:
    """Posed copies of each photograph: fewer where there are many.

    >>> [default_copies(count) for count in (400, 10_000, 100_000)]
    [4, 4, 1]
    """
    return 4 if count <= 10_000 else 2 if count <= 40_000 else 1


def fit(data: Path, out: Path, options: FitOptions, *, screen: Screen = SILENT) -> Fitted:
    """Fit a classifier to the photographs of a folder; write classifier.safetensors and keep its features in `out`.

    Raises:
        ValueError: the folder or an option does not fit.
        OSError: the backbone's weights cannot be fetched, or a file cannot be written.
    """
    begun, cpu = time.monotonic(), time.process_time()
    for folder in layout(data):
        if Path(os.path.realpath(out)).is_relative_to(os.path.realpath(folder)):
            raise ValueError(f"out ({out}) is in {folder}, whose folders are classes: name a folder elsewhere")
    training, testing = open_photographs(data, test=options.test)
    backbone = open_backbone(options.backbone, size=options.size, weights=options.weights, say=screen.say)
    copies = default_copies(len(training)) if options.copies is None else options.copies
    parts = []
    for photographs, shown in (
        (training, training_poses(len(training), options.same, copies=copies, seed=options.seed)),
        (testing, sweep_poses(len(testing), angles=options.angles)),
    ):
        title = f"features of {len(photographs)} {'training' if photographs is training else 'test'} photographs"
        count = screen.count(f"{title} in {len(shown[0]) if shown else 0} poses", len(photographs))
        place = out / "features"
        features = compute(backbone, photographs, shown, folder=place, workers=options.workers, report=count)
        parts.append(Part(photographs, features))
    known, unseen = parts
    if len(known.labels.unique()) < 2:
        raise ValueError(f"{data}: fewer than two classes have a training photograph that can be read: {_bad(parts)}")
    screen.say("choosing by cross-validation")
    fitted = fit_head(backbone, known, unseen, options)
    fitted.report["cost"] = {"seconds": time.monotonic() - begun, "cpu_seconds": time.process_time() - cpu}
    save_classifier(out / "classifier.safetensors", fitted.network, fitted.facts)
    return fitted


def fit_head(backbone: OpenedBackbone, known: Part, unseen: Part, options: FitOptions) -> Fitted:
    """Choose by cross-validation on the training photographs, and report on the test photographs."""
    classes, labels = known.photographs.classes, known.labels
    stored = stored_blocks(backbone)
    folds = folds_of(known.features, labels, stored[-1])
    tried = cross_validate(known.features, labels, folds, classes=len(classes), candidates=candidates(stored))
    chosen = best(tried)
    x = scaled(known.features, chosen.candidate.blocks)
    scores = out_of_fold_scores(
        x, labels, folds, classes=len(classes), copies=chosen.copies, strengths=[chosen.strength]
    )[0]
    tested = folds >= 0
    own, truth = scores[tested], labels[tested]
    if not len(own):
        own, truth = scores_of_copies(x, labels, classes=len(classes), strength=chosen.strength), labels
    heat = temperature(own.flatten(0, 1), truth.repeat_interleave(own.shape[1]))
    del x, own
    last = known.features.block(chosen.candidate.blocks[-1])
    refusal = choose_threshold(last, labels, folds, classes=len(classes))
    near = Familiarity.of(last.flatten(0, 1), labels.repeat_interleave(last.shape[1]), classes=len(classes))
    del last
    head = train(known.features, labels, chosen, classes=len(classes))
    network = with_head(backbone, chosen.candidate.blocks, head, heat, near)
    facts = ClassifierFacts(
        backbone=backbone.name,
        size=backbone.size,
        short=backbone.short,
        blocks=chosen.candidate.blocks,
        classes=tuple(classes),
        threshold=refusal.threshold,
        directions=near.directions.shape[1],
        rotations=options.same.rotations,
        flips=options.same.flips,
    )
    probabilities = (scores[:, 0] / heat).softmax(1)
    seen = {
        "chosen": _chosen(chosen),
        "tried": [_chosen(each) for each in tried],
        "gain": gain(chosen, tried[0]),
        "rotations_hurt": _hurt(tried, chosen, scores, labels, folds, classes, options.same),
        "mislabelled": mislabelled(probabilities[tested], labels[tested], _at(known.paths(), tested), classes),
    }
    report = {**seen, **_describe(known, unseen, options, backbone)}
    plain = tried[0]
    ours = head(torch.cat([unseen.features.block(block) for block in chosen.candidate.blocks], 2)) / heat
    distances = near.in_parts(unseen.features.block(chosen.candidate.blocks[-1], [0])[:, 0])
    report |= test_report(known, unseen, plain, {"fit": ours}, refusal, distances)
    report["verdict"] = verdict(report)
    return Fitted(network, with_report(facts, report), report, known, unseen, chosen, plain)


def with_head(
    backbone: OpenedBackbone, blocks: Sequence[Block], head: Head, heat: float, near: Familiarity
) -> PhotoClassifier:
    """The whole network: backbone, pools and head, whose logits are the scores divided by the temperature."""
    features = FeatureBlocks(backbone.model, backbone.layers, blocks)
    widths = features.eval().widths(backbone.size)
    network = PhotoClassifier(features, widths=widths, classes=len(head.bias), directions=near.directions.shape[1])
    set_head(network, head, heat)
    network.familiarity.load_state_dict(near.state_dict())
    return network.requires_grad_(False).eval()


def set_head(network: PhotoClassifier, head: Head, heat: float) -> None:
    """Give a network a head whose scores are divided by a temperature."""
    with torch.no_grad():
        network.head.weight.copy_(head.weight.T / heat)
        network.head.bias.copy_(head.bias / heat)


def test_report(
    known: Part, unseen: Part, plain: Scored, logits: Mapping[str, Tensor], refusal: Refusal, distances: Tensor
) -> dict[str, Any]:
    """What the test photographs say; those that are also in the training are left out.

    Args:
        known, unseen: the training and the test photographs.
        plain: the plain average with a linear head, to compare with; so is a vote of the five nearest.
        logits: method -> (photographs, poses, classes) of the test; the first is the classifier.
        refusal, distances: the threshold of the classifier, and how far the test photographs are, as they are.
    """
    seen_before = set(known.features.digests)
    own = torch.tensor([digest not in seen_before for digest in unseen.features.digests], dtype=torch.bool)
    shared = [name for name, new in zip(unseen.names, own.tolist(), strict=True) if not new]
    labels, classes = unseen.labels[own], known.photographs.classes
    if not len(labels):
        return {"shared": shared, "accuracy": {}, "test": 0}
    (block,) = plain.candidate.blocks
    simple = train(known.features, known.labels, plain, classes=len(classes))
    vectors, test_vectors = known.features.block(block, [0])[:, 0], unseen.features.block(block)[own]
    votes = nearest_neighbours(vectors, known.labels, test_vectors.flatten(0, 1), classes=len(classes))
    methods = {name: each[own] for name, each in logits.items()}
    methods |= {"plain average": simple(test_vectors), "5 nearest": votes.unflatten(0, test_vectors.shape[:2])}
    ours = methods["fit"][:, 0]
    probabilities = ours.softmax(1)
    return {
        "test": len(labels),
        "shared": shared,
        **poses_report(methods, labels),
        **classes_report(probabilities.argmax(1), labels, classes, known.labels),
        "mistakes": mistakes_report(probabilities, labels, _at(unseen.paths(), own), classes),
        "calibration_error": calibration_error(probabilities, labels),
        "refusal": {**asdict(refusal), "test": 100 * float((distances[own] > refusal.threshold).float().mean())},
    }


def _at(names: Sequence[str], chosen: Tensor) -> list[str]:
    return [name for name, wanted in zip(names, chosen.tolist(), strict=True) if wanted]


def _chosen(scored: Scored) -> dict[str, Any]:
    return {
        "name": scored.candidate.name,
        "blocks": [str(block) for block in scored.candidate.blocks],
        "copies": scored.copies,
        "strength": scored.strength,
        "upright": scored.upright if len(scored.correct) else None,
        "posed": scored.posed if len(scored.correct) else None,
    }


def gain(chosen: Scored, plain: Scored) -> dict[str, Any]:
    """The cross-validated difference to the plain average with a linear head: as they are, and in other poses."""
    return {
        "upright": difference(chosen.correct[:, 0], plain.correct[:, 0]),
        "posed": difference(posed(chosen.correct).mean(1), posed(plain.correct).mean(1)),
    }


def _hurt(
    tried: Sequence[Scored],
    chosen: Scored,
    scores: Tensor,
    labels: Tensor,
    folds: Tensor,
    classes: Sequence[str],
    same: SamePoses,
) -> dict[str, Any] | None:
    """Whether the poses that are said to mean the same do not, as a 6 and a 9; and the classes that become alike.

    `cost` is what learning from posed copies costs on photographs as they are, `loss` how much less often posed ones
    are right than upright ones although the head learned from such copies.
    """
    pair = {each.copies: each for each in tried if each.candidate == chosen.candidate}
    if len(pair) < 2:
        return None
    cost = difference(pair[False].correct[:, 0], pair[True].correct[:, 0])
    loss = difference(pair[True].correct[:, 0], pair[True].correct[:, 1:].float().mean(1))
    if not (cost["low"] > 0 and cost["value"] >= COST) and not (loss["low"] > 0 and loss["value"] >= LOSS):
        return None
    truth, answers = labels[folds >= 0], scores[folds >= 0].argmax(2)
    confused: dict[tuple[int, int], int] = defaultdict(int)
    for right, given in zip(truth.tolist(), answers.tolist(), strict=True):
        for answer in given:
            if right != answer:
                confused[min(right, answer), max(right, answer)] += 1
    pairs = sorted(confused, key=lambda names: -confused[names])[:3]
    return {
        "cost": cost,
        "loss": loss,
        "rotations": same.rotations,
        "classes": [[classes[a], classes[b]] for a, b in pairs],
    }


def _describe(known: Part, unseen: Part, options: FitOptions, backbone: OpenedBackbone) -> dict[str, Any]:
    by_content: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for digest, name, label in zip(known.features.digests, known.names, known.labels.tolist(), strict=True):
        by_content[digest].append((name, label))
    twice = [[name for name, _ in own] for own in by_content.values() if len({label for _, label in own}) > 1]
    repeated = sum(len(own) - 1 for own in by_content.values())
    numbers = torch.bincount(known.labels, minlength=len(known.photographs.classes)).tolist()
    return {
        "classes": known.photographs.classes,
        "train": len(known.labels),
        "backbone": backbone.name,
        "size": backbone.size,
        "copies": next(iter(known.features.pools.values())).shape[1] - 1,
        "same_poses": asdict(options.same),
        "unreadable": {name: reason for part in (known, unseen) for name, reason in part.faults().items()},
        "ignored": sorted({name for part in (known, unseen) for name in part.photographs.ignored}),
        "in_two_classes": twice,
        "repeated": repeated,
        "absent": [name for name, own in zip(known.photographs.classes, numbers, strict=True) if not own],
        "single": [name for name, own in zip(known.photographs.classes, numbers, strict=True) if own == 1],
    }


def _bad(parts: Sequence[Part]) -> str:
    faults = [f"{name}: {reason}" for part in parts for name, reason in part.faults().items()]
    return "; ".join(faults[:3]) or "there are too few"


def verdict(report: dict[str, Any]) -> str:
    """The outcome in a sentence: right as they are, and in rotations that mean the same."""
    if not report.get("accuracy"):
        return "There is no test photograph that is not also in training: nothing was measured."
    text = f"{report['accuracy']['as they are']['fit']['value']:.1f} % of {report['test']} test photographs are right"
    text += " as they are"
    pose, words = _tested(report["same_poses"]["rotations"])
    if words:
        text += f", {report['accuracy'][pose]['fit']['value']:.1f} % {words}: there"
    else:
        text += ":"
    against = report["differences"][pose]["plain average"]
    better = "more" if against["value"] >= 0 else "fewer"
    shown = "" if against["low"] > 0 or against["high"] < 0 else ", within chance"
    return f"{text} {abs(against['value']):.1f} points {better} than the plain average with a linear head{shown}."


def _tested(rotations: float) -> tuple[str, str]:
    """The test pose that says what rotations up to so many degrees do, and its words; "" if they are too small."""
    if rotations >= 90:
        return "any rotation", "in any rotation"
    return ("rotated up to 45", "rotated by up to 45 degrees") if rotations >= 15 else ("as they are", "")


def with_report(facts: ClassifierFacts, report: dict[str, Any]) -> ClassifierFacts:
    kept = {key: report[key] for key in ("verdict", "chosen", "train", "test") if key in report}
    return ClassifierFacts(**{**facts.__dict__, "report": kept})
