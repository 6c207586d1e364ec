"""Choose what the head reads, how strongly it is regularised, and whether it learns from posed copies.

By cross-validation over poses inside the training photographs. Look-alike photographs of a class stay in one fold, so
that a photograph is never tested with its neighbour of the same burst or shelf in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from patchreorder.models.photo_classifier import Block

from .features import Features
from .head import STRENGTHS, Head, Scaling, moments, reduced, solve, solve_moments

FOLDS = 4
NEIGHBOURS = 8  # photographs that each is compared with to find look-alikes


class Candidate(NamedTuple):
    """Something that the head may read."""

    name: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Scored:
    """A candidate with and without posed copies at its best strength, cross-validated."""

    candidate: Candidate
    copies: bool
    strength: float
    correct: Tensor  # (photographs, poses), bool: of every photograph that was left out with its fold; perhaps none

    @property
    def upright(self) -> float:
        """Percentage of photographs that are right as they are."""
        return 100 * float(self.correct[:, 0].float().mean()) if len(self.correct) else 0.0

    @property
    def posed(self) -> float:
        """Percentage of posed copies that are right; as they are if there are none."""
        return 100 * float(posed(self.correct).mean()) if len(self.correct) else 0.0

    @property
    def score(self) -> float:
        """What is maximised: half of it as they are, half in the poses that mean the same."""
        return (self.upright + self.posed) / 2


def posed(correct: Tensor) -> Tensor:
    """The columns of the posed copies of (photographs, poses), as numbers; that of photographs as they are if alone.

    >>> posed(torch.tensor([[True, False, True]])), posed(torch.tensor([[True]]))
    (tensor([[0., 1.]]), tensor([[1.]]))
    """
    return correct[:, min(1, correct.shape[1] - 1) :].float()


def candidates(stored: Sequence[Block]) -> list[Candidate]:
    """What may be read of blocks that were computed: the plain average first."""
    *inner, last = stored
    plain = Candidate("plain average", (Block(last.layer, last.pool),))
    if not inner:
        return [plain]
    roots = Block(last.layer, last.pool, True)

    def names(blocks: Sequence[Block]) -> str:
        return "+".join(block.layer for block in blocks)

    return [
        plain,
        Candidate(f"averages of {names(inner)}+{last.layer}", (*(Block(block.layer) for block in inner), roots)),
        *(
            Candidate(f"sorted quarters of {names(own)}, average of {last.layer}", (*own, roots))
            for own in (inner[1:], inner)
        ),
    ]


def folds_of(features: Features, labels: Tensor, last: Block, *, count: int = FOLDS, seed: int = 0) -> Tensor:
    """The fold of each photograph, about equal parts of every class.

    Two photographs of a class are look-alikes, and stay in one fold, if they are as similar as a photograph and its own
    posed copies usually are. A class of one photograph has fold -1: it is never left out.
    """
    vectors = features.block(Block(last.layer, last.pool, True))
    alike = _usual_similarity(vectors)
    found = torch.full((len(labels),), -1)
    random = np.random.default_rng(seed)
    for label in labels.unique().tolist():
        own = (labels == label).nonzero()[:, 0]
        if len(own) < 2:
            continue
        number = min(count, len(own))
        groups = _linked(vectors[own, 0], alike, most=-(-len(own) // number))
        random.shuffle(groups)
        groups.sort(key=len, reverse=True)
        load = [0] * number
        for group in groups:
            fold = load.index(min(load))
            found[own[group]] = fold
            load[fold] += len(group)
    return found


def _usual_similarity(vectors: Tensor) -> float:
    """The median cosine of photographs (n, poses, values) and their posed copies; 2, which none has, without copies."""
    if vectors.shape[1] < 2:
        return 2.0
    return float((vectors[:, :1] * vectors[:, 1:]).sum(2).median())


def _linked(vectors: Tensor, alike: float, *, most: int) -> list[list[int]]:
    """Groups of vectors (n, values) that are joined by pairs at least so alike, the most alike first, up to a size.

    Of each vector only the nearest are compared: with all pairs, memory would grow with the square of a class.
    """
    group = list(range(len(vectors)))
    members = {index: [index] for index in group}
    pairs = []
    for begin in range(0, len(vectors), 1024):
        close = vectors[begin : begin + 1024] @ vectors.T
        close[torch.arange(len(close)), torch.arange(begin, begin + len(close))] = -2.0  # not itself
        values, others = close.topk(min(NEIGHBOURS, len(vectors)))
        row, column = (values >= alike).nonzero().unbind(1)
        first, second = row + begin, others[row, column]
        pairs += list(
            zip(
                (-values[row, column]).tolist(),
                torch.minimum(first, second).tolist(),
                torch.maximum(first, second).tolist(),
                strict=True,
            )
        )
    for _, first, second in sorted(pairs):
        a, b = group[first], group[second]
        if a != b and len(members[a]) + len(members[b]) <= most:
            for index in members[b]:
                group[index] = a
            members[a] += members.pop(b)
    return list(members.values())


def cross_validate(
    features: Features,
    labels: Tensor,
    folds: Tensor,
    *,
    classes: int,
    candidates: Sequence[Candidate],
) -> list[Scored]:
    """Every candidate with posed copies and without, each at its best strength."""
    found = []
    poses = next(iter(features.pools.values())).shape[1]
    for candidate in candidates:
        x = scaled(features, candidate.blocks)
        for copies in (False, True)[: min(2, poses)]:
            tested = [
                Scored(candidate, copies, strength, (scores.argmax(2) == labels[:, None])[folds >= 0])
                for strength, scores in zip(
                    STRENGTHS,
                    out_of_fold_scores(x, labels, folds, classes=classes, copies=copies, strengths=STRENGTHS),
                    strict=True,
                )
            ]
            found.append(max(tested, key=lambda scored: scored.score))
    return found


def best(tried: Sequence[Scored]) -> Scored:
    """The highest score; one without posed copies only if it beats those with them by more than a standard error.

    With a handful of photographs scores are a matter of luck, and without copies other poses are lost.
    """
    first = max(tried, key=lambda each: each.score)
    taught = [each for each in tried if each.copies]
    if first.copies or not taught or not len(first.correct):
        return first
    other = max(taught, key=lambda each: each.score)
    more = halves(first.correct) - halves(other.correct)
    return first if float(more.mean()) > float(more.std(correction=0)) / len(more) ** 0.5 else other


def halves(correct: Tensor) -> Tensor:
    """How right each of (photographs, poses) is: half as it is, half in the other poses."""
    return (correct[:, 0].float() + posed(correct).mean(1)) / 2


def scaled(features: Features, blocks: Sequence[Block]) -> Tensor:
    """The features that a head reads: (photographs, poses, values), scaled, in as few dimensions as they have."""
    own = [features.block(block) for block in blocks]
    flat = [block.flatten(0, 1) for block in own]
    return reduced(Scaling.of(flat)(flat))[0].unflatten(0, own[0].shape[:2])


def out_of_fold_scores(
    x: Tensor, labels: Tensor, folds: Tensor, *, classes: int, copies: bool, strengths: Sequence[float]
) -> list[Tensor]:
    """For each strength, scores (photographs, poses, classes) of photographs that the head did not see."""
    poses = x.shape[1] if copies else 1
    scores = [torch.zeros(*x.shape[:2], classes) for _ in strengths]

    def rows(chosen: Tensor) -> dict[str, Any]:
        return _rows(x[chosen, :poses], labels[chosen], classes)

    many = len(x) * poses >= 1.5 * x.shape[2]
    sums = {fold: moments(**rows(folds == fold)) for fold in folds.unique().tolist() if many}
    for fold in folds.unique().tolist():
        if fold < 0:
            continue
        held = folds == fold
        if many:  # sums over all other folds: every product is computed once
            rest = [own for other, own in sums.items() if other != fold]
            count, *total = (sum(values[1:], values[0]) for values in zip(*rest, strict=True))
            heads = solve_moments(float(count), *total, strengths=strengths)
        else:
            heads = solve(**rows(~held), strengths=strengths)
        for own, head in zip(scores, heads, strict=True):
            own[held] = head(x[held])
    return scores


def _rows(x: Tensor, labels: Tensor, classes: int) -> dict[str, Any]:
    """What a head learns from (photographs, poses, values): a photograph as it is counts as much as all its copies."""
    photographs, poses, _ = x.shape
    weights = torch.ones(photographs, poses)
    weights[:, 0] = max(1, poses - 1)
    return {
        "x": x.flatten(0, 1),
        "labels": labels.repeat_interleave(poses),
        "classes": classes,
        "weights": weights.flatten(),
    }


def scores_of_copies(x: Tensor, labels: Tensor, *, classes: int, strength: float) -> Tensor:
    """Scores (photographs, copies, classes) of posed copies by a head that saw the photographs only as they are.

    Where no class has two photographs, none can be left out: this is all there is to calibrate on.
    """
    head = next(solve(x[:, 0], labels, classes=classes, strengths=[strength]))
    return head(x[:, 1:])


def train(features: Features, labels: Tensor, chosen: Scored, *, classes: int, rows: Tensor | None = None) -> Head:
    """The head of a choice for features that are not scaled, trained on all photographs, or on those of `rows`."""
    rows = torch.arange(len(labels)) if rows is None else rows
    own = [features.block(block)[rows] for block in chosen.candidate.blocks]
    flat = [block.flatten(0, 1) for block in own]
    scaling = Scaling.of(flat)
    used = [block[:, : None if chosen.copies else 1] for block in own]
    x, basis = reduced(scaling([block.flatten(0, 1) for block in used]))
    learned = _rows(x.unflatten(0, used[0].shape[:2]), labels[rows], classes)
    head = next(solve(**learned, strengths=[chosen.strength]))
    if basis is not None:
        head = Head(basis @ head.weight, head.bias)
    return head.unscaled(scaling)
