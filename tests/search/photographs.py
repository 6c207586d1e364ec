"""Generated photographs with enough detail to be aligned, and altered copies of them."""

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageOps


def photograph(seed: int, size: tuple[int, int] = (320, 240)) -> Image.Image:
    """Overlapping shapes of all sizes on a background that changes slowly; every seed gives another one."""
    random = np.random.default_rng(seed)
    width, height = size
    image = Image.fromarray(random.integers(60, 200, (4, 5, 3), dtype=np.uint8)).resize(size, Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(image)
    for _ in range(160):
        x, y, wide, high = random.uniform(0, width), random.uniform(0, height), *random.uniform(4, 50, 2)
        draw_shape = draw.ellipse if random.random() < 0.5 else draw.rectangle
        draw_shape((x, y, x + wide, y + high), fill=tuple(random.integers(0, 256, 3).tolist()))
    return image.filter(ImageFilter.GaussianBlur(0.7))


def captioned(image: Image.Image) -> Image.Image:
    image = image.copy()
    ImageDraw.Draw(image).rectangle((0, 205, 320, 240), fill=(20, 20, 20))
    return image


CHANGES = {
    "resized to 50 %": lambda image: image.resize((160, 120), Image.Resampling.LANCZOS),
    "rotated by 90 degrees clockwise": lambda image: image.rotate(-90, expand=True),
    "rotated by 180 degrees clockwise": lambda image: image.rotate(180),
    "mirrored": ImageOps.mirror,
    "mirrored top to bottom": ImageOps.flip,
    "rotated by 25 degrees clockwise, with a border": lambda image: image.rotate(
        -25, Image.Resampling.BICUBIC, expand=True
    ),
    "cropped to 200x150 at 60,40": lambda image: image.crop((60, 40, 260, 190)),
    "colours changed": lambda image: image.point(lambda value: value * 0.6),
    "colours inverted": ImageOps.invert,
    "mirrored, cropped to 200x150 at 60,40, colours inverted": lambda image: ImageOps.invert(
        ImageOps.mirror(image.crop((60, 40, 260, 190)))
    ),
    "with something laid over it": captioned,
}
