"""How often a classifier is wrong, and where."""

from __future__ import annotations

import torch
from torch import Tensor


def mistakes(logits: Tensor, labels: Tensor, *, top: int = 1) -> tuple[Tensor, Tensor]:
    """Indices of the images with a wrong answer, and the first answers; of equal logits the first counts.

    Shape:
        logits: (n, classes); labels: (n,). Returns two of (m,).

    Args:
        top: how many first answers the label must be among.

    Example:
        >>> logits = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.5, 0.5]])
        >>> mistakes(logits, torch.tensor([1, 1, 1]))
        (tensor([1, 2]), tensor([0, 0]))
    """
    _check(logits, labels)
    if top < 1:
        raise ValueError(f"top ({top}) must be 1 or more")
    answers = logits.argmax(1)
    own = logits.gather(1, labels[:, None])
    earlier = torch.arange(logits.shape[1], device=logits.device) < labels[:, None]  # they win where logits are equal
    before = (logits > own).sum(1) + ((logits == own) & earlier).sum(1)
    indices = (before >= top).nonzero()[:, 0]
    return indices, answers[indices]


def error_rate(logits: Tensor, labels: Tensor, *, top: int = 1) -> float:
    """Wrong answers in percent."""
    return 100 * len(mistakes(logits, labels, top=top)[0]) / len(labels)


def _check(logits: Tensor, labels: Tensor) -> None:
    if logits.ndim != 2 or labels.shape != logits.shape[:1] or not len(labels):
        raise ValueError(
            f"logits {tuple(logits.shape)} must be (n, classes) and labels {tuple(labels.shape)} (n,), n > 0"
        )
    if bool(logits.isnan().any()):
        raise ValueError("logits hold NaN: the network's weights or images are not finite")
