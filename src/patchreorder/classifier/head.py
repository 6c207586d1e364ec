"""The linear head: regularised least squares on blocks of features, solved exactly for every strength.

Every class is a column of zeros and ones; the largest score wins. Each block of features is centred and scaled to the
same total variance, so that a long block counts no more than a short one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

STRENGTHS = (3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5)


@dataclass(frozen=True)
class Scaling:
    """How blocks of features are centred and scaled: `(x - mean) * factor`, joined."""

    mean: Tensor  # (values,)
    factor: Tensor  # (values,)

    @classmethod
    def of(cls, blocks: Sequence[Tensor]) -> Scaling:
        """From the blocks (n, values) of the training photographs; all together have a total variance of 1."""
        means = [block.mean(0) for block in blocks]
        spread = [(block - mean).square().sum(1).mean().sqrt() for block, mean in zip(blocks, means, strict=True)]
        factors = [
            torch.full_like(mean, 1 / (max(float(own), 1e-6) * len(blocks) ** 0.5))
            for mean, own in zip(means, spread, strict=True)
        ]
        return cls(torch.cat(means), torch.cat(factors))

    def __call__(self, blocks: Sequence[Tensor]) -> Tensor:
        """Blocks (n, values) as one matrix (n, all values)."""
        return (torch.cat(list(blocks), 1) - self.mean) * self.factor


@dataclass(frozen=True)
class Head:
    """Scores of features: `x @ weight + bias`, one for each class; they sum to 1 for every photograph."""

    weight: Tensor  # (values, classes)
    bias: Tensor  # (classes,)

    def __call__(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias

    def unscaled(self, scaling: Scaling) -> Head:
        """The same head for features that are not scaled.

        >>> x = torch.rand(5, 3, generator=torch.Generator().manual_seed(0))
        >>> scaling, head = Scaling.of([x[:, :1], x[:, 1:]]), Head(torch.rand(3, 2), torch.rand(2))
        >>> torch.allclose(head(scaling([x])), head.unscaled(scaling)(x), atol=1e-5)
        True
        """
        weight = self.weight * scaling.factor[:, None]
        return Head(weight, self.bias - scaling.mean @ weight)


def reduced(x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Features (n, d) in a basis of their n dimensions, and that basis (d, n); as they are if d is not more than n.

    A regularised linear head is the same in both.
    """
    if x.shape[1] <= x.shape[0]:
        return x, None
    basis, coordinates = torch.linalg.qr(x.T)
    return coordinates.T.contiguous(), basis


def solve(
    x: Tensor, labels: Tensor, *, classes: int, strengths: Sequence[float], weights: Tensor | None = None
) -> Iterator[Head]:
    """The head for each strength of regularisation.

    Args:
        x: (n, d), scaled features.
        labels: (n,).
        classes: how many there are; some may have no photograph here.
        strengths: added to the diagonal of the covariance.
        weights: (n,), how much each counts; all the same by default.

    >>> x = torch.rand(4, 3, generator=torch.Generator().manual_seed(0))
    >>> wide, labels = torch.cat([x, x], 1), torch.tensor([0, 1, 2, 0])
    >>> few, many = (next(solve(y, labels, classes=3, strengths=[z])) for y, z in ((wide, 0.2), (x, 0.1)))
    >>> torch.allclose(few(wide), many(x), atol=1e-5)
    True
    """
    if len(x) >= x.shape[1]:
        yield from solve_moments(*moments(x, labels, classes=classes, weights=weights), strengths=strengths)
        return
    counts = x.new_ones(len(x)) if weights is None else weights
    parts = (counts / counts.sum())[:, None]
    targets = F.one_hot(labels, classes).to(x.dtype)
    mean, share = (parts * x).sum(0), (parts * targets).sum(0)
    centred = parts.sqrt() * (x - mean)
    for own in _regularised(centred @ centred.T, parts.sqrt() * (targets - share), strengths):
        weight = centred.T @ own
        yield Head(weight, share - mean @ weight)


def moments(
    x: Tensor, labels: Tensor, *, classes: int, weights: Tensor | None = None
) -> tuple[float, Tensor, Tensor, Tensor, Tensor]:
    """Sums that determine the head: of weights, features, labels, products of features, of features and labels."""
    targets = F.one_hot(labels, classes).to(x.dtype)
    counts = x.new_ones(len(x)) if weights is None else weights
    weighted = counts[:, None] * x
    return float(counts.sum()), weighted.sum(0), counts @ targets, weighted.T @ x, weighted.T @ targets


def solve_moments(
    count: float, x: Tensor, targets: Tensor, squares: Tensor, products: Tensor, *, strengths: Sequence[float]
) -> Iterator[Head]:
    """The heads from the sums of `moments`."""
    mean, share = x / count, targets / count
    covariance = squares / count - torch.outer(mean, mean)
    right = products / count - torch.outer(mean, share)
    for weight in _regularised(covariance, right, strengths):
        yield Head(weight, share - mean @ weight)


def _regularised(matrix: Tensor, right: Tensor, strengths: Sequence[float]) -> Iterator[Tensor]:
    """Solutions of (matrix + strength * identity) @ solution = right."""
    diagonal = matrix.diagonal().clone()
    for strength in strengths:
        matrix.diagonal().copy_(diagonal + strength)
        factor, failed = torch.linalg.cholesky_ex(matrix)
        if failed:  # rounding
            matrix.diagonal().copy_(diagonal + 10 * strength + 1e-5)
            factor = torch.linalg.cholesky(matrix)
        yield torch.cholesky_solve(right, factor)


def temperature(scores: Tensor, labels: Tensor) -> float:
    """The number to divide scores by so that their softmax has the lowest cross-entropy (Guo et al., 2017).

    1 if there are no scores to choose it by.
    """
    if not len(labels):
        return 1.0
    grid = torch.logspace(-3, 1, 81, dtype=scores.dtype)
    losses = torch.stack([F.cross_entropy(scores / value, labels) for value in grid])
    return float(grid[int(losses.argmin())])
