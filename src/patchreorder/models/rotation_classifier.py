"""The end of a network on an unrolled image (`patchreorder.layers.unroll`): one classifier for all rotations.

Behind `Unroll` a rotation of the image is a cyclic shift of the columns. Convolutions behind `CircularPad` commute with
such shifts, and `RotationClassifier` sums over them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class CircularPad(nn.Module):
    """Pad the columns of maps by so many on each side, around the cycle; rows are not padded.

    The same as torch's `padding_mode="circular"`, and faster in channels_last memory.

    >>> CircularPad(1)(torch.tensor([[[[1, 2, 3]]]]))
    tensor([[[[3, 1, 2, 3, 1]]]])
    """

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.columns = columns

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] < self.columns:
            raise ValueError(f"x has {x.shape[-1]} columns, fewer than the padding ({self.columns})")
        return torch.cat([x[..., x.shape[-1] - self.columns :], x, x[..., : self.columns]], -1)

    def extra_repr(self) -> str:
        return f"{self.columns}"


class RotationClassifier(nn.Module):
    """A linear classifier applied to every cyclic shift of the columns, with the probabilities of the shifts summed.

    For class k and shift t the score is s[k, t] = weight[k] . (features shifted back by t) + bias[k, t]. The logit of
    class k is log(sum over t of exp(s[k, t])), so that softmax gives the probability of the class, summed over its
    rotations. `bias` learns the rotations in which each class occurs: a 6 is not a 9 if the training images are never
    upside down. With `any_turn=True` there is one bias a class, and a cyclic shift of the columns, thus a rotation of
    the image, changes the logits by rounding only.

    Shape:
        x: (batch, features, turns), or (batch, channels, rows, turns) with channels * rows features, to (batch,
        classes).

    Raises:
        ValueError: when called, x has another number of features or turns.

    >>> head = RotationClassifier(2, 4, classes=3, any_turn=True)
    >>> x = torch.rand(5, 2, 4)
    >>> torch.allclose(head(x.roll(1, 2)), head(x), atol=1e-6)
    True
    """

    def __init__(self, features: int, turns: int, *, classes: int, any_turn: bool = False) -> None:
        super().__init__()
        self.features, self.turns, self.any_turn = features, turns, any_turn
        bound = 1 / math.sqrt(features * turns)  # as nn.Linear
        self.weight = nn.Parameter(torch.empty(classes, features, turns).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(classes, 1 if any_turn else turns))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1, -2)  # b f t
        if x.shape[1:] != (self.features, self.turns):
            raise ValueError(f"x has {x.shape[1]} features and {x.shape[2]} turns, not {self.features}, {self.turns}")
        cycle = torch.cat([x, x[..., :-1]], 2)
        return (F.conv1d(cycle, self.weight) + self.bias).logsumexp(2)

    def extra_repr(self) -> str:
        any_turn = ", any_turn=True" if self.any_turn else ""
        return f"features={self.features}, turns={self.turns}, classes={len(self.weight)}{any_turn}"
