"""What `patchreorder demo` measures and plots: how much the feature maps of a key change when it rotates or shifts.

The maps are those of a small fixed bank of filters, as the first layers of a network have them: convolution, ReLU,
max pooling. Nothing is downloaded and nothing is trained.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from patchreorder.operator.functional import patch_reorder
from patchreorder.report.curves import Line
from patchreorder.report.drawing import STYLES
from patchreorder.report.line_chart import LineChart, Panel, Series
from patchreorder.report.operator_figures import InputMaps, draw_before_after, draw_levels

from .scene import SIZE, Scene, draw_key, draw_leaf

POOL = 8  # pixels a side of a pooling window
KEYS = 20  # other keys to count over
ORIGINAL, COARSE, PIXELS = "as they are", "grid=2, levels=2", 'grid="pixels"'
SETTINGS: dict[str, dict[str, Any]] = {ORIGINAL: {}, COARSE: {"grid": 2, "levels": 2}, PIXELS: {"grid": "pixels"}}
OUTLINES: dict[str, tuple[int, ...]] = {ORIGINAL: (), COARSE: (4, 2), PIXELS: ()}  # patches a side to outline
EXAMPLE = np.array([[0, 1, 5, 0], [2, 0, 0, 1], [3, 3, 0, 0], [1, 4, 0, 2]], np.float32)  # of docs/operator.md
FILES = ("before_after.png", "before_after.svg", "levels.png", "limits.png", "demo.json")
Numbers = dict[str, dict[str, float]]  # by setting and image


class Demo(NamedTuple):
    """All numbers of the demo."""

    seed: int
    scene: Scene
    distances: Numbers
    similarities: Numbers
    nearer: dict[str, int]  # by setting: of 2 * KEYS copies, how many are nearer to their key than the leaf
    curves: list[Panel]


def measure(seed: int) -> Demo:
    """Compare the key with its copies and the leaf, by setting."""
    scene = Scene.draw(seed)
    nearer = dict.fromkeys(SETTINGS, 0)
    for other in range(seed + 1, seed + 1 + KEYS):
        for label, distances in compare(Scene.draw(other), distance).items():
            *copies, leaf = distances.values()
            nearer[label] += sum(copy < leaf for copy in copies)
    return Demo(seed, scene, compare(scene, distance), compare(scene, similarity), nearer, sweep(scene.teeth))


def write(demo: Demo, folder: Path) -> None:
    """Write the figures and the numbers."""
    _plot_scene(demo, [folder / "before_after.png", folder / "before_after.svg"])
    x = torch.from_numpy(EXAMPLE)[None]
    first, order = patch_reorder(x, grid=2, return_order=True)
    second = patch_reorder(x, grid=2, levels=2)
    energies = (EXAMPLE**2).reshape(2, 2, 2, 2).sum((1, 3))
    images = [EXAMPLE, first[0].numpy(), second[0].numpy()]
    draw_levels([folder / "levels.png"], images, energies, order.numpy())
    LineChart(
        panels=demo.curves,
        x="",
        y="distance to the maps of the key",
        alt="Distances to the maps of the key as it rotates and shifts",
        level="the leaf, for comparison",
    ).save([folder / "limits.png"])
    numbers: dict[str, Any] = {
        "seed": demo.seed,
        "rotation": demo.scene.rotation,
        "shift": demo.scene.shift,
        "distance": demo.distances,
        "similarity": demo.similarities,
        "copies": 2 * KEYS,
        "copies nearer than the leaf": demo.nearer,
        "spot filters, pixels, rotated": {f"{angle}°": _spot_distance(demo.scene.teeth, angle) for angle in (45, 90)},
    }
    for panel in demo.curves:
        lines = {series.title: np.round(series.line.mean, 3).tolist() for series in panel.series}
        numbers[panel.x] = {"by": panel.series[0].line.x, **lines}
    text = ",\n  ".join(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in numbers.items())
    (folder / "demo.json").write_text("{\n  " + text + "\n}\n", encoding="utf-8")


def explain(distances: Numbers) -> str:
    """Return a paragraph about the distances."""

    def describe(label: str) -> str:
        rotated, shifted, leaf = distances[label].values()
        verdict = ("neither", "one", "both")[(rotated < leaf) + (shifted < leaf)]
        return f"{rotated:.2f} and {shifted:.2f}, {verdict} nearer than the leaf at {leaf:.2f}"

    return (
        "What it means: identical maps have distance 0. "
        f"As they are, the rotated and the shifted key are at {describe(ORIGINAL)}. "
        f"With coarse patches sorted: {describe(COARSE)}. With pixels sorted: {describe(PIXELS)}. "
        "Coarse patches help little or not at all, because the content of a patch rotates and shifts too and is not "
        "sorted. Sorted pixels keep no arrangement, only how strongly and how often each filter was active. So all "
        "maps become more similar, those of the leaf too: compare within a column only."
    )


def filter_bank(radius: int = 5) -> np.ndarray:
    """Return spots, light and dark, then lines and edges in four directions: (10, 11, 11)."""
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
    """Apply convolution, ReLU and max pooling: (10, 12, 12)."""
    bank = filter_bank()
    side = bank.shape[-1]
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(image, side // 2), (side, side))
    maps = np.maximum(np.tensordot(bank, windows, axes=([1, 2], [2, 3])), 0)
    return maps.reshape(len(bank), SIZE // POOL, POOL, SIZE // POOL, POOL).max((2, 4))


def reorder(maps: np.ndarray, setting: Mapping[str, Any]) -> np.ndarray:
    """Reorder the maps; an empty setting leaves them as they are."""
    return patch_reorder(torch.from_numpy(maps), **setting).numpy() if setting else maps


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Return |a - b| / |a| of each map, mean over the maps; 0 for identical ones."""
    a, b = a.reshape(len(a), -1), b.reshape(len(b), -1)
    return float(np.mean(np.linalg.norm(a - b, axis=1) / np.linalg.norm(a, axis=1)))


def similarity(a: np.ndarray, b: np.ndarray) -> float:
    """Return the cosine similarity of each pair of maps, mean over the maps."""
    a, b = a.reshape(len(a), -1), b.reshape(len(b), -1)
    return float(np.mean((a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))))


def compare(scene: Scene, number: Callable[[np.ndarray, np.ndarray], float]) -> Numbers:
    """Return the number between the maps of the first image and of each other one, by setting."""
    (_, first), *others = ((name, feature_maps(image)) for name, image in scene.images.items())
    return {
        label: {name: round(number(reorder(first, setting), reorder(maps, setting)), 3) for name, maps in others}
        for label, setting in SETTINGS.items()
    }


def sweep(teeth: np.ndarray) -> list[Panel]:
    """Return the distances as the key rotates and as it shifts, with those of the leaf for comparison."""
    key, leaf = feature_maps(draw_key(teeth)), feature_maps(draw_leaf())

    def to(maps: np.ndarray, setting: Mapping[str, Any]) -> float:
        return distance(reorder(key, setting), reorder(maps, setting))

    def curves(title: str, x: np.ndarray, draw: Callable[[float], np.ndarray]) -> Panel:
        copies = {value: feature_maps(draw(value)) for value in x.tolist()}
        series = [
            Series(label, Line.of({value: [to(copy, s)] for value, copy in copies.items()}), style, to(leaf, s))
            for style, (label, s) in zip(STYLES, SETTINGS.items(), strict=False)
        ]
        return Panel("", series, title)

    return [
        curves("key rotated by (degrees)", np.arange(0, 181, 5), lambda angle: draw_key(teeth, rotation=angle)),
        curves("key shifted right by (pixels)", np.arange(17), lambda right: draw_key(teeth, shift=(right, 0))),
    ]


def _spot_distance(teeth: np.ndarray, rotation: float) -> float:
    """Return the distance of a rotated key with sorted pixels, over the two filters that are rotation-symmetric."""
    maps = (feature_maps(draw_key(teeth, rotation=angle))[:2] for angle in (0, rotation))
    return round(distance(*(reorder(spots, SETTINGS[PIXELS]) for spots in maps)), 3)


def _plot_scene(demo: Demo, files: list[Path]) -> None:
    rows = []
    for name, image in demo.scene.images.items():
        maps = feature_maps(image)
        shown = [reorder(maps, setting)[0] for setting in SETTINGS.values()]
        notes = [f"{numbers[name]:.2f}" if name in numbers else "" for numbers in demo.distances.values()]
        rows.append(InputMaps(name.replace(" ", "\n", 1), image, shown, notes))
    titles = ["image", "a feature map", f"patches sorted\n{COARSE}", f"pixels sorted\n{PIXELS}"]
    caption = (
        f"Numbers: distance |a - b| / |a| to the first row, mean over {len(filter_bank())} filters. "
        "One filter is shown, darker is stronger.\n"
        "The leaf is the control: the copies of the key should come nearer to the key than it does."
    )
    draw_before_after(files, rows, titles, list(OUTLINES.values()), caption)
