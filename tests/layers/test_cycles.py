"""Indices chosen on a cycle: against trigonometry, and moving with every roll of the cycle."""

import cmath
import itertools
import math

import pytest
import torch

from patchreorder.layers.cycles import nearest_to_centroid, strongest
from tests.layers.rolls import repeats


@pytest.mark.parametrize("choose", [nearest_to_centroid, strongest])
def test_the_choice_moves_with_every_cycle_of_few_values(choose):
    """All cycles of up to 9 places: many have ties, balanced energies, a centroid half-way, or nowhere."""
    for n in range(1, 10):
        cycles = torch.tensor(list(itertools.product(range(3 if n < 8 else 2), repeat=n))).double()
        cycles = cycles[~repeats(cycles)]
        first = choose(cycles)
        for by in range(n):
            assert torch.equal(choose(cycles.roll(by, 1)), (first + by) % n), (n, by)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 28, 42])
def test_it_is_the_pixel_nearest_to_the_circular_centroid(n):
    profiles = torch.randint(0, 1000, (50, n)).double()
    for profile, found in zip(profiles.tolist(), nearest_to_centroid(profiles).tolist(), strict=True):
        sum_of_arrows = sum(e * cmath.exp(2j * math.pi * i / n) for i, e in enumerate(profile))
        centroid = cmath.phase(sum_of_arrows) * n / (2 * math.pi) % n
        away = abs(found - centroid)
        assert min(away, n - away) < 0.5 + 1e-3


def test_ties_by_content_then_the_uppermost():
    half_way = torch.tensor([[0, 0, 4, 4, 0], [4, 0, 0, 0, 4], [1, 7, 7, 1, 0]])
    assert nearest_to_centroid(half_way).tolist() == [2, 4, 1]  # the one before
    assert nearest_to_centroid(torch.tensor([[0, 0, 0], [5, 5, 5]])).tolist() == [0, 0]
    assert strongest(torch.tensor([[0, 0, 0], [5, 5, 5], [5, 2, 5]])).tolist()[:2] == [0, 0]
