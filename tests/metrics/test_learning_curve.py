"""How many images an error takes: on a power law, whose answer is known, at the ends, and with invalid numbers."""

import math

import pytest

from patchreorder.metrics.learning_curve import images_for


def power_law(n):
    return 300 * n**-0.5


@pytest.mark.parametrize("n", [250, 300, 999, 4000, 10_000])
def test_on_a_power_law_it_is_exact(n):
    curve = {count: power_law(count) for count in (250, 1000, 10_000)}
    assert images_for(power_law(n), curve) == pytest.approx(n)


def test_beyond_the_curve_it_is_not_known():
    curve = {500: 10.0, 1000: 5.0}
    assert images_for(4.999, curve) == math.inf
    assert images_for(10.001, curve) == 0
    assert images_for(10.0, curve) == 500
    assert images_for(5.0, curve) == 1000


def test_the_first_number_that_is_enough_counts():
    assert images_for(5.0, {100: 10.0, 200: 5.0, 400: 7.0, 800: 3.0}) == 200
    assert 400 < images_for(4.0, {100: 10.0, 200: 5.0, 400: 7.0, 800: 3.0}) < 800


@pytest.mark.parametrize(("error", "curve"), [(1.0, {}), (0.0, {1: 1.0}), (1.0, {0: 1.0}), (1.0, {1: -1.0})])
def test_invalid_numbers(error, curve):
    with pytest.raises(ValueError, match=r"must be above 0"):
        images_for(error, curve)
