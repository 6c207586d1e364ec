"""Paired comparisons: known answers, and reasons why rows cannot be paired."""

import math

import numpy as np
import pytest

from patchreorder.report.comparison import McNemar, compare, mcnemar
from tests.report_rows import result, scored, seeds


@pytest.mark.parametrize(
    ("only_a", "only_b", "p"),
    [
        (0, 0, 1.0),
        (1, 1, 1.0),
        (3, 0, 2 / 8),
        (0, 5, 2 / 32),
        (10, 2, 2 * (1 + 12 + 66) / 4096),
        (2, 10, 2 * (1 + 12 + 66) / 4096),
    ],
)
def test_mcnemar_by_hand(only_a, only_b, p):
    both = [1000, 1001]
    found = mcnemar([*both, *range(only_a)], [*range(500, 500 + only_b), *both])
    assert found == McNemar(only_a, only_b, p)


def test_mcnemar_of_thousands_agrees_with_logarithms():
    total = 10_100
    terms = [math.lgamma(total + 1) - math.lgamma(k + 1) - math.lgamma(total - k + 1) for k in range(4901)]
    p = 2 * sum(math.exp(term - total * math.log(2)) for term in terms)
    assert mcnemar(range(4900), range(4900, total)).p == pytest.approx(p, rel=1e-6)
    assert mcnemar(range(5000), []).p == 0.0


def test_bootstrap_of_one_seed_is_a_binomial():
    found = compare(seeds("a", [*range(10)], n=100), seeds("b", [], n=100)).difference
    assert (found.mean, found.seeds, found.n) == (pytest.approx(10), (0,), 100)
    assert found.low == pytest.approx(5, abs=1)  # quantiles of Binomial(100, 0.1)
    assert found.high == pytest.approx(16, abs=1)
    swapped = compare(seeds("b", [], n=100), seeds("a", [*range(10)], n=100)).difference
    assert (swapped.mean, swapped.low, swapped.high) == pytest.approx((-found.mean, -found.high, -found.low), abs=1)


def test_bootstrap_agrees_with_drawing_images_and_seeds_one_by_one():
    random = np.random.default_rng(3)
    wrong = random.random((2, 3, 400)) < np.array([0.15, 0.10])[:, None, None]  # model seed image
    a, b = (
        seeds(name, *(np.flatnonzero(w).tolist() for w in model), n=400)
        for name, model in zip("ab", wrong, strict=True)
    )
    found = compare(a, b).difference
    difference = wrong[0].astype(float) - wrong[1]
    drawn = [
        difference[random.integers(3, size=3)][:, random.integers(400, size=400)].mean() * 100 for _ in range(4000)
    ]
    assert found.mean == pytest.approx(100 * difference.mean())
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])), abs=0.25)


def test_bootstrap_draws_seeds_too():
    many = [*range(100)]
    found = compare(seeds("a", many, []), seeds("b", [], many)).difference
    assert found.mean == pytest.approx(0)
    assert found.low < -9  # one time in four the first seed is drawn twice
    assert found.high > 9


def test_bootstrap_of_the_same_answers_is_nothing():
    found = compare(seeds("a", [1, 2], [3]), seeds("b", [1, 2], [3])).difference
    assert (found.mean, found.low, found.high) == (0, 0, 0)
    assert compare(seeds("a", [1]), seeds("b", [1])).verdict == "no difference shown"


def test_only_common_seeds_are_paired():
    a, b = seeds("a", [1], [2, 3], [4]), seeds("b", [5], [3])
    found = compare(a, b)
    assert found.difference.seeds == (0, 1)
    assert found.tests == {0: McNemar(1, 1, 1.0), 1: McNemar(1, 0, 1.0)}
    assert found.difference.mean == pytest.approx(100 * (0 + 1) / 2 / 1000)


@pytest.mark.parametrize(
    ("a", "b", "why"),
    [
        ({}, {"seed": 1}, "no seed"),
        ({}, {"n": 999}, "different numbers of images"),
        ({}, {"value": 7.0}, "were not saved"),
        ({}, {"column": "T"}, "different column"),
        ({"setting": "paper"}, {}, "different setting"),
        ({"split": "validation"}, {}, "different split"),
    ],
)
def test_what_cannot_be_paired_says_why(a, b, why):
    with pytest.raises(ValueError, match=why):
        compare([result(row="a", errors=[1], **a)], [result(row="b", errors=[2], **b)])


def test_a_rate_of_right_answers_can_be_compared_too():
    a, b = result(row="a", errors=[1, 2], value=99.8), result(row="b", errors=[1], value=99.9)
    assert compare([a], [b]).difference.mean == pytest.approx(0.1)


def test_the_verdict_needs_the_interval_and_the_test():
    few, many = seeds("a", [1]), seeds("b", [*range(60)])
    assert compare(few, many).verdict == "fewer errors"
    assert compare(many, few).verdict == "more errors"
    none, four = seeds("a", []), seeds("b", [1, 2, 3, 4])
    assert compare(none, four).difference.high < 0  # drawing again never makes the second better
    assert compare(none, four).tests == {0: McNemar(0, 4, 0.125)}
    assert compare(none, four).verdict == compare(four, none).verdict == "no difference shown"
    a, b = seeds("a", [*range(100)], []), seeds("b", [], [*range(200, 240)])  # the seeds disagree
    for found in (compare(a, b), compare(b, a)):
        assert found.together.p < 0.001
        assert found.difference.low < 0 < found.difference.high
        assert found.verdict == "no difference shown"


def test_all_seeds_together_by_hand():
    found = compare(seeds("a", [1, 2, 3], [1, 4], [5]), seeds("b", [], [2], [6, 7, 5]))
    assert found.together == McNemar(3, 2, 1.0)  # 1, 3, 4 against 6, 7; 2 is even, 5 the same
    one = compare(seeds("a", [1, 2, 3]), seeds("b", []))
    assert one.together == one.tests[0] == McNemar(3, 0, 0.25)


def random_scores(seed: int, groups: int = 60) -> list[int]:
    random = np.random.default_rng(seed)
    return np.clip(4 - random.poisson(0.3, (groups, 1)) - random.poisson(0.15, (groups, 4)), 1, 4).ravel().tolist()


def test_the_interval_is_that_of_drawing_groups_one_by_one():
    a, b = random_scores(1), random_scores(2)
    found = compare([scored("a", a)], [scored("b", b)]).difference
    assert found.mean == pytest.approx(np.mean(a) - np.mean(b))
    assert (found.n, found.seeds, found.scores, found.together, found.digits) == (240, (0,), True, 4, 3)
    random = np.random.default_rng(3)
    by_group = (np.array(a) - np.array(b)).reshape(60, 4).mean(1)
    drawn = by_group[random.integers(60, size=(20_000, 60))].mean(1)
    assert (found.low, found.high) == pytest.approx(np.quantile(drawn, [0.025, 0.975]), abs=0.01)
    alone = compare([scored("a", a, together=1)], [scored("b", b, together=1)]).difference
    assert alone.high - alone.low < 0.8 * (found.high - found.low)  # as if the four of a group were strangers


def test_verdicts_on_scores():
    """Twenty groups of which ten are better by one image each."""
    low, high = [3] * 80, [4, 3, 3, 3] * 10 + [3] * 40
    found = compare([scored("a", high)], [scored("b", low)])
    assert found.verdict == "higher score"
    assert found.difference.mean == pytest.approx(10 / 80)
    assert found.together == McNemar(0, 10, 2 / 2**10)
    assert found.tests == {0: found.together}
    other = compare([scored("b", low)], [scored("a", high)])
    assert other.verdict == "lower score"
    assert (other.difference.low, other.difference.high) == pytest.approx(
        (-found.difference.high, -found.difference.low)
    )
    all_better = compare([scored("a", [4] * 80)], [scored("b", low)])
    assert all_better.difference[:3] == (1, 1, 1)  # whichever groups are drawn
    same = compare([scored("a", low)], [scored("b", low)])
    assert same.verdict == "no difference shown"
    assert same.difference[:3] == (0, 0, 0)


GOOD = scored("b", [4] * 8)


@pytest.mark.parametrize(
    ("a", "why"),
    [
        (scored("a", [4] * 12), r"tested on different numbers of images \(8, 12\)"),
        (scored("a", [4] * 8, value=3.9), "the scores of a, seed 0, were not saved"),
        (scored("a", [4] * 8, details={}), "the scores of a, seed 0, were not saved"),
        (scored("a", [4] * 8, details={"scores": [4] * 7}), "the scores of a, seed 0, were not saved"),
        (scored("a", [4] * 8, details={"scores": 4}), "the scores of a, seed 0, were not saved"),
        (scored("a", [4] * 8, details={"scores": ["4"] * 8}), "the scores of a, seed 0, were not saved"),
        (scored("a", [4] * 8, together=3), "the scores of a, seed 0, were not saved"),
        (scored("a", [4] * 8, together=-4), "the scores of a, seed 0, were not saved"),
        (scored("a", [4] * 8, together=2), "scores of images that belong together in different ways"),
        (scored("a", [4] * 8, seed=1), "no seed that both were trained with"),
    ],
)
def test_scores_that_cannot_be_paired_say_why(a, why):
    with pytest.raises(ValueError, match=why):
        compare([a], [GOOD])
    if a.seed == 0:
        with pytest.raises(ValueError, match=why):
            compare([GOOD], [a])
