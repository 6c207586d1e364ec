"""Whether a network says the same of the same image in other poses: error curves, equal answers, similar features.

All of it is streaming: a few counts are kept, whatever the number of images, and batches may come in any order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .accuracy import mistakes

STEPS = 1000  # bins of cosines in a unit, whose centres are -1, -0.999, ..., 1: quantiles are exact to half a bin
WAITING = 1 << 14  # cosines that wait until they are counted: many small updates cost less
CHUNK = 256  # numbers that are added one after the other; longer sums are put together from such
UNIT = 1 << 40  # cosines are summed as whole multiples of 1 / UNIT, so that the order of batches changes nothing


class Rate(NamedTuple):
    """A rate in percent with its confidence band, and of how many."""

    value: float
    low: float
    high: float
    n: int

    @property
    def complement(self) -> Rate:
        """Of right answers, if this one is of wrong ones."""
        return Rate(100 - self.value, 100 - self.high, 100 - self.low, self.n)


class Point(NamedTuple):
    """One point of a curve: where, and the rate there."""

    at: float
    rate: Rate


class Similarity(NamedTuple):
    """How cosines are spread; of no images everything is NaN."""

    mean: float
    spread: float  # standard deviation over the pairs of image and copy
    quantiles: dict[float, float]
    n: int
    undefined: int  # pairs left out because a feature is NaN or infinite


def wilson(hits: int, n: int, *, level: float = 0.95) -> tuple[float, float]:
    """Wilson's confidence interval of a share, (low, high) in [0, 1].

    Raises:
        ValueError: hits is not from 0 to n, n is 0, or level not between 0 and 1.

    >>> [round(bound, 4) for bound in wilson(0, 10)], [round(bound, 4) for bound in wilson(5, 10)]
    ([0.0, 0.2775], [0.2366, 0.7634])
    """
    if n < 1 or not 0 <= hits <= n:
        raise ValueError(f"hits ({hits}) must be from 0 to n ({n}), and n 1 or more")
    return _wilson(hits / n, n, level)


def _wilson(share: float, n: int, level: float) -> tuple[float, float]:
    if not 0 < level < 1:
        raise ValueError(f"level ({level}) must be between 0 and 1")
    z = NormalDist().inv_cdf((1 + level) / 2)
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # At the ends the formula gives 0 and 1, but for rounding.
    return (0.0 if share == 0 else max(0.0, middle - half)), (1.0 if share == 1 else min(1.0, middle + half))


class ErrorCurve:
    """Error in percent against a parameter of the transform, such as the angle, with a confidence band at each point.

    A band is for its point alone. All points show the same images, so that differences along a curve are surer than
    bands that overlap suggest.

    Args:
        at: values of the parameter, in the order of the curve.
        top: how many first answers the label must be among.
        level: of confidence, for Wilson's interval.

    Raises:
        ValueError: logits and labels do not fit, hold NaN, or `at` is no point of the curve.

    >>> curve = ErrorCurve([0.0, 9.0])
    >>> for angle, logits in ((0.0, [[0.1, 0.9], [0.7, 0.3]]), (9.0, [[0.6, 0.4], [0.7, 0.3]])):
    ...     curve.update(angle, torch.tensor(logits), torch.tensor([1, 0]))
    >>> [(point.at, point.rate.value) for point in curve.result()]
    [(0.0, 0.0), (9.0, 50.0)]
    """

    def __init__(self, at: Sequence[float], *, top: int = 1, level: float = 0.95) -> None:
        if not len(at) or len(set(at)) != len(at):
            raise ValueError(f"at ({list(at)}) must be values that differ, one or more")
        self.top, self.level = top, level
        self._wrong = dict.fromkeys(map(float, at), 0)
        self._seen = dict.fromkeys(map(float, at), 0)

    def update(self, at: float, logits: Tensor, labels: Tensor) -> None:
        """Take a batch of answers at one point.

        Shape:
            logits: (b, classes); labels: (b,).
        """
        if at not in self._seen:
            raise ValueError(f"at ({at}) is not one of the curve's {list(self._seen)}")
        self._wrong[at] += len(mistakes(logits, labels, top=self.top)[0])
        self._seen[at] += len(labels)

    def result(self) -> list[Point]:
        """The curve; points without images are left out."""
        return [Point(at, _rate(self._wrong[at], n, self.level)) for at, n in self._seen.items() if n]


class Consistency:
    """How often a network gives the same answer to an image in two poses, in percent.

    With answers in two poses, such as a random pair for each image, a pair counts or does not. With more, all pairs
    count: the rate is exactly what drawing pairs of different poses would give in the mean. The band is Wilson's for
    the number of images; with more than two poses it is rather too wide, as images then are more than right or wrong.

    Raises:
        ValueError: answers are not whole numbers of two or more poses, or logits are NaN.

    >>> same = Consistency()
    >>> same.update(torch.tensor([[3, 1], [3, 1], [3, 7]]))  # three poses of two images: 3 + 1 of 6 pairs are alike
    >>> round(same.result().value, 2)
    66.67
    """

    def __init__(self, *, level: float = 0.95) -> None:
        self.level = level
        self._alike = self._images = self._poses = 0

    def update(self, answers: Tensor) -> None:
        """Take the answers for a batch of images.

        Shape:
            answers: (poses, b), whole numbers, or logits (poses, b, classes), of which the first largest counts.
        """
        if answers.dim() == 3 and answers.is_floating_point():
            if bool(answers.isnan().any()):
                raise ValueError("logits hold NaN: the network's weights or images are not finite")
            answers = answers.argmax(2)
        if answers.dim() != 2 or answers.is_floating_point() or len(answers) < 2:
            raise ValueError(
                f"answers must be (poses, images) whole numbers or (poses, images, classes) logits of 2 poses or more, "
                f"got {tuple(answers.shape)} {answers.dtype}"
            )
        if self._images and len(answers) != self._poses:
            raise ValueError(f"answers in {len(answers)} poses, but in {self._poses} before: one number for all images")
        self._poses = len(answers)
        self._images += answers.shape[1]
        # Each answer is compared with the others: a pose at a time, as all pairs at once would be a large tensor.
        self._alike += sum(int((answers[i + 1 :] == answers[i]).sum()) for i in range(self._poses))

    def result(self) -> Rate:
        """The rate over all images so far."""
        if not self._images:
            raise ValueError("no images were measured: call update first")
        pairs = self._images * (self._poses * (self._poses - 1) // 2)
        low, high = _wilson(self._alike / pairs, self._images, self.level)
        return Rate(100 * self._alike / pairs, 100 * low, 100 * high, self._images)


class Features(NamedTuple):
    """A layer's features of a batch of images, (b, n), and their lengths, (b,), to be compared with those of copies.

    Features of maps that are stored channels last are in that order: `channels_last` says so.
    """

    rows: Tensor
    lengths: Tensor
    shape: tuple[int, ...]
    channels_last: bool

    @classmethod
    @torch.no_grad()
    def of(cls, features: Tensor) -> Features:
        """Of a batch, (b, ...): give them to `FeatureSimilarity.update` for every pose, to find lengths only once."""
        last = _is_channels_last(features)
        rows = _rows(features, channels_last=last)
        return cls(rows, torch.linalg.vector_norm(rows, dim=1), tuple(features.shape), last)


class FeatureSimilarity:
    """Cosine between a layer's features of an image and of its transformed copy: mean, spread, quantiles.

    Two features that are both zero are alike: 1; if one alone is zero, 0. Single precision, as features are: sums are
    exact to about 1e-6, quantiles to 0.0005.

    Args:
        quantiles: which ones, from 0 to 1.

    Raises:
        ValueError: the shapes do not fit each other.

    >>> layer = FeatureSimilarity(quantiles=[0.5])
    >>> layer.update(torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.tensor([[6.0, 8.0], [0.0, 2.0]]))
    >>> layer.result().mean
    0.5
    """

    def __init__(self, *, quantiles: Sequence[float] = (0.05, 0.25, 0.5, 0.75, 0.95)) -> None:
        if not all(0 <= q <= 1 for q in quantiles):
            raise ValueError(f"quantiles ({list(quantiles)}) must be from 0 to 1")
        self.quantiles = tuple(quantiles)
        self._counts = torch.zeros(2 * STEPS + 1, dtype=torch.int64)
        self._sum = self._squares = self._undefined = 0
        self._cosines: list[Tensor] = []

    @torch.no_grad()
    def update(self, original: Tensor | Features, copies: Tensor) -> None:
        """Take the features of a batch of images, and of copies of them in one pose or more.

        Shape:
            original: (b, ...), or what `Features.of` made of it.
            copies: (poses * b, ...): the whole batch in one pose, then in the next.
        """
        size = tuple(original.shape)
        shapes = f"{tuple(copies.shape)} of copies do not fit {size} of images"
        if len(size) < 2 or tuple(copies.shape[1:]) != size[1:] or not size[0]:
            raise ValueError(f"features {shapes}: they must be (images, ...), alike but for the number of images")
        if len(copies) % size[0]:
            raise ValueError(f"features {shapes}: every pose must have all images")
        found = original if isinstance(original, Features) else Features.of(original)
        self._cosines += [_cosines(found, part) for part in copies.split(size[0])]
        if sum(map(len, self._cosines)) >= WAITING:
            self._count()

    def _count(self) -> None:
        if not self._cosines:
            return
        cosines = torch.cat(self._cosines).double().cpu()
        self._cosines = []
        known = cosines[~cosines.isnan()]
        self._undefined += len(cosines) - len(known)
        bins = ((known + 1) * STEPS).round().long()
        self._counts = self._counts + torch.bincount(bins, minlength=2 * STEPS + 1)
        self._sum += int((known * UNIT).round().long().sum())
        self._squares += int((known * known * UNIT).round().long().sum())

    def result(self) -> Similarity:
        """The numbers so far."""
        self._count()
        n = int(self._counts.sum())
        if not n:
            return Similarity(math.nan, math.nan, dict.fromkeys(self.quantiles, math.nan), 0, self._undefined)
        mean = self._sum / UNIT / n
        # In whole numbers until the root: nothing cancels.
        variance = (self._squares * UNIT * n - self._sum * self._sum) / (n * n * UNIT * UNIT)
        passed = self._counts.cumsum(0)
        found = {}
        for q in self.quantiles:
            found[q] = int((passed < max(1, math.ceil(q * n))).sum()) / STEPS - 1
        return Similarity(mean, math.sqrt(max(0.0, variance)), found, n, self._undefined)


def _rate(hits: int, n: int, level: float) -> Rate:
    low, high = wilson(hits, n, level=level)
    return Rate(100 * hits / n, 100 * low, 100 * high, n)


def _is_channels_last(features: Tensor) -> bool:
    return features.dim() == 4 and features.is_contiguous(memory_format=torch.channels_last)


def _rows(features: Tensor, *, channels_last: bool) -> Tensor:
    """(b, n), in single precision at least, without a copy where the maps are stored in that order."""
    features = features.detach()
    rows = (features.permute(0, 2, 3, 1) if channels_last else features).flatten(1)
    return rows if rows.dtype == torch.float64 else rows.float()


def _cosines(a: Features, copies: Tensor) -> Tensor:
    """Of every row with that of a copy, in [-1, 1]; NaN where a number is not finite."""
    b = _rows(copies, channels_last=a.channels_last)
    lengths = a.lengths * torch.linalg.vector_norm(b, dim=1)
    cosines = _products(a.rows, b) / lengths
    # Squares that vanish or overflow, zeros, NaN: once more, and carefully. Half of the range is left for the sums.
    small = torch.finfo(b.dtype).tiny ** 0.5
    doubtful = (~((lengths > small) & cosines.isfinite())).nonzero()[:, 0]
    if len(doubtful):
        cosines[doubtful] = _careful_cosines(a.rows[doubtful], b[doubtful]).to(cosines.dtype)
    return cosines.clamp(-1, 1)


def _products(a: Tensor, b: Tensor) -> Tensor:
    """a . b, row by row; on a CPU by numpy, which needs no room for the products of the numbers."""
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
    largest = rows.abs().amax(1, keepdim=True)
    rows = rows / torch.where(largest == 0, 1, largest)
    length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / torch.where(length == 0, 1, length)
