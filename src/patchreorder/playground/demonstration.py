"""What `patchreorder demo` measures: a drawn key, its turned and shifted copies, and a leaf, under the operator.

The maps are those of a small fixed bank of filters, as the first layers of a network have them: convolution,
ReLU, max pool. Everything is drawn and computed here: nothing is downloaded, nothing trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw

SIZE, POOL, FINER = 96, 8, 4  # pixels of an image, pixels a side of a pool, and how much finer it is drawn
PLAIN, COARSE, PIXELS = "as they are", "grid=2, levels=2", 'grid="pixels"'
SETTINGS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    COARSE: {"grid": 2, "levels": 2},
    PIXELS: {"grid": "pixels"},
}


# ---- images --------------------------------------------------------------------------------------


class Scene(NamedTuple):
    """A key, the same key turned and shifted, and a leaf: white on black, (96, 96), 0 to 1."""

    images: dict[str, np.ndarray]  # the first is what the others are compared with
    teeth: np.ndarray
    turn: float  # degrees, against the clock
    shift: tuple[int, int]  # pixels, right and down

    @classmethod
    def draw(cls, seed: int) -> Scene:
        random = np.random.default_rng(seed)
        teeth = random.uniform(0.06, 0.16, 3)
        turn = float(random.integers(25, 66) * random.choice([-1, 1]))
        right, down = (int(pixels) for pixels in random.integers(6, 15, 2) * random.choice([-1, 1], 2))
        images = {
            "key": draw_key(teeth),
            f"turned {abs(turn):.0f}°": draw_key(teeth, turn=turn),
            f"shifted {math.hypot(right, down):.0f} px": draw_key(teeth, shift=(right, down)),
            "leaf (control)": draw_leaf(),
        }
        return cls(images, teeth, turn, (right, down))


class Pen:
    """Draws on a fine black canvas, in coordinates from -0.5 to 0.5 that are turned, then shifted."""

    def __init__(self, turn: float, shift: tuple[float, float]) -> None:
        self.canvas = Image.new("L", (SIZE * FINER, SIZE * FINER))
        self.paint = ImageDraw.Draw(self.canvas)
        self.cosine, self.sine = math.cos(math.radians(turn)), math.sin(math.radians(turn))
        self.centre = SIZE / 2 + shift[0], SIZE / 2 + shift[1]

    def at(self, x: float, y: float) -> tuple[float, float]:
        across = self.centre[0] + SIZE * (self.cosine * x + self.sine * y)
        down = self.centre[1] + SIZE * (self.cosine * y - self.sine * x)
        return across * FINER, down * FINER

    def disc(self, x: float, y: float, radius: float, light: int) -> None:
        across, down = self.at(x, y)
        r = radius * SIZE * FINER
        self.paint.ellipse((across - r, down - r, across + r, down + r), fill=light)

    def box(self, left: float, top: float, right: float, bottom: float) -> None:
        self.shape([(left, top), (right, top), (right, bottom), (left, bottom)])

    def shape(self, corners: list[tuple[float, float]]) -> None:
        self.paint.polygon([self.at(x, y) for x, y in corners], fill=255)

    def line(self, start: tuple[float, float], end: tuple[float, float], width: float, light: int) -> None:
        self.paint.line([self.at(*start), self.at(*end)], fill=light, width=round(width * FINER))

    def image(self) -> np.ndarray:
        return np.asarray(self.canvas.reduce(FINER), dtype=np.float32) / 255


def draw_key(teeth: np.ndarray, *, turn: float = 0.0, shift: tuple[float, float] = (0, 0)) -> np.ndarray:
    """A key with three teeth of these lengths. It is drawn anew at each angle, not resampled."""
    pen = Pen(turn, shift)
    pen.disc(-0.18, 0, 0.13, 255)
    pen.disc(-0.18, 0, 0.065, 0)
    pen.box(-0.06, -0.03, 0.31, 0.03)
    for left, tooth in zip((0.06, 0.16, 0.26), teeth, strict=True):
        pen.box(left, 0.02, left + 0.05, 0.03 + tooth)
    return pen.image()


def draw_leaf() -> np.ndarray:
    """A leaf about as large as the key, lying the same way."""
    pen = Pen(0, (0, 0))
    edge = [(-0.3 * math.cos(t), 0.15 * math.sin(t) ** 1.3) for t in np.linspace(0, math.pi, 40)]
    pen.shape(edge + [(x, -y) for x, y in reversed(edge)])
    pen.line((-0.38, 0), (-0.3, 0), 3, 255)
    pen.line((-0.28, 0), (0.25, 0), 2, 0)
    for x in (-0.12, 0.0, 0.12):
        for side in (-0.1, 0.1):
            pen.line((x, 0), (x + 0.07, side), 1.5, 0)
    return pen.image()


# ---- maps ----------------------------------------------------------------------------------------


def filter_bank(radius: int = 5) -> np.ndarray:
    """Spots, light and dark, then lines and edges in four directions: (10, 11, 11)."""
    across, down = np.meshgrid(np.arange(-radius, radius + 1), np.arange(-radius, radius + 1))
    square = across**2 + down**2
    spot = (1 - square / 8) * np.exp(-square / 8)
    window = np.exp(-square / 9.7)
    filters = [spot - spot.mean(), spot.mean() - spot]
    for angle in np.arange(4) * math.pi / 4:
        along = across * math.cos(angle) + down * math.sin(angle)
        line = np.cos(2 * math.pi * along / 6) * window
        filters += [line - line.mean(), np.sin(2 * math.pi * along / 8) * window]
    bank = np.stack(filters).astype(np.float32)
    return bank / np.abs(bank).sum((1, 2), keepdims=True)


def feature_maps(image: np.ndarray) -> np.ndarray:
    """Convolution, ReLU and max pool: (10, 12, 12)."""
    bank = filter_bank()
    side = bank.shape[-1]
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(image, side // 2), (side, side))
    maps = np.maximum(np.tensordot(bank, windows, axes=([1, 2], [2, 3])), 0)
    return maps.reshape(len(bank), SIZE // POOL, POOL, SIZE // POOL, POOL).max((2, 4))


def sort_maps(maps: np.ndarray, setting: Mapping[str, Any]) -> np.ndarray:
    """The maps reordered, or as they are without a setting."""
    import torch  # here, so that `patchreorder demo --help` need not wait for it

    from patchreorder.operator.functional import patch_reorder

    return patch_reorder(torch.from_numpy(maps), **setting).numpy() if setting else maps


# ---- numbers -------------------------------------------------------------------------------------


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """|a - b| / |a| of each map, mean over the maps; 0 is the same."""
    a, b = a.reshape(len(a), -1), b.reshape(len(b), -1)
    return float(np.mean(np.linalg.norm(a - b, axis=1) / np.linalg.norm(a, axis=1)))


def similarity(a: np.ndarray, b: np.ndarray) -> float:
    """Cosine of each pair of maps, mean over the maps; 1 is the same up to a factor."""
    a, b = a.reshape(len(a), -1), b.reshape(len(b), -1)
    return float(np.mean((a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))))


def measure(scene: Scene, number: Callable[[np.ndarray, np.ndarray], float]) -> dict[str, dict[str, float]]:
    """By setting, the number between the maps of the first image and of each other one."""
    (_, first), *others = ((name, feature_maps(image)) for name, image in scene.images.items())
    return {
        label: {name: round(number(sort_maps(first, setting), sort_maps(maps, setting)), 3) for name, maps in others}
        for label, setting in SETTINGS.items()
    }


def count_nearer(seeds: range) -> dict[str, int]:
    """By setting, how many copies, turned or shifted, are nearer to their key than the leaf is."""
    counts = dict.fromkeys(SETTINGS, 0)
    for seed in seeds:
        for label, to in measure(Scene.draw(seed), distance).items():
            *copies, leaf = to.values()
            counts[label] += sum(copy < leaf for copy in copies)
    return counts


class Panel(NamedTuple):
    """Distances by setting as the key changes, and the leaf's."""

    title: str
    x: np.ndarray
    lines: dict[str, np.ndarray]
    levels: dict[str, float]


def limits(teeth: np.ndarray) -> list[Panel]:
    """Distances as the key turns and as it moves, with the leaf's as the level to stay below."""
    key, leaf = feature_maps(draw_key(teeth)), feature_maps(draw_leaf())

    def to(maps: np.ndarray, setting: Mapping[str, Any]) -> float:
        return distance(sort_maps(key, setting), sort_maps(maps, setting))

    def panel(title: str, x: np.ndarray, draw: Callable[[float], np.ndarray]) -> Panel:
        copies = [feature_maps(draw(value)) for value in x]
        lines = {label: np.array([to(copy, s) for copy in copies]) for label, s in SETTINGS.items()}
        return Panel(title, x, lines, {label: to(leaf, s) for label, s in SETTINGS.items()})

    return [
        panel("key turned by (degrees)", np.arange(0, 181, 5), lambda turn: draw_key(teeth, turn=turn)),
        panel("key shifted right by (pixels)", np.arange(17), lambda right: draw_key(teeth, shift=(right, 0))),
    ]


def spots_turned(teeth: np.ndarray, turn: float) -> float:
    """The distance with sorted pixels of the two filters that look the same from every side."""
    maps = (feature_maps(draw_key(teeth, turn=angle))[:2] for angle in (0, turn))
    return round(distance(*(sort_maps(two, SETTINGS[PIXELS]) for two in maps)), 3)
