"""Rates and Wilson's interval."""

import pytest

from patchreorder.metrics.rate import Z, rate


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    [(0, 10, 0.0, 27.753), (10, 10, 72.247, 100.0), (1, 10, 1.788, 40.415), (50, 100, 40.383, 59.617)],
)
def test_published_values(hits, n, low, high):
    assert rate(hits, n) == pytest.approx((100 * hits / n, low, high, n), abs=1e-3)


@pytest.mark.parametrize(("hits", "of", "n"), [(3, 17, None), (500, 1000, 40), (9_999, 10_000, None)])
def test_bounds_solve_wilsons_equation(hits, of, n):
    found = rate(hits, of, n=n)
    assert found.n == (n or of)
    for bound in (found.low / 100, found.high / 100):
        assert (bound - hits / of) ** 2 == pytest.approx(Z * Z * bound * (1 - bound) / found.n)


@pytest.mark.parametrize(("hits", "of", "n"), [(1, 0, None), (-1, 5, None), (6, 5, None), (1, 5, 6), (1, 5, 0)])
def test_invalid_counts(hits, of, n):
    with pytest.raises(ValueError, match=rf"hits \({hits}\)"):
        rate(hits, of, n=n)
