"""The result of `patchreorder measure` as one HTML file that loads nothing."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from patchreorder.files import write_whole
from patchreorder.untrusted import clean

from . import charts, measured, page, text
from .charts import Axis, Line, Tick
from .measured import AS_IT_IS, Document, Sweep
from .page import Tile

WIDTH, HEIGHT = 320, 200  # of a chart, in units of the SVG: about pixels
LEFT, RIGHT, TOP, BOTTOM = 36, 312, 8, 176  # where its lines are drawn
BAR = 130  # the longest bar
LOOKS = ("own", "second")  # how the first and the second network are drawn


class Drawn(NamedTuple):
    """A network's line in a chart."""

    title: str
    look: str
    line: str
    band: str
    dots: Sequence[tuple[float, float]]


class Chart(NamedTuple):
    """One sweep for all networks."""

    title: str
    x: str
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    lines: Sequence[Drawn]
    heads: Sequence[str]
    numbers: Sequence[tuple[str, Sequence[str]]]
    alt: str


class Bar(NamedTuple):
    """A network's value of a layer; without a width the value is not known."""

    look: str
    text: str
    width: float | None


class Bars(NamedTuple):
    """One number of all layers, drawn on one scale."""

    title: str
    scale: str
    cells: dict[str, Sequence[Bar]]  # by layer, a bar for each network


class Shown(NamedTuple):
    """An image in the poses that break it."""

    title: str
    tiles: Sequence[Tile]


def write(document: Document, file: Path) -> None:
    """Write the page, whole or not at all."""
    write_whole(file, render(document).encode())


def render(document: Document) -> str:
    """The page; the same document makes the same page. Names of files, classes and networks may be anybody's."""
    names = [model.name for model in document.models]
    return page.rendered(
        "measured.html.j2",
        title=f"How invariant is {clean(' or '.join(names))}?",
        document=document,
        sentences=[clean(sentence) for sentence in measured.summary(document)],
        rates=_rates(document),
        charts_of=_charts(document),
        layers=_layer_names(document),
        bars=_bars(document),
        orders=_orders(document),
        pairs=measured.pairs(document),
        unstable=[(name, _unstable(document, name)) for name in names],
        looks=list(zip(names, LOOKS, strict=False)),
        size=(WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM, BAR),
        clean=clean,
    )


def _rates(document: Document) -> list[tuple[str, list[str]]]:
    """The first table: a line for each kind of pose, a cell for each network."""
    names = [model.name for model in document.models]
    lines = [(AS_IT_IS, [_with_band(document, name) for name in names])] if document.labelled else []
    for extreme in measured.extremes(document):
        values = [text.number(measured.mean_rate(document, name, extreme.poses), 1) for name in names]
        lines.append((extreme.words, values))
    for transform in document.transforms:
        found = [document.find(name, "consistency", transform=transform) for name in names]
        if all(found):
            values = [text.number(own[0].value, 1) for own in found]
            lines.append((f"same prediction in any two poses ({transform})", values))
    return lines


def _with_band(document: Document, model: str) -> str:
    rate = document.rate(model, AS_IT_IS)
    return f"{text.number(rate.value, 1)} ({text.number(rate.low, 1)} to {text.number(rate.high, 1)})"


def _charts(document: Document) -> list[Chart]:
    """All on one scale, so that what breaks a network is seen at once."""
    sweeps = measured.sweeps(document)
    rates = [document.rate(model.name, pose) for model in document.models for s in sweeps for _, pose in s.points]
    highest = max((rate.high for rate in rates), default=0.0)
    return [_chart(document, sweep, Axis([0, max(5.0, highest)], BOTTOM, TOP)) for sweep in sweeps]


def _chart(document: Document, sweep: Sweep, y_axis: Axis) -> Chart:
    xs = [value for value, _ in sweep.points]
    lines = {}
    for model in document.models:
        rates = [document.rate(model.name, pose) for _, pose in sweep.points]
        value, low, high = ([rate[part] for rate in rates] for part in range(3))
        lines[model.name] = Line(xs, value, low, high, seeds=1)
    x_axis = Axis(xs, LEFT, RIGHT, degrees=sweep.title == "Rotated")
    drawn = []
    for (name, line), look in zip(lines.items(), LOOKS, strict=False):
        own = charts.places(line.x, line.mean, x_axis, y_axis)
        drawn.append(Drawn(name, look, charts.path(own), charts.band(line, x_axis, y_axis), own))
    marks = (0, xs.index(0.0), -1)
    told = "; ".join(
        f"{name}: " + ", ".join(f"{charts.short(line.mean[mark])} at {charts.short(xs[mark])}" for mark in marks)
        for name, line in lines.items()
    )
    return Chart(
        title=sweep.title,
        x=sweep.x,
        x_ticks=x_axis.ticks,
        y_ticks=y_axis.ticks,
        lines=drawn,
        heads=[charts.short(x) for x in xs],
        numbers=[(name, [text.number(value, 1) for value in line.mean]) for name, line in lines.items()],
        alt=clean(f"{document.counted}, % by {sweep.x}. {told}"),
    )


def _layer_names(document: Document) -> list[str]:
    """The layers of all networks, each once, in an order that suits all of them if there is one."""
    names: list[str] = []
    for model in document.models:
        place = 0
        for layer in document.layers(model.name):
            if layer in names:
                place = names.index(layer) + 1
            else:
                names.insert(place, layer)
                place += 1
    return names


def _bars(document: Document) -> list[Bars]:
    models = [model.name for model in document.models]
    found = []
    for extreme in measured.extremes(document):
        values = {model: measured.similarities(document, model, extreme.poses) for model in models}
        if any(values.values()):
            found.append(_drawn_bars(document, f"cosine, {extreme.words}", values, 1.0, 2))
    for transform in document.transforms:
        scores = {model: document.find(model, "invariance", transform=transform) for model in models}
        values = {
            model: {one.layer: one.value for one in own if one.value is not None} for model, own in scores.items()
        }
        if any(values.values()):
            ceiling = max(one.details.get("ceiling", 0.0) for own in scores.values() for one in own)
            found.append(_drawn_bars(document, f"invariance score, {transform}", values, ceiling, 1))
    return found


def _drawn_bars(document: Document, title: str, values: dict[str, dict[str, float]], most: float, digits: int) -> Bars:
    looks = dict(zip((model.name for model in document.models), LOOKS, strict=False))
    cells: dict[str, Sequence[Bar]] = {}
    for layer in _layer_names(document):
        cells[layer] = [
            Bar(looks[model], text.number(own.get(layer), digits), _width(own.get(layer), most))
            for model, own in values.items()
        ]
    return Bars(title, f"0 to {text.number(most, 0 if most > 10 else 1)}", cells)


def _width(value: float | None, most: float) -> float | None:
    return None if value is None else round(BAR * min(1.0, max(0.0, value / most)), 1)


def _orders(document: Document) -> list[list[str]]:
    """For each reordering layer and small pose: how often the order changes, and the margins, level by level."""
    lines = []
    for model in document.models:
        for found in document.find(model.name, "order"):
            margins = (found.details.get(name) or [] for name in ("margin_at_flips", "margin_of_neighbours"))
            pose = measured.in_words(document.poses[found.pose])
            rates = text.number(found.value, 1), text.count(found.n)
            levels = (", ".join(text.number(value, 3) for value in values) for values in margins)
            lines.append([model.name, found.layer, pose, *rates, *levels])
    return lines


def _unstable(document: Document, model: str) -> list[Shown]:
    found = []
    for image in document.unstable:
        if image.model == model:
            label = f", label {image.label}" if image.label else ""
            tiles = []
            for pose, prediction, png in image.views:
                text = f"{measured.in_words(document.poses[pose])}: {prediction}{label}"
                tiles.append(Tile("data:image/png;base64," + base64.b64encode(png).decode(), clean(text)))
                label = ""
            others = len(document.poses) - 1
            found.append(Shown(clean(f"{image.image}: prediction changes in {image.changed} of {others} poses"), tiles))
    return found
