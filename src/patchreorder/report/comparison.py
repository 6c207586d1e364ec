"""Paired comparison of two models on the same images: an exact test and a bootstrap interval.

Rows have the indices of the images that a model gets wrong, or a score for every image (details["scores"]).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from patchreorder.laboratory.rows import Result
from patchreorder.untrusted import is_count, is_number


class McNemar(NamedTuple):
    """An exact two-sided test: how many images only one of two models gets wrong, and the p value of that split.

    With scores: how many images, or groups of images, have a lower score for one of the models (a sign test).
    """

    only_a: int
    only_b: int
    p: float


class Difference(NamedTuple):
    """The error of a minus that of b in percentage points, its mean over seeds and its 95 % interval.

    With `scores`: the mean score of a minus that of b.
    """

    mean: float
    low: float
    high: float
    seeds: tuple[int, ...]
    n: int
    scores: bool = False
    together: int = 1  # images of a group, which the bootstrap draws together

    @property
    def digits(self) -> int:
        return 3 if self.scores else 2


class Comparison(NamedTuple):
    """The difference over all common seeds, the test of each seed, and the test of all seeds together.

    In the latter, an image counts for the model that gets it wrong with more seeds.
    """

    difference: Difference
    tests: Mapping[int, McNemar]
    together: McNemar

    @property
    def verdict(self) -> str:
        """What is shown about the first model, by the interval and the test together.

        If few images differ, and all in favour of one model, a bootstrap interval is too narrow. The test ignores the
        spread over seeds.
        """
        less, more = ("lower score", "higher score") if self.difference.scores else ("fewer errors", "more errors")
        if self.together.p < 0.05 and self.difference.high < 0:
            return less
        return more if self.together.p < 0.05 and self.difference.low > 0 else "no difference shown"


def mcnemar(errors_a: Iterable[int], errors_b: Iterable[int]) -> McNemar:
    """McNemar's exact test from the indices of the images that each model gets wrong.

    Example:
        >>> mcnemar([1, 2, 3, 9], [9])
        McNemar(only_a=3, only_b=0, p=0.25)
    """
    a, b = set(errors_a), set(errors_b)
    return _exact(len(a - b), len(b - a))


def compare(rows_a: Sequence[Result], rows_b: Sequence[Result]) -> Comparison:
    """Compare the rows of two models on one column over the seeds that both have.

    Raises:
        ValueError: the rows cannot be paired.
    """
    pairs = _pairs(rows_a, rows_b)
    worse = _worse(pairs)
    tests = {a.seed: _split(worse[:, index]) for index, (a, _) in enumerate(pairs)}
    return Comparison(_bootstrap(pairs, worse), tests, _split(worse.sum(1)))


def _bootstrap(pairs: Sequence[tuple[Result, Result]], worse: np.ndarray, samples: int = 10_000) -> Difference:
    """The difference and its interval from resampled images and seeds; with two or three seeds it is too narrow."""
    n, together, scores = pairs[0][0].n, _together(pairs[0][0]), "scores" in pairs[0][0].details
    # Images with the same signs are interchangeable, so only the number of each kind is drawn.
    kinds, counts = np.unique(worse, axis=0, return_counts=True)  # kind seed
    units = n // together
    chances = np.append(counts, units - counts.sum()) / units
    random = np.random.default_rng(0)
    drawn = random.multinomial(units, chances, size=samples)[:, :-1]  # sample kind
    weights = random.multinomial(len(pairs), np.full(len(pairs), 1 / len(pairs)), size=samples)  # sample seed
    differences = np.einsum("sk,ks->s", drawn, kinds @ weights.T) / (n * len(pairs))
    low, high = map(float, np.quantile(differences, [0.025, 0.975]))
    mean = float(counts @ kinds.mean(1)) / n
    seeds = tuple(a.seed for a, _ in pairs)
    if scores:  # `worse` is how much lower the scores of a are
        return Difference(0.0 - mean, 0.0 - high, 0.0 - low, seeds, n, scores=True, together=together)
    return Difference(100 * mean, 100 * low, 100 * high, seeds, n)


def _split(worse: np.ndarray) -> McNemar:
    return _exact(int((worse > 0).sum()), int((worse < 0).sum()))


def _exact(only_a: int, only_b: int) -> McNemar:
    flips = only_a + only_b
    # Binomial coefficients as integers: nothing is rounded before the one division.
    ways = total = 1
    for k in range(1, min(only_a, only_b) + 1):
        ways = ways * (flips - k + 1) // k
        total += ways
    return McNemar(only_a, only_b, min(1.0, 2 * total / 2**flips))


def _worse(pairs: Sequence[tuple[Result, Result]]) -> np.ndarray:
    """For each image on which two models differ: +1 if only a is wrong, -1 if only b is.

    With scores, for each group of images: how much lower the scores of a are.

    Shape: (image, seed)
    """
    if "scores" in pairs[0][0].details:
        lower = [np.subtract(b.details["scores"], a.details["scores"], dtype=float) for a, b in pairs]
        groups = np.stack(lower, 1).reshape(-1, _together(pairs[0][0]), len(pairs)).sum(1)
        return groups[groups.any(1)]
    images: dict[int, list[float]] = {}
    for seed, (a, b) in enumerate(pairs):
        wrong_a, wrong_b = set(a.errors), set(b.errors)
        for index in wrong_a ^ wrong_b:
            images.setdefault(index, [0.0] * len(pairs))[seed] = 1 if index in wrong_a else -1
    return np.array(sorted(images.values()), dtype=float).reshape(-1, len(pairs))


def _pairs(rows_a: Sequence[Result], rows_b: Sequence[Result]) -> list[tuple[Result, Result]]:
    """Rows with the same seed, in the order of the seeds."""
    for name in ("recipe", "column", "setting", "split"):
        values = sorted({getattr(row, name) for row in (*rows_a, *rows_b)})
        if len(values) > 1:
            raise ValueError(f"rows of different {name} ({', '.join(values)}) cannot be compared")
    a, b = ({row.seed: row for row in rows} for rows in (rows_a, rows_b))
    pairs = [(a[seed], b[seed]) for seed in sorted(a.keys() & b.keys())]
    if not pairs:
        raise ValueError("no seed that both were trained with")
    rows = [row for pair in pairs for row in pair]
    if len(sizes := {row.n for row in rows}) > 1:
        raise ValueError(f"tested on different numbers of images ({', '.join(map(str, sorted(sizes)))})")
    scored = any("scores" in row.details for row in rows)
    for row in rows:
        if not (_has_all_scores(row) if scored else _has_all_errors(row)):
            what = "scores" if scored else "wrong answers"
            raise ValueError(f"the {what} of {row.row}, seed {row.seed}, were not saved")
    if len(set(map(_together, rows))) > 1:
        raise ValueError("scores of images that belong together in different ways")
    if len({index for row in rows for index in row.errors}) > rows[0].n:
        raise ValueError("more images answered wrongly than tested")
    return pairs


def _has_all_errors(row: Result) -> bool:
    """Whether the number of errors explains the value, be it a rate of errors or of right answers."""
    share = 100 * len(set(row.errors)) / row.n
    return min(abs(row.value - share), abs(100 - row.value - share)) < 0.006  # a value may be rounded


def _has_all_scores(row: Result) -> bool:
    """Whether every image has a score, and their mean is the value."""
    scores: Any = row.details.get("scores")
    if not isinstance(scores, list) or len(scores) != row.n or not all(map(is_number, scores)):
        return False
    return _together(row) > 0 and abs(row.value - sum(scores) / row.n) < 0.0006  # a value may be rounded


def _together(row: Result) -> int:
    """The number of successive images that form a group; 0 if the row names an impossible one."""
    together: Any = row.details.get("together", 1) if "scores" in row.details else 1
    return together if is_count(together) and together and row.n % together == 0 else 0
