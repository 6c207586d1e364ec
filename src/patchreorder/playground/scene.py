"""The drawn images of `patchreorder demo`: a key, its rotated and shifted copies, and a leaf."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

SIZE, OVERSAMPLING = 96, 4  # pixels a side; the canvas is so many times finer


class Scene(NamedTuple):
    """A key, the same key rotated and shifted, and a leaf: white on black, (96, 96), 0 to 1."""

    images: dict[str, np.ndarray]  # the others are compared with the first
    teeth: np.ndarray
    rotation: float  # degrees, counter-clockwise
    shift: tuple[int, int]  # pixels, right and down

    @classmethod
    def draw(cls, seed: int) -> Scene:
        random = np.random.default_rng(seed)
        teeth = random.uniform(0.06, 0.16, 3)
        rotation = float(random.integers(25, 66) * random.choice([-1, 1]))
        right, down = (int(pixels) for pixels in random.integers(6, 15, 2) * random.choice([-1, 1], 2))
        images = {
            "key": draw_key(teeth),
            f"rotated {abs(rotation):.0f}°": draw_key(teeth, rotation=rotation),
            f"shifted {math.hypot(right, down):.0f} px": draw_key(teeth, shift=(right, down)),
            "leaf (control)": draw_leaf(),
        }
        return cls(images, teeth, rotation, (right, down))


class Pen:
    """Draws on a fine black canvas, in coordinates from -0.5 to 0.5 that are rotated, then shifted."""

    def __init__(self, rotation: float = 0.0, shift: tuple[float, float] = (0, 0)) -> None:
        self.canvas = Image.new("L", (SIZE * OVERSAMPLING, SIZE * OVERSAMPLING))
        self.paint = ImageDraw.Draw(self.canvas)
        self.cosine, self.sine = math.cos(math.radians(rotation)), math.sin(math.radians(rotation))
        self.centre = SIZE / 2 + shift[0], SIZE / 2 + shift[1]

    def at(self, x: float, y: float) -> tuple[float, float]:
        across = self.centre[0] + SIZE * (self.cosine * x + self.sine * y)
        down = self.centre[1] + SIZE * (self.cosine * y - self.sine * x)
        return across * OVERSAMPLING, down * OVERSAMPLING

    def disc(self, x: float, y: float, radius: float, light: int) -> None:
        across, down = self.at(x, y)
        r = radius * SIZE * OVERSAMPLING
        self.paint.ellipse((across - r, down - r, across + r, down + r), fill=light)

    def polygon(self, corners: list[tuple[float, float]]) -> None:
        self.paint.polygon([self.at(x, y) for x, y in corners], fill=255)

    def line(self, start: tuple[float, float], end: tuple[float, float], width: float, light: int) -> None:
        self.paint.line([self.at(*start), self.at(*end)], fill=light, width=round(width * OVERSAMPLING))

    def image(self) -> np.ndarray:
        return np.asarray(self.canvas.reduce(OVERSAMPLING), dtype=np.float32) / 255


def draw_key(teeth: np.ndarray, *, rotation: float = 0.0, shift: tuple[float, float] = (0, 0)) -> np.ndarray:
    """Draw a key with three teeth of these lengths. Every pose is drawn from scratch, not resampled."""
    pen = Pen(rotation, shift)
    pen.disc(-0.18, 0, 0.13, 255)
    pen.disc(-0.18, 0, 0.065, 0)
    teeth_boxes = ((x, 0.02, x + 0.05, 0.03 + tooth) for x, tooth in zip((0.06, 0.16, 0.26), teeth, strict=True))
    for left, top, right, bottom in [(-0.06, -0.03, 0.31, 0.03), *teeth_boxes]:
        pen.polygon([(left, top), (right, top), (right, bottom), (left, bottom)])
    return pen.image()


def draw_leaf() -> np.ndarray:
    """Draw a leaf of about the size and orientation of the key."""
    pen = Pen()
    edge = [(-0.3 * math.cos(t), 0.15 * math.sin(t) ** 1.3) for t in np.linspace(0, math.pi, 40)]
    pen.polygon(edge + [(x, -y) for x, y in reversed(edge)])
    pen.line((-0.38, 0), (-0.3, 0), 3, 255)
    pen.line((-0.28, 0), (0.25, 0), 2, 0)
    for x in (-0.12, 0.0, 0.12):
        for side in (-0.1, 0.1):
            pen.line((x, 0), (x + 0.07, side), 1.5, 0)
    return pen.image()
