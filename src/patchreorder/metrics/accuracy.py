"""How often a classifier is wrong, and for which images."""

from __future__ import annotations

import torch
from torch import Tensor


def mistakes(logits: Tensor, labels: Tensor, *, top: int = 1) -> tuple[Tensor, Tensor]:
    """Indices of the misclassified images, and their predictions; of equal logits the first counts.

    Shape:
        logits: (n, classes); labels: (n,). Returns two of (m,).

    Args:
        top: the number of highest logits that the label must be among.

    Raises:
        ValueError: shapes do not match, logits are NaN, or top is less than 1.

    Example:
        >>> logits = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.5, 0.5]])
        >>> mistakes(logits, torch.tensor([1, 1, 1]))
        (tensor([1, 2]), tensor([0, 0]))
    """
    if logits.ndim != 2 or labels.shape != logits.shape[:1] or not len(labels):
        raise ValueError(
            f"logits {tuple(logits.shape)} must be (n, classes) and labels {tuple(labels.shape)} (n,), n > 0"
        )
    if bool(logits.isnan().any()):
        raise ValueError("logits hold NaN: the network's weights or images are not finite")
    if top < 1:
        raise ValueError(f"top ({top}) must be 1 or more")
    predictions = logits.argmax(1)
    own = logits.gather(1, labels[:, None])
    earlier = torch.arange(logits.shape[1], device=logits.device) < labels[:, None]  # first where logits are equal
    before = (logits > own).sum(1) + ((logits == own) & earlier).sum(1)
    indices = (before >= top).nonzero()[:, 0]
    return indices, predictions[indices]


def error_rate(logits: Tensor, labels: Tensor) -> float:
    """Misclassified images in percent."""
    return 100 * len(mistakes(logits, labels)[0]) / len(labels)
