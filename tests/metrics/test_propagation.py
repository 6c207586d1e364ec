"""Shifts of feature maps, found by correlation."""

import pytest
import torch
from torch import nn

from patchreorder.metrics.propagation import map_shift, propagated_fraction


def test_maps_move_by_half_the_shift_with_stride_two():
    images = torch.rand(3, 2, 12, 24)
    halved = nn.AvgPool2d(2)
    found = map_shift(halved(images), halved(images.roll(6, 3)), steps=[step / 2 for step in range(-8, 9)])
    assert found.right.tolist() == [3.0] * 3
    assert (found.correlation > 0.999).all()


def test_shifts_between_pixels_and_to_the_left_are_found():
    x = torch.arange(32.0)
    wave = torch.stack([torch.sin(x / 3), torch.cos(x / 4)]).view(1, 2, 1, 32).expand(1, 2, 4, 32)
    moved = torch.stack([torch.sin((x + 1.5) / 3), torch.cos((x + 1.5) / 4)]).view(1, 2, 1, 32).expand(1, 2, 4, 32)
    found = map_shift(wave, moved, steps=[step / 4 for step in range(-20, 21)])
    assert found.right.tolist() == [-1.5]


def test_of_equal_correlations_the_smallest_shift_counts():
    stripes = torch.tensor([1.0, -1.0] * 4).expand(1, 1, 4, 8)  # a shift by 2 changes nothing
    assert map_shift(stripes, stripes, steps=[-4, -2, 0, 2, 4]).right.tolist() == [0.0]


def test_flat_maps_have_no_shift():
    maps = torch.zeros(2, 1, 8, 8)
    maps[0] = torch.rand(1, 8, 8)
    found = map_shift(maps, maps, steps=range(-2, 3))
    assert found.right[0] == 0
    assert found.right[1].isnan()
    assert found.correlation[1].isnan()


@pytest.mark.parametrize(
    ("shapes", "steps", "message"),
    [
        (((2, 1, 4, 4), (1, 1, 4, 4)), [0], r"maps must be \(images, channels, height, width\), both of one shape"),
        (((2, 4), (2, 4)), [0], "maps must be"),
        (((1, 1, 4, 4), (1, 1, 4, 4)), [0, 2.5], r"steps \(\[0, 2.5\]\) must be .* from -2 to 2: half a map"),
        (((1, 1, 4, 4), (1, 1, 4, 4)), [], r"steps \(\[\]\) must be one or more"),
    ],
)
def test_invalid_arguments(shapes, steps, message):
    with pytest.raises(ValueError, match=message):
        map_shift(*(torch.rand(shape) for shape in shapes), steps=steps)


def test_the_fraction_of_a_shift_is_a_slope():
    assert propagated_fraction([-2.0, 0.0, 2.0], [-2.0, 0.0, 2.0]) == 1
    assert propagated_fraction([-2.0, 4.0], [0.0, 0.0]) == 0
    assert propagated_fraction([1.0, 2.0], [1.0, 0.0]) == pytest.approx(1 / 5)
    with pytest.raises(ValueError, match=r"shifts \(\[0\.0\]\) must have one that is not 0"):
        propagated_fraction([0.0], [1.0])
