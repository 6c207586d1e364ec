"""Generated images: a network can learn their classes, and they are the same on every call."""

import io

import torch
from PIL import Image
from torch.nn import functional as F

from patchreorder.data.generated import generate_colour_images, generate_digits, write_photos


def test_generated_digits_can_be_told_apart():
    data = generate_digits("mnist", count=30)
    images, labels = data.batch(torch.arange(30))
    assert labels.bincount().tolist() == [3] * 10
    shapes = (images > 0).flatten(1).float()
    same = (shapes @ shapes.T) / shapes.sum(1)
    alike = labels[:, None] == labels
    assert same[alike].min() == 1
    assert same[~alike].min() < 0.9


def test_generated_colour_images_can_be_told_apart():
    data = generate_colour_images("cifar10", count=30)
    images, labels = data.batch(torch.arange(30))
    assert images.shape == (30, 3, 32, 32)
    assert labels.bincount().tolist() == [3] * 10
    directions = F.normalize(images.flatten(1))
    same, alike = directions @ directions.T, labels[:, None] == labels
    assert same[alike].min() > 0.99
    assert same[~alike].max() < 0.97


def test_generated_classes_have_their_own_colours(tmp_path):
    write_photos(tmp_path / "a", classes=6, images=1, seed=0)
    write_photos(tmp_path / "b", classes=6, images=1, seed=0)
    assert (tmp_path / "a/class-0003/0000.jpg").read_bytes() == (tmp_path / "b/class-0003/0000.jpg").read_bytes()
    colours = {Image.open(io.BytesIO(path.read_bytes())).quantize(2).tobytes() for path in tmp_path.rglob("a/*/*.jpg")}
    assert len(colours) == 6
