"""`patchreorder demo`: the operator at work on a drawn key, its turned and shifted copies, and a leaf."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from patchreorder.playground.demonstration import (
    COARSE,
    PIXELS,
    PLAIN,
    POOL,
    SETTINGS,
    SIZE,
    Panel,
    Scene,
    count_nearer,
    distance,
    feature_maps,
    filter_bank,
    limits,
    measure,
    similarity,
    sort_maps,
    spots_turned,
)
from patchreorder.report import plots as pictures

SHOWN = 0  # the filter in the picture
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


def rough_times() -> str:
    """One sentence on how long sorting takes, compared with copying; benchmarks/ measures it properly."""
    import torch

    from patchreorder.operator.functional import patch_reorder

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

    from patchreorder.operator.functional import patch_reorder

    x = torch.from_numpy(EXAMPLE)[None]
    first, order = patch_reorder(x, grid=2, return_order=True)
    second = patch_reorder(x, grid=2, levels=2)
    energies = (EXAMPLE**2).reshape(2, 2, 2, 2).sum((1, 3))
    pictures.levels([out / "levels.png"], [EXAMPLE, first[0].numpy(), second[0].numpy()], energies, order.numpy())


def _draw_limits(out: Path, panels: list[Panel]) -> None:
    files = [out / "limits.png"]
    pictures.curves(
        files,
        [pictures.Curves(*panel) for panel in panels],
        "distance to the maps of the key",
        "the leaf, for comparison",
    )
