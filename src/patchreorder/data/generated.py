"""Generated images, which need no download: enough to see that a network learns and that a search runs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch.nn import functional as F

from . import transforms
from .datasets import TEST_SEED, ColourImages, Digits
from .tiny_imagenet import TinyImages
from .ukbench import GROUP


def generate_digits(variant: str, *, count: int, seed: int = TEST_SEED) -> Digits:
    """Blurred random marks in ten classes, in place of MNIST's digits."""
    generator = torch.Generator().manual_seed(0)
    marks = F.interpolate(torch.rand(10, 1, 5, 5, generator=generator), size=(20, 20), mode="bilinear")
    marks = F.pad((marks > 0.55).float(), (4, 4, 4, 4))
    labels = torch.arange(count) % 10
    images = marks[labels] * (0.6 + 0.4 * torch.rand(count, 1, 1, 1, generator=generator))
    return Digits((images * 255).byte(), labels, variant, seed)


def generate_colour_images(variant: str, *, count: int, seed: int = TEST_SEED) -> ColourImages:
    """The same marks, each class in its own colour, in place of CIFAR-10's images."""
    marks = generate_digits("mnist", count=count)
    colours = torch.rand(10, 3, 1, 1, generator=torch.Generator().manual_seed(1))
    images = F.pad(marks.images, (2, 2, 2, 2)) * colours[marks.labels]
    return ColourImages(images.byte(), marks.labels, variant, seed)


def generate_tiny_images(variant: str, *, count: int, seed: int = TEST_SEED) -> TinyImages:
    """The same at twice the size, in place of Tiny-ImageNet's photographs."""
    small = generate_colour_images("cifar10", count=count)
    images = small.images.repeat_interleave(2, 2).repeat_interleave(2, 3).contiguous(memory_format=torch.channels_last)
    return TinyImages(images, small.labels, variant, seed)


def write_photos(folder: Path, *, classes: int, images: int, seed: int = 0, size: tuple[int, int] = (64, 48)) -> Path:
    """Write class folders of JPEG images.

    A class is a pattern of coloured squares on grey. Its position and size, and the grey, differ from image to image.

    Args:
        folder: is made if it does not exist, and is returned.
        classes, images: how many classes, and images of each.
        seed: another seed draws other images of the same classes.
        size: width and height.
    """
    width, height = size
    for label in range(classes):
        (folder / f"class-{label:04d}").mkdir(parents=True, exist_ok=True)
        pattern = np.random.Generator(np.random.Philox(label))
        squares = np.argwhere(pattern.random((4, 4)) < 0.5).tolist() or [[1, 1]]
        colour = tuple(pattern.integers(0, 256, 3).tolist())
        numbers = transforms.uniform(images, 4, seed=seed, epoch=label).tolist()
        for number, (down, right, large, light) in enumerate(numbers):
            image = Image.new("RGB", size, (int(96 + 64 * light),) * 3)
            draw = ImageDraw.Draw(image)
            side = min(size) * (0.5 + 0.4 * large) / 4
            top, left = down * (height - 4 * side), right * (width - 4 * side)
            for row, column in squares:
                x, y = left + column * side, top + row * side
                draw.rectangle((x, y, x + side - 1, y + side - 1), fill=colour)
            image.save(folder / f"class-{label:04d}" / f"{number:04d}.jpg", quality=85)
    return folder


def write_ukbench(folder: Path, *, groups: int, seed: int = 0, size: tuple[int, int] = (64, 48)) -> Path:
    """Write the images of `write_photos` under the file names of UK-Bench, four of each class."""
    classes = write_photos(folder / "drawn", classes=groups, images=GROUP, seed=seed, size=size)
    for number, file in enumerate(sorted(classes.glob("*/*.jpg"))):
        os.replace(file, folder / f"ukbench{number:05d}.jpg")
    shutil.rmtree(classes)
    return folder
