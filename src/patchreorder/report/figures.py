"""The paper's figures with the numbers of a table's rows, as SVG files that can be read on their own.

A recipe's facts say how its figure is drawn, `{"kind": ...}`:

- "lines": a curve of the rows. `curve` is its name. `panels` is "columns" (a panel for each column, a line for each
  row; the default) or "rows" (the other way round). `labels` names a list in the rows' details, whose texts stand for
  0, 1, ... along x. `diagonal` draws the line y = x.
- "places": `places` are names along x, `lines` has the rows of each line, one for each place, `level` is the row to
  compare them with. A panel for each column.
- "counts": a line for each row over the number of training images. `panels` has a title for each letter; columns are
  called after the letter and the number, such as R500.
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
from .drawing import FAINT, RULE, STYLES, Drawing, finish, frame
from .folder import as_list, as_text
from .line_chart import LineChart, Panel, Series
from .tables import Heading, RecipeResults, Table
from .tiles import BadStrip, read_tiles

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MAPS = 12  # feature maps of a pose


def draw_figure(table: Table) -> Drawing | None:
    """The figure of a table; None if its recipe has none, or no row for it."""
    how = table.recipe.figure
    draw = {"lines": _lines, "places": _places, "counts": _counts, "maps": _maps}.get(str(how.get("kind")))
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


def _words(table: Table) -> dict[str, Any]:
    """The text around a figure: what the recipe and the setting are; the command and the rows that it is made of."""
    results = table.results
    commits = list(dict.fromkeys(result.commit for result in results))
    more = f" and {len(commits) - 4} more" if len(commits) > 4 else ""
    seeds = text.seeds(sorted({result.seed for result in results}))
    command = f"Made by: {table.command}. " if table.command else ""
    return {
        "title": table.recipe.title,
        "about": " ".join(filter(None, [table.recipe.about, table.about[:1].upper() + table.about[1:]])),
        "foot": f"{command}{text.count(len(results))} rows, {seeds}, commit {', '.join(commits[:4])}{more}.",
    }


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
    ticks: list[str] = max(([*map(as_text, own)] for own in names if isinstance(own, list)), key=len, default=[])
    return LineChart(
        panels=panels,
        x=as_text(how.get("x")) or curve.x,
        y=curve.y,
        alt=_alt(table),
        ticks=ticks,
        log=curve.log,
        diagonal="the whole shift" if how.get("diagonal") is True else "",
        **_words(table),
    ).draw()


def _places(table: Table, how: Mapping[str, Any]) -> Drawing | None:
    places, lines = [as_text(place) for place in as_list(how.get("places"))], how.get("lines")
    if not places or not isinstance(lines, dict):
        return None
    level = {"no reordering": [how.get("level")] * len(places)}
    panels = []
    for column in table.columns:
        drawn: list[tuple[Series, Sequence[Result]]] = []
        for index, (title, rows) in enumerate({**level, **lines}.items()):
            cells = [table.cells.get((as_text(row), column.name)) for row in as_list(rows)[: len(places)]]
            there = {float(x): cell.results for x, cell in enumerate(cells) if cell and cell.results}
            line = Line.of({x: [result.value for result in results] for x, results in there.items()})
            if there:
                results = [result for own in there.values() for result in own]
                drawn.append((Series(as_text(title), line, _style(index)), results))
        if drawn:
            panels.append(_panel(column, drawn, how))
    if not panels:
        return None
    x, y = as_text(how.get("x")), table.recipe.metric
    return LineChart(panels=panels, x=x, y=y, alt=_alt(table), ticks=places, shared=False, **_words(table)).draw()


def _counts(table: Table, how: Mapping[str, Any]) -> Drawing | None:
    """Rows over the number of training images; a column is called after its panel and that number."""
    names = how.get("panels")
    panels = []
    ticks = sorted({int(count) for column in table.columns if (count := column.name.lstrip(LETTERS)).isdecimal()})
    for letter, title in names.items() if isinstance(names, dict) else ():
        drawn: list[tuple[Series, Sequence[Result]]] = []
        for index, row in enumerate(table.recipe.rows):
            cells = [table.cells.get((row.name, f"{letter}{count}")) for count in ticks]
            there = {float(x): cell.results for x, cell in enumerate(cells) if cell and cell.results}
            if there:
                line = Line.of({x: [result.value for result in results] for x, results in there.items()})
                drawn.append((Series(row.title, line, _style(index)), [r for own in there.values() for r in own]))
        if drawn:
            panels.append(_panel(Heading(as_text(letter), as_text(title)), drawn, how))
    if not panels:
        return None
    x, y = as_text(how.get("x")), table.recipe.metric
    shown = [f"{count:,}" for count in ticks]
    return LineChart(panels=panels, x=x, y=y, alt=_alt(table), ticks=shown, log=True, **_words(table)).draw()


def _style(index: int) -> Any:
    return STYLES[index % len(STYLES)]


def _panel(heading: Heading, drawn: Sequence[tuple[Series, Sequence[Result]]], how: Mapping[str, Any]) -> Panel:
    """The panel of some lines, with the n of their rows behind the title."""
    counts = sorted({result.n for _, results in drawn for result in results})
    shown = " to ".join(map(text.count, dict.fromkeys([counts[0], counts[-1]])))
    counted = " ".join(filter(None, [shown, as_text(how.get("n"))]))
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
    lines, down = 1 + max(len(tiles) for _, tiles in blocks), math.ceil(len(blocks) / 2)
    body = 1.7 * lines * down
    with frame(body, {}, **_words(table)) as (figure, top):
        tall = figure.get_figheight()
        ends = {"left": 0.1, "right": 0.98, "top": 1 - (top + 0.45) / tall, "bottom": 1 - (top + body - 0.35) / tall}
        cells = figure.subplots(lines * down, 4, squeeze=False, gridspec_kw={**ends, "wspace": 0.3, "hspace": 0.6})
        for cell in cells.flat:
            cell.set(xticks=[], yticks=[])
            cell.spines[:].set_visible(False)
        for index, (column, tiles) in enumerate(blocks):
            own = cells[index // 2 * lines :, index % 2 * 2 :]
            network = tiles[0].row.title.rpartition(",")[0]
            own[0, 0].set_title(f"{network}: {column.title}\n{column.about}")
            for pose, title in enumerate(("as it is", column.title)):
                own[0, pose].imshow(tiles[0].images[pose], interpolation="none")
                own[0, pose].set_xlabel(title, color=FAINT)
                own[0, pose].spines[:].set(visible=True, color=RULE)
                for cell, found in zip(own[1:, pose], tiles, strict=False):
                    cell.imshow(_joined(np.array_split(found.maps, 2)[pose]), interpolation="none")
            for cell, found in zip(own[1:, 0], tiles, strict=False):
                cell.set_ylabel(found.row.title.rpartition(",")[2].strip(), rotation=0, ha="right", va="center")
                cell.set_xlabel(found.note, loc="left")
        return finish(figure, _alt(table))


def _joined(tiles: np.ndarray) -> np.ndarray:
    """Tiles in two rows, with transparent gaps, (height, width, 4)."""
    tiles = tiles[: len(tiles) // 2 * 2]
    tiles = tiles.repeat(math.ceil(40 / tiles.shape[1]), 1).repeat(math.ceil(40 / tiles.shape[1]), 2)
    tiles = np.pad(tiles, ((0, 0), (0, 0), (0, 0), (0, 1)), constant_values=255)
    tiles = np.pad(tiles, ((0, 0), (0, 3), (0, 3), (0, 0)))
    count, side, _, _ = tiles.shape
    return tiles.reshape(2, count // 2, side, side, 4).swapaxes(1, 2).reshape(2 * side, count // 2 * side, 4)


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
    return Tiles(row, images, maps, note) if len(images) == 2 and len(maps) >= 4 else None
