"""Altered copies of photographs: 24 kinds of change from mild to hard, the five of imagededup's documentation, and
kinds that no rule was chosen on. Also photographs that are no copies: from the same place, but something came or moved.

Each copy is drawn from (seed, number of the photograph, kind), so every run sees the same files.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageFont, ImageOps

Change = Callable[[Image.Image, np.random.Generator], Image.Image]
ROTATE = Image.Transpose
BICUBIC, LANCZOS = Image.Resampling.BICUBIC, Image.Resampling.LANCZOS


def _resized(image: Image.Image, wide: float, high: float | None = None) -> Image.Image:
    width, height = image.size
    size = max(8, round(width * wide)), max(8, round(height * (high or wide)))
    return image.resize(size, LANCZOS)


def _cropped(image: Image.Image, part: float, random: np.random.Generator) -> Image.Image:
    """A window with this part of each side, anywhere."""
    width, height = image.size
    wide, high = round(width * part), round(height * part)
    left, top = int(random.integers(0, width - wide + 1)), int(random.integers(0, height - high + 1))
    return image.crop((left, top, left + wide, top + high))


def _inside(image: Image.Image, degrees: float) -> Image.Image:
    """Rotated, and cropped to the largest window of the same shape without corners."""
    width, height = image.size
    angle = np.radians(degrees)
    sine, cosine = abs(np.sin(angle)), abs(np.cos(angle))
    part = min(width / (width * cosine + height * sine), height / (width * sine + height * cosine))
    rotated = image.rotate(degrees, BICUBIC)
    wide, high = int(width * part), int(height * part)
    left, top = (width - wide) // 2, (height - high) // 2
    return rotated.crop((left, top, left + wide, top + high))


def _reencoded(image: Image.Image, quality: int, kind: str = "JPEG") -> Image.Image:
    content = io.BytesIO()
    image.save(content, kind, quality=quality)
    return Image.open(io.BytesIO(content.getvalue())).convert("RGB")


def _angle(random: np.random.Generator, low: float, high: float) -> float:
    return float(random.uniform(low, high) * random.choice([-1, 1]))


def _watermark(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """A text, half transparent, over the middle third."""
    layer = Image.new("RGBA", image.size)
    font = ImageFont.load_default(size=max(10, image.width // 9))
    place = image.width * random.uniform(0.05, 0.2), image.height * random.uniform(0.2, 0.7)
    ImageDraw.Draw(layer).text(place, "SAMPLE 2026", font=font, fill=(255, 255, 255, 130))
    return Image.alpha_composite(image.convert("RGBA"), layer).convert("RGB")


def _caption(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """A bar with a text over the lower eighth."""
    image, high = image.copy(), image.height // 8
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, image.height - high, image.width, image.height), fill=(20, 20, 20))
    font = ImageFont.load_default(size=max(8, high // 2))
    draw.text((high, image.height - high), f"holiday {random.integers(1000)}", font=font, fill="white")
    return image


def _tinted(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """Each channel has its own gamma and gain."""
    pixels = np.asarray(image, np.float64) / 255
    pixels = pixels ** random.uniform(0.7, 1.4, 3) * random.uniform(0.7, 1.0, 3)
    return Image.fromarray((pixels * 255).clip(0, 255).astype(np.uint8))


def _light(image: Image.Image, random: np.random.Generator) -> Image.Image:
    image = ImageEnhance.Brightness(image).enhance(random.choice([0.6, 1.35]))
    return ImageEnhance.Contrast(image).enhance(random.choice([0.65, 1.3]))


def _noisy(image: Image.Image, random: np.random.Generator) -> Image.Image:
    pixels = np.asarray(image, np.float64)
    return Image.fromarray((pixels + random.normal(0, 16, pixels.shape)).clip(0, 255).astype(np.uint8))


def _several(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """Mirrored, cropped, tinted, smaller, JPEG at 40."""
    image = _tinted(_cropped(ImageOps.mirror(image), 0.8, random), random)
    return _reencoded(_resized(image, 0.7), 40)


KINDS: Mapping[str, Change] = {
    "jpeg_50": lambda image, random: _reencoded(image, 50),
    "jpeg_10": lambda image, random: _reencoded(image, 10),
    "half_size": lambda image, random: _resized(image, 0.5),
    "third_size": lambda image, random: _resized(image, 0.34),
    "stretched": lambda image, random: _resized(image, 1.0, 0.75),
    "rotated_90": lambda image, random: image.transpose(ROTATE.ROTATE_90),
    "rotated_180": lambda image, random: image.transpose(ROTATE.ROTATE_180),
    "rotated_270": lambda image, random: image.transpose(ROTATE.ROTATE_270),
    "mirrored": lambda image, random: ImageOps.mirror(image),
    "flipped": lambda image, random: ImageOps.flip(image),
    "transposed": lambda image, random: image.transpose(ROTATE.TRANSPOSE),
    "rotated_5": lambda image, random: image.rotate(_angle(random, 3, 8), BICUBIC, expand=True),
    "rotated_any": lambda image, random: image.rotate(random.uniform(10, 350), BICUBIC, expand=True),
    "rotated_inside": lambda image, random: _inside(image, _angle(random, 10, 40)),
    "cropped_80": lambda image, random: _cropped(image, 0.8, random),
    "cropped_60": lambda image, random: _cropped(image, 0.6, random),
    "grey": lambda image, random: ImageOps.grayscale(image).convert("RGB"),
    "light": _light,
    "tinted": _tinted,
    "watermark": _watermark,
    "caption": _caption,
    "framed": lambda image, random: ImageOps.expand(image, max(4, image.width // 12), "white"),
    "blurred_noisy": lambda image, random: _noisy(image.filter(ImageFilter.GaussianBlur(1)), random),
    "several": _several,
}
HARD: Mapping[str, Change] = {
    "cropped_45": lambda image, random: _cropped(image, 0.45, random),
    "quarter_size": lambda image, random: _reencoded(_resized(image, 0.25), 60),
    "inverted": lambda image, random: ImageOps.invert(image),
}
# https://idealo.github.io/imagededup/user_guide/benchmarks: cropped, flipped both ways, rotated by 25 degrees, resized.
IMAGEDEDUP: Mapping[str, Change] = {
    "crop": lambda image, random: _cropped(image, 0.75, random),
    "hflip": lambda image, random: ImageOps.mirror(image),
    "vflip": lambda image, random: ImageOps.flip(image),
    "rotate_25": lambda image, random: image.rotate(25, BICUBIC),
    "resize": lambda image, random: image.resize((150, 150), LANCZOS),
}


def _screenshot(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """On a page with bars, buttons and lines of text, slightly smaller."""
    image = _resized(image, 0.9)
    width, height = image.size
    page = Image.new("RGB", (round(1.5 * width), round(1.5 * height)), (245, 245, 247))
    draw = ImageDraw.Draw(page)
    draw.rectangle((0, 0, page.width, page.height // 12), fill=(40, 60, 110))
    font = ImageFont.load_default(size=max(8, page.height // 30))
    for line in range(5):
        place = width // 20, page.height * (0.82 + 0.035 * line)
        draw.text(place, f"comment {random.integers(10**6)} by user {random.integers(1000)}", font=font, fill="black")
    page.paste(image, (width // 20, page.height // 10))
    return page


def _messenger(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """Scaled down and compressed, twice."""
    return _reencoded(_resized(_reencoded(_resized(image, 0.8), 55), 0.9), 45)


def _vignette(image: Image.Image, random: np.random.Generator) -> Image.Image:
    pixels = np.asarray(image, np.float64)
    rows, columns = np.mgrid[-1 : 1 : image.height * 1j, -1 : 1 : image.width * 1j]
    light = 1 - 0.42 * (rows**2 + columns**2)
    return Image.fromarray((pixels * light[..., None]).clip(0, 255).astype(np.uint8))


def _sepia(image: Image.Image, random: np.random.Generator) -> Image.Image:
    return ImageOps.colorize(ImageOps.grayscale(image), (30, 15, 5), (255, 240, 200))


def _bars(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """Black bars above and below."""
    return ImageOps.expand(image, (0, image.height // 6), "black")


def _perspective(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """A corner of the frame is moved by up to 3 % of it."""
    width, height = image.size
    moved = random.uniform(0, 0.03, (4, 2)) * (width, height)
    signs = np.array([[1, 1], [1, -1], [-1, -1], [-1, 1]])
    corners = np.array([[0, 0], [0, height], [width, height], [width, 0]]) + signs * moved
    return image.transform(image.size, Image.Transform.QUAD, tuple(corners.ravel()), BICUBIC)


def _turned_part(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """Mirrored, rotated by a quarter and some degrees, cropped."""
    turned = ImageOps.mirror(image).transpose(ROTATE.ROTATE_90)
    return _cropped(_inside(turned, _angle(random, 5, 20)), 0.85, random)


def _thumbnail(image: Image.Image, random: np.random.Generator) -> Image.Image:
    image = image.copy()
    image.thumbnail((64, 64), LANCZOS)
    return image


def _orientation(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """Stored rotated, upright by EXIF."""
    stored = image.transpose(ROTATE.ROTATE_90)
    stored.getexif()[0x0112] = 6
    return stored


def _alpha(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """Round corners that are transparent."""
    mask = Image.new("L", image.size)
    ImageDraw.Draw(mask).rounded_rectangle((0, 0, *image.size), radius=image.height // 8, fill=255)
    image = image.copy()
    image.putalpha(mask)
    return image


def _meme(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """Large text with an outline at the top and at the bottom."""
    image = image.copy()
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(size=max(12, image.width // 9))
    for text, high in (("WHEN YOU FIND", 0.02), (f"COPY {random.integers(1000)}", 0.82)):
        place = image.width * 0.06, image.height * high
        draw.text(place, text, font=font, fill="white", stroke_width=2, stroke_fill="black")
    return image


UNSEEN: Mapping[str, Change] = {
    "screenshot": _screenshot,
    "messenger": _messenger,
    "vignette": _vignette,
    "sepia": _sepia,
    "black_bars": _bars,
    "perspective": _perspective,
    "turned_part": _turned_part,
    "thumbnail_64": _thumbnail,
    "png": lambda image, random: image,
    "exif_rotated": _orientation,
    "sixteen_bits": lambda image, random: Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257),
    "cmyk": lambda image, random: image.convert("CMYK"),
    "alpha": _alpha,
    "dark": lambda image, random: ImageEnhance.Brightness(image).enhance(0.25),
    "posterized": lambda image, random: ImageOps.posterize(image, 3),
    "sharpened": lambda image, random: image.filter(ImageFilter.UnsharpMask(2, 200, 0)),
    "meme": _meme,
    "webp_30": lambda image, random: _reencoded(image, 30, "WEBP"),
}
LOSSLESS = ("png", "sixteen_bits", "alpha")  # the kinds that are written as PNG


def _shot(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """With noise of its own."""
    pixels = np.asarray(image, np.float64)
    return Image.fromarray((pixels + random.normal(0, 3, pixels.shape)).clip(0, 255).astype(np.uint8))


def _with(image: Image.Image, thing: Image.Image, random: np.random.Generator, size: float) -> Image.Image:
    """With a thing in it, somewhere."""
    wide, high = max(4, round(0.7 * size * image.width)), max(4, round(1.3 * size * image.height))
    mask = Image.new("L", (wide, high))
    ImageDraw.Draw(mask).ellipse((1, 1, wide - 2, high - 2), fill=255)
    place = int(random.integers(0, image.width - wide)), int(random.integers(0, image.height - high))
    image = image.copy()
    image.paste(thing.resize((wide, high), LANCZOS), place, mask.filter(ImageFilter.GaussianBlur(1)))
    return image


def write_others(sources: list[Path], out: Path, *, every: int = 1, seed: int = 0) -> None:
    """Beside photographs of a set, two more from a tripod: a thing, part of another photograph, at two places."""
    for number, source in list(enumerate(sources))[::every]:
        random = np.random.default_rng((seed, number))
        with Image.open(source) as opened, Image.open(sources[number - 1]) as other:
            image, thing = (ImageOps.exif_transpose(each).convert("RGB") for each in (opened, other))
        size = float(random.uniform(0.12, 0.35))
        for name in ("came", "moved"):
            _shot(_with(image, thing, random, size), random).save(out / f"{number:05d}-{name}.jpg", quality=85)


def write_copy(source: Path, target: Path, change: Change, *, seed: tuple[int, ...]) -> None:
    """Write an altered copy of a photograph, as a PNG or a JPEG of quality 85."""
    random = np.random.default_rng(seed)
    with Image.open(source) as opened:
        image = ImageOps.exif_transpose(opened).convert("RGB")
    changed = change(image, random)
    changed.save(target, quality=85, exif=changed.getexif())


def write_set(
    sources: list[Path], out: Path, kinds: Mapping[str, Change], *, each: int | None = None, seed: int = 0
) -> list[tuple[str, str, str]]:
    """Write photographs and copies to a folder; returns (copy, original, kind) by file name.

    Args:
        sources: the photographs; each is written unchanged, under a number.
        out: a new folder.
        kinds: the changes.
        each: copies of each photograph, of kinds in turn; by default all kinds.
    """
    out.mkdir(parents=True)
    pairs = []
    names = list(kinds)
    for number, source in enumerate(sources):
        own = f"{number:05d}{source.suffix.lower()}"
        (out / own).write_bytes(source.read_bytes())
        taken = names if each is None else [names[(number * each + turn) % len(names)] for turn in range(each)]
        for kind in taken:
            name = f"{number:05d}_{kind}.{'png' if kind in LOSSLESS else 'jpg'}"
            write_copy(source, out / name, kinds[kind], seed=(seed, number, names.index(kind)))
            pairs.append((name, own, kind))
    return pairs
