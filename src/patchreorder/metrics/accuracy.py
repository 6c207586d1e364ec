"""How often a classifier is wrong, and where."""

from __future__ import annotations

from torch import Tensor


def mistakes(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Indices of the images with a wrong answer, and the answers; of equal logits the first counts.

    Shape:
        logits: (n, classes); labels: (n,). Returns two of (m,).

    Example:
        >>> import torch
        >>> logits = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.5, 0.5]])
        >>> mistakes(logits, torch.tensor([1, 1, 1]))
        (tensor([1, 2]), tensor([0, 0]))
    """
    _check(logits, labels)
    answers = logits.argmax(1)
    indices = (answers != labels).nonzero()[:, 0]
    return indices, answers[indices]


def error_rate(logits: Tensor, labels: Tensor) -> float:
    """Wrong answers in percent."""
    return 100 * len(mistakes(logits, labels)[0]) / len(labels)


def _check(logits: Tensor, labels: Tensor) -> None:
    if logits.ndim != 2 or labels.shape != logits.shape[:1] or not len(labels):
        raise ValueError(
            f"logits {tuple(logits.shape)} must be (n, classes) and labels {tuple(labels.shape)} (n,), n > 0"
        )
    if bool(logits.isnan().any()):
        raise ValueError("logits hold NaN: the network's weights or images are not finite")
