"""Image files that anybody may have made, decoded to upright 8-bit RGB or refused with a reason."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from PIL import Image, UnidentifiedImageError, features

try:
    from simplejpeg import decode_jpeg
except ImportError:  # it is the extra `jpeg`; Pillow gives the same pixels
    decode_jpeg = None

_CAMERA = (0x010F, 0x0110, 0x9003)  # EXIF: maker, model, when it was taken
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM")
_HEIF = ("heic", "heix", "hevc", "hevx", "heim", "heis", "mif1", "msf1")  # brands in the first bytes of a file
MEAN = (0.485, 0.456, 0.406)  # of red, green and blue over ImageNet's training images
MEAN_COLOUR = (124, 116, 104)  # the same in bytes: the colour of pixels that no image covers
MAX_PIXELS = 100_000_000
_ORIENTATION = 0x0112  # EXIF's tag
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class BadImage(ValueError):
    """A file that cannot be read as an image; the message has its name and the reason."""


def decode(content: bytes, *, name: str, short: int | None = None, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Decode a file to an upright 8-bit RGB image; of an animation, the first frame.

    Transparent pixels show the mean colour. 16-bit grey is scaled to 8 bits.

    Args:
        content: the file's bytes.
        name: the file's name in errors.
        short: the short side that the caller needs. A large JPEG may then be decoded at a half, a quarter or an eighth
            of its size, but never smaller than this.
        max_pixels: larger images are refused before any pixel is read.

    Raises:
        BadImage: if it is truncated, damaged, in another format, or has more than `max_pixels`.

    Example:
        >>> file = io.BytesIO()
        >>> Image.new("L", (3, 2), 7).save(file, "PNG")
        >>> decode(file.getvalue(), name="grey.png").getpixel((2, 1))
        (7, 7, 7)
    """
    return _named(name, lambda: _whole(_drafted(_open(content, max_pixels), short)))


def pixels(content: bytes, *, name: str, short: int | None = None) -> np.ndarray:
    """The pixels of `decode` as an array; faster for upright colour JPEGs if simplejpeg is installed.

    Shape:
        (height, width, 3), uint8, writable.
    """
    return _named(name, lambda: _pixels(content, short))


def upright_rgb(image: Image.Image) -> Image.Image:
    """An opened Pillow image as `decode` gives it: upright, 8 bits, without transparency.

    Raises:
        BadImage: if it is truncated, damaged, or of floating-point numbers.
    """
    return _named(str(getattr(image, "filename", "")) or "the image", lambda: _whole(image))


T = TypeVar("T")


def has_camera_data(content: bytes) -> bool:
    """Whether the EXIF data of an image file name the camera, or when the photograph was taken.

    Raises:
        BadImage: it cannot be read as an image.
    """

    def found() -> bool:
        with _open(content) as image:
            exif = image.getexif()
            return any(tag in exif or tag in exif.get_ifd(0x8769) for tag in _CAMERA)

    return _named("the file", found)


def _named(name: str, read: Callable[[], T]) -> T:
    """Return `read()`; turn whatever it raises into a BadImage that names the file."""
    try:
        # Broken metadata is common in photographs, and Pillow warns of many pixels at another limit than ours.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return read()
    except UnidentifiedImageError:
        reason = f"it is no {', '.join(FORMATS[:-1])} or {FORMATS[-1]} file, or its header is damaged"
    except Exception as error:  # Pillow raises errors of every kind for damaged files
        reason = " ".join(str(error).split()) or type(error).__name__
    raise BadImage(f"{name} cannot be read as an image: {reason}")


def _open(content: bytes, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """An image of which only the header is read."""
    if not content:
        raise ValueError("it is empty")
    image: Image.Image = Image.open(io.BytesIO(content), formats=_formats(content))
    width, height = image.size
    if width * height > max_pixels:
        raise ValueError(f"it has {width} x {height} pixels, more than {max_pixels} in all")
    return image


def _formats(content: bytes) -> tuple[str, ...]:
    """The formats to try: HEIC needs pillow-heif, and AVIF a Pillow that was built with it."""
    if content[4:8] != b"ftyp":
        return FORMATS
    brand = content[8:12].decode("latin-1")
    if brand in _HEIF:
        try:
            import pillow_heif
        except ImportError:
            raise ValueError("it is a HEIC file: pip install 'patchreorder[heif]' to read it") from None
        pillow_heif.register_heif_opener()
        return ("HEIF",)
    if not features.check("avif"):
        raise ValueError("it is an AVIF file: it needs Pillow 11.3 or later")
    return ("AVIF",)


def upright_size(content: bytes) -> tuple[int, int]:
    """Width and height of an image file as it is shown; reads the header only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = _open(content)
        turned = _orientation(image) >= 5
    return image.size[::-1] if turned else image.size


def _drafted(image: Image.Image, short: int | None) -> Image.Image:
    if short is not None:
        image.draft(None, (short, short))  # only JPEG has drafts
    return image


def _whole(image: Image.Image) -> Image.Image:
    image.load()
    method = _UPRIGHT.get(_orientation(image))
    image = _as_rgb(image)
    return image if method is None else image.transpose(method)


def _pixels(content: bytes, short: int | None) -> np.ndarray:
    image = _open(content)
    size = image.size
    image = _drafted(image, short)
    if decode_jpeg is not None and (image.format, image.mode, image.size) == ("JPEG", "RGB", size):
        with contextlib.suppress(ValueError):  # Pillow decides which damaged files can be read
            if _orientation(image) == 1:
                return decode_jpeg(content)
    return np.array(_whole(image))


def _orientation(image: Image.Image) -> int:
    try:
        return image.getexif().get(_ORIENTATION, 1)
    except Exception:  # an image with damaged metadata is still readable
        return 1


def _as_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        return _from_16_bits(image).convert("RGB")
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers, which have no defined white")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        canvas = Image.new("RGB", image.size, MEAN_COLOUR)
        canvas.paste(layer, mask=layer)
        return canvas
    return image if image.mode == "RGB" else image.convert("RGB")


def _from_16_bits(image: Image.Image) -> Image.Image:
    """Scale 16-bit grey to 8 bits; Pillow's conversion would turn everything above 255 white."""
    pixels = np.asarray(image).astype(np.int64)
    if pixels.min() < 0 or pixels.max() > 65535:
        raise ValueError(f"its pixels are from {pixels.min()} to {pixels.max()}, beyond 16 bits")
    return Image.fromarray(((pixels + 128) // 257).astype(np.uint8))
