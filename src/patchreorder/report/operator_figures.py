"""Figures of what the operator does to feature maps, from arrays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .drawing import FAINT, INK, ORANGE, PAGE, add_text, canvas, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TINTS = ("#dbe7f6", "#fbe3c8", "#d9efe2", "#eadcf0")
NOTHING = "#f3f3f6"  # where a filter has no response
LABEL = {"boxstyle": "round,pad=0.15", "facecolor": PAGE, "edgecolor": "none", "alpha": 0.85}


class InputMaps(NamedTuple):
    """An input, its feature map in every setting, and a note below each map."""

    label: str
    image: np.ndarray
    maps: Sequence[np.ndarray]
    notes: Sequence[str]


def draw_before_after(
    files: Sequence[Path],
    inputs: Sequence[InputMaps],
    titles: Sequence[str],
    grids: Sequence[Sequence[int]],
    caption: str,
) -> None:
    """Draw every input beside its maps; `grids` are the grids to outline in each setting, fine to coarse."""
    top = max(float(feature.max()) for one in inputs for feature in one.maps)
    height = 1.78 * len(inputs) + 1.05
    with canvas(8.35, height) as figure:
        import matplotlib

        colours = matplotlib.colormaps["viridis_r"].with_extremes(under=NOTHING)
        axes = figure.subplots(len(inputs), len(titles), squeeze=False)
        figure.subplots_adjust(
            left=0.105, right=0.995, top=1 - 0.52 / height, bottom=0.53 / height, wspace=0.05, hspace=0.05
        )
        for cell, title in zip(axes[0], titles, strict=True):
            cell.set_title(title, fontsize=11, fontweight="normal", loc="center", pad=6, linespacing=1.25)
        for line, one in zip(axes, inputs, strict=True):
            _blank(line[0]).imshow(1 - one.image, cmap="gray", vmin=0, vmax=1, interpolation="bilinear")
            line[0].set_ylabel(one.label, fontsize=11, labelpad=34, rotation=0, va="center", linespacing=1.3)
            for cell, feature, note, grid in zip(line[1:], one.maps, one.notes, grids, strict=True):
                _blank(cell).imshow(feature, cmap=colours, vmin=top / 1000, vmax=top, interpolation="nearest")
                for width, side in enumerate(grid, 1):
                    _outline(cell, np.arange(side + 1) * (feature.shape[0] // side) - 0.5, ORANGE, width)
                cell.text(0.96, 0.055, note, transform=cell.transAxes, ha="right", fontsize=11, bbox=LABEL)
        add_text(figure, 4.18, height - 0.42, caption, ha="center", color=FAINT, linespacing=1.4)
        save(figure, files, alt=f"Feature maps of {len(inputs)} images, before and after reordering")


def draw_levels(files: Sequence[Path], maps: Sequence[np.ndarray], energies: np.ndarray, order: np.ndarray) -> None:
    """Draw a map of 4x4 numbers, after one level of 2x2 patches and after two; tints tell patches apart."""
    titles = (
        "the map: four patches, their energies",
        "level 1: the strongest patch first",
        "level 2: the same inside each patch",
    )
    sources = (np.arange(4).reshape(2, 2), order.reshape(2, 2), order.reshape(2, 2))
    with canvas(9, 3.3) as figure:
        axes = figure.subplots(1, 3)
        figure.subplots_adjust(left=0.01, right=0.99, top=0.87, bottom=0.02, wspace=0.1)
        for level, (cell, values, source, title) in enumerate(zip(axes, maps, sources, titles, strict=True)):
            _blank(cell).set(xlim=(0, 4), ylim=(4, 0), aspect="equal", frame_on=False)
            cell.set_title(title, fontsize=11, fontweight="normal", loc="center")
            for i, j in np.ndindex(2, 2):
                tint = TINTS[source[i, j]]
                cell.fill([2 * j, 2 * j + 2, 2 * j + 2, 2 * j], [2 * i, 2 * i, 2 * i + 2, 2 * i + 2], color=tint)
                if level < 2:
                    energy = energies.flat[source[i, j]]
                    _number(cell, 2 * j + 1, 2 * i + 1, energy, fontsize=12, color=FAINT, bbox=LABEL)
            for i, j in np.ndindex(4, 4):
                _number(cell, j + 0.5, i + 0.5, values[i, j], fontsize=15)
            _outline(cell, np.arange(5), PAGE, 0.8)
            _outline(cell, np.arange(0, 5, 2), INK, 1.6)
        save(figure, files, alt="A map of 4x4 numbers, reordered in one level and in two")


def _blank(cell: Axes) -> Axes:
    cell.set(xticks=[], yticks=[])
    cell.spines[:].set_visible(True)
    return cell


def _number(cell: Axes, x: float, y: float, value: float, **style: Any) -> None:
    cell.text(x, y, f"{value:g}", ha="center", va="center", **style)


def _outline(cell: Axes, borders: np.ndarray, colour: str, width: float) -> None:
    style: dict[str, Any] = {"color": colour, "linewidth": width, "clip_on": False, "solid_capstyle": "projecting"}
    for border in borders:
        cell.plot([borders[0], borders[-1]], [border, border], **style)
        cell.plot([border, border], [borders[0], borders[-1]], **style)
