"""Ratios of sums and their intervals."""

import math

import torch

from patchreorder.metrics.ratio import ratio


def test_the_interval_covers_the_true_ratio_as_often_as_it_says():
    random = torch.Generator().manual_seed(0)
    covered, true = 0, 0.5 + 0.3 * _clipped_mean() / 1.5
    for _ in range(400):
        below = 1 + torch.rand(60, generator=random)
        above = below * 0.5 + 0.3 * torch.randn(60, generator=random)
        found = ratio(above.clamp(min=0), below)
        covered += found.low <= true <= found.high
    assert 0.90 < covered / 400 < 0.99


def _clipped_mean() -> float:
    """Of max(z, -b / 0.6) for a standard normal z, over b from 1 to 2, by simulation."""
    random = torch.Generator().manual_seed(1)
    below = 1 + torch.rand(10**6, generator=random)
    return float(torch.randn(10**6, generator=random).maximum(-below * 0.5 / 0.3).mean())


def test_sums_of_zero_have_no_ratio():
    assert math.isnan(ratio(torch.zeros(3), torch.zeros(3)).value)
