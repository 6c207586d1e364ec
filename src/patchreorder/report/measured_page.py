"""The result of `patchreorder measure` as one HTML file that loads nothing."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from patchreorder.files import write_whole
from patchreorder.untrusted import clean

from . import measured, page, text
from .curves import Line
from .drawing import STYLES, Drawing
from .line_chart import LineChart, Panel, Series
from .mark_chart import MarkChart, MarkPanel, Marks
from .measured import Document, LayerMeasure, PoseAxis
from .page import Tile
from .table_charts import Numbers


class Shown(NamedTuple):
    """An unstable image in several poses."""

    title: str
    tiles: Sequence[Tile]


def write(document: Document, file: Path) -> None:
    """Write the page, whole or not at all."""
    write_whole(file, render(document).encode())


def render(document: Document) -> str:
    """The page; the same document makes the same page. Names of files, classes and networks are untrusted."""
    names = [model.name for model in document.models]
    measures = measured.layer_measures(document)
    return page.rendered(
        "measured.html.j2",
        title=f"How invariant is {clean(' or '.join(names))}?",
        document=document,
        sentences=[clean(sentence) for sentence in measured.summary(document)],
        rates=measured.rate_rows(document),
        curves=_curves(document),
        curve_numbers=[_numbers(document, axis) for axis in measured.pose_axes(document)],
        layers=_layers(document, measures),
        layer_heads=[f"{measure.title}{_of(document, name)}" for measure in measures for name in names],
        layer_values=_layer_values(document, measures),
        orders=_orders(document),
        pairs=measured.pairs(document),
        unstable=[(name, _unstable(document, name)) for name in names],
        names=[clean(name) for name in names],
        clean=clean,
    )


def _curves(document: Document) -> Drawing | None:
    """The rates along each axis of poses, on one scale."""
    panels = [
        Panel(
            axis.title,
            [
                Series(clean(model.name), _line(document, model.name, axis), style)
                for model, style in zip(document.models, STYLES[1:], strict=False)
            ],
            axis.x,
        )
        for axis in measured.pose_axes(document)
    ]
    y = f"{document.counted}, %"
    band = "95 % (Wilson), each for its point alone"
    alt = f"{y}: {', '.join(panel.title.lower() for panel in panels)}; the numbers are in the tables below"
    return LineChart(panels=panels, x="", y=y, alt=alt, include=[0, 5], band=band).draw() if panels else None


def _line(document: Document, model: str, axis: PoseAxis) -> Line:
    rates = [document.rate(model, pose) for _, pose in axis.points]
    values, low, high = ([rate[part] for rate in rates] for part in range(3))
    return Line([x for x, _ in axis.points], values, low, high)


def _numbers(document: Document, axis: PoseAxis) -> Numbers:
    lines = [(clean(model.name), _line(document, model.name, axis)) for model in document.models]
    rows = [(name, [text.number(value, 1) for value in line.mean]) for name, line in lines]
    return Numbers(f"{axis.title}: {axis.x}", [text.short(x) for x, _ in axis.points], rows)


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
