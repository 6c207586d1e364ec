"""Views by known answers: poses, crops, and the random numbers that decide about them."""

import numpy as np
import pytest
import torch
from PIL import Image

from patchreorder.data import transforms
from patchreorder.data.images import MEAN_COLOUR
from patchreorder.data.poses import UPRIGHT, Pose
from patchreorder.data.views import VIEWS, Crop, centre_crop, resized_crop
from patchreorder.operator import native

POSES = [Pose(degrees=30), Pose(degrees=-45), Pose(down=0.1, right=-0.17)]


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def smooth(height: int, width: int) -> Image.Image:
    return Image.fromarray(noise(9, 12)).resize((width, height), Image.Resampling.BICUBIC)


def on_mean(array: np.ndarray) -> np.ndarray:
    return np.full_like(array, MEAN_COLOUR)


def posed(array: np.ndarray, **pose: float) -> np.ndarray:
    """A square image at its own size: only the pose changes it."""
    side = len(array)
    return centre_crop(Image.fromarray(array), pose=Pose(**pose), size=side, short=side).numpy()


@pytest.fixture(params=["kernel", "Pillow"], autouse=True)
def _by(request, monkeypatch):
    """Every test of this file, by the kernel and by Pillow."""
    if request.param == "kernel" and native.KERNEL.library is None:
        pytest.skip("no kernel is loaded")
    if request.param == "Pillow":
        monkeypatch.setattr(native, "KERNEL", native.choose({}))


# ---- poses -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", [8, 9])
@pytest.mark.parametrize("quarters", [0, 1, 2, 3, -1])
def test_a_quarter_turn_is_rot90(quarters, side):
    x = noise(side, side)
    assert np.array_equal(posed(x, degrees=90 * quarters), np.rot90(x, quarters))


@pytest.mark.parametrize(("down", "right"), [(3, 0), (0, -2), (-1, 4), (20, 0)])
def test_a_shift_by_whole_pixels_is_slicing(down, right):
    x, expected = noise(10, 10), on_mean(noise(10, 10))
    for row in range(10):
        for column in range(10):
            if 0 <= row - down < 10 and 0 <= column - right < 10:
                expected[row, column] = x[row - down, column - right]
    assert np.array_equal(posed(x, down=down / 10, right=right / 10), expected)


def test_rotation_comes_before_translation():
    x, expected = noise(8, 8), on_mean(noise(8, 8))
    expected[2:, :7] = np.rot90(x)[:6, 1:]
    assert np.array_equal(posed(x, degrees=90, down=0.25, right=-0.125), expected)


def test_positive_degrees_are_counter_clockwise():
    x = np.zeros((101, 101, 3), np.uint8)
    x[50, 60:] = 255  # a line from the centre to the right
    bright = posed(x, degrees=30)[..., 0]
    bright[bright == MEAN_COLOUR[0]] = 0  # the corners
    row, column = np.argwhere(bright > 100).mean(0)
    assert np.degrees(np.arctan2(50 - row, column - 50)) == pytest.approx(30, abs=1)


def test_half_a_pixel_is_the_mean_of_two():
    x = noise(10, 10)
    got = posed(x, right=0.05)[:, 1:-1].astype(int)
    assert np.abs(got - (x[:, :-2].astype(int) + x[:, 1:-1]) / 2).max() <= 1


def test_uncovered_pixels_have_the_mean_colour():
    got = posed(noise(40, 40), degrees=45)
    assert all(got[row, column].tolist() == [*MEAN_COLOUR] for row in (0, -1) for column in (0, -1))


# ---- crops -----------------------------------------------------------------------------------------


def by_definition(image: Image.Image, pose: Pose, size: int, short: int) -> np.ndarray:
    """Transform the whole image with Pillow's rotate, scale the whole, crop."""
    width, height = image.size
    if pose.degrees:
        image = image.rotate(pose.degrees, Image.Resampling.BILINEAR, fillcolor=MEAN_COLOUR)
    if pose.down or pose.right:
        shift = (1, 0, -pose.right * width, 0, 1, -pose.down * height)
        image = image.transform(
            image.size, Image.Transform.AFFINE, shift, Image.Resampling.BILINEAR, fillcolor=MEAN_COLOUR
        )
    scale = short / min(width, height)
    image = image.resize((round(width * scale), round(height * scale)), Image.Resampling.BILINEAR)
    left, top = (image.width - size) // 2, (image.height - size) // 2
    return np.asarray(image.crop((left, top, left + size, top + size))).astype(int)


@pytest.mark.parametrize("pose", [UPRIGHT, *POSES])
@pytest.mark.parametrize("size", [(500, 375), (300, 431), (90, 61), (256, 256), (300, 3000)])
def test_the_centre_crop_equals_that_of_the_whole_image(size, pose):
    image = Image.fromarray(noise(*size[::-1]))
    got = centre_crop(image, pose=pose, size=112, short=128).numpy().astype(int)
    assert np.abs(got - by_definition(image, pose, 112, 128)).max() <= 1


def test_the_centre_is_exact_without_scaling():
    x = noise(64, 91)
    got = centre_crop(Image.fromarray(x), pose=UPRIGHT, size=48, short=64).numpy()
    assert np.array_equal(got, x[8:56, 21:69])


def test_crops_and_flips_are_exact_without_scaling():
    x = noise(64, 91)
    for down, right, top, left in ((0, 0, 0, 0), (0.999, 0.999, 16, 43), (0.5, 0.5, 8, 22)):
        for flip in (False, True):
            crop = Crop(down, right, flip)
            got = resized_crop(Image.fromarray(x), pose=UPRIGHT, crop=crop, size=48, short=64).numpy()
            expected = x[top : top + 48, left : left + 48]
            assert np.array_equal(got, expected[:, ::-1] if flip else expected)


@pytest.mark.parametrize("pose", [UPRIGHT, *POSES])
def test_a_resized_crop_equals_pillows(pose):
    """On the whole posed image, with Pillow's filter instead of torch's."""
    image = smooth(150, 200)
    got = resized_crop(image, pose=pose, crop=Crop(0.5, 0.25, False), size=56, short=75).numpy().astype(int)
    canvas = image.rotate(pose.degrees, Image.Resampling.BILINEAR, fillcolor=MEAN_COLOUR)
    shift = (1, 0, -pose.right * 200, 0, 1, -pose.down * 150)
    canvas = canvas.transform(
        (200, 150), Image.Transform.AFFINE, shift, Image.Resampling.BILINEAR, fillcolor=MEAN_COLOUR
    )
    expected = np.asarray(canvas.crop((22, 19, 134, 131)).resize((56, 56), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(got - expected).max() <= 2


@pytest.mark.parametrize("size", [(1, 1), (1, 3000), (3000, 1), (2, 7)])
def test_thin_images_are_shown(size):
    image = Image.new("RGB", size, (9, 99, 199))
    assert (centre_crop(image, pose=UPRIGHT, size=24, short=32) == torch.tensor([9, 99, 199])).all()
    assert centre_crop(image, pose=Pose(20, 0.1, 0), size=24, short=32).shape == (24, 24, 3)
    cropped = resized_crop(image, pose=UPRIGHT, crop=Crop(0.9, 0.9, True), size=24, short=32)
    assert (cropped == torch.tensor([9, 99, 199])).all()


# ---- numbers ---------------------------------------------------------------------------------------


def test_views_have_the_ranges_of_the_paper():
    draws = transforms.uniform(3000, 6, seed=0, epoch=0).tolist()
    rotations = [VIEWS["R"].pose(numbers) for numbers in draws]
    assert {(pose.down, pose.right) for pose in rotations} == {(0, 0)}
    assert -45 <= min(rotations).degrees < -44.5
    assert 44.5 < max(rotations).degrees < 45
    shifts = np.array([VIEWS["T"].pose(numbers) for numbers in draws])
    shifts = shifts[:, :3]
    assert not shifts[:, 0].any()
    assert np.abs(shifts[:, 1:].min(0) + 0.2).max() < 1e-3
    assert np.abs(shifts[:, 1:].max(0) - 0.2).max() < 1e-3
    assert abs(np.corrcoef(shifts[:, 1:].T)[0, 1]) < 0.05
    mixed = [VIEWS["train-aug"].pose(numbers) for numbers in draws]
    rotated = sum(pose.degrees != 0 for pose in mixed) / 3000
    shifted = sum(pose.down != 0 for pose in mixed) / 3000
    assert rotated == pytest.approx(1 / 3, abs=0.03)
    assert shifted == pytest.approx(1 / 3, abs=0.03)
    assert sum(pose == UPRIGHT for pose in mixed) / 3000 == pytest.approx(1 - rotated - shifted)
    crops = np.array([VIEWS["train"].crop(numbers) for numbers in draws])
    assert crops[:, 2].mean() == pytest.approx(0.5, abs=0.03)
    assert abs(crops[:, :2] - 0.5).max() > 0.49
    assert VIEWS["Ori"].pose([]) == UPRIGHT
