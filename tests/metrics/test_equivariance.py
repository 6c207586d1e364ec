"""Equivariance of maps against networks for which it is known."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from patchreorder.data.poses import Pose, apply_pose
from patchreorder.measuring.equivariance import _moves, compare
from patchreorder.metrics.equivariance import MapEquivariance, Undoing, lie_error, move
from patchreorder.metrics.ratio import ratio

SIZE = 32


@pytest.fixture
def images():
    return F.interpolate(torch.rand(8, 2, 8, 8), size=(SIZE, SIZE), mode="bicubic")


def circular(stride=1, symmetric=False):
    layer = nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular", stride=stride, bias=False)
    if symmetric:
        turned = [layer.weight.data.rot90(k, (2, 3)) for k in range(4)]
        layer.weight.data = sum(turned) / 4
    return layer.requires_grad_(False)


def error(network, images, pose, copies):
    maps, posed = network(images), network(copies)
    found = MapEquivariance()
    found.start(maps)
    size = maps.shape[2:]
    found.update("pose", posed, Undoing.of(_moves(pose, torch.ones(len(images), 2), size), size))
    return found.result()["pose"]


@pytest.mark.parametrize("pixels", [1, 3, -4])
def test_a_circular_convolution_is_exactly_shift_equivariant(images, pixels):
    pose = Pose(right=pixels / SIZE)
    found = error(circular(), images, pose, images.roll(pixels, 3))
    assert found.moved.value < 1e-10
    assert found.stayed.value > 0.05


def test_a_symmetric_circular_convolution_turns_with_the_image(images):
    quarter = images.rot90(1, (2, 3))
    assert error(circular(symmetric=True), images, Pose(degrees=90.0), quarter).moved.value < 1e-10
    assert error(circular(), images, Pose(degrees=90.0), quarter).moved.value > 0.01


def test_flips_and_scales_are_undone(images):
    for pose in (Pose(flip=True), Pose(degrees=180.0, flip=True), Pose(scale=1.25), Pose(30.0, 0.05, -0.1, 1.1, True)):
        found = error(nn.Identity(), images, pose, apply_pose(images, pose))
        assert found.moved.value < 0.02, pose
        assert found.moved.high < found.stayed.low, pose


def test_a_stride_of_two_keeps_even_shifts_and_breaks_odd_ones(images):
    network = circular(stride=2)
    even = error(network, images, Pose(right=4 / SIZE), images.roll(4, 3))
    odd = error(network, images, Pose(right=3 / SIZE), images.roll(3, 3))
    assert even.moved.value < 1e-10 < 1e-4 < odd.moved.value


def test_maps_that_shuffle_positions_are_as_far_as_other_images(images):
    order = torch.randperm(SIZE * SIZE)

    def shuffle(x):
        return x.flatten(2)[:, :, order].unflatten(2, (SIZE, SIZE))

    found = error(shuffle, images, Pose(right=8 / SIZE), images.roll(8, 3))
    assert 0.7 < found.moved.value < 1.3


def test_maps_that_stay_are_invariant(images):
    found = error(lambda x: x.sort(3).values, images, Pose(right=8 / SIZE), images.roll(8, 3))
    assert found.stayed.value == 0
    assert found.moved.value > 0.5


def test_a_network_that_knows_nothing_has_one(images):
    found = error(lambda x: torch.ones_like(x), images, Pose(right=8 / SIZE), images.roll(8, 3))
    assert (found.moved.value, found.stayed.value) == (1.0, 1.0)


def test_batches_change_nothing(images):
    pose = Pose(degrees=20.0)
    whole = error(nn.Identity(), images, pose, apply_pose(images, pose))
    parts = MapEquivariance()
    for part in images.split(3):
        parts.start(part)
        to = _moves(pose, torch.ones(len(part), 2), (SIZE, SIZE))
        parts.update("pose", apply_pose(part, pose), Undoing.of(to, (SIZE, SIZE)))
    assert parts.result()["pose"].moved == pytest.approx(whole.moved, rel=1e-5)


def test_a_pose_that_leaves_nothing_to_compare_is_left_out(images):
    found = MapEquivariance()
    found.start(images)
    to = _moves(Pose(right=0.9), torch.ones(len(images), 2), (SIZE, SIZE))
    found.update("away", images, Undoing.of(to, (SIZE, SIZE)))
    assert found.result() == {}


@pytest.mark.parametrize(
    ("generator", "axis", "pose", "time"),
    [
        ("shift", 0, Pose(down=0.001), 0.002),
        ("shift", 1, Pose(right=0.001), 0.002),
        ("rotation", 0, Pose(degrees=0.1), math.radians(0.1)),
        ("scale", 0, Pose(scale=1.001), 0.001),
    ],
)
def test_a_generator_is_the_derivative_of_its_poses(generator, axis, pose, time):
    smooth = F.interpolate(torch.rand(3, 1, 5, 6, dtype=torch.float64), size=(100, 120), mode="bicubic")
    change = (apply_pose(smooth, pose) - smooth) / time
    found = ratio(*lie_error(change, move(smooth, generator, axis)))
    assert found.value < 0.01
    assert ratio(*lie_error(-change, move(smooth, generator, axis))).value > 1.9  # the other way round


def derivative(network, images, generator):
    return compare(lambda x: {"": network(x)}, images, {"": network(images)}, [generator])[""][generator].value


def test_the_derivative_of_a_circular_convolution_is_zero(images):
    images = images.double()
    assert derivative(circular().double(), images, "shift") < 1e-12
    assert derivative(circular(stride=2).double(), images, "shift") > 1e-3  # what lies between the pixels is lost
    assert derivative(lambda x: x.sort(3).values, images, "shift") > 0.5
    blur = circular().double()
    blur.weight.data = torch.full_like(blur.weight, 1 / 9)
    skewed = circular().double()
    skewed.weight.data = torch.zeros_like(skewed.weight)
    skewed.weight.data[:, :, 0, 0] = 1  # a shift by a pixel, which rotates with nothing
    assert derivative(blur, images, "rotation") < 1e-3 < derivative(skewed, images, "rotation")


def test_the_derivative_of_maps_that_never_change_is_one_of_moving_ones_or_none(images):
    still = images[:1].expand_as(images).clone()
    assert derivative(lambda x: still, images, "shift") == pytest.approx(1)
    ones = {"": torch.ones_like(images)}
    assert compare(lambda x: ones, images, ones, ["shift"]) == {}
