"""Curves, equal answers and similar features: by hand, by pairs, and in any order of batches."""

import itertools
import math
import statistics

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from patchreorder.metrics.consistency import Consistency, ErrorCurve, FeatureSimilarity, Rate, wilson


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    [(0, 10, 0.0, 0.27753), (10, 10, 0.72247, 1.0), (1, 10, 0.01788, 0.40415), (50, 100, 0.40383, 0.59617)],
)
def test_wilson(hits, n, low, high):
    assert wilson(hits, n) == pytest.approx((low, high), abs=1e-5)


@pytest.mark.parametrize(("hits", "n"), [(3, 17), (500, 1000), (9_999, 10_000)])
@pytest.mark.parametrize("level", [0.5, 0.95, 0.99])
def test_wilsons_bounds_solve_his_equation(hits, n, level):
    z = statistics.NormalDist().inv_cdf((1 + level) / 2)
    for bound in wilson(hits, n, level=level):
        assert (bound - hits / n) ** 2 == pytest.approx(z * z * bound * (1 - bound) / n)


@pytest.mark.parametrize("arguments", [(1, 0), (-1, 5), (6, 5)])
def test_wilson_refuses(arguments):
    with pytest.raises(ValueError, match="hits"):
        wilson(*arguments)


def test_level_is_a_share():
    with pytest.raises(ValueError, match=r"level \(95\)"):
        wilson(1, 2, level=95)


class TestErrorCurve:
    def test_counts_and_bands(self):
        curve = ErrorCurve([-9.0, 0.0, 9.0, 18.0])
        logits = torch.eye(4)
        curve.update(0.0, logits, torch.tensor([0, 1, 2, 3]))
        curve.update(9, logits, torch.tensor([0, 1, 2, 0]))
        curve.update(9, logits[:1], torch.tensor([3]))
        curve.update(18.0, logits, torch.tensor([1, 2, 3, 0]))
        points = curve.result()
        assert [(point.at, point.rate.value, point.rate.n) for point in points] == [
            (0.0, 0.0, 4), (9.0, 40.0, 5), (18.0, 100.0, 4),
        ]  # fmt: skip
        low, high = wilson(2, 5)
        assert points[1].rate == Rate(40.0, 100 * low, 100 * high, 5)
        assert points[1].rate.complement == Rate(60.0, 100 - 100 * high, 100 - 100 * low, 5)

    def test_first_answers(self):
        curve = ErrorCurve([0.0], top=2)
        curve.update(0.0, torch.tensor([[3.0, 2.0, 1.0], [3.0, 1.0, 2.0]]), torch.tensor([1, 1]))
        assert curve.result()[0].rate.value == 50.0

    def test_errors(self):
        curve = ErrorCurve([0.0, 9.0])
        with pytest.raises(ValueError, match=r"at \(8.0\)"):
            curve.update(8.0, torch.eye(2), torch.tensor([0, 1]))
        with pytest.raises(ValueError, match="NaN"):
            curve.update(9.0, torch.full((1, 2), math.nan), torch.tensor([0]))
        for at in ([], [1.0, 1.0]):
            with pytest.raises(ValueError, match="at"):
                ErrorCurve(at)


class TestConsistency:
    def test_pairs(self):
        same = Consistency()
        same.update(torch.tensor([[1, 2, 3, 4], [1, 2, 3, 5]]))
        assert same.result().value == 75.0
        low, high = wilson(3, 4)
        assert (same.result().low, same.result().high, same.result().n) == (100 * low, 100 * high, 4)

    def test_all_pairs_of_many_poses(self):
        answers = torch.randint(0, 3, (11, 40))
        same = Consistency()
        for part in answers.split(7, 1):
            same.update(part)
        pairs = list(itertools.combinations(answers, 2))
        assert same.result().value == pytest.approx(100 * sum((a == b).float().mean().item() for a, b in pairs) / 55)
        assert same.result().n == 40

    def test_logits(self):
        same = Consistency()
        same.update(torch.tensor([[[0.0, 1.0], [0.5, 0.5]], [[2.0, 3.0], [1.0, 0.0]]]))  # of equal ones the first
        assert same.result().value == 100.0

    def test_errors(self):
        same = Consistency()
        with pytest.raises(ValueError, match="no images"):
            same.result()
        for answers in (torch.zeros(1, 5).long(), torch.zeros(2, 5), torch.zeros(5).long()):
            with pytest.raises(ValueError, match="answers"):
                same.update(answers)
        with pytest.raises(ValueError, match="NaN"):
            same.update(torch.full((2, 5, 3), math.nan))
        same.update(torch.zeros(2, 5).long())
        with pytest.raises(ValueError, match="3 poses, but in 2"):
            same.update(torch.zeros(3, 5).long())


def similarity(original, copies, **settings):
    layer = FeatureSimilarity(**settings)
    layer.update(original, copies)
    return layer.result()


class TestFeatureSimilarity:
    def test_by_hand(self):
        original = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [3.0, 4.0]])
        copies = torch.tensor([[5.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [4.0, 3.0]])  # 1, -1, 0, 0.96
        found = similarity(original, copies, quantiles=[0, 0.25, 0.5, 0.75, 1])
        assert found.mean == pytest.approx(0.24)
        assert found.spread == pytest.approx(statistics.pstdev([1, -1, 0, 0.96]))
        assert found.quantiles == pytest.approx({0: -1.0, 0.25: -1.0, 0.5: 0.0, 0.75: 0.96, 1: 1.0})
        assert (found.n, found.undefined) == (4, 0)

    def test_an_invariant_layer_is_one_to_the_last_quantile(self):
        x = torch.rand(20, 3, 4, 4)
        found = similarity(x, torch.cat([x, 2 * x]))
        assert found.mean == pytest.approx(1, abs=1e-6)
        assert set(found.quantiles.values()) == {1.0}
        assert found.n == 40

    def test_zero_features(self):
        found = similarity(torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
        assert found.mean == 0.5  # both zero: 1; one of them: 0

    @pytest.mark.parametrize("size", [1e-30, 1e-22, 1e-20, 1e20, 3e38])
    def test_sizes_whose_squares_vanish_or_overflow(self, size):
        original = torch.tensor([[1.0, 0.0], [1.0, 1.0]]) * size
        copies = torch.tensor([[1.0, 1.0], [1.0, 1.0]]) * size
        assert similarity(original, copies).mean == pytest.approx((math.sqrt(0.5) + 1) / 2, abs=1e-6)

    def test_what_is_not_finite_is_left_out(self):
        original = torch.rand(4, 5)
        copies = original.clone()
        copies[0, 1], copies[1, 2], original[2, 0] = math.nan, math.inf, -math.inf
        found = similarity(original, copies)
        assert (found.n, found.undefined) == (1, 3)
        assert found.mean == pytest.approx(1, abs=1e-6)
        nothing = similarity(torch.full((1, 2), math.nan), torch.ones(1, 2))
        assert (nothing.n, nothing.undefined) == (0, 1)
        assert math.isnan(nothing.mean)

    @pytest.mark.parametrize("numbers", [255, 256, 257, 700, 1024])
    def test_long_features(self, numbers):
        x, y = torch.rand(6, numbers), torch.randn(6, numbers)
        expected = torch.cosine_similarity(x.double(), y.double())
        found = similarity(x, y, quantiles=[0, 1])
        assert found.mean == pytest.approx(expected.mean().item(), abs=1e-6)
        assert found.quantiles == pytest.approx({0: expected.min().item(), 1: expected.max().item()}, abs=0.00051)

    def test_layouts(self):
        x, y = torch.rand(6, 3, 4, 5), torch.rand(12, 3, 4, 5)
        expected = torch.cosine_similarity(x.repeat(2, 1, 1, 1).flatten(1), y.flatten(1)).mean().item()
        last = torch.channels_last
        for a, b in itertools.product((x, x.to(memory_format=last)), (y, y.to(memory_format=last))):
            assert similarity(a, b).mean == pytest.approx(expected, abs=1e-6)
        assert similarity(x.half(), y.half()).mean == pytest.approx(expected, abs=1e-3)
        assert similarity(x.double(), y.double()).mean == pytest.approx(expected, abs=1e-6)

    def test_errors(self):
        for original, copies in ((torch.rand(2, 3), torch.rand(2, 4)), (torch.rand(2, 3), torch.rand(3, 3))):
            with pytest.raises(ValueError, match="do not fit"):
                similarity(original, copies)
        with pytest.raises(ValueError, match="do not fit"):
            similarity(torch.rand(3), torch.rand(3))
        with pytest.raises(ValueError, match="quantiles"):
            FeatureSimilarity(quantiles=[95])


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 60), sizes=st.tuples(st.integers(1, 60), st.integers(1, 60)), seed=st.integers(0, 10**6))
def test_batches_do_not_matter(n, sizes, seed):
    random = torch.Generator().manual_seed(seed)
    features, copies = (torch.randn(n, 8, generator=random) for _ in range(2))
    logits, labels = torch.randn(n, 4, generator=random), torch.randint(0, 4, (n,), generator=random)
    answers = torch.randint(0, 2, (3, n), generator=random)
    results = []
    for size in sizes:
        curve, same, layer = ErrorCurve([0.0]), Consistency(), FeatureSimilarity()
        for part in torch.randperm(n, generator=random).split(size):
            curve.update(0.0, logits[part], labels[part])
            same.update(answers[:, part])
            layer.update(features[part], copies[part])
        results.append((curve.result(), same.result(), layer.result()))
    (curve, same, layer), (curve_again, same_again, layer_again) = results
    assert curve == curve_again
    assert same == same_again
    assert layer.mean == pytest.approx(layer_again.mean, abs=1e-7)
    assert layer.spread == pytest.approx(layer_again.spread, abs=1e-6)
    assert layer.quantiles == pytest.approx(layer_again.quantiles, abs=0.0011)


def test_made_in_one_mode_and_read_in_another():
    x = torch.rand(3, 4)
    with torch.inference_mode():
        layer = FeatureSimilarity()
        layer.update(x + 0, x + 0)
        layer.result()
    layer.update(x, x.requires_grad_())
    assert layer.result().n == 6
