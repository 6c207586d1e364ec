"""Two images laid over each other: exactly, also beside a border, and what was drawn is told from what moved."""

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from patchreorder.search.comparison import compare
from patchreorder.search.local_features import Picture, align, mapped

from .photographs import captioned, photograph

pytest.importorskip("cv2")
SAME = np.array([[1.0, 0, 0], [0, 1, 0]])


@pytest.mark.parametrize("degrees", [-25, 7, 128])
def test_a_rotated_copy_lies_exactly_over_its_original(degrees):
    """A border of black corners does not pull at the map."""
    image = photograph(4, (150, 150))
    first, second = Picture.of(image), Picture.of(image.rotate(degrees, Image.Resampling.BICUBIC, expand=True))
    aligned = align(first, second)
    assert aligned is not None
    off = aligned.matrix + [[0, 0, 0.5], [0.004, 0, -0.4]]  # as far as features may err
    found = compare(first, second, off)
    assert found.drift < 0.1
    middle = mapped(found.matrix, np.array([[74.5, 74.5]]))[0]
    assert np.allclose(middle, (np.array(second.shape) - 1) / 2, atol=0.2)


def thing(seed: int, place: tuple[int, int]) -> Image.Image:
    image = photograph(seed)
    image.paste(photograph(seed + 50).crop((0, 0, 60, 90)), place)
    return image


def watermarked(image: Image.Image) -> Image.Image:
    layer = Image.new("RGBA", image.size)
    ImageDraw.Draw(layer).text((30, 80), "SAMPLE", font=ImageFont.load_default(size=50), fill=(255, 255, 255, 130))
    return Image.alpha_composite(image.convert("RGBA"), layer).convert("RGB")


@pytest.mark.parametrize("seed", range(5))
def test_what_was_drawn_is_told_from_what_moved(seed):
    def overlay(first: Image.Image, second: Image.Image) -> float:
        return compare(Picture.of(first), Picture.of(second), SAME).overlay

    image = photograph(seed)
    drawn = [overlay(image, change(image)) for change in (captioned, watermarked)]
    moved = [overlay(image, thing(seed, (200, 100))), overlay(thing(seed, (30, 40)), thing(seed, (200, 100)))]
    assert min(drawn) > 0.6 > max(moved), (drawn, moved)
