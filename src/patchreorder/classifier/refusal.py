"""None of these: how far from all classes an image must be to be refused."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from patchreorder.models.familiarity import Familiarity

from .choose import posed

KEPT = 0.99  # of the training photographs as they are and in posed copies, when their fold was left out, are nearer
NEVER = 1e30  # a threshold that refuses nothing
GROUPS = 4  # parts of the classes that are left out in turn


@dataclass(frozen=True)
class Refusal:
    """A threshold on the distance to the nearest class, and what it does.

    Args:
        threshold: images that are farther are refused.
        own: percent of own photographs that are refused though their class is known (cross-validation).
        others: percent of photographs of classes that were left out that are refused; None with two classes.
    """

    threshold: float
    own: float
    others: float | None


def choose_threshold(x: Tensor, labels: Tensor, folds: Tensor, *, classes: int) -> Refusal:
    """The threshold that keeps 99 % of the training photographs, measured on classes that are left out in turn.

    Args:
        x: (photographs, poses, values), the features that distances are measured in.
        labels: (photographs,).
        folds: (photographs,); -1 is never left out.
        classes: how many there are.
    """

    def distances(held: Tensor) -> Tensor:
        rows, truth = x[~held].flatten(0, 1), labels[~held].repeat_interleave(x.shape[1])
        near = Familiarity.of(rows, truth, classes=classes)
        return near.in_parts(x[held].flatten(0, 1)).unflatten(0, (-1, x.shape[1]))

    tested = [fold for fold in folds.unique().tolist() if fold >= 0 and len(labels) > int((folds == fold).sum())]
    if not tested:  # a single photograph of each class: nothing can be said
        return Refusal(NEVER, 0.0, None)
    own = torch.cat([distances(folds == fold) for fold in tested])
    threshold = max(keeping(own[:, 0]), keeping(posed(own).flatten()))
    refused = 100 * float((own > threshold).float().mean())
    groups = min(GROUPS, classes)
    unknown = [
        distances(labels % groups == group)
        for group in range(groups)
        if classes > 2 and 0 < int((labels % groups == group).sum()) < len(labels)
    ]
    others = 100 * float((torch.cat(unknown) > threshold).float().mean()) if unknown else None
    return Refusal(threshold, refused, others)


def keeping(distances: Tensor) -> float:
    """The threshold that keeps the part `KEPT` of these distances (n,)."""
    return float(distances.sort().values[min(len(distances) - 1, int(KEPT * len(distances)))])
