"""The paper's figures with the numbers of a table's rows, as SVG files that can be read on their own.

A recipe's facts say how its figure is drawn, `{"kind": ...}`:

- "lines": a curve of the rows. `curve` is its name; `panels` "columns" (a panel for each column, a line for each row:
  the default) or "rows" (the other way round); `labels` names a list of texts in the rows' details that stand for the
  numbers along x; `diagonal` draws the line on which y is x.
- "places": `places` are names along x, `lines` has for every line the rows that belong to them, `level` the row that
  all are to be compared with. A panel for each column.
- "maps": pictures of maps that the recipe has put into `pictures/`: NAME.png with the image as it is and posed, and
  NAME.maps.png with as many maps of the one as of the other. Rows belong together if their names differ in the last
  part alone.

All may have `x` (a title for the axis) and `n` (what the rows' n counts). Colours are told apart with any colour
vision, and lines by dashes and marks as well. Every text is escaped: rows and facts may be anybody's.
"""

from __future__ import annotations

import base64
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape, quoteattr

from patchreorder.files import write_whole
from patchreorder.laboratory.rows import Result
from patchreorder.untrusted import is_number

from . import text
from .charts import Axis, Line, Tick, mean_line
from .plots import COLOURS, FAINT, INK
from .tables import Heading, RecipeResults, Table
from .tiles import tiles

PALETTE = (*COLOURS, "#a03c8c", "#4aa5d8", "#b3261e", "#6b5310", "#0e0e12")
DASHES = ("", "7 3", "2 2.5", "", "9 3 2 3", "5 2", "", "7 3", "")
MARKS = ("circle", "square", "diamond", "triangle", "circle", "square", "diamond", "triangle", "circle")
GRID, WIDTH, MARGIN = "#e2e2e8", 900, 20
FONT = "'DejaVu Sans', 'Segoe UI', Helvetica, Arial, sans-serif"
ACROSS = 3  # panels side by side
TALL = 230  # of the plot in a panel
LARGEST = 4 << 20  # bytes of an SVG: a page must stay readable


class Drawing(NamedTuple):
    """One figure."""

    name: str  # of its file, without .svg
    svg: str
    alt: str

    @property
    def uri(self) -> str:
        """The file's content for an <img>, where nothing in it can run or ask for anything."""
        return "data:image/svg+xml;base64," + base64.b64encode(self.svg.encode()).decode()


class Series(NamedTuple):
    """One line of a panel; `style` is its place in the palette."""

    title: str
    line: Line
    style: int


class Panel(NamedTuple):
    """Lines on one pair of axes."""

    title: str
    series: Sequence[Series]


class Axes(NamedTuple):
    """What the axes of all panels share."""

    x: str
    y: str
    labels: Sequence[str] = ()  # for 0, 1, ... along x
    log: bool = False
    diagonal: bool = False
    marks: bool = True
    shared: bool = True  # one scale up for all panels


def drawings(table: Table) -> list[Drawing]:
    """The figure of a table; [] if its recipe has none, or no row for it."""
    how = table.recipe.figure
    draw = {"lines": _lines, "places": _places, "maps": _maps}.get(str(how.get("kind")))
    found = draw(table, how) if draw else None
    return [found] if found and len(found.svg) <= LARGEST else []


def write(recipes: Sequence[RecipeResults], folder: Path) -> list[Path]:
    """Write the figures of these recipes as NAME.svg, each whole or not at all."""
    files = []
    for recipe in recipes:
        for table in recipe.tables:
            for drawing in drawings(table):
                files.append(folder / f"{drawing.name}.svg")
                write_whole(files[-1], drawing.svg.encode())
    return files


# ---- lines -----------------------------------------------------------------------------------------


def _lines(table: Table, how: Mapping[str, Any]) -> Drawing | None:
    curve = next((curve for curve in table.recipe.curves if curve.name == how.get("curve")), None)
    if curve is None:
        return None
    turned = how.get("panels") == "rows"
    panels: list[Panel] = []
    for named in table.rows if turned else table.columns:
        series: list[Series] = []
        results: list[Result] = []
        for style, other in enumerate(table.recipe.columns if turned else table.recipe.rows):
            row, column = (named, other) if turned else (other, named)
            own = table.cells[row.name, column.name].results
            if line := mean_line(own, curve):
                series.append(Series(_with_stride(other.title, own), line, style % len(PALETTE)))
                results += own
        if series:
            panels.append(Panel(_counted(named.title, results, how), series))
    if not panels:
        return None
    labels = _labels(table, how)
    axes = Axes(
        x=_text(how.get("x")) or curve.x,
        y=curve.y,
        labels=labels,
        log=curve.log,
        diagonal=how.get("diagonal") is True,
        marks=all(len(one.line.x) <= 40 for panel in panels for one in panel.series),
    )
    return _drawn(table, panels, axes)


def _with_stride(title: str, results: Sequence[Result]) -> str:
    stride = results[0].details.get("stride") if results else None
    return f"{title} (stride {stride})" if is_number(stride) else title


def _labels(table: Table, how: Mapping[str, Any]) -> list[str]:
    """The longest list of texts that a row has for the numbers along x."""
    found = [result.details.get(str(how.get("labels"))) for entry in table.cells.values() for result in entry.results]
    lists = [[_text(name) for name in names] for names in found if isinstance(names, list)]
    return max(lists, key=len, default=[])


def _places(table: Table, how: Mapping[str, Any]) -> Drawing | None:
    names = [_text(name) for name in _list(how.get("places"))]
    lines = how.get("lines")
    if not names or not isinstance(lines, dict):
        return None
    panels: list[Panel] = []
    for column in table.columns:
        series: list[Series] = []
        results: list[Result] = []
        for style, (title, rows) in enumerate(lines.items(), 1):
            own = [table.cells.get((_text(row), column.name)) for row in _list(rows)[: len(names)]]
            there = {float(place): entry.results for place, entry in enumerate(own) if entry and entry.results}
            if there:
                series.append(Series(_text(title), _over(there), style % len(PALETTE)))
                results += [result for rows_of in there.values() for result in rows_of]
        level = table.cells.get((_text(how.get("level")), column.name))
        if series and level and level.results:
            line = _over({float(place): level.results for place in range(len(names))})
            series.insert(0, Series("no reordering", line, 0))
        if series:
            panels.append(Panel(_counted(column.title, results, how), series))
    axes = Axes(x=_text(how.get("x")), y=table.recipe.metric, labels=names, shared=False)
    return _drawn(table, panels, axes) if panels else None


def _over(results: Mapping[float, Sequence[Result]]) -> Line:
    values = [[result.value for result in own] for own in results.values()]
    means = [sum(own) / len(own) for own in values]
    return Line(list(results), means, [min(own) for own in values], [max(own) for own in values], max(map(len, values)))


def _counted(title: str, results: Sequence[Result], how: Mapping[str, Any]) -> str:
    """The title with the n of the rows behind it."""
    counts = sorted({result.n for result in results})
    shown = " to ".join(text.count(count) for count in dict.fromkeys([counts[0], counts[-1]])) if counts else ""
    return f"{title} ({shown} {_text(how.get('n'))})".replace(" )", ")") if shown else title


def _drawn(table: Table, panels: Sequence[Panel], axes: Axes) -> Drawing:
    head, top = _head(table, WIDTH)
    unique = {one.title: one for panel in panels for one in panel.series}
    legend, top = _legend(list(unique.values()), axes, top)
    across = min(ACROSS, len(panels))
    wide = (WIDTH - 2 * MARGIN) / across
    spans = _spans(panels)
    xs = [x for panel in panels for one in panel.series for x in one.line.x]
    parts = [*head, *legend]
    for place, panel in enumerate(panels):
        left = MARGIN + wide * (place % across)
        upper = top + (TALL + 104) * (place // across)
        own = spans if axes.shared else _spans([panel])
        parts += _panel(panel, axes, left, upper, wide, xs, own, first=place % across == 0)
    bottom = top + (TALL + 104) * math.ceil(len(panels) / across)
    foot, bottom = _foot(table, WIDTH, bottom)
    return _finished(table, [*parts, *foot], WIDTH, bottom)


def _spans(panels: Sequence[Panel]) -> list[float]:
    return [value for panel in panels for one in panel.series for value in (*one.line.low, *one.line.high)]


def _panel(
    panel: Panel,
    axes: Axes,
    left: float,
    upper: float,
    wide: float,
    xs: Sequence[float],
    spans: Sequence[float],
    *,
    first: bool,
) -> list[str]:
    start, end = left + 66, left + wide - 12
    top, bottom = upper + 28, upper + 28 + TALL
    room = (end - start) / (2 * max(1, len(axes.labels))) if axes.labels else 0
    x_axis = Axis(xs, start + room, end - room)
    span = max(spans) - min(spans)
    if axes.diagonal:
        spans = [*spans, *xs]
    lowest = [] if axes.log else [min(spans) - 0.05 * span, max(spans) + 0.05 * span]
    if not axes.log and min(spans) >= 0 and min(spans) < 0.5 * max(spans):
        lowest = [0, max(spans) + 0.05 * span]
    y_axis = Axis([*spans, *lowest], bottom, top, scale="log" if axes.log else "")
    parts = [_label(panel.title, start, upper + 16, size=13, weight="bold")]
    for tick in _decades(y_axis) if axes.log else y_axis.ticks:
        parts.append(f'<path d="M{start:g},{tick.at:g}H{end:g}" stroke="{GRID}"/>')
        parts.append(_label(_power(tick.label), start - 7, tick.at + 4, size=12, colour=FAINT, anchor="end"))
    ticks = [Tick(round(x_axis.at(place), 1), name) for place, name in enumerate(axes.labels)] or x_axis.ticks
    slanted = bool(axes.labels) and max(map(len, axes.labels)) * 6.6 > (end - start) / len(axes.labels) - 4
    for tick in ticks:
        parts.append(f'<path d="M{tick.at:g},{bottom:g}v4" stroke="{FAINT}"/>')
        if slanted:
            turn = f' transform="rotate(-40 {tick.at:g} {bottom + 15:g})"'
            parts.append(_label(tick.label, tick.at + 4, bottom + 15, size=12, colour=FAINT, anchor="end", more=turn))
        else:
            parts.append(_label(tick.label, tick.at, bottom + 18, size=12, colour=FAINT, anchor="middle"))
    parts.append(f'<path d="M{start:g},{top:g}V{bottom:g}H{end:g}" fill="none" stroke="{FAINT}"/>')
    if axes.diagonal:
        low, high = max(min(xs), y_axis.low), min(max(xs), y_axis.high)
        ends = [(x_axis.at(value), y_axis.at(value)) for value in (low, high)]
        parts.append(f'<path d="{_path(ends)}" stroke="{INK}" stroke-width="1" stroke-dasharray="1.5 3" fill="none"/>')
    for one in panel.series:
        parts += _curve(one, axes, x_axis, y_axis)
    parts.append(_label(axes.x, (start + end) / 2, bottom + (56 if slanted else 38), size=12.5, anchor="middle"))
    if first:
        middle = (top + bottom) / 2
        turn = f' transform="rotate(-90 {left + 10:g} {middle:g})"'
        parts.append(_label(axes.y, left + 10, middle, size=12.5, anchor="middle", more=turn))
    return parts


def _decades(axis: Axis) -> Sequence[Tick]:
    """Powers of ten alone, where there are enough of them."""
    powers = [tick for tick in axis.ticks if f"{float(tick.label.replace(text.MINUS, '-')):e}".startswith("1.000000")]
    return powers if len(powers) > 2 else axis.ticks


def _curve(one: Series, axes: Axes, x_axis: Axis, y_axis: Axis) -> list[str]:
    colour, parts = PALETTE[one.style], []
    places = [(x_axis.at(x), y_axis.at(y)) for x, y in zip(one.line.x, one.line.mean, strict=True)]
    if one.line.seeds > 1:
        there = [(x_axis.at(x), y_axis.at(y)) for x, y in zip(one.line.x, one.line.high, strict=True)]
        back = [(x_axis.at(x), y_axis.at(y)) for x, y in zip(one.line.x, one.line.low, strict=True)]
        parts.append(f'<path d="{_path(there + back[::-1])}Z" fill="{colour}" fill-opacity="0.18"/>')
    parts.append(_stroke(_path(places), one.style, width=2 if axes.marks else 1.7))
    if axes.marks:
        parts += [_mark(x, y, one.style) for x, y in places]
    return parts


def _stroke(path: str, style: int, width: float) -> str:
    dash = f' stroke-dasharray="{DASHES[style]}"' if DASHES[style] else ""
    colour = f'fill="none" stroke="{PALETTE[style]}"'
    return f'<path d="{path}" {colour} stroke-width="{width:g}" stroke-linejoin="round"{dash}/>'


def _mark(x: float, y: float, style: int) -> str:
    shape = {
        "square": f"M{x - 3.5:.1f},{y - 3.5:.1f}h7v7h-7Z",
        "diamond": f"M{x:.1f},{y - 5:.1f}l5,5l-5,5l-5,-5Z",
        "triangle": f"M{x:.1f},{y - 5:.1f}l5,9h-10Z",
        "circle": f"M{x - 4:.1f},{y:.1f}a4,4 0 1,0 8,0a4,4 0 1,0 -8,0Z",
    }[MARKS[style]]
    return f'<path d="{shape}" fill="{PALETTE[style]}" stroke="white" stroke-width="0.8"/>'


def _legend(series: Sequence[Series], axes: Axes, top: float) -> tuple[list[str], float]:
    """A sample of each line with its name, in as many lines of text as they need."""
    parts: list[str] = []
    x, y = float(MARGIN), top + 8
    several = any(one.line.seeds > 1 for one in series)
    texts = [(one.title, one.style) for one in series]
    for title, style in texts:
        needed = 46 + 7.4 * len(title)
        if x + needed > WIDTH - MARGIN and x > MARGIN:
            x, y = float(MARGIN), y + 22
        parts.append(_stroke(f"M{x:g},{y - 4:g}h30", style, 2))
        if axes.marks:
            parts.append(_mark(x + 15, y - 4, style))
        parts.append(_label(title, x + 37, y, size=13))
        x += needed + 14
    notes = [
        *(["band: smallest to largest seed"] if several else []),
        *(["dotted: the whole shift"] if axes.diagonal else []),
    ]
    for note in notes:
        if x + 6.6 * len(note) > WIDTH - MARGIN and x > MARGIN:
            x, y = float(MARGIN), y + 22
        parts.append(_label(note, x, y, size=12, colour=FAINT))
        x += 6.6 * len(note) + 20
    return parts, y + 18


# ---- maps ------------------------------------------------------------------------------------------


class Strip(NamedTuple):
    """The pictures of one cell: the image as it is and posed, and maps of both."""

    images: Sequence[str]
    maps: Sequence[str]
    cosine: float | None  # of this image
    result: Result


def _maps(table: Table, how: Mapping[str, Any]) -> Drawing | None:
    groups: dict[str, list[Heading]] = {}
    for row in table.rows:
        groups.setdefault(row.name.rpartition("_")[0], []).append(row)
    found = {(row.name, column.name): _strip(table, row, column) for row in table.rows for column in table.columns}
    blocks = [
        (column, [(row, strip) for row in rows if (strip := found[row.name, column.name])])
        for rows in groups.values()
        for column in table.columns
    ]
    blocks = [(column, rows) for column, rows in blocks if rows]
    if not blocks:
        return None
    head, top = _head(table, WIDTH)
    parts, wide = list(head), (WIDTH - 2 * MARGIN) / 2
    tallest = max(len(rows) for _, rows in blocks)
    tall = 150 + tallest * 150
    for place, (column, rows) in enumerate(blocks):
        left, upper = MARGIN + wide * (place % 2), top + tall * (place // 2)
        parts += _block(column, rows, left, upper, wide, table)
    bottom = top + tall * math.ceil(len(blocks) / 2)
    foot, bottom = _foot(table, WIDTH, bottom)
    return _finished(table, [*parts, *foot], WIDTH, bottom)


def _block(
    column: Heading, rows: Sequence[tuple[Heading, Strip]], left: float, upper: float, wide: float, table: Table
) -> list[str]:
    """One pose of one network: the images, then the maps before and after, side by side as it is and posed."""
    name = rows[0][0].title.rpartition(",")[0]
    half, parts = (
        (wide - 100) / 2,
        [_label(f"{name}: {column.title} {column.about}", left, upper + 16, size=14, weight="bold")],
    )
    for side, (what, image) in enumerate(zip(("as it is", column.title), rows[0][1].images, strict=False)):
        middle = left + 84 + side * half + half / 2
        parts.append(_label(what, middle, upper + 38, size=12, colour=FAINT, anchor="middle"))
        parts.append(_image(image, middle - 44, upper + 46, 88))
    for place, (row, strip) in enumerate(rows):
        y = upper + 150 + place * 150
        where = row.title.rpartition(",")[2].strip()
        parts.append(_label(where, left, y + 48, size=13))
        count = len(strip.maps) // 2
        columns = math.ceil(count / 2)
        size = min(54.0, (half - 14) / max(1, columns) - 4)
        for index, tile in enumerate(strip.maps[: 2 * count]):
            side, own = divmod(index, count)
            x = left + 84 + side * half + (half - columns * (size + 4)) / 2 + own % columns * (size + 4)
            parts.append(_image(tile, x, y + own // columns * (size + 4), size))
        own_cosine = f"cosine {strip.cosine:.2f}; " if strip.cosine is not None else ""
        entry = table.cells[row.name, column.name]
        mean = f"mean of {text.count(strip.result.n)} images {entry.mean:.3f}"
        parts.append(_label(own_cosine + mean, left + 84 + half, y + 2 * (size + 4) + 14, size=12.5, anchor="middle"))
    return parts


def _strip(table: Table, row: Heading, column: Heading) -> Strip | None:
    results = table.cells[row.name, column.name].results
    if not results:
        return None
    file = table.recipe.folder / "pictures" / f"{results[0].cell.folder}.png"
    try:
        images, maps = tiles(file, 2), tiles(file.with_name(f"{file.stem}.maps.png"), 2 * 12)
    except (OSError, ValueError, SyntaxError, Warning):  # Pillow raises all of these for bad files
        return None
    shown = results[0].details.get("image")
    cosine: Any = shown.get("cosine") if isinstance(shown, dict) else None
    return Strip(images, maps, float(cosine) if is_number(cosine) else None, results[0])


def _image(uri: str, x: float, y: float, size: float) -> str:
    return (
        f'<image x="{x:.1f}" y="{y:.1f}" width="{size:.1f}" height="{size:.1f}" href={quoteattr(uri)} '
        f'preserveAspectRatio="none" style="image-rendering:pixelated"/>'
        f'<path d="M{x:.1f},{y:.1f}h{size:.1f}v{size:.1f}h-{size:.1f}Z" fill="none" stroke="{GRID}"/>'
    )


# ---- what all figures have -------------------------------------------------------------------------


def _head(table: Table, width: float) -> tuple[list[str], float]:
    """Title, and what the recipe and the setting are; and where they end."""
    lines = textwrap.wrap(table.recipe.title, 78)
    parts = [_label(line, MARGIN, 32 + 24 * place, size=19, weight="bold") for place, line in enumerate(lines)]
    top = 32 + 24 * len(lines)
    about = " ".join(filter(None, [table.recipe.about, _capital(table.about)]))
    for line in textwrap.wrap(about, int((width - 2 * MARGIN) / 6.6)):
        parts.append(_label(line, MARGIN, top, size=12.5, colour=FAINT))
        top += 17
    return parts, top + 14


def _foot(table: Table, width: float, top: float) -> tuple[list[str], float]:
    """The command that made it, and of which rows."""
    results = [result for entry in table.cells.values() for result in entry.results]
    seeds = sorted({result.seed for result in results})
    commits = list(dict.fromkeys(result.commit for result in results))
    more = f" and {len(commits) - 4} more" if len(commits) > 4 else ""
    told = f"Made by: {table.command}. " if table.command else ""
    told += f"{text.count(len(results))} rows, {text.seeds(seeds)}, commit {', '.join(commits[:4])}{more}."
    parts = []
    for line in textwrap.wrap(told, int((width - 2 * MARGIN) / 6.4)):
        parts.append(_label(line, MARGIN, top + 10, size=11.5, colour=FAINT))
        top += 16
    return parts, top + 10


def _finished(table: Table, parts: Sequence[str], width: float, height: float) -> Drawing:
    setting = (
        "" if table.setting == "short" else "." + "".join(c if c.isalnum() or c in "_=" else "-" for c in table.setting)
    )
    split = "" if table.split == "test" else f".{''.join(filter(str.isalnum, table.split))}"
    alt = f"{table.recipe.title}, setting {table.setting}: the numbers are in the table"
    svg = "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
            f'height="{height:g}" role="img" aria-label={quoteattr(alt)} font-family="{FONT}">',
            f"<title>{escape(table.recipe.title)}</title>",
            f'<rect width="{width:g}" height="{height:g}" fill="white"/>',
            *parts,
            "</svg>\n",
        ]
    )
    return Drawing(f"{table.recipe.name}{setting}{split}", svg, alt)


def _label(
    text: str,
    x: float,
    y: float,
    *,
    size: float,
    colour: str = INK,
    anchor: str = "start",
    weight: str = "normal",
    more: str = "",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{colour}" text-anchor="{anchor}" '
        f'font-weight="{weight}"{more}>{escape(text)}</text>'
    )


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _power(label: str) -> str:
    """1e-05 as a power of ten that people read."""
    lead, e, exponent = label.replace(text.MINUS, "-").partition("e")
    if not e:
        return label
    raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{raised}" if lead == "1" else f"{lead}·10{raised}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
