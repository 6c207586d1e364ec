"""How far an image is from everything that a classifier was fitted to: the Mahalanobis distance to the nearest class.

Classes have their own means and share one covariance (Lee et al., 2018). Of that the largest directions are kept; all
others share one variance.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

DIRECTIONS = 128
PART = 1 << 22  # distances at a time
FAR = 1e6  # every value of the mean of a class without photographs


class Familiarity(nn.Module):
    """Distances of features to classes.

    Shape:
        x: (batch, values); to (batch,): the distance to the nearest class, over the number of values.

    Args:
        classes, values: of the means.
        directions: of the covariance that have a variance of their own.
    """

    means: Tensor
    directions: Tensor
    variances: Tensor

    def __init__(self, *, classes: int, values: int, directions: int) -> None:
        super().__init__()
        self.register_buffer("means", torch.zeros(classes, values))
        self.register_buffer("directions", torch.zeros(values, directions))
        self.register_buffer("variances", torch.ones(directions + 1))  # the last one is that of all other directions

    @classmethod
    def of(cls, x: Tensor, labels: Tensor, *, classes: int) -> Familiarity:
        """The distances from features (n, values) of classes; a class without any is infinitely far.

        >>> labels = torch.arange(2).repeat_interleave(50)
        >>> x = torch.randn(100, 6, generator=torch.Generator().manual_seed(0)) + 9 * labels[:, None]
        >>> own = Familiarity.of(x, labels, classes=2)
        >>> distances = own(torch.tensor([[0.0] * 6, [9.0] * 6, [4.5] * 6]))
        >>> bool(distances[2] > 4 * distances[:2].max())
        True
        """
        sums = torch.zeros(classes, x.shape[1]).index_add_(0, labels, x)
        counts = torch.bincount(labels, minlength=classes)
        means = sums / counts.clamp(min=1)[:, None]
        rest = x - means[labels]
        covariance = rest.T @ rest / max(len(x), 1)
        own = cls(classes=classes, values=x.shape[1], directions=max(1, min(DIRECTIONS, x.shape[1] // 4, len(x) // 4)))
        directions, variances = _largest(covariance, own.directions.shape[1])
        left = (covariance.diagonal().sum() - variances.sum()).clamp(min=0) / max(1, x.shape[1] - len(variances))
        left = left + 1e-5 * covariance.diagonal().sum() + 1e-12
        means[counts == 0] = FAR
        own.means.copy_(means)
        own.directions.copy_(directions)
        own.variances.copy_(torch.cat([variances + left, left[None]]))
        return own

    def forward(self, x: Tensor) -> Tensor:
        # In double precision: distances are small differences of large squares. Products of matrices only: the
        # differences along every direction, (batch, classes, directions), would not fit the memory with many classes.
        x, means, directions = x.double(), self.means.double(), self.directions.double()
        variances, left = self.variances[:-1].double(), self.variances[-1].double()
        whole = _squares(x, means)  # b c
        inside = _squares(x @ directions, means @ directions)
        roots = variances.rsqrt()
        near = _squares(x @ directions * roots, means @ directions * roots)
        distances = near + (whole - inside).clamp(min=0) / left
        return (distances.amin(1) / x.shape[1]).float()

    def in_parts(self, x: Tensor) -> Tensor:
        """The distances of any number of features, a part of them at a time, so that memory is bounded."""
        return torch.cat([self(part) for part in x.split(max(1, PART // len(self.means)))])


def _squares(x: Tensor, y: Tensor) -> Tensor:
    """Squared distances (n, m) of vectors (n, d) and (m, d)."""
    return (x.square().sum(1)[:, None] - 2 * x @ y.T + y.square().sum(1)).clamp(min=0)


def _largest(covariance: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The directions (values, count) of largest variance, and the variances, by subspace iteration."""
    more = min(len(covariance), count + 32)
    basis = torch.randn(len(covariance), more, generator=torch.Generator().manual_seed(0))
    for _ in range(6):
        basis = torch.linalg.qr(covariance @ basis)[0]
    values, vectors = torch.linalg.eigh(basis.T @ covariance @ basis)
    return (basis @ vectors).flip(1)[:, :count], values.flip(0)[:count].clamp(min=0)
