"""Shifts and rotations of feature maps, found by correlation."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from patchreorder.metrics.propagation import map_rotation, map_shift, propagated_fraction


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


def turned(maps: torch.Tensor, degrees: float) -> torch.Tensor:
    """Every map rotated by Pillow, counter-clockwise about its middle."""
    images = [Image.fromarray(each.numpy()).rotate(degrees, Image.Resampling.BILINEAR) for each in maps.flatten(0, 1)]
    return torch.from_numpy(np.stack([np.array(image) for image in images])).view(maps.shape)


def smooth(*shape: int) -> torch.Tensor:
    noise = torch.rand(*shape, generator=torch.Generator().manual_seed(0))
    return nn.functional.avg_pool2d(noise, 5, 1, 2)


def test_rotations_of_maps_are_found_whatever_their_shape():
    for height, width in ((24, 24), (20, 31)):
        maps = smooth(2, 3, height, width)
        angles = [-45.0, -9.0, 0.0, 27.0]
        rotated = torch.stack([turned(maps, angle) for angle in angles])
        found = map_rotation(maps, rotated, degrees=[4.5 * step for step in range(-14, 15)])
        assert found.degrees.tolist() == [[angle, angle] for angle in angles]
        assert found.correlation.min() > 0.95


def test_each_image_is_compared_with_itself_in_every_pose():
    maps = smooth(3, 2, 16, 16)
    rotated = torch.stack([maps, torch.stack([maps[0].rot90(1, (1, 2)), maps[1], maps[2].rot90(-1, (1, 2))])])
    found = map_rotation(maps, rotated, degrees=[-90, 0, 90])
    assert found.degrees.tolist() == [[0.0, 0.0, 0.0], [90.0, 0.0, -90.0]]


def test_flat_maps_have_no_rotation():
    maps = torch.stack([torch.full((2, 8, 8), 3.0), smooth(1, 2, 8, 8)[0]])
    found = map_rotation(maps, maps[None], degrees=[0, 45])
    assert found.degrees[0, 0].isnan()
    assert found.correlation[0, 0].isnan()
    assert found.degrees[0, 1] == 0


def test_rotations_need_maps_of_one_shape_and_an_angle():
    maps = torch.rand(1, 1, 4, 4)
    with pytest.raises(ValueError, match=r"rotated \(poses, \*that\)"):
        map_rotation(maps, maps, degrees=[0])
    with pytest.raises(ValueError, match="degrees must be one or more"):
        map_rotation(maps, maps[None], degrees=[])
