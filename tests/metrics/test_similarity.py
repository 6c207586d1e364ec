"""Cosines of features: by hand, of any size and layout, and in any order of batches."""

import itertools
import math
import statistics

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from patchreorder.metrics import similarity as module
from patchreorder.metrics.similarity import Features, FeatureSimilarity


def similarity(original, copies):
    layer = FeatureSimilarity()
    layer.update(original, copies)
    return layer.result()


def test_by_hand():
    original = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [3.0, 4.0]])
    copies = torch.tensor([[5.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [4.0, 3.0]])  # 1, -1, 0, 0.96
    found = similarity(original, copies)
    assert found.mean == pytest.approx(0.24)
    assert found.spread == pytest.approx(statistics.pstdev([1, -1, 0, 0.96]))
    assert (found.n, found.undefined) == (4, 0)


def test_an_invariant_layer_has_similarity_one():
    x = torch.rand(20, 3, 4, 4)
    found = similarity(x, torch.cat([x, 2 * x]))
    assert found.mean == pytest.approx(1, abs=1e-6)
    assert found.spread == pytest.approx(0, abs=1e-6)
    assert found.n == 40


def test_zero_features():
    found = similarity(torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
    assert found.mean == 0.5  # both zero: 1; one of them: 0


@pytest.mark.parametrize("size", [1e-30, 1e-22, 1e-20, 1e20, 3e38])
def test_squares_that_underflow_or_overflow(size):
    original = torch.tensor([[1.0, 0.0], [1.0, 1.0]]) * size
    copies = torch.tensor([[1.0, 1.0], [1.0, 1.0]]) * size
    assert similarity(original, copies).mean == pytest.approx((math.sqrt(0.5) + 1) / 2, abs=1e-6)


def test_features_that_are_not_finite_are_left_out():
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
def test_long_features(numbers):
    x, y = torch.rand(6, numbers), torch.randn(6, numbers)
    expected = torch.cosine_similarity(x.double(), y.double())
    found = similarity(x, y)
    assert found.mean == pytest.approx(expected.mean().item(), abs=1e-6)
    assert found.spread == pytest.approx(expected.std(correction=0).item(), abs=1e-6)


def test_memory_layouts_and_types():
    x, y = torch.rand(6, 3, 4, 5), torch.rand(12, 3, 4, 5)
    expected = torch.cosine_similarity(x.repeat(2, 1, 1, 1).flatten(1), y.flatten(1)).mean().item()
    last = torch.channels_last
    for a, b in itertools.product((x, x.to(memory_format=last)), (y, y.to(memory_format=last))):
        assert similarity(a, b).mean == pytest.approx(expected, abs=1e-6)
        assert similarity(Features.of(a), b) == similarity(a, b)
    assert similarity(x.half(), y.half()).mean == pytest.approx(expected, abs=1e-3)
    assert similarity(x.double(), y.double()).mean == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("shapes", [((2, 3), (2, 4)), ((2, 3), (3, 3)), ((3,), (3,)), ((0, 3), (0, 3))])
def test_shapes_that_do_not_match(shapes):
    original, copies = (torch.rand(shape) for shape in shapes)
    with pytest.raises(ValueError, match="do not match"):
        similarity(original, copies)


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 60), sizes=st.tuples(st.integers(1, 60), st.integers(1, 60)), seed=st.integers(0, 10**6))
def test_order_and_size_of_batches_do_not_matter(n, sizes, seed):
    random = torch.Generator().manual_seed(seed)
    features, copies = (torch.randn(n, 8, generator=random) for _ in range(2))
    results = []
    for size in sizes:
        layer = FeatureSimilarity()
        for part in torch.randperm(n, generator=random).split(size):
            layer.update(features[part], copies[part])
        results.append(layer.result())
    assert results[0].mean == pytest.approx(results[1].mean, abs=1e-7)
    assert results[0].spread == pytest.approx(results[1].spread, abs=1e-6)
    assert results[0].n == results[1].n == n


def test_pending_cosines_are_summed(monkeypatch):
    x, y = torch.rand(9, 4), torch.rand(9, 4)
    expected = similarity(x, y)
    monkeypatch.setattr(module, "PENDING", 4)
    layer = FeatureSimilarity()
    for i in range(9):
        layer.update(x[i : i + 1], y[i : i + 1])
        assert len(layer._cosines) < 4
    assert layer.result() == expected


def test_updates_in_and_outside_inference_mode():
    x = torch.rand(3, 4)
    with torch.inference_mode():
        layer = FeatureSimilarity()
        layer.update(x + 0, x + 0)
        layer.result()
    layer.update(x, x.requires_grad_())
    assert layer.result().n == 6
