"""Pools, each by hand."""

import pytest
import torch

from patchreorder.models.pools import create_pool, gem, rmac, rmac_regions


def test_gem_by_hand():
    x = torch.tensor([[[[1.0, 2.0], [3.0, -5.0]]]])
    assert gem(x).item() == pytest.approx((36 / 4) ** (1 / 3))
    assert gem(x, power=20).item() == pytest.approx(3 / 4 ** (1 / 20), rel=1e-4)
    assert gem(torch.zeros(1, 1, 2, 2)).item() == 0
    with pytest.raises(ValueError, match=r"power \(0\) must be more than 0"):
        gem(x, power=0)


def test_rmac_regions_are_those_of_the_paper():
    """1, 4 and 9 squares of side 2s / (l + 1), in equal steps from edge to edge."""
    found = rmac_regions(13)
    assert [side for *_, side in found] == [13] + [8] * 4 + [6] * 9
    assert {left for _, left, side in found if side == 6} == {0, 3, 7}
    for side in range(1, 20):
        for top, left, width in rmac_regions(side, levels=4):
            assert min(top, left) >= 0
            assert max(top, left) + width <= side
            assert width >= 1


def test_rmac_by_hand():
    x = torch.zeros(1, 2, 2, 2)
    x[0, 0, 0, 0], x[0, 1, 1, 1] = 3, 4
    # Level 1 gives (3, 4) -> (0.6, 0.8); level 2 four squares of one pixel: (1, 0), twice zero, (0, 1).
    torch.testing.assert_close(rmac(x, levels=2), torch.tensor([[1.6, 1.8]]))
    with pytest.raises(ValueError, match=r"maps must have shape .*, got \(1, 2, 2, 3\)"):
        rmac(torch.zeros(1, 2, 2, 3))


def test_an_unknown_pool_is_named():
    with pytest.raises(ValueError, match=r"pool \('best'\) must be one of flatten, ranked, .* a layer such as ranked:"):
        create_pool("best")
