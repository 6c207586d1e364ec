"""None of these: below which score an image is of no class that the classifier knows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .head import solve

KEPT = 0.95  # of the training photographs, when their fold was left out, are above the threshold
GROUPS = 4  # parts of the classes that are left out in turn


@dataclass(frozen=True)
class Refusal:
    """A threshold on the largest score, and what it does.

    Args:
        threshold: images below it are refused.
        own: percent of own photographs that are refused though their class is known (cross-validation).
        others: percent of photographs of classes that were left out that are refused; None with two classes.
    """

    threshold: float
    own: float
    others: float | None


def choose_threshold(
    scores: Tensor, x: Tensor, labels: Tensor, folds: Tensor, *, classes: int, strength: float, copies: bool
) -> Refusal:
    """The threshold that keeps 95 % of the training photographs, measured on classes that are left out in turn.

    Args:
        scores: (photographs, poses, classes), each of a head that did not see the photograph.
        x: (photographs, poses, values), scaled features.
        labels: (photographs,).
        folds: (photographs,); -1 is never left out.
        classes: how many there are.
        strength, copies: of the head.
    """
    own = scores[folds >= 0].amax(2).flatten()
    threshold = float(own.quantile(1 - KEPT)) if len(own) and len(own) < 2**24 else float(own[: 2**24].quantile(0.05))
    refused = 100 * float((own < threshold).float().mean())
    if classes < 3:
        return Refusal(threshold, refused, None)
    poses = x.shape[1] if copies else 1
    unknown = []
    for group in range(min(GROUPS, classes)):
        left_out = labels % min(GROUPS, classes) == group
        known, names = (~left_out).nonzero()[:, 0], labels[~left_out].unique()
        if not left_out.any() or len(names) < 2:
            continue
        renamed = torch.searchsorted(names, labels[known]).repeat_interleave(poses)
        head = next(solve(x[known, :poses].flatten(0, 1), renamed, classes=len(names), strengths=[strength]))
        unknown.append(head(x[left_out]).amax(2).flatten())
    others = 100 * float((torch.cat(unknown) < threshold).float().mean()) if unknown else None
    return Refusal(threshold, refused, others)
