"""How similar a layer's features of an image stay when the image changes its pose: cosines, batch by batch."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

PENDING = 1 << 14  # cosines that are collected before they are summed: many small sums cost more
CHUNK = 256  # products that numpy adds one after the other; longer sums are made of such chunks, to round less
UNIT = 1 << 40  # cosines are summed as integer multiples of 1 / UNIT: the order of batches changes nothing


class Similarity(NamedTuple):
    """Mean and standard deviation of cosines; NaN without images."""

    mean: float
    spread: float  # standard deviation over the pairs of image and copy
    n: int
    undefined: int  # pairs left out because a feature is NaN or infinite


class Features(NamedTuple):
    """A layer's features of a batch, (b, n), and their lengths, (b,), computed once for all poses.

    Feature maps that are stored channels last are flattened in that order.
    """

    rows: Tensor
    lengths: Tensor
    shape: tuple[int, ...]
    channels_last: bool

    @classmethod
    @torch.no_grad()
    def of(cls, features: Tensor) -> Features:
        """Of a batch, (b, ...)."""
        last = features.dim() == 4 and features.is_contiguous(memory_format=torch.channels_last)
        rows = _rows(features, channels_last=last)
        return cls(rows, torch.linalg.vector_norm(rows, dim=1), tuple(features.shape), last)


class FeatureSimilarity:
    """Cosine between a layer's features of an image and of its transformed copy: mean and standard deviation.

    Two zero vectors have cosine 1; a zero and another vector 0. Sums are in single precision, as features are, and
    exact to about 1e-6. They do not depend on the order of batches.

    Raises:
        ValueError: the shapes do not match.

    >>> layer = FeatureSimilarity()
    >>> layer.update(torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.tensor([[6.0, 8.0], [0.0, 2.0]]))
    >>> layer.result().mean
    0.5
    """

    def __init__(self) -> None:
        self._n = self._sum = self._squares = self._undefined = 0
        self._cosines: list[Tensor] = []

    @torch.no_grad()
    def update(self, original: Tensor | Features, copies: Tensor) -> None:
        """Add the features of a batch of images, and of copies of them in one pose or more.

        Shape:
            original: (b, ...), or `Features.of` it.
            copies: (poses * b, ...): the whole batch in one pose, then in the next.
        """
        size = tuple(original.shape)
        shapes = f"{tuple(copies.shape)} of copies do not match {size} of images"
        if len(size) < 2 or tuple(copies.shape[1:]) != size[1:] or not size[0]:
            raise ValueError(f"features {shapes}: they must be (images, ...) and differ in the number of images only")
        if len(copies) % size[0]:
            raise ValueError(f"features {shapes}: every pose must have all images")
        found = original if isinstance(original, Features) else Features.of(original)
        self._cosines += [_cosines(found, part) for part in copies.split(size[0])]
        if sum(map(len, self._cosines)) >= PENDING:
            self._add()

    def _add(self) -> None:
        if not self._cosines:
            return
        cosines = torch.cat(self._cosines).double().cpu()
        self._cosines = []
        known = cosines[~cosines.isnan()]
        self._n += len(known)
        self._undefined += len(cosines) - len(known)
        self._sum += int((known * UNIT).round().long().sum())
        self._squares += int((known * known * UNIT).round().long().sum())

    def result(self) -> Similarity:
        """The numbers so far."""
        self._add()
        n = self._n
        if not n:
            return Similarity(math.nan, math.nan, 0, self._undefined)
        # Integers until the root: nothing cancels.
        variance = (self._squares * UNIT * n - self._sum * self._sum) / (n * n * UNIT * UNIT)
        return Similarity(self._sum / UNIT / n, math.sqrt(max(0.0, variance)), n, self._undefined)


class DifferentImages:
    """The mean cosine between a layer's features of different images, over all pairs of them.

    It is exact and needs the sum of their directions only. An image whose features are zero or not finite is left out.

    >>> layer = DifferentImages()
    >>> layer.update(Features.of(torch.tensor([[2.0, 0.0], [0.0, 3.0], [5.0, 0.0]])))
    >>> layer.mean, layer.n  # of the pairs one is equal, two are at right angles
    (0.3333333333333333, 3)
    """

    def __init__(self) -> None:
        self.n = 0
        self._sum: Tensor | None = None
        self._pairs: list[Tensor] = []

    @torch.no_grad()
    def update(self, features: Features) -> None:
        """Add the images of a batch."""
        known = (features.lengths > 0) & features.lengths.isfinite()
        rows = features.rows if bool(known.all()) else features.rows[known]
        rows = rows / features.lengths[known, None]
        total = rows.sum(0, dtype=torch.float64).cpu()
        half = len(rows) // 2
        if half:
            self._pairs.append(_products(rows[:half], rows[half : 2 * half]).double().cpu())
        self._sum = total if self._sum is None else self._sum + total
        self.n += len(rows)

    @property
    def mean(self) -> float:
        """NaN with fewer than two images."""
        if self._sum is None or self.n < 2:
            return math.nan
        return max(-1.0, min(1.0, (float(self._sum @ self._sum) - self.n) / (self.n * (self.n - 1))))

    @property
    def error(self) -> float:
        """The standard error of the mean, from disjoint pairs: rather large, as the mean is over all pairs."""
        pairs = torch.cat(self._pairs) if self._pairs else torch.zeros(0)
        return float(pairs.std()) / math.sqrt(len(pairs)) if len(pairs) > 1 else math.nan


def _rows(features: Tensor, *, channels_last: bool) -> Tensor:
    """(b, n), in single precision at least, without a copy where the maps are stored in that order."""
    features = features.detach()
    rows = (features.permute(0, 2, 3, 1) if channels_last else features).flatten(1)
    return rows if rows.dtype == torch.float64 else rows.float()


def _cosines(a: Features, copies: Tensor) -> Tensor:
    """Of every row with that of its copy, in [-1, 1]; NaN where a number is not finite."""
    b = _rows(copies, channels_last=a.channels_last)
    lengths = a.lengths * torch.linalg.vector_norm(b, dim=1)
    cosines = _products(a.rows, b) / lengths
    # Rows with squares that underflow or overflow, zeros or NaN are computed again in double precision. The product of
    # two lengths may use half of the exponent's range.
    small = torch.finfo(b.dtype).tiny ** 0.5
    doubtful = (~((lengths > small) & cosines.isfinite())).nonzero()[:, 0]
    if len(doubtful):
        cosines[doubtful] = _careful_cosines(a.rows[doubtful], b[doubtful]).to(cosines.dtype)
    return cosines.clamp(-1, 1)


def _products(a: Tensor, b: Tensor) -> Tensor:
    """The dot product of every two rows; on a CPU by numpy, which needs no memory for the single products."""
    if a.device.type != "cpu":
        return (a * b).sum(1)
    whole = a.shape[1] // CHUNK * CHUNK
    left, right = a.numpy(), b.numpy()
    total = np.einsum("ij,ij->i", left[:, whole:], right[:, whole:])
    if whole:
        chunks = (x[:, :whole].reshape(len(x), -1, CHUNK) for x in (left, right))
        total = total + np.einsum("ijk,ijk->ij", *chunks).sum(1)
    return torch.from_numpy(total)


def _careful_cosines(a: Tensor, b: Tensor) -> Tensor:
    finite = a.isfinite().all(1) & b.isfinite().all(1)
    a, b = (_unit(x.double()) for x in (a, b))
    zeros = (a == 0).all(1) & (b == 0).all(1)
    return torch.where(finite, torch.where(zeros, 1.0, (a * b).sum(1)), torch.nan)


def _unit(rows: Tensor) -> Tensor:
    """Rows of length 1, also where squares would underflow or overflow; zeros stay zero."""
    largest = rows.abs().amax(1, keepdim=True)
    rows = rows / torch.where(largest == 0, 1, largest)
    length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / torch.where(length == 0, 1, length)
