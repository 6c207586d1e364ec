"""Digits to play with: drawn ones as MNIST would have them, MNIST's own, and ten drawings that come with the page."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from patchreorder.data import datasets, sources

from .asked import Drawing, Pick, Refused

SIDE, BOX = 28, 20  # pixels of the image and of the digit in it, as MNIST has them
PEN = 2.6  # pixels wide, about that of MNIST
FINE = 8  # drawn so many times larger, then averaged
SHOWN = 10  # digits to choose from at a time
SAMPLES = Path(__file__).parent / "page" / "samples.json"


class Digit(NamedTuple):
    """An upright digit (28, 28), uint8, its label where it is known, and a digest of its pixels."""

    pixels: np.ndarray
    label: int | None
    digest: str

    @classmethod
    def of(cls, pixels: np.ndarray, label: int | None = None) -> Digit:
        return cls(pixels, label, sha256(pixels.tobytes()).hexdigest())

    def image(self) -> Tensor:
        """(1, 1, 28, 28) from 0 to 1."""
        return torch.from_numpy(self.pixels).float().div(255)[None, None]


def draw(drawing: Drawing) -> np.ndarray:
    """The image of a drawing: its larger side 20 pixels, its centre of mass in the middle, a pen as wide as MNIST's.

    Shape:
        (28, 28), uint8.

    >>> draw(Drawing(((500, 100, 500, 900),))).max(0).nonzero()[0].tolist()
    [12, 13, 14, 15]
    """
    lines = [np.array(stroke, float).reshape(-1, 2) for stroke in drawing.strokes]
    points = np.concatenate(lines)
    low, high = points.min(0), points.max(0)
    scale = (BOX - PEN) * FINE / max(*(high - low), 1.0)
    side = 2 * SIDE * FINE  # room to move it
    image = Image.new("L", (side, side))
    pen, radius = ImageDraw.Draw(image), PEN * FINE / 2
    for line in lines:
        placed = (line - (low + high) / 2) * scale + side / 2
        pen.line([tuple(point) for point in placed], fill=255, width=round(2 * radius))
        for x, y in placed:  # round ends and corners
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)
    ink = np.asarray(image).astype(float)
    centre = [float((ink.sum(1 - axis) * (np.arange(side) + 0.5)).sum() / ink.sum()) for axis in (0, 1)]
    room = (SIDE - BOX) / 2 * FINE  # so far it can go without being cut
    top, left = (round(float(np.clip(place - side / 2, -room, room))) + (side - SIDE * FINE) // 2 for place in centre)
    part = ink[top : top + SIDE * FINE, left : left + SIDE * FINE]
    return part.reshape(SIDE, FINE, SIDE, FINE).mean((1, 3)).round().astype(np.uint8)


def samples() -> list[Digit]:
    """The ten drawings that come with the page."""
    stored = json.loads(SAMPLES.read_text(encoding="utf-8"))
    return [Digit.of(draw(Drawing(tuple(map(tuple, each["strokes"])))), each["label"]) for each in stored]


@functools.lru_cache(maxsize=256)  # the same drawing comes again with every pose
def _drawn(drawing: Drawing) -> Digit:
    return Digit.of(draw(drawing))


class Mnist:
    """MNIST's test digits where they are on this machine, else the reason why not.

    Args:
        folder: where its four files are; without it the cache is looked into.
        fetch: fetch them if the cache does not hold them.
        say: gets a line about what is fetched.
    """

    def __init__(
        self, *, folder: Path | None = None, fetch: bool = False, say: Callable[[str], None] = lambda text: None
    ) -> None:
        self.digits: datasets.Digits | None = None
        self.reason = ""
        place = folder if folder or fetch else sources.cache_folder(sources.MNIST)
        try:
            self.digits = datasets.mnist("mnist", split="test", folder=place, say=say)
        except (ValueError, OSError):
            if folder or fetch:
                raise
            self.reason = "MNIST is not on this machine: start with `patchreorder play --fetch` to have it fetched."

    def find(self, asked: Drawing | Pick) -> Digit:
        """The digit that was asked for, drawn or looked up.

        Raises:
            Refused: MNIST is not here.
        """
        if isinstance(asked, Drawing):
            return _drawn(asked)
        if self.digits is None:
            raise Refused(self.reason)
        return Digit.of(self.digits.images[asked.number, 0].numpy(), int(self.digits.labels[asked.number]))

    def choice(self, seed: int) -> list[dict[str, Any]]:
        """One digit of each class, chosen by the seed: index, label and pixels (base64)."""
        if self.digits is None:
            raise Refused(self.reason)
        order = np.random.default_rng(seed).permutation(len(self.digits))
        labels = self.digits.labels.numpy()[order]
        first = [int(order[np.flatnonzero(labels == label)[0]]) for label in range(SHOWN)]
        return [{"index": index, **shown(self.find(Pick(index)))} for index in first]


def shown(digit: Digit) -> dict[str, Any]:
    """What the page gets to see of a digit."""
    return {"label": digit.label, "pixels": base64.b64encode(digit.pixels.tobytes()).decode()}
