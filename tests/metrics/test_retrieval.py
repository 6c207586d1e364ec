"""The NS-score: distances written by hand, ties, features that are none, and an oracle that compares pair by pair."""

import math

import pytest
import torch

from patchreorder.metrics import retrieval
from patchreorder.metrics.retrieval import normalise, ns_from_distances, ns_score

# Two groups of four, by hand: rows are queries. Images 0-3 and 4-7 belong together.
DISTANCES = torch.tensor(
    [
        [0.0, 1, 2, 3, 9, 9, 9, 9],  # all four
        [1.0, 0, 5, 6, 2, 9, 9, 9],  # 0, 4 and 2 are the nearest others: three of its own
        [9.0, 9, 0, 9, 1, 2, 3, 4],  # none but itself
        [1.0, 9, 9, 0, 1, 1, 9, 9],  # three at the same distance: two of the others, one of its own
        [9.0, 9, 9, 9, 0, 1, 1, 1],
        [2.0, 2, 2, 2, 2, 0, 2, 2],  # all alike: 0, 1 and 2 come first
        [1.0, 9, 9, 9, 1, 2, 0, 2],  # of 5 and 7 at the same distance the first one, and 0: three
        [3.0, 3, 1, 9, 9, 3, 3, 7],  # not 0 itself: it still comes first; then 2, and 0 and 1 before 5 and 6
    ]
)
GROUPS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
COUNTS = [4, 3, 1, 2, 4, 1, 3, 1]


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
    counts, mean = ns_from_distances(DISTANCES, GROUPS)
    assert counts.tolist() == COUNTS
    assert mean == sum(COUNTS) / 8


def test_a_perfect_score_is_four_and_the_worst_one():
    groups = torch.arange(16) // 4
    near = (groups[:, None] != groups).float()
    assert ns_from_distances(near, groups)[1] == 4.0
    assert ns_from_distances(1 - near, groups)[1] == 1.0
    far = torch.eye(4)[groups] * 3 + torch.rand(16, 4, generator=torch.Generator().manual_seed(0)) / 9
    assert ns_score(far, groups)[1] == 4.0


@pytest.mark.parametrize("block", [None, 1, 3, 7, 64, 1000])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_features_are_compared_pair_by_pair(block, dtype):
    generator = torch.Generator().manual_seed(1)
    groups = (torch.arange(64) // 4)[torch.randperm(64, generator=generator)]
    features = torch.randn(16, 5, generator=generator)[groups] + 0.6 * torch.randn(64, 5, generator=generator)
    features = features.to(dtype)
    counts, mean = ns_score(features, groups, block=block)
    assert counts.tolist() == by_pairs(features, groups)
    assert mean == sum(counts.tolist()) / 64
    assert set(counts.tolist()) == {1, 2, 3, 4}
    distances = torch.cdist(features.double(), features.double(), compute_mode="donot_use_mm_for_euclid_dist")
    assert ns_from_distances(distances, groups)[0].tolist() == counts.tolist()


@pytest.mark.parametrize("seed", range(6))
def test_equal_features_are_equally_far(seed):
    """A matrix product rounds the same product differently from place to place: ties must not hang on it."""
    generator = torch.Generator().manual_seed(seed)
    few = torch.randn(5, 300, generator=generator) * 100
    features = few[torch.randint(5, (48,), generator=generator)]
    groups = torch.arange(48) // 4
    assert ns_score(features, groups)[0].tolist() == by_pairs(features, groups)
    assert ns_score(features, groups, block=5)[0].tolist() == by_pairs(features, groups)


def test_distances_smaller_than_the_rounding_are_told_apart():
    """Far from the origin |a|^2 - 2ab + |b|^2 in single precision says nothing."""
    features = torch.tensor([5.0, 0, 7, 2, 3, 6, 1, 4])[:, None] + 4096 * torch.ones(8, 3)
    for groups in (GROUPS, torch.tensor([0, 1] * 4), torch.tensor([0, 1, 1, 0] * 2)):
        assert ns_score(features, groups)[0].tolist() == by_pairs(features, groups)
    apart = torch.tensor([0.0, 1, 2, 3, 10, 11, 12, 13])[:, None] + 4096 * torch.ones(8, 3)
    assert ns_score(apart, GROUPS)[0].tolist() == [4] * 8


def test_zero_vectors_are_images_like_others():
    features = torch.zeros(12, 3)
    features[8:] = torch.eye(3)[0]
    groups = torch.arange(12) // 4
    # Of eight zeros each finds itself and the first three others.
    assert ns_score(features, groups)[0].tolist() == [4, 4, 4, 4, 1, 1, 1, 1, 4, 4, 4, 4]
    assert ns_score(torch.zeros(12, 3), groups)[0].tolist() == by_pairs(torch.zeros(12, 3), groups)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e38])
def test_features_that_are_no_numbers_are_named(value):
    features = torch.zeros(8, 2)
    features[3, 1] = features[6, 0] = value
    with pytest.raises(ValueError, match=r"features of 2 images are not finite, or too large \(index 3, 6\)"):
        ns_score(features, GROUPS)


def test_what_cannot_be_scored_says_why():
    features = torch.zeros(8, 2)
    for groups, why in (
        (torch.tensor([0, 0, 0, 1, 1, 1, 1, 1]), "group 0 has 3 images, must have 4: leave out groups"),
        (torch.zeros(8, dtype=torch.int64), "group 0 has 8 images"),
        (torch.arange(8), "group 0 has 1 images"),
        (torch.zeros(7, dtype=torch.int64), r"groups \(7,\) must be \(8,\)"),
    ):
        with pytest.raises(ValueError, match=why):
            ns_score(features, groups)
        with pytest.raises(ValueError, match=why):
            ns_from_distances(torch.zeros(8, 8), groups)
    with pytest.raises(ValueError, match="not be empty"):
        ns_score(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"features must be \(n, d\) floating-point numbers, got \(8,\)"):
        ns_score(torch.zeros(8), GROUPS)
    with pytest.raises(ValueError, match=r"int64"):
        ns_score(torch.zeros(8, 2, dtype=torch.int64), GROUPS)
    with pytest.raises(ValueError, match=r"block \(0\) must be 1 or more"):
        ns_score(features, GROUPS, block=0)
    with pytest.raises(ValueError, match=r"distances must be \(n, n\), got \(8, 4\)"):
        ns_from_distances(torch.zeros(8, 4), GROUPS)
    with pytest.raises(ValueError, match="distances hold NaN"):
        ns_from_distances(torch.full((8, 8), math.nan), GROUPS)


def test_memory_is_bounded(monkeypatch):
    """No tensor on the way holds more than ROOM numbers, but for the features."""
    monkeypatch.setattr(retrieval, "ROOM", 4000)
    seen = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            made = function(*args, **(kwargs or {}))
            seen.extend(
                part.numel() for part in (made if isinstance(made, tuple | list) else [made]) if hasattr(part, "numel")
            )
            return made

    features = torch.randn(120, 7, generator=torch.Generator().manual_seed(2))
    with Watch():
        counts, _ = ns_score(features, torch.arange(120) // 4)
    assert max(seen) <= 4000
    assert counts.tolist() == by_pairs(features, torch.arange(120) // 4)


# ---- normalise -------------------------------------------------------------------------------------


def test_the_root_keeps_the_sign():
    found = normalise(torch.tensor([[9.0, -16.0, 0.0], [0.0, 0.0, -4.0]]))
    torch.testing.assert_close(found, torch.tensor([[0.6, -0.8, 0.0], [0.0, 0.0, -1.0]]))
    torch.testing.assert_close(normalise(torch.tensor([3.0, -4.0]), root=False), torch.tensor([0.6, -0.8]))


def test_a_zero_vector_stays_zero():
    assert normalise(torch.zeros(2, 3)).tolist() == [[0, 0, 0]] * 2
    assert normalise(torch.zeros(2, 3), root=False).tolist() == [[0, 0, 0]] * 2


@pytest.mark.parametrize("size", [1e-44, 1e-30, 1e30, 3e38])
@pytest.mark.parametrize("root", [True, False])
def test_any_size_comes_to_unit_length(size, root):
    found = normalise(torch.tensor([[size, size], [size, 0.0]]), root=root)
    torch.testing.assert_close(found, torch.tensor([[0.5**0.5, 0.5**0.5], [1.0, 0.0]]))


def test_what_is_not_finite_stays_visible():
    found = normalise(torch.tensor([[math.nan, 1.0], [math.inf, 1.0], [1.0, 0.0]]))
    assert found[0].isnan().all()
    assert found[1].isnan().any()
    assert found[2].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_types_are_kept(dtype):
    assert normalise(torch.ones(2, 4, dtype=dtype)).dtype == dtype
