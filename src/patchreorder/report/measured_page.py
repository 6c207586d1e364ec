"""The result of `patchreorder measure` as one HTML file that loads nothing."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from patchreorder.files import write_whole
from patchreorder.untrusted import clean

from . import measured, page, text
from .curves import Line
from .drawing import STYLES, Drawing
from .line_chart import LineChart, Panel, Series
from .mark_chart import MarkChart, MarkPanel, Marks
from .measured import AS_IT_IS, Document, Sweep
from .page import Tile
from .table_charts import Numbers


class LayerMeasure(NamedTuple):
    """One measure of the layers of all networks."""

    title: str
    ceiling: float
    digits: int
    values: Mapping[str, Mapping[str, float]]  # by network and layer


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
    measures = _layer_measures(document)
    return page.rendered(
        "measured.html.j2",
        title=f"How invariant is {clean(' or '.join(names))}?",
        document=document,
        sentences=[clean(sentence) for sentence in measured.summary(document)],
        rates=_rates(document),
        sweeps=_sweeps(document),
        sweep_numbers=[_numbers(document, sweep) for sweep in measured.sweeps(document)],
        layers=_layers(document, measures),
        layer_heads=[f"{measure.title}{_of(document, name)}" for measure in measures for name in names],
        layer_values=_layer_values(document, measures),
        orders=_orders(document),
        pairs=measured.pairs(document),
        unstable=[(name, _unstable(document, name)) for name in names],
        names=[clean(name) for name in names],
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


def _sweeps(document: Document) -> Drawing | None:
    """The rates along all sweeps, on one scale."""
    panels = [
        Panel(
            sweep.title,
            [
                Series(clean(model.name), _line(document, model.name, sweep), style)
                for model, style in zip(document.models, STYLES[1:], strict=False)
            ],
            sweep.x,
        )
        for sweep in measured.sweeps(document)
    ]
    y = f"{document.counted}, %"
    band = "95 % (Wilson), each for its point alone"
    alt = f"{y}: {', '.join(panel.title.lower() for panel in panels)}; the numbers are in the tables below"
    return LineChart(panels=panels, x="", y=y, alt=alt, include=[0, 5], band=band).draw() if panels else None


def _line(document: Document, model: str, sweep: Sweep) -> Line:
    rates = [document.rate(model, pose) for _, pose in sweep.points]
    values, low, high = ([rate[part] for rate in rates] for part in range(3))
    return Line([x for x, _ in sweep.points], values, low, high)


def _numbers(document: Document, sweep: Sweep) -> Numbers:
    lines = [(clean(model.name), _line(document, model.name, sweep)) for model in document.models]
    rows = [(name, [text.number(value, 1) for value in line.mean]) for name, line in lines]
    return Numbers(f"{sweep.title}: {sweep.x}", [text.short(x) for x, _ in sweep.points], rows)


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


def _layer_measures(document: Document) -> list[LayerMeasure]:
    models = [model.name for model in document.models]
    found = []
    for extreme in measured.extremes(document):
        cosines = {model: measured.similarities(document, model, extreme.poses) for model in models}
        found.append(LayerMeasure(f"cosine, {extreme.words}", 1.0, 2, cosines))
    for transform in document.transforms:
        scores = {model: document.find(model, "invariance", transform=transform) for model in models}
        ceiling = max((one.details.get("ceiling", 0.0) for own in scores.values() for one in own), default=0.0)
        values = {
            model: {one.layer: one.value for one in own if one.value is not None} for model, own in scores.items()
        }
        found.append(LayerMeasure(clean(f"invariance score, {transform}"), ceiling, 1, values))
    return [measure for measure in found if any(measure.values.values())]


def _layers(document: Document, measures: Sequence[LayerMeasure]) -> Drawing | None:
    """The measures of all layers, a panel for each measure, from 0 to the highest possible value."""
    layers = _layer_names(document)
    panels = []
    for measure in measures:
        marks = [
            Marks(clean(model), style, [(layers.index(layer), value) for layer, value in own.items()])
            for (model, own), style in zip(measure.values.items(), STYLES[1:], strict=False)
        ]
        panels.append(MarkPanel(measure.title, marks, include=[0, measure.ceiling]))
    alt = "The measures of the layers; the numbers are in the table"
    return MarkChart(panels=panels, rows=[clean(name) for name in layers], x="", alt=alt).draw() if panels else None


def _layer_values(document: Document, measures: Sequence[LayerMeasure]) -> list[tuple[str, list[str]]]:
    """The table of layers: a column for each measure and network."""
    return [
        (clean(layer), [text.number(own.get(layer), m.digits) for m in measures for own in m.values.values()])
        for layer in _layer_names(document)
    ]


def _of(document: Document, model: str) -> str:
    return f", {clean(model)}" if len(document.models) > 1 else ""


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
