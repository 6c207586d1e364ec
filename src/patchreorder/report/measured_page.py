"""The result of `patchreorder measure` as one HTML file that loads nothing."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from patchreorder.files import write_whole
from patchreorder.untrusted import clean

from . import measured, measured_poses, page, text
from .curves import Line
from .drawing import STYLES, Drawing
from .line_chart import LineChart, Panel, Series
from .mark_chart import MarkChart, MarkPanel, Marks
from .measured import Document
from .measured_layers import LayerMeasure, layer_measures, modules_sheet
from .measured_poses import PoseAxis
from .page import Tile
from .sheets import Sheet


class Shown(NamedTuple):
    """An unstable image in several poses."""

    title: str
    tiles: Sequence[Tile]


def write(document: Document, file: Path) -> None:
    """Write the page, whole or not at all."""
    write_whole(file, render(document).encode())


def render(document: Document) -> str:
    """The page; the same document makes the same page."""
    names = [model.name for model in document.models]
    measures = layer_measures(document)
    return page.rendered(
        "measured.html.j2",
        title=f"How invariant is {' or '.join(names)}?",
        document=document,
        sentences=measured.summary(document),
        rates=measured.rates_sheet(document),
        curves=_curves(document),
        curve_sheets=[_curve_sheet(document, axis) for axis in measured_poses.pose_axes(document.poses)],
        pairs=_pairs_sheet(document),
        layers=_layers(document, measures),
        layer_sheet=_layer_sheet(document, measures),
        modules=[sheet for name in names if (sheet := modules_sheet(document, name)).rows],
        orders=_orders_sheet(document),
        unstable=[(name, _unstable(document, name)) for name in names],
    )


def _curves(document: Document) -> Drawing | None:
    """The rates along each axis of poses, on one scale."""
    panels = [
        Panel(
            axis.title,
            [
                Series(clean(model.name), _line(document, model.name, axis), style)
                for model, style in zip(document.models, itertools.cycle(STYLES[1:]), strict=False)
            ],
            axis.x,
        )
        for axis in measured_poses.pose_axes(document.poses)
    ]
    y = f"{document.counted}, %"
    band = "95 % (Wilson), each for its point alone"
    alt = f"{y}: {', '.join(panel.title.lower() for panel in panels)}; the numbers are in the tables below"
    return LineChart(panels=panels, x="", y=y, alt=alt, include=[0, 5], band=band).draw() if panels else None


def _line(document: Document, model: str, axis: PoseAxis) -> Line:
    rates = [document.rate(model, pose) for _, pose in axis.points]
    values, low, high = ([rate[part] for rate in rates] for part in range(3))
    return Line([x for x, _ in axis.points], values, low, high)


def _curve_sheet(document: Document, axis: PoseAxis) -> Sheet:
    lines = [(model.name, _line(document, model.name, axis)) for model in document.models]
    rows = [[name, *(text.number(value, 1) for value in line.mean)] for name, line in lines]
    return Sheet(f"{axis.title}: {axis.x}", ["network", *(text.short(x) for x, _ in axis.points)], rows)


def _pairs_sheet(document: Document) -> Sheet:
    rows = [
        [
            *(" and ".join(pair.names), pair.where, pair.verdict),
            *(text.number(pair.first, 1), text.number(pair.second, 1)),
            *(text.count(pair.test.only_a), text.count(pair.test.only_b), text.chance(pair.test.p)),
        ]
        for pair in measured.pairs(document)
    ]
    heads = ["networks", "poses", "verdict", "first, %", "second, %", "worse for the first", "for the second"]
    return Sheet("Two networks, image by image", [*heads, "sign test"], rows, texts=3)


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
            Marks(
                clean(model),
                style,
                [
                    (layers.index(layer), value, *measure.ends.get(model, {}).get(layer, ()))
                    for layer, value in own.items()
                ],
            )
            for (model, own), style in zip(measure.values.items(), itertools.cycle(STYLES[1:]), strict=False)
        ]
        panels.append(MarkPanel(clean(measure.title), marks, include=[0, measure.ceiling]))
    alt = "The measures of the layers; the numbers are in the table"
    return MarkChart(panels=panels, rows=[clean(name) for name in layers], x="", alt=alt).draw() if panels else None


def _layer_sheet(document: Document, measures: Sequence[LayerMeasure]) -> Sheet:
    """A row for each layer, a column for each measure and network."""
    columns = [(measure, name, own) for measure in measures for name, own in measure.values.items()]
    several = len(document.models) > 1
    heads = [f"{measure.title}, {name}" if several else measure.title for measure, name, _ in columns]
    layers = _layer_names(document)
    rows = [[layer, *(measure.cell(name, layer) for measure, name, _ in columns)] for layer in layers]
    return Sheet("Layers", ["layer", *heads], rows)


def _orders_sheet(document: Document) -> Sheet:
    """For each reordering layer and small pose: how often the order changes, and the margins, level by level."""
    rows = []
    for model in document.models:
        for found in document.find(model.name, "order"):
            margins = (found.details.get(name) or [] for name in ("margin_at_flips", "margin_of_neighbours"))
            pose = measured_poses.in_words(document.poses[found.pose])
            rates = text.number(found.value, 1), text.count(found.n)
            levels = (", ".join(text.number(value, 3) for value in values) for values in margins)
            rows.append([model.name, found.layer, pose, *rates, *levels])
    heads = ["network", "layer", "pose", "maps with a changed order, %", "of maps", "margin of swapped patches"]
    return Sheet("Order of the patches", [*heads, "margin of successive patches"], rows, texts=3)


def _unstable(document: Document, model: str) -> list[Shown]:
    found = []
    for image in document.unstable:
        if image.model == model:
            label = f", label {image.label}" if image.label else ""
            tiles = []
            for pose, prediction, png in image.views:
                caption = f"{measured_poses.in_words(document.poses[pose])}: {prediction}{label}"
                tiles.append(Tile("data:image/png;base64," + base64.b64encode(png).decode(), caption))
                label = ""
            others = len(document.poses) - 1
            found.append(Shown(f"{image.image}: prediction changes in {image.changed} of {others} poses", tiles))
    return found
