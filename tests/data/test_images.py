"""Images of every format become upright 8-bit RGB, or are refused by name."""

import io
import struct
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image

from patchreorder.data import images
from patchreorder.data.images import FORMATS, MAX_PIXELS, MEAN, MEAN_COLOUR, BadImage, decode


def encoded(image: Image.Image, kind: str = "PNG", **settings) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **settings)
    return file.getvalue()


def scene(width: int = 40, height: int = 30) -> Image.Image:
    """Smooth, so that JPEG keeps it, and different in every corner."""
    y, x = np.mgrid[0:height, 0:width]
    return Image.fromarray(np.stack([x * 5, y * 7, (x + y) * 3], 2).clip(0, 255).astype(np.uint8))


def pixels(content: bytes, **settings) -> np.ndarray:
    image = decode(content, name="some.jpg", **settings)
    assert image.mode == "RGB"
    own = images.pixels(content, name="some.jpg", **settings)
    assert own.flags.writeable
    np.testing.assert_array_equal(own, np.asarray(image))
    return own.astype(int)


def test_the_mean_colour_is_the_mean():
    assert tuple(round(255 * value) for value in MEAN) == MEAN_COLOUR


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "GIF", "JPEG", "WEBP"])
def test_every_format_is_read(kind):
    image = scene() if kind != "GIF" else scene().quantize(250)
    assert np.abs(pixels(encoded(image, kind)) - np.asarray(scene())).max() <= (0 if kind in FORMATS[-3:] else 24)


JPEGS = [{"quality": 60, "subsampling": kind, "progressive": late} for kind in (0, 1, 2) for late in (False, True)]


@pytest.mark.parametrize("settings", [*JPEGS, {"keep_rgb": True}, {"restart_marker_rows": 1}])
@pytest.mark.parametrize("installed", [True, False])
def test_simplejpeg_gives_the_pixels_that_pillow_gives(monkeypatch, installed, settings):
    if installed:
        assert images.decode_jpeg is not None, "the tests need the extra jpeg"
    else:
        monkeypatch.setattr(images, "decode_jpeg", None)
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (123, 77, 3), dtype=np.uint8))
    pixels(encoded(noise, "JPEG", **settings))
    pixels(encoded(noise.convert("L"), "JPEG"))


def test_simplejpeg_is_used_for_upright_colour_images_only(monkeypatch):
    seen = []
    monkeypatch.setattr(images, "decode_jpeg", lambda content: seen.append(content) or np.zeros((1, 1, 3), np.uint8))
    upright, exif = encoded(scene(), "JPEG"), Image.Exif()
    exif[0x0112] = 6
    images.pixels(upright, name="upright")
    images.pixels(encoded(scene(), "JPEG", exif=exif), name="rotated")
    images.pixels(encoded(scene().convert("L"), "JPEG"), name="grey")
    images.pixels(encoded(scene(), "PNG"), name="another format")
    images.pixels(upright, name="a draft", short=10)
    assert seen == [upright]


def test_another_format_is_refused():
    with pytest.raises(BadImage, match=r"some.jpg cannot be read as an image: it is no JPEG, .* or PPM file"):
        pixels(encoded(scene(), "ICO"))


@pytest.mark.parametrize(
    ("content", "reason"), [(b"", "it is empty"), (b"GIF", "it is no"), (b"text" * 99, "it is no")]
)
def test_other_content_is_refused(content, reason):
    with pytest.raises(BadImage, match=f"^cat/1.jpg cannot be read as an image: {reason}"):
        decode(content, name="cat/1.jpg")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM"])
@pytest.mark.parametrize("short", [None, 8])
def test_a_truncated_file_is_refused(kind, short):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8))
    whole = encoded(noise.quantize(250) if kind == "GIF" else noise, kind)
    for part in (0.1, 0.5, 0.9):
        with pytest.raises(BadImage, match="cannot be read as an image"):
            decode(whole[: int(len(whole) * part)], name="cut", short=short)
        with pytest.raises(BadImage, match="cannot be read as an image"):
            images.pixels(whole[: int(len(whole) * part)], name="cut", short=short)


def test_damage_never_gives_another_error_or_a_warning():
    generator = np.random.default_rng(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in FORMATS:
            whole = np.frombuffer(encoded(scene().quantize(250) if kind == "GIF" else scene(), kind), np.uint8)
            for _ in range(60):
                damaged = whole.copy()
                positions = generator.integers(0, len(whole), 4)
                damaged[positions] = generator.integers(0, 256, 4)
                try:
                    pixels(damaged.tobytes())
                except BadImage:
                    continue


# ---- kinds of pixels -------------------------------------------------------------------------------


def test_cmyk_is_converted():
    rgb = Image.new("RGB", (8, 8), (200, 60, 20))
    assert np.abs(pixels(encoded(rgb.convert("CMYK"), "JPEG")) - [200, 60, 20]).max() <= 4
    assert np.abs(pixels(encoded(rgb.convert("CMYK"), "TIFF")) - [200, 60, 20]).max() <= 4


def test_adobes_inverted_cmyk_is_not_a_negative():
    content = encoded(Image.new("CMYK", (8, 8), (0, 0, 0, 0)), "JPEG")  # no ink
    assert b"Adobe" in content
    assert pixels(content).min() >= 253


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_grey_of_16_bits_is_scaled_not_clipped(kind):
    values = np.array([[0, 128, 129, 257, 25_700, 65_535]], np.uint16)
    content = encoded(Image.fromarray(values), kind)
    assert pixels(content)[0, :, 0].tolist() == [0, 0, 1, 1, 100, 255]


def test_grey_of_32_bits_is_scaled_or_refused():
    content = encoded(Image.fromarray(np.array([[0, 65_535, 25_700]], np.int32)), "TIFF")
    assert pixels(content)[0, :, 2].tolist() == [0, 255, 100]
    for value in (70_000, -1):
        with pytest.raises(BadImage, match=rf"its pixels are from .*{value}.*, beyond 16 bits"):
            pixels(encoded(Image.fromarray(np.array([[5, value]], np.int32)), "TIFF"))


def test_floating_pixels_are_refused():
    with pytest.raises(BadImage, match="floating-point"):
        pixels(encoded(Image.new("F", (4, 4), 0.5), "TIFF"))


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, depth: int, colour: int, rows: bytes) -> bytes:
    header = struct.pack(">2I5B", width, height, depth, colour, 0, 0, 0)
    data = chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + data + chunk(b"IEND", b"")


def test_colour_of_16_bits():
    row = b"\0" + np.array([[65_535, 25_700, 0], [0, 257, 51_400]], ">u2").tobytes()
    assert pixels(png(2, 1, 16, 2, row)).tolist() == [[[255, 100, 0], [0, 1, 200]]]


def test_transparent_pixels_show_the_mean_colour():
    layer = np.zeros((1, 3, 4), np.uint8)
    layer[0, :, 0], layer[0, :, 3] = 224, [0, 255, 128]
    clear, full, half = pixels(encoded(Image.fromarray(layer)))[0].tolist()
    assert (clear, full) == ([*MEAN_COLOUR], [224, 0, 0])
    assert np.abs(np.array(half) - [174, 58, 52]).max() <= 1
    grey = Image.merge("LA", [Image.new("L", (2, 1), 9), Image.new("L", (2, 1), 0)])
    assert pixels(encoded(grey))[0, 0].tolist() == [*MEAN_COLOUR]


def test_palettes():
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    assert pixels(encoded(image))[0].tolist() == [[10, 20, 30], [40, 50, 60]]
    for transparency in (1, bytes([255, 0])):
        assert pixels(encoded(image, transparency=transparency))[0].tolist() == [[10, 20, 30], [*MEAN_COLOUR]]
    assert pixels(encoded(image, "GIF", transparency=0))[0].tolist() == [[*MEAN_COLOUR], [40, 50, 60]]


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_an_animation_shows_its_first_frame(kind):
    red, blue = Image.new("RGB", (16, 16), (250, 0, 0)), Image.new("RGB", (16, 16), (0, 0, 250))
    content = encoded(red, kind, save_all=True, append_images=[blue], duration=50)
    assert np.abs(pixels(content) - [250, 0, 0]).max() <= 6


def test_the_first_of_several_images_in_a_jpeg():
    content = encoded(scene(), "MPO", save_all=True, append_images=[Image.new("RGB", (40, 30))])
    assert np.abs(pixels(content) - np.asarray(scene())).max() <= 24


# ---- orientation, drafts and sizes -----------------------------------------------------------------


STORED = {  # the upright image as it is stored with each orientation
    1: lambda x: x,
    2: lambda x: x[:, ::-1],
    3: lambda x: x[::-1, ::-1],
    4: lambda x: x[::-1],
    5: lambda x: x.transpose(1, 0, 2),
    6: lambda x: np.rot90(x, 1),
    7: lambda x: x[::-1, ::-1].transpose(1, 0, 2),
    8: lambda x: np.rot90(x, -1),
}


@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "WEBP"])
def test_images_are_upright(kind, orientation):
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](np.asarray(scene()))))
    exif = Image.Exif()
    exif[0x0112] = orientation
    got = pixels(encoded(stored, kind, exif=exif))
    assert got.shape == (30, 40, 3)
    assert np.abs(got - np.asarray(scene())).max() <= (24 if kind in ("JPEG", "WEBP") else 0)


def test_damaged_exif_spoils_nothing():
    assert pixels(encoded(scene(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")).shape == (30, 40, 3)


@pytest.mark.parametrize(
    ("size", "draft"), [((800, 401), (400, 201)), ((399, 800), (399, 800)), ((1600, 803), (400, 201))]
)
def test_a_draft_is_smaller_but_never_too_small(size, draft):
    exif = Image.Exif()
    exif[0x0112] = 6
    whole = scene(*size)
    assert decode(encoded(whole, "JPEG"), name="x", short=200).size == draft
    assert decode(encoded(whole, "JPEG", exif=exif), name="x", short=200).size == draft[::-1]
    assert decode(encoded(whole, "JPEG"), name="x").size == size
    assert decode(encoded(whole, "PNG"), name="x", short=200).size == size


def bomb(width: int, height: int) -> bytes:
    return png(width, height, 1, 0, b"")


def test_too_many_pixels_are_refused_by_the_header(monkeypatch):
    for sizes in ((10_001, 10_000), (20_000, 20_000), (2**31 - 1, 2**31 - 1)):
        with pytest.raises(BadImage, match="pixels"):
            decode(bomb(*sizes), name="bomb")
    with pytest.raises(BadImage, match=rf"it has 10001 x 10000 pixels, more than {MAX_PIXELS} in all"):
        decode(bomb(10_001, 10_000), name="bomb")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # others may have switched Pillow's own limit off
    with pytest.raises(BadImage, match=r"it has 20000 x 20000 pixels"):
        decode(bomb(20_000, 20_000), name="bomb")
    with pytest.raises(BadImage) as caught:  # as many are allowed: here the pixels are missing
        decode(bomb(10_000, 10_000), name="allowed")
    assert "pixels" not in str(caught.value)


def test_pillows_lower_limit_gives_no_warning(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    assert pixels(encoded(scene())).shape == (30, 40, 3)  # 1200 pixels; pytest makes a warning an error
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(BadImage, match="exceeds limit"):
        pixels(encoded(scene()))


def test_thin_images_work():
    for size in ((1, 1), (1, 5000), (5000, 1)):
        assert decode(encoded(Image.new("L", size, 9)), name="x", short=256).size == size
