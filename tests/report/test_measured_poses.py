"""Poses along axes, the farthest poses, and poses in words."""

from patchreorder.data.poses import AS_IT_IS
from patchreorder.data.sweeps import sweep
from patchreorder.report import measured_poses


def test_axes_hold_poses_of_one_parameter():
    poses = {name: tuple(pose) for kind in ("rotate", "scale", "flip", "combine") for name, pose in sweep(kind).items()}
    rotated, scaled = measured_poses.pose_axes(poses)
    assert [value for value, _ in rotated.points] == [-45, -36, -27, -18, -9, 0, 9, 18, 27, 36, 45]
    assert [value for value, _ in scaled.points] == [60, 70, 80, 90, 100, 110, 120, 130, 140]
    assert dict(scaled.points)[100] == measured_poses.AS_IT_IS == AS_IT_IS


def test_the_farthest_poses():
    poses = {name: tuple(pose) for kind in ("rotate360", "scale", "flip") for name, pose in sweep(kind).items()}
    assert measured_poses.extremes(poses) == [
        ("rotated by 180°", ["rotate 180"]),
        ("scaled by 0.6", ["scale 0.6"]),
        ("scaled by 1.4", ["scale 1.4"]),
        ("mirrored", ["mirrored"]),
        ("flipped vertically", ["flipped vertically"]),
    ]
