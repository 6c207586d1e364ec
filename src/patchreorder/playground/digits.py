"""Digits for the page: drawings rendered as MNIST's images are, ten drawings that come with it, MNIST's test set."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from patchreorder.data import datasets, sources

from .requests import Drawing, RequestError

SIDE, BOX = 28, 20  # pixels of an image and of the digit in it, as in MNIST
PEN = 2.6  # width in pixels, about that of MNIST
OVERSAMPLING = 8
CLASSES = 10
SAMPLES = Path(__file__).parent / "page" / "samples.json"


class Digit(NamedTuple):
    """An upright digit (28, 28), uint8, and its label if it is known."""

    pixels: np.ndarray
    label: int | None = None

    def image(self) -> Tensor:
        return torch.from_numpy(self.pixels).float().div(255)[None, None]  # 1 1 28 28

    def as_json(self) -> dict[str, Any]:
        return {"label": self.label, "pixels": base64.b64encode(self.pixels.tobytes()).decode()}


@functools.lru_cache(maxsize=256)  # the page sends the same drawing with every pose
def render(drawing: Drawing) -> Digit:
    """Render a drawing as MNIST's digits are: its longer side 20 pixels, its centre of mass in the middle.

    >>> render(((500, 100, 500, 900),)).pixels.max(0).nonzero()[0].tolist()
    [12, 13, 14, 15]
    """
    lines = [np.array(stroke, float).reshape(-1, 2) for stroke in drawing]
    points = np.concatenate(lines)
    low, high = points.min(0), points.max(0)
    scale = (BOX - PEN) * OVERSAMPLING / max(*(high - low), 1.0)
    side = 2 * SIDE * OVERSAMPLING  # wide enough to crop off centre
    image = Image.new("L", (side, side))
    pen, radius = ImageDraw.Draw(image), PEN * OVERSAMPLING / 2
    for line in lines:
        scaled = (line - (low + high) / 2) * scale + side / 2
        pen.line([tuple(point) for point in scaled], fill=255, width=round(2 * radius))
        for x, y in scaled:  # round ends and corners
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)
    ink = np.asarray(image).astype(float)
    centre = [float((ink.sum(1 - axis) * (np.arange(side) + 0.5)).sum() / ink.sum()) for axis in (0, 1)]
    margin = (SIDE - BOX) / 2 * OVERSAMPLING  # a larger shift would cut the digit off
    top, left = (round(float(np.clip(middle - side / 2, -margin, margin))) + side // 4 for middle in centre)
    crop = ink[top : top + side // 2, left : left + side // 2]
    pixels = crop.reshape(SIDE, OVERSAMPLING, SIDE, OVERSAMPLING).mean((1, 3)).round().astype(np.uint8)
    return Digit(pixels)


def samples() -> list[Digit]:
    """Return the ten drawings that come with the page."""
    stored = json.loads(SAMPLES.read_text(encoding="utf-8"))
    return [Digit(render(tuple(map(tuple, each["strokes"]))).pixels, each["label"]) for each in stored]


class Mnist:
    """MNIST's test digits from a folder or the cache, or downloaded; else `reason` says what to do."""

    def __init__(
        self, *, folder: Path | None = None, fetch: bool = False, say: Callable[[str], None] = lambda text: None
    ) -> None:
        self._digits: datasets.Digits | None = None
        self.reason = ""
        try:
            cached = None if fetch else sources.cache_folder(sources.MNIST)
            self._digits = datasets.mnist("mnist", split="test", folder=folder or cached, say=say)
        except (ValueError, OSError):
            if folder or fetch:
                raise
            self.reason = "MNIST is not on this machine: start `patchreorder play --fetch` to download it."

    def digit(self, index: int) -> Digit:
        digits = self._need()
        return Digit(digits.images[index, 0].numpy(), int(digits.labels[index]))

    def choice(self, seed: int) -> list[dict[str, Any]]:
        """Return one digit of each class, drawn with the seed, as JSON values with their index."""
        digits = self._need()
        order = np.random.default_rng(seed).permutation(len(digits))
        labels = digits.labels.numpy()[order]
        first = [int(order[np.flatnonzero(labels == label)[0]]) for label in range(CLASSES)]
        return [{"index": index, **self.digit(index).as_json()} for index in first]

    def _need(self) -> datasets.Digits:
        if self._digits is None:
            raise RequestError(422, self.reason)
        return self._digits
