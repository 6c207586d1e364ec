"""Two models on the same images, compared pairwise: is the difference more than chance?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from patchreorder.laboratory.rows import Result
from patchreorder.untrusted import is_count, is_number


class McNemar(NamedTuple):
    """Images that only one of two models gets wrong, and how likely a split so uneven is if neither is better.

    Of scores: images, or groups of them that are drawn together, for which one model's are lower (a sign test).
    """

    only_a: int
    only_b: int
    p: float


class Difference(NamedTuple):
    """Error of a minus error of b in percentage points, the mean over seeds, and its 95 % interval.

    Of `scores`, which rows may have for every image (details["scores"]), the mean score of a minus that of b.
    """

    mean: float
    low: float
    high: float
    seeds: tuple[int, ...]
    n: int
    scores: bool = False
    together: int = 1  # images in a row that are drawn as one, such as those of a group that are searched for

    @property
    def digits(self) -> int:
        return 3 if self.scores else 2


class Comparison(NamedTuple):
    """The difference over all common seeds, McNemar's test for each, and for all together.

    Together, an image counts for the model that gets it wrong with more of the seeds; with one seed that is McNemar's
    test again.
    """

    difference: Difference
    tests: Mapping[int, McNemar]
    together: McNemar

    @property
    def verdict(self) -> str:
        """What is shown of the first model.

        The interval must leave out zero, and the test over images agree: of few images that differ, all in favour of
        one model, an interval by drawing again thinks too highly; and the test knows nothing of other seeds.
        """
        less, more = ("lower score", "higher score") if self.difference.scores else ("fewer errors", "more errors")
        if self.together.p < 0.05 and self.difference.high < 0:
            return less
        return more if self.together.p < 0.05 and self.difference.low > 0 else "no difference shown"


def mcnemar(errors_a: Iterable[int], errors_b: Iterable[int]) -> McNemar:
    """McNemar's exact two-sided test from the indices of the images that each model gets wrong.

    Example:
        >>> mcnemar([1, 2, 3, 9], [9])
        McNemar(only_a=3, only_b=0, p=0.25)
    """
    a, b = set(errors_a), set(errors_b)
    return _exact(len(a - b), len(b - a))


def _exact(only_a: int, only_b: int) -> McNemar:
    flips = only_a + only_b
    # Binomial coefficients as whole numbers: nothing is rounded before the one division.
    ways = total = 1
    for k in range(1, min(only_a, only_b) + 1):
        ways = ways * (flips - k + 1) // k
        total += ways
    return McNemar(only_a, only_b, min(1.0, 2 * total / 2**flips))


def paired_bootstrap(
    rows_a: Sequence[Result], rows_b: Sequence[Result], *, samples: int = 10_000, seed: int = 0
) -> Difference:
    """Difference of error, or of score, over the seeds both have; 95 % interval by drawing images, and seeds, again.

    Two or three seeds say little about the spread over seeds: the interval is then rather too narrow.

    Raises:
        ValueError: the rows cannot be paired; says why.
    """
    pairs = _pairs(rows_a, rows_b)
    n, together = pairs[0][0].n, _together(pairs[0][0])
    # Images with the same signs are interchangeable, so only how often each kind is drawn matters.
    kinds, counts = np.unique(_signs(pairs), axis=0, return_counts=True)  # kind seed
    units = n // together
    chances = np.append(counts, units - counts.sum()) / units
    random = np.random.default_rng(seed)
    drawn = random.multinomial(units, chances, size=samples)[:, :-1]  # sample kind
    weights = random.multinomial(len(pairs), np.full(len(pairs), 1 / len(pairs)), size=samples)  # sample seed
    differences = np.einsum("sk,ks->s", drawn, kinds @ weights.T) / (n * len(pairs))
    low, high = np.quantile(differences, [0.025, 0.975])
    mean = float(counts @ kinds.mean(1)) / n
    seeds = tuple(a.seed for a, _ in pairs)
    if _has_scores(pairs[0][0]):  # a is better by as much as it is not worse
        return Difference(0.0 - mean, 0.0 - float(high), 0.0 - float(low), seeds, n, scores=True, together=together)
    return Difference(100 * mean, 100 * float(low), 100 * float(high), seeds, n)


def compare(rows_a: Sequence[Result], rows_b: Sequence[Result]) -> Comparison:
    """Both tests for the rows of two models on one column; raises ValueError, saying why, if they cannot be paired."""
    pairs = _pairs(rows_a, rows_b)
    worse = _signs(pairs)
    tests = {a.seed: _split(worse[:, place]) for place, (a, _) in enumerate(pairs)}
    return Comparison(paired_bootstrap(rows_a, rows_b), tests, _split(worse.sum(1)))


def _split(worse: np.ndarray) -> McNemar:
    return _exact(int((worse > 0).sum()), int((worse < 0).sum()))


def _signs(pairs: Sequence[tuple[Result, Result]]) -> np.ndarray:
    """For the images where two models ever differ: +1 where only a is wrong, -1 where only b is.

    Of scores, for images that are drawn together: by how much a's are lower.

    Shape: (image, seed)
    """
    if _has_scores(pairs[0][0]):
        lower = [np.subtract(b.details["scores"], a.details["scores"], dtype=float) for a, b in pairs]
        units = np.stack(lower, 1).reshape(-1, _together(pairs[0][0]), len(pairs)).sum(1)
        return units[units.any(1)]
    images: dict[int, list[float]] = {}
    for place, (a, b) in enumerate(pairs):
        for sign, indices in ((1, set(a.errors) - set(b.errors)), (-1, set(b.errors) - set(a.errors))):
            for index in indices:
                images.setdefault(index, [0.0] * len(pairs))[place] = sign
    return np.array(sorted(images.values()), dtype=float).reshape(-1, len(pairs))


def _pairs(rows_a: Sequence[Result], rows_b: Sequence[Result]) -> list[tuple[Result, Result]]:
    """Rows of the same seed, in the order of the seeds."""
    for name in ("recipe", "column", "setting", "split"):
        values = sorted({getattr(row, name) for row in (*rows_a, *rows_b)})
        if len(values) > 1:
            raise ValueError(f"rows of different {name} ({', '.join(values)}) cannot be compared")
    by_seed = [{row.seed: row for row in rows} for rows in (rows_a, rows_b)]
    common = sorted(by_seed[0].keys() & by_seed[1].keys())
    if not common:
        raise ValueError("no seed that both were trained with")
    pairs = [(by_seed[0][seed], by_seed[1][seed]) for seed in common]
    sizes = {row.n for pair in pairs for row in pair}
    if len(sizes) > 1:
        raise ValueError(f"tested on different numbers of images ({', '.join(map(str, sorted(sizes)))})")
    scored = any(_has_scores(row) for pair in pairs for row in pair)
    for row in (row for pair in pairs for row in pair):
        if not (_kept_scores(row) if scored else _kept(row)):
            what = "scores" if scored else "wrong answers"
            raise ValueError(f"the {what} of {row.row}, seed {row.seed}, were not kept")
    if len({_together(row) for pair in pairs for row in pair}) > 1:
        raise ValueError("scores of images that belong together in different ways")
    if len({index for pair in pairs for row in pair for index in row.errors}) > pairs[0][0].n:
        raise ValueError("more images answered wrongly than tested")
    return pairs


def _kept(row: Result) -> bool:
    """Whether the indices of the wrong answers explain the value, be it a rate of errors or of right answers."""
    share = 100 * len(set(row.errors)) / row.n
    return min(abs(row.value - share), abs(100 - row.value - share)) < 0.006  # a value may be rounded


def _has_scores(row: Result) -> bool:
    return "scores" in row.details


def _kept_scores(row: Result) -> bool:
    """Whether there is a score for every image, and they explain the value."""
    scores: Any = row.details.get("scores")
    if not isinstance(scores, list) or len(scores) != row.n or not all(map(is_number, scores)):
        return False
    return _together(row) > 0 and abs(row.value - sum(scores) / row.n) < 0.0006  # a value may be rounded


def _together(row: Result) -> int:
    """How many images in a row are drawn as one; 0 where the row says something that cannot be."""
    together: Any = row.details.get("together", 1) if _has_scores(row) else 1
    return together if is_count(together) and together and row.n % together == 0 else 0
