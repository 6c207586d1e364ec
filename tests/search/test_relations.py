"""What one image is to another: every change is named, and other photographs are no copies."""

import io

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFilter, ImageFont, ImageOps

from patchreorder.search import local_features, relations
from patchreorder.search.local_features import Picture
from patchreorder.search.relations import COPY, SIMILAR, Relation, relate

from .photographs import CHANGES, photograph

pytest.importorskip("cv2")


def encoded(image: Image.Image, quality: int = 85) -> Image.Image:
    content = io.BytesIO()
    image.save(content, "JPEG", quality=quality)
    return Image.open(content).convert("RGB")


def related(first: Image.Image, second: Image.Image) -> Relation:
    return relate(Picture.of(first), Picture.of(second))


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_named(change):
    first = photograph(1)
    second = encoded(CHANGES[change](first))
    found = related(first, second)
    assert found.kind == COPY
    assert found.words(first.size, second.size) == change
    back = related(second, first)
    assert back.kind == COPY
    assert np.allclose(back.reversed().matrix, found.matrix, atol=0.02 * max(first.size))


def test_tiny_images_say_too_little():
    large = photograph(3)
    assert related(large, large.resize((64, 48), Image.Resampling.LANCZOS)).is_copy
    assert not related(large, large.resize((28, 21), Image.Resampling.LANCZOS)).is_copy


def test_several_changes_at_once():
    first = photograph(2)
    second = encoded(first.transpose(Image.Transpose.FLIP_LEFT_RIGHT).crop((0, 0, 256, 192)).resize((179, 134)), 40)
    assert related(first, second).words() == "mirrored, cropped, resized to 70 %"


def test_re_encoded_at_low_quality():
    assert related(photograph(3), encoded(photograph(3), 20)).words() == "re-encoded"


def test_other_photographs_are_no_copies():
    kinds = [related(photograph(seed), photograph(seed + 1)).kind for seed in range(0, 20, 2)]
    assert set(kinds) == {SIMILAR}


def shot(seed: int, x: int) -> Image.Image:
    """The same scene; one large thing stands elsewhere."""
    image = photograph(seed)
    image.paste(photograph(seed + 100).crop((0, 0, 90, 120)), (x, 60))
    return image


def test_another_shot_is_no_copy():
    found = related(shot(5, 40), shot(5, 170))
    assert not found.is_copy
    assert found.words() == "another shot of the same scene"


def with_thing(seed: int, *, plain: bool) -> Image.Image:
    """A shot of the same scene with an even wall in it, and perhaps a thing of many colours before the wall."""
    image = photograph(seed)
    image.paste((178, 172, 160), (60, 40, 240, 190))
    if not plain:
        image.paste(photograph(seed + 50).resize((70, 90)), (110, 70))
    return image


def test_a_thing_before_an_even_wall_is_no_overlay():
    found = related(encoded(with_thing(5, plain=True)), encoded(with_thing(5, plain=False)))
    assert not found.is_copy
    assert found.moved
    back = related(encoded(with_thing(5, plain=False)), encoded(with_thing(5, plain=True)))
    assert not back.is_copy


def darkened(image: Image.Image, strength: float) -> Image.Image:
    """With a vignette."""
    rows, columns = np.mgrid[-1 : 1 : image.height * 1j, -1 : 1 : image.width * 1j]
    light = 1 - strength * (rows**2 + columns**2)
    return Image.fromarray((np.asarray(image) * light[..., None]).clip(0, 255).astype(np.uint8))


def test_a_vignette_is_a_change_of_colours():
    for seed in range(10, 16):
        found = related(photograph(seed), encoded(darkened(photograph(seed), 0.45)))
        assert found.words() == "colours changed", seed
    assert not related(shot(5, 40), encoded(darkened(shot(5, 170), 0.45))).is_copy


def test_text_with_an_outline_over_a_copy():
    image = photograph(7)
    draw = ImageDraw.Draw(image)
    for text, high in (("WHEN YOU SEE", 0.02), ("A COPY OF IT", 0.8)):
        font = ImageFont.load_default(size=36)
        draw.text((16, image.height * high), text, font=font, fill="white", stroke_width=2, stroke_fill="black")
    found = related(photograph(7), encoded(image))
    assert found.words() == "with something laid over it"


def test_frames_that_only_overlap_are_no_copies():
    scene = photograph(6, (480, 360))
    first, second = scene.crop((0, 0, 380, 300)), scene.crop((60, 40, 480, 360))
    assert related(first, second).words() == "another shot of the same scene"
    assert related(scene, first).is_copy
    assert related(scene, second).is_copy


def filled(scene: Image.Image, degrees: float, centre: tuple[int, int] = (0, 0)) -> Image.Image:
    """Rotated within its frame; the corners show more of the scene."""
    wide, high = 320, 240
    x, y = (scene.width - wide) // 2, (scene.height - high) // 2
    about = scene.width // 2 + centre[0], scene.height // 2 + centre[1]
    return scene.rotate(degrees, Image.Resampling.BICUBIC, center=about).crop((x, y, x + wide, y + high))


def test_rotated_within_its_frame_with_filled_corners():
    scene = photograph(6, (480, 400))
    found = related(filled(scene, 0), filled(scene, 12))
    assert found.is_copy
    assert found.words() == "rotated by 348 degrees clockwise, cropped, shows more, 1.1 times the area"
    assert not related(filled(scene, 0), filled(scene, 12, (30, 0))).is_copy, "a camera that was rotated"
    assert not related(filled(scene, 0), filled(scene, 2)).is_copy, "a hand that shook"


def test_a_frame_that_is_a_little_beyond_the_other_needs_more_proof(monkeypatch):
    """As in a series of shots: one is rotated and nearer by a hundredth, and as sharp as a small photograph."""
    scene = photograph(6, (240, 180))
    nearer = scene.transform(scene.size, Image.Transform.AFFINE, (0.984, 0.014, 0.4, -0.014, 0.984, 2.2), 2)
    second = encoded(nearer.filter(ImageFilter.GaussianBlur(1.0)), 20)
    assert not related(scene, second).is_copy
    monkeypatch.setattr(relations, "CERTAIN", 1.0)
    assert related(scene, second).is_copy


@pytest.mark.parametrize("changed", ["framed", "cropped"])
def test_a_framed_or_cropped_copy_of_another_shot_is_no_copy(changed):
    """One shot is rotated and nearer by a hundredth; the copy of it lies within the other shot, or has a border."""
    scene = photograph(6, (240, 180))
    nearer = scene.transform(scene.size, Image.Transform.AFFINE, (0.984, 0.014, 0.4, -0.014, 0.984, 2.2), 2)
    second = encoded(nearer.filter(ImageFilter.GaussianBlur(1.0)), 20)
    change = {
        "framed": lambda image: ImageOps.expand(image, 20, "white"),
        "cropped": lambda image: image.crop((50, 40, 200, 150)),
    }[changed]
    assert related(second, change(second)).is_copy
    assert not related(scene, change(second)).is_copy


def test_a_small_copy_of_low_quality_is_found_by_its_frame(monkeypatch):
    scene = photograph(6, (120, 90))
    coarse = encoded(scene.filter(ImageFilter.GaussianBlur(1.0)), 8)
    assert related(scene, coarse).is_copy
    monkeypatch.setattr(relations, "FRAMED", relations.SURE)
    assert not related(scene, coarse).is_copy


def test_two_crops_that_differ_by_a_pixel_are_copies():
    scene = photograph(6, (480, 360))
    assert related(scene.crop((0, 0, 479, 360)), encoded(scene.crop((1, 0, 480, 360)), 90)).is_copy


def test_rotated_within_its_frame():
    first = photograph(4)
    found = related(first, encoded(first.rotate(-25, Image.Resampling.BICUBIC)))
    assert found.words() == "rotated by 25 degrees clockwise, cropped, with a border"


def test_pages_with_other_text_are_no_copies():
    def page(seed: int) -> Image.Image:
        random = np.random.default_rng(seed)
        image = Image.new("RGB", (300, 400), "white")
        draw = ImageDraw.Draw(image)
        draw.text((20, 10), "A letter with the same head on all of its pages", fill="black")
        for line in range(20):
            text = "".join(chr(97 + letter) for letter in random.integers(0, 26, 40))
            draw.text((20, 40 + 16 * line), text, fill="black")
        return image

    assert not related(page(1), page(2)).is_copy
    assert related(page(1), encoded(page(1))).is_copy


@pytest.mark.parametrize("colour", ["white", (12, 90, 200)])
def test_images_of_one_colour_are_no_proof(colour):
    first = Image.new("RGB", (80, 60), colour)
    assert related(first, encoded(first)).kind == SIMILAR


@pytest.mark.parametrize("size", [(1, 1), (7, 3), (20, 20)])
def test_tiny_images_are_compared_without_an_error(size):
    first = photograph(7).resize(size)
    assert related(first, photograph(8).resize(size)).kind == SIMILAR


def test_json_values_keep_a_relation():
    found = related(photograph(1), CHANGES["mirrored"](photograph(1)))
    again = Relation.of_values(found.values())
    assert again.words() == found.words() == "mirrored"
    assert again.reversed().reversed().pose == pytest.approx(found.pose, abs=1e-3)


def test_only_the_strongest_features_of_images_that_share_nothing_are_matched(monkeypatch):
    sizes = []
    real = local_features._matches

    def matches(one, other):
        sizes.append(max(len(one), len(other)))
        return real(one, other)

    monkeypatch.setattr(local_features, "_matches", matches)
    first, second = (Picture.of(photograph(seed, (480, 360))) for seed in (21, 22))
    assert min(len(first.features.points), len(second.features.points)) > local_features.QUICK
    assert not relate(first, second).is_copy
    assert max(sizes) == local_features.QUICK
    assert relate(first, Picture.of(photograph(21, (480, 360)).crop((90, 30, 430, 300)))).is_copy
    assert max(sizes) > local_features.QUICK
