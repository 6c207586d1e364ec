"""What follows an unrolled image (`patchreorder.unrolling`): one classifier for all turns.

Behind `Unroll` a turn of the image is a shift of the columns around a cycle. Convolutions that wrap around (behind
`Wrap`) keep that, and `TurnClassifier` ends it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Wrap(nn.Module):
    """Continue the columns of maps around the cycle, by so many on each side: for a convolution without padding.

    torch's own `padding_mode="circular"` gives the same and takes longer in channels_last memory.

    >>> Wrap(1)(torch.tensor([[[[1, 2, 3]]]]))
    tensor([[[[3, 1, 2, 3, 1]]]])
    """

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.columns = columns

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] < self.columns:
            raise ValueError(f"x has {x.shape[-1]} columns, fewer than are to be continued ({self.columns})")
        return torch.cat([x[..., x.shape[-1] - self.columns :], x, x[..., : self.columns]], -1)

    def extra_repr(self) -> str:
        return f"{self.columns}"


class TurnClassifier(nn.Module):
    """One linear classifier for all turns: it is tried on the columns in every cyclic shift, and the answers are added.

    For class k and shift t the score is s[k, t] = weight[k] . (features shifted back by t) + bias[k, t], and the logit
    of k is log(sum over t of exp(s[k, t])): softmax over logits is then the probability of a class, with that of its
    turn summed over. `bias` learns which turns each class comes in; a 6 is no 9 that lies on its head, if the training
    images never do. With `any_turn=True` there is one bias a class instead, and a cyclic shift of the columns, thus a
    turn of the image, changes the logits by rounding only.

    Shape:
        x: (batch, features, turns), or (batch, channels, rows, turns) with channels * rows features, to (batch,
        classes).

    Raises:
        ValueError: when called, x has another number of features or turns.

    >>> head = TurnClassifier(2, 4, classes=3, any_turn=True)
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
        around = torch.cat([x, x[..., :-1]], 2)
        return (F.conv1d(around, self.weight) + self.bias).logsumexp(2)

    def extra_repr(self) -> str:
        more = ", any_turn=True" if self.any_turn else ""
        return f"features={self.features}, turns={self.turns}, classes={len(self.weight)}{more}"
