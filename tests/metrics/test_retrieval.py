"""The NS-score against hand-computed answers, with ties and invalid features, and against a pair-by-pair oracle."""

import math

import pytest
import torch

from patchreorder.metrics import retrieval
from patchreorder.metrics.retrieval import ns_score

GROUPS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])


def by_pairs(features: torch.Tensor, groups: torch.Tensor) -> list[int]:
    """Python's own sums and sorts, a pair at a time."""
    rows, names = features.double().tolist(), groups.tolist()
    counts = []
    for query, own in enumerate(rows):
        far = [(math.fsum((a - b) ** 2 for a, b in zip(own, other, strict=True)), i) for i, other in enumerate(rows)]
        nearest = sorted(pair for pair in far if pair[1] != query)[:3]
        counts.append(1 + sum(names[i] == names[query] for _, i in nearest))
    return counts


def test_scores_by_hand():
    features = torch.tensor([0.0, 1, 3, 8, 9, 11, 20, 21])[:, None]
    # 0 finds 1, 3 and 8; 3 finds 1, 0 and 8; 8 finds 9, 11 and 3; 20 finds 21, 11 and 9.
    assert ns_score(features, GROUPS)[0].tolist() == [4, 4, 4, 2, 2, 2, 4, 4]
    assert ns_score(features, GROUPS)[1] == 26 / 8


def test_the_lower_index_comes_first_at_equal_distances():
    features = torch.tensor([0.0, 0, 0, 0, 0, 1, 1, 1])[:, None]
    # The fifth zero finds the first three; the ones find each other and the first zero.
    assert ns_score(features, GROUPS)[0].tolist() == [4, 4, 4, 4, 1, 3, 3, 3]


def test_a_perfect_score_is_four_and_the_worst_is_one():
    groups = torch.arange(16) // 4
    noise = torch.rand(16, 4, generator=torch.Generator().manual_seed(0)) / 9
    assert ns_score(torch.eye(4)[groups] * 3 + noise, groups)[1] == 4.0
    assert ns_score(torch.eye(4)[groups] * 3 + noise, torch.arange(16) % 4)[1] == 1.0


@pytest.mark.parametrize("block", [1, 3, 7, 64, 1000])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_blocks_and_types_against_the_oracle(monkeypatch, block, dtype):
    monkeypatch.setattr(retrieval, "ROOM", 64 * block)
    generator = torch.Generator().manual_seed(1)
    groups = (torch.arange(64) // 4)[torch.randperm(64, generator=generator)]
    features = torch.randn(16, 5, generator=generator)[groups] + 0.6 * torch.randn(64, 5, generator=generator)
    features = features.to(dtype)
    counts, mean = ns_score(features, groups)
    assert counts.tolist() == by_pairs(features, groups)
    assert mean == sum(counts.tolist()) / 64
    assert set(counts.tolist()) == {1, 2, 3, 4}


@pytest.mark.parametrize("seed", range(3))
def test_equal_features_have_equal_distances(monkeypatch, seed):
    """A matrix product rounds equal products differently from row to row: ties must not depend on it."""
    generator = torch.Generator().manual_seed(seed)
    few = torch.randn(5, 300, generator=generator) * 100
    features = few[torch.randint(5, (48,), generator=generator)]
    groups = torch.arange(48) // 4
    expected = by_pairs(features, groups)
    assert ns_score(features, groups)[0].tolist() == expected
    monkeypatch.setattr(retrieval, "ROOM", 48 * 5)
    assert ns_score(features, groups)[0].tolist() == expected


def test_distances_smaller_than_the_rounding():
    """Far from the origin |a|^2 - 2ab + |b|^2 in single precision is all rounding."""
    features = torch.tensor([5.0, 0, 7, 2, 3, 6, 1, 4])[:, None] + 4096 * torch.ones(8, 3)
    for groups in (GROUPS, torch.tensor([0, 1] * 4), torch.tensor([0, 1, 1, 0] * 2)):
        assert ns_score(features, groups)[0].tolist() == by_pairs(features, groups)
    apart = torch.tensor([0.0, 1, 2, 3, 10, 11, 12, 13])[:, None] + 4096 * torch.ones(8, 3)
    assert ns_score(apart, GROUPS)[0].tolist() == [4] * 8


def test_zero_vectors_are_valid_features():
    features = torch.zeros(12, 3)
    features[8:] = torch.eye(3)[0]
    groups = torch.arange(12) // 4
    # Each of the eight zeros finds itself and the first three others.
    assert ns_score(features, groups)[0].tolist() == [4, 4, 4, 4, 1, 1, 1, 1, 4, 4, 4, 4]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e38])
def test_features_that_are_not_finite_are_named(value):
    features = torch.zeros(8, 2)
    features[3, 1] = features[6, 0] = value
    with pytest.raises(ValueError, match=r"features of 2 images are not finite or too large \(index 3, 6\)"):
        ns_score(features, GROUPS)


@pytest.mark.parametrize(
    ("features", "groups", "message"),
    [
        (torch.zeros(8, 2), torch.tensor([0, 0, 0, 1, 1, 1, 1, 1]), "group 0 has 3 images, must have 4: leave out"),
        (torch.zeros(8, 2), torch.zeros(8).long(), "group 0 has 8 images"),
        (torch.zeros(8, 2), torch.zeros(7).long(), r"groups \(7,\) must be \(8,\)"),
        (torch.zeros(0, 2), torch.zeros(0).long(), "not be empty"),
        (torch.zeros(8), GROUPS, r"features must be \(n, d\) floating-point numbers, got \(8,\)"),
        (torch.zeros(8, 2).long(), GROUPS, "int64"),
    ],
)
def test_invalid_arguments(features, groups, message):
    with pytest.raises(ValueError, match=message):
        ns_score(features, groups)


def test_memory_is_bounded(monkeypatch):
    """No intermediate tensor holds more than ROOM numbers."""
    monkeypatch.setattr(retrieval, "ROOM", 4000)
    seen = []

    class Recorder(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            made = function(*args, **(kwargs or {}))
            seen.extend(
                part.numel() for part in (made if isinstance(made, tuple | list) else [made]) if hasattr(part, "numel")
            )
            return made

    features = torch.randn(120, 7, generator=torch.Generator().manual_seed(2))
    with Recorder():
        counts, _ = ns_score(features, torch.arange(120) // 4)
    assert max(seen) <= 4000
    assert counts.tolist() == by_pairs(features, torch.arange(120) // 4)
