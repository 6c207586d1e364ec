"""The linear head of `fit` against other ways to make one, on the same features of the same photographs.

    python benchmarks/head.py --data DIR [DIR ...] [--per-class 20] [--learn 5 [--draws 4]] [--features runs/head]

DIR holds CLASS/*.jpg, or train/CLASS/*.jpg and val/CLASS/*.jpg; the file names decide which photographs of each class
are used. Features are those of EfficientNet-lite0 that `fit` computes: the plain average of the last maps, and the same
with sorted quarters of four inner layers. Heads: least squares without posed copies; with four, each of which counts as
much as the photograph as it is; with four that together count as much as it, which is what `fit` does; and
scikit-learn's logistic regression without copies and with four. Each has its strength chosen among six by four-fold
cross-validation in the training photographs, look-alikes in one fold. Beside them: what `fit` chooses among its
candidates, and five nearest neighbours. Tested as they are, rotated by up to 45 degrees, shifted, and at any rotation.
With `--learn 5` the training has so few photographs of each class, the first ones or as often as `--draws` says others;
with draws only what `fit` chooses is shown, beside the highest score alone, which does not prefer posed copies.
Also measured: how many photographs "none of these" refuses at several thresholds, own ones that are right and those of
the other sets. Seconds are of the processor, of choosing and training. scikit-learn is needed for this only.
"""

from __future__ import annotations

import sys

sys.path.pop(0)  # this folder, whose operator.py would hide the standard library's

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from patchreorder.classifier import choose
from patchreorder.classifier.evaluate import difference, nearest_neighbours, rate
from patchreorder.classifier.features import Features, compute, stored_blocks
from patchreorder.classifier.head import STRENGTHS, Head, Scaling, reduced, solve
from patchreorder.classifier.photographs import SamePoses, first_of_each, open_photographs, sweep_poses, training_poses
from patchreorder.commands.run import use_cores
from patchreorder.laboratory.provenance import provenance
from patchreorder.models.backbones import open_backbone
from patchreorder.models.familiarity import Familiarity
from patchreorder.models.photo_classifier import Block

COPIES = 4
POSES = ("as they are", "rotated up to 45", "shifted", "any rotation")  # the first of a test
INVERSE = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)  # strengths of scikit-learn are the inverse of ours
KEPT = (0.95, 0.98, 0.99, 0.995)
OURS = "4 copies, weighted"
Fit = Callable[[Tensor, Tensor, Tensor, int, float], Callable[[Tensor], Tensor]]


@dataclass(frozen=True)
class Set:
    """The photographs of a folder: features, labels and folds."""

    name: str
    known: Features
    unseen: Features
    labels: Tensor
    truth: Tensor
    folds: Tensor
    classes: int


def least_squares(x: Tensor, labels: Tensor, weights: Tensor, classes: int, strength: float) -> Head:
    return next(solve(x, labels, classes=classes, strengths=[strength], weights=weights))


def logistic(x: Tensor, labels: Tensor, weights: Tensor, classes: int, strength: float) -> Callable[[Tensor], Tensor]:
    scale = 10.0  # about unit variance of every value, which its strengths are meant for
    model = LogisticRegression(C=strength, max_iter=300).fit(x.numpy() * scale, labels.numpy(), weights.numpy())

    def scores(rows: Tensor) -> Tensor:
        found = model.decision_function(rows.flatten(0, -2).numpy() * scale)
        found = torch.as_tensor(found, dtype=torch.float32)
        found = torch.stack([-found, found], 1) if found.dim() == 1 else found
        every = torch.full((len(found), classes), -1e9)
        every[:, torch.as_tensor(model.classes_)] = found
        return every.unflatten(0, rows.shape[:-1])

    return scores


FORMS: dict[str, tuple[Fit, int, bool, tuple[float, ...]]] = {  # how, copies, weighted, strengths
    "no copies": (least_squares, 0, False, STRENGTHS),
    "4 copies": (least_squares, 4, False, STRENGTHS),
    OURS: (least_squares, 4, True, STRENGTHS),
    "logistic, no copies": (logistic, 0, False, INVERSE),
    "logistic, 4 copies": (logistic, 4, False, INVERSE),
}


def right_answers(own: Set, blocks: tuple[Block, ...], form: str) -> Tensor:
    """Which test photographs a head has right, in `POSES`; its strength is chosen by cross-validation."""
    fit, copies, weighted, strengths = FORMS[form]
    used = [own.known.block(block) for block in blocks]
    scaling = Scaling.of([block.flatten(0, 1) for block in used])
    x, basis = reduced(scaling([block.flatten(0, 1) for block in used]))
    x = x.unflatten(0, used[0].shape[:2])
    counts = torch.ones(len(x), copies + 1)
    counts[:, 0] = max(1, copies) if weighted else 1

    def fitted(rows: Tensor, strength: float) -> Callable[[Tensor], Tensor]:
        labels = own.labels[rows].repeat_interleave(copies + 1)
        return fit(x[rows, : copies + 1].flatten(0, 1), labels, counts[rows].flatten(), own.classes, strength)

    def score(strength: float) -> float:
        right = torch.zeros(x.shape[:2])
        for fold in range(choose.FOLDS):
            held = own.folds == fold
            if held.any():
                right[held] = (fitted(~held, strength)(x[held]).argmax(2) == own.labels[held][:, None]).float()
        tested = right[own.folds >= 0]
        return float(tested[:, 0].mean() + choose.posed(tested).mean())

    head = fitted(torch.ones(len(x), dtype=torch.bool), max(strengths, key=score))
    test = torch.cat([own.unseen.block(block) for block in blocks], 2)
    test = scaling([test.flatten(0, 1)]).unflatten(0, test.shape[:2])
    return head(test if basis is None else test @ basis).argmax(2) == own.truth[:, None]


def of_fit(own: Set, blocks: Sequence[Block]) -> dict[str, tuple[str, Tensor]]:
    """What `fit` chooses, and five neighbours: what they read, and which test photographs are right."""
    tried = choose.cross_validate(
        own.known, own.labels, own.folds, classes=own.classes, candidates=choose.candidates(blocks)
    )
    found = {}
    for name, chosen in (("fit", choose.best(tried)), ("highest score", max(tried, key=lambda each: each.score))):
        head = choose.train(own.known, own.labels, chosen, classes=own.classes)
        test = torch.cat([own.unseen.block(block) for block in chosen.candidate.blocks], 2)
        reads = f"{chosen.candidate.name}{', copies' if chosen.copies else ''}, {chosen.strength:g}"
        found[name] = (reads, head(test).argmax(2) == own.truth[:, None])
    test = own.unseen.block(blocks[-1])
    votes = nearest_neighbours(
        own.known.block(blocks[-1], [0])[:, 0], own.labels, test.flatten(0, 1), classes=own.classes
    )
    found["5 nearest"] = ("plain average", votes.unflatten(0, test.shape[:2]).argmax(2) == own.truth[:, None])
    return found


def row(facts: dict[str, Any], ours: Tensor, right: Tensor) -> dict[str, Any]:
    """Accuracy in each pose, printed too, and how much more ours has; both (photographs, poses)."""
    values = {pose: rate(right[:, place]) for place, pose in enumerate(POSES)}
    gains = {pose: difference(ours[:, at], right[:, at]) for at, pose in enumerate(POSES)}
    text = " / ".join(f"{100 * float(right[:, place].float().mean()):.1f}" for place in range(len(POSES)))
    print(", ".join(str(each) for each in facts.values()) + f": {text}", flush=True)
    return {**facts, "right": values, "ours_more": gains}


def refusals(own: Set, others: list[Set], block: Block, right: Tensor) -> list[dict[str, float]]:
    """For each part of the training photographs that is kept: right ones refused, and other sets' refused, in %."""
    x = own.known.block(block)

    def near(rows: Tensor) -> Familiarity:
        labels = own.labels[rows].repeat_interleave(x.shape[1])
        return Familiarity.of(x[rows].flatten(0, 1), labels, classes=own.classes)

    held = [own.folds == fold for fold in range(choose.FOLDS) if (own.folds == fold).any()]
    known = torch.cat([near(~fold).in_parts(x[fold].flatten(0, 1)) for fold in held]).sort().values
    whole = near(torch.ones(len(x), dtype=torch.bool))
    tested = whole.in_parts(own.unseen.block(block, [0])[:, 0])
    far = [whole.in_parts(other.unseen.block(block, [0])[:, 0]) for other in others]
    found = []
    for kept in KEPT:
        threshold = known[min(len(known) - 1, int(kept * len(known)))]
        refused = [100 * float((own > threshold).float().mean()) for own in far]
        found.append(
            {
                "kept": kept,
                "right_refused": 100 * float(((tested > threshold) & right).float().mean()),
                "others_refused": sum(refused) / len(refused) if refused else float("nan"),
            }
        )
    return found


def opened(data: Path, features: Path, per_class: int | None, learn: int | None) -> Set:
    training, testing = open_photographs(data)
    if per_class:
        training, testing = first_of_each(training, per_class), first_of_each(testing, per_class)
    backbone = open_backbone("efficientnet_lite0")
    workers, folder = use_cores(0, None), features / data.name
    known, unseen = (
        compute(backbone, part, shown, folder=folder, workers=workers)
        for part, shown in (
            (training, training_poses(len(training), SamePoses(), copies=COPIES)),
            (testing, [own[: len(POSES)] for own in sweep_poses(len(testing))]),
        )
    )
    labels, truth = training.labels[known.kept], testing.labels[unseen.kept]
    folds = choose.folds_of(known, labels, stored_blocks(backbone)[-1])
    whole = Set(data.name, known, unseen, labels, truth, folds, len(training.classes))
    return few(whole, learn, None) if learn else whole


def few(own: Set, learn: int, draw: int | None) -> Set:
    """The set with so few photographs of each class to learn from: the first ones, or drawn."""
    random, rows = torch.Generator().manual_seed(draw or 0), []
    for label in own.labels.unique():
        every = (own.labels == label).nonzero()[:, 0]
        rows.append(every[:learn] if draw is None else every[torch.randperm(len(every), generator=random)[:learn]])
    kept = torch.cat(rows).sort().values
    pools = {block: values[kept] for block, values in own.known.pools.items()}
    known, labels = replace(own.known, kept=kept.tolist(), pools=pools), own.labels[kept]
    folds = choose.folds_of(known, labels, list(known.pools)[-1])
    return replace(own, known=known, labels=labels, folds=folds)


def draws(sets: Sequence[Set], learn: int, count: int, blocks: Sequence[Block]) -> list[dict[str, Any]]:
    """What `fit` chooses from few photographs of each class, drawn several times, and the means over the draws."""
    rows = []
    for own in sets:
        found: dict[str, list[Tensor]] = {}
        for draw in range(count):
            for name, (reads, right) in of_fit(few(own, learn, draw), blocks).items():
                found.setdefault(name, []).append(right.float())
                facts = {"set": own.name, "draw": draw, "head": name, "reads": reads}
                rows.append(
                    {
                        **facts,
                        "right": {pose: 100 * float(right[:, at].float().mean()) for at, pose in enumerate(POSES)},
                    }
                )
        ours = torch.stack(found["fit"]).mean(0)
        facts = {"set": own.name, "train": learn * own.classes, "classes": own.classes}
        rows += [row({**facts, "head": name}, ours, torch.stack(right).mean(0)) for name, right in found.items()]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="folders with classes, or train/ and val/")
    parser.add_argument("--per-class", type=int, help="at most so many photographs of each class, of each part")
    parser.add_argument("--learn", type=int, help="of these, so many of each class to learn from")
    parser.add_argument("--draws", type=int, default=0, help="draw these so often")
    parser.add_argument("--features", type=Path, default=Path("runs/head"), help="for features, which are kept")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    args = parser.parse_args()
    few_drawn = args.draws and args.learn
    sets = [opened(data, args.features, args.per_class, None if few_drawn else args.learn) for data in args.data]
    *inner, final = stored_blocks(open_backbone("efficientnet_lite0"))
    if few_drawn:
        drawn = draws(sets, args.learn, args.draws, (*inner, final))
        asked = {name: getattr(args, name) for name in ("per_class", "learn", "draws")}
        write(args.out / f"benchmark_head_draws_{args.learn}.json", {"benchmark": "head_draws", **asked, "rows": drawn})
        return
    roots = Block(final.layer, final.pool, True)
    rows: list[dict[str, Any]] = []
    for own in sets:
        facts: dict[str, Any] = {"set": own.name, "train": len(own.labels), "classes": own.classes}
        for reads, blocks in (("plain average", (roots,)), ("sorted", (*inner, roots))):
            answers, spent = {}, []
            for form in FORMS:
                begun = time.process_time()
                answers[form] = right_answers(own, blocks, form)
                spent.append(round(time.process_time() - begun, 2))
            for (form, right), seconds in zip(answers.items(), spent, strict=True):
                shown = row({**facts, "reads": reads, "head": form}, answers[OURS], right)
                rows.append({**shown, "seconds": seconds})
        chosen = of_fit(own, (*inner, final))
        ours = chosen["fit"][1]
        rows += [row({**facts, "reads": reads, "head": name}, ours, right) for name, (reads, right) in chosen.items()]
        others = [each for each in sets if each is not own]
        refused = refusals(own, others, roots, ours[:, 0])
        rows.append({"set": own.name, "refusals": refused})
        for each in refused:
            print(
                f"{own.name}: {100 * each['kept']:g} % kept in training, {each['right_refused']:.1f} % right and "
                f"refused, {each['others_refused']:.1f} % of the other sets refused"
            )
    told = {"benchmark": "head", "per_class": args.per_class, "learn": args.learn, "rows": rows}
    write(args.out / f"benchmark_head{f'_{args.learn}' if args.learn else ''}.json", told)


def write(path: Path, facts: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**facts, **provenance()}, indent=1))


if __name__ == "__main__":
    main()
