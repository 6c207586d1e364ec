"""Borders of one colour: found, and cut off exactly."""

import io

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageOps

from patchreorder.search.borders import content_frame, content_of

from .photographs import photograph


def encoded(image: Image.Image, quality: int) -> Image.Image:
    content = io.BytesIO()
    image.save(content, "JPEG", quality=quality)
    return Image.open(content).convert("RGB")


def _frame(image: Image.Image) -> np.ndarray | None:
    return content_frame(np.asarray(image))


def test_a_frame():
    image = encoded(ImageOps.expand(photograph(1, (200, 150)), (20, 10, 30, 40), "white"), 85)
    expected = [[20, 10], [219, 10], [219, 159], [20, 159]]
    assert np.abs(_frame(image) - expected).max() < 1


def test_bars_above_and_below():
    image = encoded(ImageOps.expand(photograph(2, (200, 150)), (0, 30), "black"), 85)
    assert np.abs(_frame(image) - [[0, 30], [199, 30], [199, 179], [0, 179]]).max() < 1


@pytest.mark.parametrize("degrees", [6, 30, 137, 290])
def test_the_corners_of_a_rotated_image(degrees):
    image = photograph(3, (240, 180))
    rotated = encoded(image.rotate(degrees, Image.Resampling.BICUBIC, expand=True), 85)
    found = _frame(rotated)
    sides = np.linalg.norm(found - np.roll(found, 1, 0), axis=1) + 1
    assert np.abs(np.sort(sides) - [180, 180, 240, 240]).max() < 1
    assert np.abs(found.mean(0) - (np.array(rotated.size) - 1) / 2).max() < 0.6


@pytest.mark.parametrize("seed", range(5))
def test_photographs_have_none(seed):
    assert _frame(photograph(seed, (240, 180))) is None


def test_a_thing_that_is_no_rectangle_before_a_white_wall():
    image = Image.new("RGB", (240, 180), "white")
    ImageDraw.Draw(image).ellipse((40, 20, 200, 160), fill="brown")
    assert _frame(image) is None


def test_a_page_with_text_around_the_image():
    image = ImageOps.expand(photograph(1, (200, 150)), 40, "white")
    ImageDraw.Draw(image).text((45, 200), "comment 1 by user 2, comment 2 by user 1", fill="black")
    assert _frame(image) is None


@pytest.mark.parametrize("size", [(1, 1), (3, 200), (200, 20)])
@pytest.mark.parametrize("colour", ["white", "teal"])
def test_nothing_inside(size, colour):
    assert _frame(Image.new("RGB", size, colour)) is None
    assert content_of(Image.new("RGB", size, colour)).size == size


def test_the_content_is_cut_out_at_its_own_size():
    image = photograph(4, (900, 600))
    found = content_of(ImageOps.expand(image, 50, "white"))
    assert np.abs(np.array(found.size) - image.size).max() <= 3
    assert np.abs(np.asarray(found.resize((90, 60)), int) - np.asarray(image.resize((90, 60)), int)).mean() < 3


def test_a_rotated_image_is_straightened():
    image = photograph(4, (400, 300))
    found = content_of(image.rotate(20, Image.Resampling.BICUBIC, expand=True))
    poses = [found.rotate(quarter, expand=True).resize((40, 30)) for quarter in (0, 90, 180, 270)]
    own = np.asarray(image.resize((40, 30)), int)
    assert min(np.abs(np.asarray(pose, int) - own).mean() for pose in poses) < 4
