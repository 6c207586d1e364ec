"""Sweeps beyond the paper's: one name for each pose, all within bounds; images that stay on their canvas."""

import pytest
import torch

from patchreorder.data.poses import AS_IT_IS, UPRIGHT, Pose, apply_pose
from patchreorder.data.sweeps import CROP, SWEEPS, fitting_side, shrink, sweep


def test_each_pose_has_one_name_in_all_sweeps():
    names: dict[Pose, str] = {}
    for own in map(sweep, SWEEPS):
        assert own[AS_IT_IS] == UPRIGHT
        for name, pose in own.items():
            assert names.setdefault(pose, name) == name


def test_all_angles():
    degrees = sorted(pose.degrees % 360 for pose in sweep("rotate360").values())
    assert degrees == [15.0 * k for k in range(24)]


def test_a_flip_is_exact():
    images = torch.rand(1, 3, 9, 9)
    mirrored, upside_down = (apply_pose(images, pose) for pose in list(sweep("flip").values())[1:])
    torch.testing.assert_close(mirrored, images.flip(3))
    torch.testing.assert_close(upside_down, images.flip(2))


def test_random_poses_depend_on_the_seed_and_keep_within_their_bounds():
    assert sweep("combine", seed=1) == sweep("combine", seed=1) != sweep("combine", seed=2)
    crops = list(sweep("crops", seed=3).values())[1:]
    assert all(abs(pose.down) <= CROP >= abs(pose.right) for pose in crops)
    assert max(abs(pose.down) for pose in crops) > CROP / 2
    found = list(sweep("combine", seed=3).values())[1:]
    assert all(0.8 <= pose.scale <= 1.25 and max(abs(pose.down), abs(pose.right)) <= 0.1 for pose in found)
    assert {pose.flip for pose in found} == {True, False}
    assert max(abs(pose.degrees) for pose in found) > 90


@pytest.mark.parametrize("name", SWEEPS)
def test_shrunk_images_stay_on_the_canvas(name):
    poses = sweep(name).values()
    images = shrink(torch.ones(1, 1, 64, 64), side=fitting_side(poses))
    total = images.sum()
    for pose in poses:
        moved = apply_pose(images, pose)
        torch.testing.assert_close(moved.sum(), total * pose.scale**2, rtol=0.05, atol=0)


def test_errors():
    with pytest.raises(ValueError, match=r"transform \('spin'\) must be one of rotate, rotate360"):
        sweep("spin")
    with pytest.raises(ValueError, match="shifts the image off its canvas"):
        fitting_side([Pose(right=0.5)])
    with pytest.raises(ValueError, match=r"side \(0\) must be above 0"):
        shrink(torch.ones(1, 1, 4, 4), side=0)
    with pytest.raises(ValueError, match=r"side \(0.1\) leaves nothing of images of 4x4"):
        shrink(torch.ones(1, 1, 4, 4), side=0.1)
