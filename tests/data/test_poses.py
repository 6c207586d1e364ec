"""Sweeps of poses, and images in a pose: angles are degrees, shifts are fractions of a side."""

import itertools
import math

import pytest
import torch

from patchreorder.data.poses import AS_IT_IS, UPRIGHT, Pose, apply_pose, rotations, translations


def test_the_papers_rotations():
    sweep = rotations()
    assert [pose.degrees for pose in sweep.values()] == [-45, -36, -27, -18, -9, 0, 9, 18, 27, 36, 45]
    assert all(pose.down == pose.right == 0 for pose in sweep.values())
    assert sweep[AS_IT_IS] == UPRIGHT
    assert list(sweep)[:2] == ["rotate -45", "rotate -36"]


def test_the_papers_translations():
    values = [-0.2, -0.16, -0.12, -0.08, -0.04, 0.0, 0.04, 0.08, 0.12, 0.16, 0.2]
    assert [pose.right for pose in translations(axes=["x"]).values()] == values
    assert [pose.down for pose in translations(axes=["y"]).values()] == values
    assert [(pose.down, pose.right) for pose in translations(axes=["diagonal"]).values()] == [(v, v) for v in values]
    both = translations()
    assert len(both) == 21
    assert both == translations(axes=["x"]) | translations(axes=["y"])
    assert len({*both.values(), *rotations().values()}) == 31  # "as it is" only once
    assert not any(math.copysign(1, number) < 0 for pose in both.values() for number in pose if number == 0)


def test_each_name_is_one_pose():
    sweep = rotations() | translations(axes=["x", "y", "diagonal"])
    assert len(sweep) == len(set(sweep.values())) == 41
    assert sweep["y -0.08"] == Pose(down=-0.08)
    assert sweep["x 0.2"] == Pose(right=0.2)


def test_other_sweeps():
    assert [pose.degrees for pose in rotations(most=90, step=45).values()] == [-90, -45, 0, 45, 90]
    assert [pose.right for pose in translations(most=0.3, step=0.1, axes=["x"]).values()] == [
        -0.3, -0.2, -0.1, 0, 0.1, 0.2, 0.3,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("size", "quarters"), [*itertools.product([(6, 6), (7, 7)], [-1, 1, 2, 3]), ((1, 28), 2), ((5, 8), 2)]
)
def test_a_quarter_turn_is_90_degrees(size, quarters):
    images = torch.rand(3, 2, *size)
    rotated = apply_pose(images, Pose(degrees=90.0 * quarters))
    assert torch.allclose(rotated, images.rot90(quarters, (2, 3)), atol=1e-5)


def test_a_small_angle_is_in_degrees_too():
    images = torch.zeros(1, 1, 41, 41)
    images[0, 0, 20, 40] = 1.0  # to the right of the centre
    ((_, _, row, column),) = (
        apply_pose(images, Pose(degrees=45.0)) == apply_pose(images, Pose(degrees=45.0)).max()
    ).nonzero()
    assert (20 - int(row), int(column) - 20) == (14, 14)  # up and to the right: 20 / sqrt(2)


@pytest.mark.parametrize(
    ("pose", "down", "right"), [(Pose(right=0.2), 0, 2), (Pose(down=-0.25), -2, 0), (Pose(down=0.5, right=-0.1), 4, -1)]
)
def test_whole_pixels_are_moved_exactly(pose, down, right):
    images = torch.rand(2, 3, 8, 10)
    expected = torch.zeros_like(images)
    rows, columns = slice(max(0, down), 8 + min(0, down)), slice(max(0, right), 10 + min(0, right))
    expected[:, :, rows, columns] = images.roll((down, right), (2, 3))[:, :, rows, columns]
    assert torch.allclose(apply_pose(images, pose), expected, atol=1e-5)


def test_fractions_of_a_pixel_are_interpolated():
    images = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0]).view(1, 1, 1, 5)
    assert torch.allclose(
        apply_pose(images, Pose(right=0.05)).flatten(), torch.tensor([0, 0, 0.75, 0.25, 0]), atol=1e-5
    )


def test_uncovered_pixels_show_the_fill():
    images = torch.rand(1, 2, 4, 4)
    moved = apply_pose(images, Pose(right=0.25), fill=[0.5, -1.0])
    assert torch.allclose(moved[0, :, :, 0], torch.tensor([[0.5], [-1.0]]).expand(2, 4), atol=1e-6)
    assert torch.allclose(moved[:, :, :, 1:], images[:, :, :, :3], atol=1e-5)
    assert bool((apply_pose(images, Pose(right=0.25))[:, :, :, 0].abs() < 1e-6).all())


def test_upright_images_are_returned_unchanged():
    images = torch.rand(1, 1, 3, 3)
    assert apply_pose(images, UPRIGHT) is images


def test_errors():
    with pytest.raises(ValueError, match=r"axes \(\['z'\]\)"):
        translations(axes=["z"])
    with pytest.raises(ValueError, match="axes"):
        translations(axes="x")
    with pytest.raises(ValueError, match="axes"):
        translations(axes=[])
    with pytest.raises(ValueError, match=r"most \(45\).*step"):
        rotations(most=45, step=10)
    with pytest.raises(ValueError, match=r"step \(0\)"):
        rotations(step=0)
    with pytest.raises(ValueError, match="uint8"):
        apply_pose(torch.zeros(1, 1, 2, 2, dtype=torch.uint8), UPRIGHT)
    with pytest.raises(ValueError, match=r"fill \(\[0.5\]\)"):
        apply_pose(torch.zeros(1, 3, 2, 2), UPRIGHT, fill=[0.5])
