"""The views of photographs: how random numbers become a pose and a crop, and how an image is shown in them.

Sampling is apart from applying. `VIEWS` say how many random numbers an image needs and which pose and crop they mean;
`centre_crop` and `resized_crop` apply them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from patchreorder.operator import native

from .images import MEAN_COLOUR, decode
from .poses import UPRIGHT, Pose

DETAIL = 1.5  # short side of an image before it is posed, at most, over that of the image that is cropped


class Crop(NamedTuple):
    """The position of a crop between the first (0) and the last (1) possible one, and whether it is mirrored."""

    down: float
    right: float
    flip: bool


class View(NamedTuple):
    """How images are shown.

    Args:
        numbers: how many uniform random numbers an image needs.
        pose: the pose that they mean.
        crop: the crop that they mean; None is the centre crop.
    """

    numbers: int = 0
    pose: Callable[[Sequence[float]], Pose] = lambda numbers: UPRIGHT
    crop: Callable[[Sequence[float]], Crop] | None = None


def _rotated(numbers: Sequence[float]) -> Pose:
    return Pose(degrees=numbers[0] * 90 - 45)


def _rotated_anyhow(numbers: Sequence[float]) -> Pose:
    return Pose(degrees=numbers[0] * 360)


def _shifted(numbers: Sequence[float]) -> Pose:
    return Pose(down=numbers[0] * 0.4 - 0.2, right=numbers[1] * 0.4 - 0.2)


def _one_of_three(numbers: Sequence[float]) -> Pose:
    rotate, shift = numbers[0] < 1 / 3, numbers[0] >= 2 / 3
    return _rotated(numbers[1:]) if rotate else _shifted(numbers[1:]) if shift else UPRIGHT


def _random_crop(numbers: Sequence[float]) -> Crop:
    return Crop(numbers[-3], numbers[-2], numbers[-1] < 0.5)


VIEWS = {
    "train": View(3, crop=_random_crop),
    "train-aug": View(6, pose=_one_of_three, crop=_random_crop),
    "aug": View(3, pose=_one_of_three),  # as "train-aug", with the centre crop
    "Ori": View(),
    "R": View(1, pose=_rotated),
    "T": View(2, pose=_shifted),
    "any": View(1, pose=_rotated_anyhow),
}


def centre_crop(
    image: Image.Image, *, pose: Pose, size: int, short: int, fill: tuple[int, int, int] = MEAN_COLOUR
) -> Tensor:
    """Put an image in a pose, scale its short side to `short` and crop the centre: the views of tests.

    The posed image is on a canvas of its own size, and uncovered pixels show `fill`. Only the pixels that the crop
    needs are computed.

    Shape:
        (size, size, 3), uint8.
    """
    width, height = image.size
    scale = short / min(width, height)
    columns, rows = round(width * scale), round(height * scale)
    left, top = (columns - size) // 2, (rows - size) // 2
    x, y = width / columns, height / rows  # pixels of the image for one of the scaled image
    box = (left * x, top * y, min((left + size) * x, width), min((top + size) * y, height))
    if pose != UPRIGHT:
        over, beside = math.ceil(max(y, 1)) + 1, math.ceil(max(x, 1)) + 1  # pixels that the filter reads around the box
        read = (
            max(0, math.floor(box[0]) - beside),
            max(0, math.floor(box[1]) - over),
            min(width, math.ceil(box[2]) + beside),
            min(height, math.ceil(box[3]) + over),
        )
        image = _posed_part(image, pose, read, fill)
        box = (box[0] - read[0], box[1] - read[1], box[2] - read[0], box[3] - read[1])
    return torch.from_numpy(np.array(image.resize((size, size), Image.Resampling.BILINEAR, box=box)))


def resized_crop(image: Image.Image | np.ndarray, *, crop: Crop, size: int, short: int, pose: Pose = UPRIGHT) -> Tensor:
    """Put an image in a pose, crop it and scale the crop to `size`: the views of training.

    The crop covers the part that `size` pixels cover where the short side is `short`. It starts at a whole pixel and is
    scaled by torch, which takes half the time of `centre_crop`.

    Args:
        image: as pixels (height, width, 3) only if the pose is upright.
        crop, pose: what to show.
        size, short: see `Photos`.

    Shape:
        (size, size, 3), uint8.
    """
    height, width = image.shape[:2] if isinstance(image, np.ndarray) else image.size[::-1]
    side = max(1, round(size * min(width, height) / short))
    left, top = int(crop.right * (width - side + 1)), int(crop.down * (height - side + 1))
    if isinstance(image, np.ndarray):
        part = np.ascontiguousarray(image[top : top + side, left : left + side])
    else:
        part = np.array(_posed_part(image, pose, (left, top, left + side, top + side)))
    channels_last = torch.from_numpy(part)[None].permute(0, 3, 1, 2)  # three times faster than contiguous channels
    scaled = F.interpolate(channels_last, size=(size, size), mode="bilinear", antialias=True)[0].permute(1, 2, 0)
    return scaled.flip(1) if crop.flip else scaled


def decode_small(content: bytes, *, name: str, short: int) -> Image.Image:
    """Decode an image file with no more detail than poses need, for images whose short side becomes `short`.

    Raises:
        BadImage: if it cannot be read; the message names it.
    """
    return shrunk(decode(content, name=name, short=int(DETAIL * short)), short=short)


def shrunk(image: Image.Image, *, short: int) -> Image.Image:
    """An image whose short side is at most `DETAIL` times `short`: posing a full-size photograph takes long.

    >>> shrunk(Image.new("RGB", (4000, 3000)), short=256).size, shrunk(Image.new("RGB", (9, 2)), short=4).size
    ((512, 384), (9, 2))
    """
    side = int(DETAIL * short)
    if min(image.size) <= side:
        return image
    width, height = (round(length * side / min(image.size)) for length in image.size)
    return image.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0)


def preprocess(content: bytes, *, name: str, size: int = 224, short: int = 256) -> Tensor:
    """Decode an image file and show it in the view `Ori`: (3, size, size), uint8.

    Raises:
        BadImage: if it cannot be read; the message names it.
    """
    return centre_crop(decode(content, name=name), pose=UPRIGHT, size=size, short=short).permute(2, 0, 1)


def posed(image: Image.Image, pose: Pose, *, fill: tuple[int, int, int] = MEAN_COLOUR) -> Image.Image:
    """An image in a pose, on a canvas of its own size."""
    return _posed_part(image, pose, (0, 0, *image.size), fill)


def _posed_part(
    image: Image.Image, pose: Pose, box: tuple[int, int, int, int], fill: tuple[int, int, int] = MEAN_COLOUR
) -> Image.Image:
    """The box (left, top, right, bottom) of the canvas with the posed image."""
    if pose == UPRIGHT:
        return image.crop(box)
    (width, height), (left, top, right, bottom) = image.size, box
    angle = math.radians(pose.degrees)
    cos, sin = (round(value, 15) / pose.scale for value in (math.cos(angle), math.sin(angle)))  # exact quarter turns
    # From the centre and with y downwards, the canvas at (x, y) shows the image at [[cos, -sin], [sin, cos]] (x, y).
    x, y = left - width / 2 - pose.right * width, top - height / 2 - pose.down * height
    mirror = -1 if pose.flip else 1
    matrix = (
        mirror * cos,
        mirror * -sin,
        mirror * (cos * x - sin * y) + width / 2,
        sin,
        cos,
        sin * x + cos * y + height / 2,
    )
    size = right - left, bottom - top
    if native.KERNEL.library is not None and image.mode == "RGB":  # the same to the bit, and faster
        posed = native.pose(image.tobytes("raw", "RGBX"), image.size, size, matrix, (*fill, 255))
        return Image.frombytes("RGB", size, posed, "raw", "RGBX")
    return image.transform(size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR, fillcolor=fill)
