"""Small folders of images, descriptors for them, and what an index of them holds."""

import os
import shutil
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from patchreorder.search.index import Index
from patchreorder.search.query import search_images
from patchreorder.search.update import Updated, update


class Colours(nn.Module):
    """A descriptor: colours at 4x4 positions. With `spoilt` red images give NaN and blue ones zero."""

    name, dimensions = "colours", 48

    def __init__(self, spoilt=False, weight=1.0):
        super().__init__()
        self.register_buffer("weight", torch.tensor(weight))
        self.spoilt, self.seen = spoilt, 0

    def forward(self, images):
        self.seen += len(images)
        vectors = nn.functional.adaptive_avg_pool2d(images, 4).flatten(1)
        if self.spoilt:
            red, _, blue = images.mean((2, 3)).unbind(1)
            vectors[red > 0.9], vectors[blue > 0.9] = torch.nan, 0
        return nn.functional.normalize(vectors).contiguous()


class Table(nn.Module):
    """A descriptor that gives the rows of a table in turn."""

    name = "table"

    def __init__(self, vectors):
        super().__init__()
        self.vectors, self.dimensions, self.at = vectors, vectors.shape[1], 0

    def forward(self, images):
        self.at += len(images)
        return self.vectors[self.at - len(images) : self.at]


def made(folder: Path, out: Path, model: nn.Module | None = None, **options) -> Updated:
    """Make or update an index."""
    return update(folder, out, model or Colours(), **options)


def nearest(out: Path, image: Path, **options) -> list[tuple[float, str]]:
    """Distance and name of the hits of one image."""
    (answer,), bad = search_images(Index(out), Colours(), image, **options)
    assert not bad
    return [(round(hit.distance, 6), hit.name) for hit in answer.hits]


def aged(folder: Path) -> Path:
    """Give all files an old modification time: an update always reads files of the last seconds again."""
    for number, path in enumerate(sorted(folder.rglob("*"))):
        if path.is_file():
            os.utime(path, (1_000_000_000 + number,) * 2)
    return folder


def noise(folder: Path, count: int) -> Path:
    """Write small images, all different."""
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 256, (count, 6, 6, 3), dtype=np.uint8)
    for number in range(count):
        Image.fromarray(pixels[number]).save(folder / f"{number:04d}.png")
    return aged(folder)


def change(photos: Path) -> None:
    """Add four images, change one, delete five: more than a quarter, so that chunks are rewritten."""
    noise(photos / "new", 4)
    for number in range(4):
        (photos / f"class-0000/000{number}.jpg").unlink()
    (photos / "class-0001/0000.jpg").unlink()
    shutil.copy2(photos / "class-0002/0003.jpg", photos / "class-0001/0001.jpg")


def files(out: Path) -> set[str]:
    return {path.name for path in out.iterdir()} - {".lock", ".parts"}


def state(out: Path) -> dict[str, list[float]]:
    """The vector of every image of an index."""
    opened = Index(out)
    return {
        file.name: opened.vectors.take(np.array([slot]))[0].tolist()
        for file, slot in zip(opened.manifest.files, opened.manifest.slots, strict=True)
        if slot >= 0
    }


def brute_force(vectors: dict[str, list[float]], query: torch.Tensor, k: int) -> list[tuple[float, str]]:
    """The k nearest of named vectors by numpy, at equal distances by name."""
    distances = np.sqrt(((np.array([*vectors.values()]) - query.double().numpy()) ** 2).sum(1))
    return sorted(zip(distances.tolist(), vectors, strict=True))[:k]
