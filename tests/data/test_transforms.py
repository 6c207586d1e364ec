"""Transforms by known answers."""

import math

import numpy as np
import pytest
import torch

from patchreorder.data import transforms


def full(value: float, count: int = 2) -> torch.Tensor:
    return torch.full((count,), float(value))


def rotated_by_loops(image: np.ndarray, degrees: float) -> np.ndarray:
    """Each pixel by loops, from its source position: another algebra than that of the sampling grid."""
    side = len(image)
    middle, angle = (side - 1) / 2, math.radians(degrees)
    result = np.zeros_like(image)
    for row in range(side):
        for column in range(side):
            x, y = column - middle, middle - row  # y upwards, so that counter-clockwise is positive
            from_x = math.cos(angle) * x + math.sin(angle) * y
            from_y = -math.sin(angle) * x + math.cos(angle) * y
            at_row, at_column = middle - from_y, from_x + middle
            for r in (math.floor(at_row), math.floor(at_row) + 1):
                for c in (math.floor(at_column), math.floor(at_column) + 1):
                    if 0 <= r < side and 0 <= c < side:
                        weight = (1 - abs(at_row - r)) * (1 - abs(at_column - c))
                        result[row, column] += weight * image[r, c]
    return result


@pytest.mark.parametrize("quarters", [0, 1, 2, 3, -1])
def test_a_quarter_turn_is_rot90(quarters):
    x = torch.rand(2, 3, 7, 7)
    rotated = transforms.rotate(x, degrees=full(90 * quarters))
    assert torch.allclose(rotated, torch.rot90(x, quarters, (2, 3)), atol=1e-5)


@pytest.mark.parametrize("degrees", [17.0, -63.0, 45.0])
def test_any_rotation_equals_that_by_loops(degrees):
    x = torch.rand(1, 1, 9, 9, dtype=torch.float64)
    by_loops = rotated_by_loops(x[0, 0].numpy(), degrees)
    assert np.allclose(transforms.rotate(x, degrees=full(degrees, 1))[0, 0], by_loops, atol=1e-9)


def test_every_image_has_its_own_angle():
    x = torch.rand(2, 1, 5, 5)
    rotated = transforms.rotate(x, degrees=torch.tensor([90.0, -90.0]))
    assert torch.allclose(rotated[0], torch.rot90(x[0], 1, (1, 2)), atol=1e-5)
    assert torch.allclose(rotated[1], torch.rot90(x[1], -1, (1, 2)), atol=1e-5)


def test_rotated_corners_are_black():
    corners = transforms.rotate(torch.ones(1, 1, 20, 20), degrees=full(45, 1))[0, 0, [0, 0, -1, -1], [0, -1, 0, -1]]
    assert corners.tolist() == [0, 0, 0, 0]


def test_a_warp_by_whole_pixels_is_slicing():
    x = torch.rand(2, 1, 28, 28)
    shift = torch.tensor([[3.0, -2.0], [-7.0, 7.0]])  # down, right
    moved = transforms.warp(x, degrees=full(0), scale=full(1), shift=shift, size=(42, 42))
    for image, (down, right), got in zip(x, shift.int().tolist(), moved, strict=True):
        expected = torch.zeros(1, 42, 42)
        expected[:, 7 + down : 35 + down, 7 + right : 35 + right] = image
        assert torch.allclose(got, expected, atol=1e-5)


def test_a_warp_rotates_before_it_shifts():
    x = torch.rand(1, 1, 5, 7)
    moved = transforms.warp(x, degrees=full(90, 1), scale=full(1, 1), shift=torch.tensor([[1.0, 2.0]]), size=(11, 11))
    expected = torch.zeros(1, 1, 11, 11)
    expected[..., 3:10, 5:10] = torch.rot90(x, 1, (2, 3))
    assert torch.allclose(moved, expected, atol=1e-5)


def test_scale_is_a_multiple_of_the_size():
    x = torch.zeros(1, 1, 28, 28)
    x[..., 9:19, 9:19] = 1
    areas = [
        transforms.warp(x, degrees=full(0, 1), scale=full(s, 1), shift=torch.zeros(1, 2), size=(42, 42)).sum()
        for s in (0.5, 1, 2)
    ]
    assert [area.item() for area in areas] == pytest.approx([25, 100, 400], rel=0.02)


def test_place_is_slicing():
    x = torch.rand(3, 2, 4, 5)
    corner = torch.tensor([[0, 0], [3, 1], [6, 5]])
    placed = transforms.place(x, corner=corner, size=(10, 10))
    for image, (row, column), got in zip(x, corner.tolist(), placed, strict=True):
        assert torch.equal(got[:, row : row + 4, column : column + 5], image)
        assert got.sum() == pytest.approx(image.sum().item(), rel=1e-5)


@pytest.mark.parametrize("corner", [[-1, 0], [7, 0], [0, 6]])
def test_place_refuses_a_corner_outside_the_canvas(corner):
    with pytest.raises(ValueError, match=r"corner .* must be from 0 to \[6, 5\]"):
        transforms.place(torch.rand(1, 1, 4, 5), corner=torch.tensor([corner]), size=(10, 10))


def test_numbers_are_a_function_of_seed_epoch_and_index():
    first = transforms.uniform(50, 3, seed=1, epoch=2)
    assert first.shape == (50, 3)
    assert 0 <= first.min() < first.max() < 1
    assert torch.equal(first, transforms.uniform(90, 3, seed=1, epoch=2)[:50])
    for other in ({"seed": 2, "epoch": 2}, {"seed": 1, "epoch": 3}, {"seed": 2, "epoch": 1}):
        assert not (first == transforms.uniform(50, 3, **other)).any()
