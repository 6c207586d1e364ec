"""`patchreorder demo`: the operator at work on a drawn key, its turned and shifted copies, and a leaf.

The maps are those of a small fixed bank of filters, as the first layers of a network have them: convolution,
ReLU, max pool. Everything is drawn and computed here: nothing is downloaded, nothing trained.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw
from rich.console import Console
from rich.table import Table

from patchreorder.report import pictures

SIZE, POOL, FINER = 96, 8, 4  # pixels of an image, pixels a side of a pool, and how much finer it is drawn
SHOWN = 0  # the filter in the picture
PLAIN, COARSE, PIXELS = "as they are", "grid=2, levels=2", 'grid="pixels"'
SETTINGS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    COARSE: {"grid": 2, "levels": 2},
    PIXELS: {"grid": "pixels"},
}
BORDERS: dict[str, tuple[int, ...]] = {PLAIN: (), COARSE: (4, 2), PIXELS: ()}  # patches a side to outline
KEYS = 20  # keys of other seeds to count over
EXAMPLE = np.array([[0, 1, 5, 0], [2, 0, 0, 1], [3, 3, 0, 0], [1, 4, 0, 2]], np.float32)  # of docs/operator.md


def demo(*, out: Path = Path("runs/demo"), seed: int = 0) -> None:
    """Sort the feature maps of a drawn key, turned and shifted: pictures and numbers, no data needed.

    Args:
        out: folder for the pictures and numbers.
        seed: chooses the key, its turn and its shift.
    """
    if seed < 0:
        raise ValueError(f"seed ({seed}) must be 0 or more")
    pictures.need_matplotlib()
    out.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False)
    with console.status("drawing, filtering, sorting"):
        scene = Scene.draw(seed)
        distances, similarities = measure(scene, distance), measure(scene, similarity)
        nearer = count_nearer(range(seed + 1, seed + 1 + KEYS))
        panels = limits(scene.teeth)
        _draw_scene(out, scene, distances)
        _draw_levels(out)
        _draw_limits(out, panels)
        times = rough_times()
    numbers: dict[str, Any] = {
        "seed": seed,
        "turn": scene.turn,
        "shift": scene.shift,
        "distance": distances,
        "similarity": similarities,
        "copies": 2 * KEYS,
        "copies nearer than the leaf": nearer,
        "spot filters, pixels, turned": {f"{turn}°": spots_turned(scene.teeth, turn) for turn in (45, 90)},
    }
    for panel in panels:
        lines = {label: line.round(3).tolist() for label, line in panel.lines.items()}
        numbers[panel.title] = {"by": panel.x.tolist(), **lines}
    _write(out / "demo.json", numbers)
    console.print(_table(distances, similarities, nearer))
    for text in (_meaning(distances), times):
        console.print(f"\n{text}", markup=False, soft_wrap=not console.is_terminal)
    for text in (
        f"\nWritten to {out}: before_after.png, before_after.svg, levels.png, limits.png, demo.json",
        "Next: `patchreorder demo --seed 1` for another key; docs/operator.md explains the operator.",
    ):
        console.print(text, markup=False, soft_wrap=True)


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

    from patchreorder.functional import patch_reorder

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


def limits(teeth: np.ndarray) -> list[pictures.Curves]:
    """Distances as the key turns and as it moves, with the leaf's as the level to stay below."""
    key, leaf = feature_maps(draw_key(teeth)), feature_maps(draw_leaf())

    def to(maps: np.ndarray, setting: Mapping[str, Any]) -> float:
        return distance(sort_maps(key, setting), sort_maps(maps, setting))

    def panel(title: str, x: np.ndarray, draw: Callable[[float], np.ndarray]) -> pictures.Curves:
        copies = [feature_maps(draw(value)) for value in x]
        lines = {label: np.array([to(copy, s) for copy in copies]) for label, s in SETTINGS.items()}
        return pictures.Curves(title, x, lines, {label: to(leaf, s) for label, s in SETTINGS.items()})

    return [
        panel("key turned by (degrees)", np.arange(0, 181, 5), lambda turn: draw_key(teeth, turn=turn)),
        panel("key shifted right by (pixels)", np.arange(17), lambda right: draw_key(teeth, shift=(right, 0))),
    ]


def spots_turned(teeth: np.ndarray, turn: float) -> float:
    """The distance with sorted pixels of the two filters that look the same from every side."""
    maps = (feature_maps(draw_key(teeth, turn=angle))[:2] for angle in (0, turn))
    return round(distance(*(sort_maps(two, SETTINGS[PIXELS]) for two in maps)), 3)


def rough_times() -> str:
    """One sentence on how long sorting takes, compared with copying; benchmarks/ measures it properly."""
    import torch

    from patchreorder.functional import patch_reorder

    x = torch.rand(64, 64, SIZE // POOL, SIZE // POOL)
    clone = _milliseconds(lambda: x.clone())
    times = {
        label: _milliseconds(lambda s=setting: patch_reorder(x, **s))  # type: ignore[misc]
        for label, setting in SETTINGS.items()
        if setting
    }
    sorting = ", ".join(f"{ms:.1f} ms with {label} ({ms / clone:.1f} x)" for label, ms in times.items())
    b, c, h, w = x.shape
    return (
        f"Rough times (order of magnitude, {torch.get_num_threads()} thread(s)) for {b * c} maps of {h}x{w}: "
        f"x.clone() {clone:.1f} ms, sorting {sorting}."
    )


def _milliseconds(run: Callable[[], object], repeats: int = 15) -> float:
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1000 * float(np.median(times))


# ---- output --------------------------------------------------------------------------------------


def _table(
    distances: dict[str, dict[str, float]], similarities: dict[str, dict[str, float]], nearer: dict[str, int]
) -> Table:
    table = Table(title="Distance to the maps of the key (and cosine similarity)", title_justify="left")
    table.add_column("maps of")
    for label in SETTINGS:
        table.add_column(label, justify="right")
    for name in distances[PLAIN]:
        cells = (f"{distances[label][name]:.2f} ({similarities[label][name]:.2f})" for label in SETTINGS)
        table.add_row(name, *cells)
    table.add_section()
    cells = (f"{nearer[label]} of {2 * KEYS}" for label in SETTINGS)
    table.add_row(f"copies nearer than\nthe leaf, {KEYS} other keys", *cells)
    return table


def _meaning(distances: dict[str, dict[str, float]]) -> str:
    def told(label: str) -> str:
        turned, shifted, leaf = distances[label].values()
        verdict = ("neither", "one", "both")[(turned < leaf) + (shifted < leaf)]
        return f"{turned:.2f} and {shifted:.2f}, {verdict} nearer than the leaf at {leaf:.2f}"

    return (
        "What it means: maps at distance 0 are the same. "
        f"As they are, the turned and the shifted key lie at {told(PLAIN)}. "
        f"With coarse patches sorted: {told(COARSE)}. With pixels sorted: {told(PIXELS)}. "
        "Coarse patches help only partly or not at all, because what is inside a patch turns and shifts "
        "too and is left as it is. Sorted pixels keep no arrangement, only how strongly and how often each "
        "filter answered; so everything becomes more alike, the leaf too: compare within a column only."
    )


def _write(file: Path, numbers: Mapping[str, Any]) -> None:
    lines = (f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in numbers.items())
    file.write_text("{\n  " + ",\n  ".join(lines) + "\n}\n", encoding="utf-8")


def _draw_scene(out: Path, scene: Scene, distances: dict[str, dict[str, float]]) -> None:
    rows = []
    for name, image in scene.images.items():
        maps = feature_maps(image)
        shown = [sort_maps(maps, setting)[SHOWN] for setting in SETTINGS.values()]
        notes = [f"{distances[label][name]:.2f}" if name in distances[label] else "" for label in SETTINGS]
        rows.append(pictures.Row(name.replace(" ", "\n", 1), image, shown, notes))
    titles = ["image", "a feature map", f"patches sorted\n{COARSE}", f"pixels sorted\n{PIXELS}"]
    caption = (
        f"Numbers: distance |a - b| / |a| to the first row, mean over {len(filter_bank())} filters. "
        "One filter is shown, darker is stronger.\n"
        "The leaf is the control: the copies of the key should come nearer to the key than it does."
    )
    files = [out / "before_after.png", out / "before_after.svg"]
    pictures.before_after(files, rows, titles, list(BORDERS.values()), caption)


def _draw_levels(out: Path) -> None:
    import torch

    from patchreorder.functional import patch_reorder

    x = torch.from_numpy(EXAMPLE)[None]
    first, order = patch_reorder(x, grid=2, return_order=True)
    second = patch_reorder(x, grid=2, levels=2)
    energies = (EXAMPLE**2).reshape(2, 2, 2, 2).sum((1, 3))
    pictures.levels([out / "levels.png"], [EXAMPLE, first[0].numpy(), second[0].numpy()], energies, order.numpy())


def _draw_limits(out: Path, panels: list[pictures.Curves]) -> None:
    files = [out / "limits.png"]
    pictures.curves(files, panels, "distance to the maps of the key", "the leaf, for comparison")
