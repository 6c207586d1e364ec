"""Pictures of feature maps and of what sorting does to them, from numpy arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

INK, FAINT, OUTLINE = "#22222b", "#6b6b76", "#e07a1f"
COLOURS = ("#8a8a94", "#e07a1f", "#3b4cc0", "#1b9e77")  # readable with any colour vision, on white
TINTS = ("#dbe7f6", "#fbe3c8", "#d9efe2", "#eadcf0")
MAPS, NOTHING = (
    "viridis_r",
    "#f3f3f6",
)  # perceptually uniform, strong is dark; where a filter did not answer at all
LABEL = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
STYLE = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same picture everywhere
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "svg.hashsalt": "patchreorder",  # the same file every time
}


class Row(NamedTuple):
    """One input, its maps by setting, and what is written below each map."""

    label: str
    image: np.ndarray
    maps: Sequence[np.ndarray]
    notes: Sequence[str]


class Curves(NamedTuple):
    """Lines over one change of the input, with a level to compare each with."""

    title: str
    x: np.ndarray
    lines: Mapping[str, np.ndarray]
    levels: Mapping[str, float]


def need_matplotlib() -> None:
    """Raise an ImportError that says what to install, before anything is computed for a picture."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install 'patchreorder[report]'") from error


def before_after(
    files: Sequence[Path],
    rows: Sequence[Row],
    titles: Sequence[str],
    patches: Sequence[Sequence[int]],
    caption: str,
) -> None:
    """Draw every input beside its maps, with the borders of so many patches a side, fine to coarse."""
    top = max(float(feature.max()) for row in rows for feature in row.maps)
    height = 1.78 * len(rows) + 1.05
    with _figure(files, 8.35, height) as figure:
        colours = _colours()
        axes = figure.subplots(len(rows), len(titles), squeeze=False)
        figure.subplots_adjust(
            left=0.105, right=0.995, top=1 - 0.52 / height, bottom=0.53 / height, wspace=0.05, hspace=0.05
        )
        for cell, title in zip(axes[0], titles, strict=True):
            cell.set_title(title, fontsize=11, pad=6, linespacing=1.25)
        for line, row in zip(axes, rows, strict=True):
            _blank(line[0]).imshow(1 - row.image, cmap="gray", vmin=0, vmax=1, interpolation="bilinear")
            line[0].set_ylabel(row.label, fontsize=11, labelpad=34, rotation=0, va="center", linespacing=1.3)
            for cell, feature, note, sides in zip(line[1:], row.maps, row.notes, patches, strict=True):
                _blank(cell).imshow(feature, cmap=colours, vmin=top / 1000, vmax=top, interpolation="nearest")
                for width, side in enumerate(sides, 1):
                    _grid(cell, np.arange(side + 1) * (feature.shape[0] // side) - 0.5, OUTLINE, width)
                cell.text(0.96, 0.055, note, transform=cell.transAxes, ha="right", fontsize=11, bbox=LABEL)
        figure.text(0.5, 0.1 / height, caption, ha="center", fontsize=9, color=FAINT, linespacing=1.4)


def levels(files: Sequence[Path], maps: Sequence[np.ndarray], energies: np.ndarray, order: np.ndarray) -> None:
    """Draw a map of 4x4 numbers, after one level of 2x2 patches and after two; tints tell patches apart."""
    texts = (
        "the map: four patches, their energies",
        "level 1: the strongest patch first",
        "level 2: the same inside each patch",
    )
    sources = (np.arange(4).reshape(2, 2), order.reshape(2, 2), order.reshape(2, 2))
    with _figure(files, 9, 3.3) as figure:
        axes = figure.subplots(1, 3)
        figure.subplots_adjust(left=0.01, right=0.99, top=0.87, bottom=0.02, wspace=0.1)
        for panel, (cell, values, source, text) in enumerate(zip(axes, maps, sources, texts, strict=True)):
            _blank(cell).set(xlim=(0, 4), ylim=(4, 0), aspect="equal", frame_on=False)
            cell.set_title(text, fontsize=11)
            for i, j in np.ndindex(2, 2):
                tint = TINTS[source[i, j]]
                cell.fill([2 * j, 2 * j + 2, 2 * j + 2, 2 * j], [2 * i, 2 * i, 2 * i + 2, 2 * i + 2], color=tint)
                if panel < 2:
                    energy = energies.flat[source[i, j]]
                    _number(cell, 2 * j + 1, 2 * i + 1, energy, fontsize=12, color=FAINT, bbox=LABEL)
            for i, j in np.ndindex(4, 4):
                _number(cell, j + 0.5, i + 0.5, values[i, j], fontsize=15)
            _grid(cell, np.arange(5), "white", 0.8)
            _grid(cell, np.arange(0, 5, 2), INK, 1.6)


def curves(files: Sequence[Path], panels: Sequence[Curves], y_label: str, level_label: str) -> None:
    """Draw lines side by side, one panel for each change; each line's level is dotted in its colour."""
    with _figure(files, 9, 3.6) as figure:
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        figure.subplots_adjust(left=0.075, right=0.985, top=0.97, bottom=0.25, wspace=0.08)
        for cell, panel in zip(axes, panels, strict=True):
            for colour, (name, values) in zip(COLOURS, panel.lines.items(), strict=False):
                cell.plot(panel.x, values, color=colour, linewidth=2, label=name)
                cell.axhline(panel.levels[name], color=colour, linewidth=1, linestyle=(0, (2, 2)))
            cell.plot([], [], color=INK, linewidth=1, linestyle=(0, (2, 2)), label=level_label)
            cell.set_xlabel(panel.title)
            cell.set_xlim(panel.x[0], panel.x[-1])
            cell.grid(color="#e6e6ea", linewidth=0.8)
            cell.spines[["top", "right"]].set_visible(False)
        axes[0].set_ylabel(y_label)
        axes[0].set_ylim(0)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower center", ncols=len(labels), frameon=False, fontsize=10)


def _colours() -> Colormap:
    import matplotlib

    return matplotlib.colormaps[MAPS].with_extremes(under=NOTHING)


@contextmanager
def _figure(files: Sequence[Path], width: float, height: float) -> Iterator[Figure]:
    """A figure in our style, about 100 pixels of a page to the inch, written to the files when drawn."""
    need_matplotlib()
    import matplotlib.style
    from matplotlib.figure import Figure

    with matplotlib.style.context(["default", STYLE]):
        figure = Figure(figsize=(width, height), dpi=160, facecolor="white")
        yield figure
        for file in files:
            svg: dict[str, Any] = {"metadata": {"Date": None}} if file.suffix == ".svg" else {}
            figure.savefig(file, **svg)


def _blank(cell: Axes) -> Axes:
    cell.set(xticks=[], yticks=[])
    return cell


def _number(cell: Axes, x: float, y: float, value: float, **style: Any) -> None:
    cell.text(x, y, f"{value:g}", ha="center", va="center", **style)


def _grid(cell: Axes, places: np.ndarray, colour: str, width: float) -> None:
    style: dict[str, Any] = {
        "color": colour,
        "linewidth": width,
        "clip_on": False,
        "solid_capstyle": "projecting",
    }
    for place in places:
        cell.plot([places[0], places[-1]], [place, place], **style)
        cell.plot([place, place], [places[0], places[-1]], **style)
