"""How often a network predicts the same class for an image in different poses."""

from __future__ import annotations

from torch import Tensor

from .rate import Rate, rate


def consistency(predictions: Tensor) -> Rate:
    """Pairs of poses with equal predictions, in percent of all pairs.

    With two poses, such as a random pair for each image, each image counts or does not. With more, all pairs count:
    the rate is the expected value over random pairs of different poses. The confidence interval is Wilson's for the
    number of images; with more than two poses it is somewhat too wide.

    Shape:
        predictions: (poses, images), integers, 2 poses or more.

    Raises:
        ValueError: predictions have another shape or type.

    >>> import torch
    >>> round(consistency(torch.tensor([[3, 1], [3, 1], [3, 7]])).value, 2)  # 3 + 1 of 6 pairs are equal
    66.67
    """
    if predictions.dim() != 2 or predictions.is_floating_point() or len(predictions) < 2 or not predictions.numel():
        raise ValueError(
            f"predictions must be (poses, images) integers of 2 poses or more, got {tuple(predictions.shape)} "
            f"{predictions.dtype}"
        )
    poses, images = predictions.shape
    # One pose at a time is compared with the later ones: all pairs at once would need a large tensor.
    equal = sum(int((predictions[i + 1 :] == predictions[i]).sum()) for i in range(poses))
    return rate(equal, images * (poses * (poses - 1) // 2), n=images)
