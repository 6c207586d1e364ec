"""The paper's figures with the numbers of a table's rows, as SVG files that can be read on their own.

A recipe's facts say how its figure is drawn, `{"kind": ...}`:

- "lines": a curve of the rows. `curve` is its name. `panels` is "columns" (a panel for each column, a line for each
  row; the default) or "rows" (the other way round). `labels` names a list in the rows' details, whose texts stand for
  0, 1, ... along x. `diagonal` draws the line y = x.
- "places": `places` are names along x, `lines` has the rows of each line, one for each place, `level` is the row to
  compare them with. A panel for each column.
- "maps": feature maps that the recipe has saved in `pictures/`: NAME.png is a strip of the image in both poses,
  NAME.maps.png a strip of the maps in both poses. Rows whose names differ only in the last part belong together.

All may have `x` (the title of the axis) and `n` (what the rows' n counts).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from patchreorder.files import write_whole
from patchreorder.laboratory.rows import Result
from patchreorder.untrusted import is_number

from . import text
from .curves import Line, mean_line
from .drawing import FAINT, MARGIN, STYLES, WIDTH, Drawing, Words, add_axes, add_text, finish, frame
from .line_chart import LineChart, Panel, Series
from .tables import Heading, RecipeResults, Table
from .tiles import BadStrip, read_tiles

MAPS = 12  # feature maps of a pose


def draw_figure(table: Table) -> Drawing | None:
    """The figure of a table; None if its recipe has none, or no row for it."""
    how = table.recipe.figure
    draw = {"lines": _lines, "places": _places, "maps": _maps}.get(str(how.get("kind")))
    return draw(table, how) if draw else None


def write(recipes: Sequence[RecipeResults], folder: Path) -> list[Path]:
    """Write the figures of these recipes as NAME.svg or NAME.SETTING.svg, each whole or not at all."""
    files = []
    for table in (table for recipe in recipes for table in recipe.tables):
        if drawing := draw_figure(table):
            setting = "".join(c if c.isalnum() or c in "_=" else "-" for c in table.setting)
            split = "".join(filter(str.isalnum, table.split))
            parts = [table.recipe.name, *[setting] * (setting != "short"), *[split] * (split != "test"), "svg"]
            files.append(folder / ".".join(parts))
            write_whole(files[-1], drawing.svg.encode())
    return files


def _words(table: Table) -> Words:
    """Title, what the recipe and the setting are, and the command and the rows that the figure is made of."""
    results = table.results
    commits = list(dict.fromkeys(result.commit for result in results))
    more = f" and {len(commits) - 4} more" if len(commits) > 4 else ""
    seeds = text.seeds(sorted({result.seed for result in results}))
    command = f"Made by: {table.command}. " if table.command else ""
    return Words(
        title=table.recipe.title,
        about=" ".join(filter(None, [table.recipe.about, table.about[:1].upper() + table.about[1:]])),
        foot=f"{command}{text.count(len(results))} rows, {seeds}, commit {', '.join(commits[:4])}{more}.",
    )


def _alt(table: Table) -> str:
    return f"{table.recipe.title}, setting {table.setting}: the numbers are in the table"


# ---- lines -----------------------------------------------------------------------------------------


def _lines(table: Table, how: Mapping[str, Any]) -> Drawing | None:
    curve = next((curve for curve in table.recipe.curves if curve.name == how.get("curve")), None)
    if curve is None:
        return None
    by_row = how.get("panels") == "rows"
    panels = []
    for heading in table.rows if by_row else table.columns:
        drawn: list[tuple[Series, Sequence[Result]]] = []
        for index, other in enumerate(table.recipe.columns if by_row else table.recipe.rows):
            row, column = (heading, other) if by_row else (other, heading)
            results = table.cell(row, column).results
            if line := mean_line(results, curve):
                drawn.append((Series(_with_stride(other.title, results), line, _style(index)), results))
        if drawn:
            panels.append(_panel(heading, drawn, how))
    if not panels:
        return None
    names = [result.details.get(str(how.get("labels"))) for result in table.results]
    ticks: list[str] = max(([*map(_text, own)] for own in names if isinstance(own, list)), key=len, default=[])
    return LineChart(
        panels=panels,
        x=_text(how.get("x")) or curve.x,
        y=curve.y,
        alt=_alt(table),
        ticks=ticks,
        scale="log" if curve.log else "linear",
        diagonal="the whole shift" if how.get("diagonal") is True else "",
        words=_words(table),
    ).draw()


def _places(table: Table, how: Mapping[str, Any]) -> Drawing | None:
    places, lines = [_text(place) for place in _list(how.get("places"))], how.get("lines")
    if not places or not isinstance(lines, dict):
        return None
    panels = []
    for column in table.columns:
        drawn: list[tuple[Series, Sequence[Result]]] = []
        for index, (title, rows) in enumerate(lines.items(), 1):
            cells = [table.cells.get((_text(row), column.name)) for row in _list(rows)[: len(places)]]
            there = {float(x): cell.results for x, cell in enumerate(cells) if cell and cell.results}
            if there:
                results = [result for own in there.values() for result in own]
                drawn.append((Series(_text(title), _values(there), _style(index)), results))
        level = table.cells.get((_text(how.get("level")), column.name))
        if drawn and level and level.results:
            line = _values(dict.fromkeys(map(float, range(len(places))), level.results))
            drawn.insert(0, (Series("no reordering", line, _style(0)), []))
        if drawn:
            panels.append(_panel(column, drawn, how))
    if not panels:
        return None
    x, y = _text(how.get("x")), table.recipe.metric
    return LineChart(panels=panels, x=x, y=y, alt=_alt(table), ticks=places, shared=False, words=_words(table)).draw()


def _style(index: int) -> Any:
    return STYLES[index % len(STYLES)]


def _values(results: Mapping[float, Sequence[Result]]) -> Line:
    return Line.of({x: [result.value for result in own] for x, own in results.items()})


def _panel(heading: Heading, drawn: Sequence[tuple[Series, Sequence[Result]]], how: Mapping[str, Any]) -> Panel:
    """The panel of some lines, with the n of their rows behind the title."""
    counts = sorted({result.n for _, results in drawn for result in results})
    shown = " to ".join(map(text.count, dict.fromkeys([counts[0], counts[-1]])))
    counted = " ".join(filter(None, [shown, _text(how.get("n"))]))
    return Panel(f"{heading.title} ({counted})", [series for series, _ in drawn])


def _with_stride(title: str, results: Sequence[Result]) -> str:
    stride = results[0].details.get("stride") if results else None
    return f"{title} (stride {stride})" if is_number(stride) else title


# ---- maps ------------------------------------------------------------------------------------------


class Tiles(NamedTuple):
    """The images of one cell: the image in both poses, and the maps of both."""

    row: Heading
    images: np.ndarray
    maps: np.ndarray
    note: str


def _maps(table: Table, how: Mapping[str, Any]) -> Drawing | None:
    groups: dict[str, list[Heading]] = {}
    for row in table.rows:
        groups.setdefault(row.name.rpartition("_")[0], []).append(row)
    blocks = [
        (column, tiles)
        for rows in groups.values()
        for column in table.columns
        if (tiles := [found for row in rows if (found := _tiles(table, row, column))])
    ]
    if not blocks:
        return None
    wide, tall = (WIDTH - 2 * MARGIN) / 2, 1.4 + 1.5 * max(len(tiles) for _, tiles in blocks)
    with frame(_words(table), {}, tall * math.ceil(len(blocks) / 2)) as (figure, top):
        for index, (column, tiles) in enumerate(blocks):
            left, upper = MARGIN + wide * (index % 2), top + tall * (index // 2)
            network = tiles[0].row.title.rpartition(",")[0]
            add_text(figure, left, upper, f"{network}: {column.title} {column.about}", fontsize=10, fontweight="bold")
            for pose, title in enumerate(("as it is", column.title)):
                middle = left + 0.85 + 1.75 * (pose + 0.5)
                add_text(figure, middle, upper + 0.22, title, color=FAINT, ha="center")
                _show(figure, tiles[0].images[pose : pose + 1], middle, upper + 0.4, 0.9)
                for line, own in enumerate(tiles):
                    count = len(own.maps) // 2
                    _show(figure, own.maps[pose * count : (pose + 1) * count], middle, upper + 1.4 + 1.5 * line, 1.15)
            for line, own in enumerate(tiles):
                y = upper + 1.4 + 1.5 * line
                add_text(figure, left, y + 0.4, own.row.title.rpartition(",")[2].strip(), fontsize=10)
                add_text(figure, left + 2.6, y + 1.2, own.note, ha="center")
        return finish(figure, _alt(table))


def _show(figure: Any, tiles: np.ndarray, middle: float, top: float, height: float) -> None:
    """Show tiles as one image, in two rows if there are several."""
    rows = min(2, len(tiles))
    across = math.ceil(len(tiles) / max(1, rows))
    axes = add_axes(figure, middle - 0.8, top, 1.6, height)
    axes.imshow(_joined(tiles, across), interpolation="none")
    axes.set_axis_off()


def _joined(tiles: np.ndarray, across: int) -> np.ndarray:
    """Tiles side by side with transparent gaps, (height, width, 4)."""
    scale = math.ceil(40 / tiles.shape[1])  # so that a gap is narrow
    tiles = tiles.repeat(scale, 1).repeat(scale, 2)
    tiles = np.pad(tiles, ((0, -len(tiles) % across), (0, 0), (0, 0), (0, 0)))
    _, side, _, _ = tiles.shape
    joined = np.zeros((len(tiles), side + 3, side + 3, 4), np.uint8)
    joined[:, :side, :side, :3] = tiles
    joined[:, :side, :side, 3] = 255
    return joined.reshape(-1, across, side + 3, side + 3, 4).swapaxes(1, 2).reshape(-1, across * (side + 3), 4)


def _tiles(table: Table, row: Heading, column: Heading) -> Tiles | None:
    cell = table.cell(row, column)
    if not cell.results:
        return None
    result = cell.results[0]
    file = table.recipe.folder / "pictures" / f"{result.cell.folder}.png"
    try:
        images, maps = read_tiles(file, 2), read_tiles(file.with_name(f"{file.stem}.maps.png"), 2 * MAPS)
    except (FileNotFoundError, BadStrip):
        return None
    image = result.details.get("image")
    cosine: Any = image.get("cosine") if isinstance(image, dict) else None
    own = f"cosine {cosine:.2f}; " if is_number(cosine) else ""
    note = f"{own}mean of {text.count(result.n)} images {cell.mean:.3f}"
    return Tiles(row, images, maps, note) if len(images) == 2 else None


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
