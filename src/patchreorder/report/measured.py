"""What `patchreorder measure` found, in words and tables: one network, or two on the same images."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from patchreorder.files import write_whole
from patchreorder.untrusted import clean

from . import text
from .comparison import McNemar, mcnemar

AS_IT_IS = "as it is"
LEAST = 0.5  # points: of smaller losses nobody asks where they come from


@dataclass(frozen=True, kw_only=True)
class Row:
    """One number: of a network's answers in a pose or over a grid, or of a layer."""

    model: str
    measure: str  # error, agreement, consistency, invariance, similarity or order
    value: float | None
    layer: str = ""
    grid: str = ""
    pose: str = ""
    low: float | None = None
    high: float | None = None
    n: int = 0
    indices: Sequence[int] = ()  # images with a wrong, or another, answer
    facts: Mapping[str, Any] = field(default_factory=dict)


class Model(NamedTuple):
    """A network that was measured, and what that cost."""

    name: str
    weights: str
    answers: int  # numbers that it gives
    forwards: int
    seconds: float
    cpu_seconds: float


class Worst(NamedTuple):
    """An image that a network answers differently in other poses: a text for each of its pictures (PNG)."""

    model: str
    image: str
    changed: int
    pictures: Sequence[bytes]
    texts: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Document:
    """Everything that one run found; `write` makes a JSON file of it, but for the pictures."""

    images: str
    n: int
    labelled: bool
    models: Sequence[Model]
    poses: Mapping[str, Sequence[float]]  # degrees, parts of the height down, and of the width to the right
    grids: Mapping[str, Sequence[str]]
    rows: Sequence[Row]
    worst: Sequence[Worst] = ()
    bad: Sequence[str] = ()
    seed: int = 0
    command: str = ""
    origin: Mapping[str, Any] = field(default_factory=dict)  # commit, versions, machine, date

    def find(self, model: str, measure: str, **wanted: str) -> list[Row]:
        """The rows of a network and a measure, in their order, that have these values."""
        return [
            row
            for row in self.rows
            if (row.model, row.measure) == (model, measure)
            and all(getattr(row, name) == value for name, value in wanted.items())
        ]

    def rate(self, model: str, pose: str) -> Rate:
        """Wrong answers in a pose, in percent; without labels, answers that are not those for the image as it is."""
        if self.labelled:
            row = self.find(model, "error", pose=pose)[0]
            return Rate(row.value or 0.0, row.low or 0.0, row.high or 0.0)
        row = self.find(model, "agreement", pose=pose)[0]
        return Rate(100 - (row.value or 0.0), 100 - (row.high or 0.0), 100 - (row.low or 0.0))

    @property
    def counted(self) -> str:
        """What rates are of."""
        return "wrong answers" if self.labelled else "other answers than for the image as it is"

    def layers(self, model: str) -> list[str]:
        """The layers of a network that were measured, in its order."""
        # Rows of order come last, whatever the layer's place.
        own = sorted(
            (row for row in self.rows if row.model == model and row.layer), key=lambda row: row.measure == "order"
        )
        return list(dict.fromkeys(row.layer for row in own))


class Rate(NamedTuple):
    """In percent, with its band."""

    value: float
    low: float
    high: float


class Sweep(NamedTuple):
    """The poses along one line, the image as it is among them."""

    title: str
    x: str  # what is along the line
    points: list[tuple[float, str]]  # value and pose, ascending


class Extreme(NamedTuple):
    """The farthest poses of one kind, in words."""

    words: str  # such as "turned by 45°"
    poses: list[str]


def sweeps(document: Document) -> list[Sweep]:
    """The lines that the poses lie on: turns, shifts to the right, shifts down, and both at once."""
    found = []
    for title, x, of in (
        ("Turned", "angle, degrees (counter-clockwise)", lambda d, y, x: d if not (x or y) else 0),
        ("Shifted sideways", "shift to the right, % of the width", lambda d, y, x: 100 * x if not (d or y) else 0),
        ("Shifted up and down", "shift down, % of the height", lambda d, y, x: 100 * y if not (d or x) else 0),
        ("Shifted diagonally", "shift right and down, %", lambda d, y, x: 100 * y if x == y and not d else 0),
    ):
        points = [(round(value, 6), name) for name, pose in document.poses.items() if (value := of(*pose))]
        if points:
            found.append(Sweep(title, x, sorted([*points, (0.0, AS_IT_IS)])))
    return found


def extremes(document: Document) -> list[Extreme]:
    """The farthest turns, and the farthest shifts of all directions."""
    found: dict[str, list[str]] = {}
    for sweep in sweeps(document):
        most = max(abs(value) for value, _ in sweep.points)
        words = f"turned by {most:g}°" if sweep.title == "Turned" else f"shifted by {most:g} %"
        found.setdefault(words, []).extend(name for value, name in sweep.points if abs(value) == most)
    return [Extreme(*pair) for pair in found.items()]


def in_words(pose: Sequence[float]) -> str:
    """A pose in words.

    >>> in_words((9.0, 0, 0)), in_words((0, 0, -0.04)), in_words((0, 0.2, 0.2))
    ('turned 9° left', 'shifted 4 % left', 'shifted 20 % down, 20 % right')
    """
    degrees, down, right = pose
    turned = [f"turned {abs(degrees):g}° {'left' if degrees > 0 else 'right'}"] if degrees else []
    moved = [
        f"{abs(100 * value):.3g} % {words[value > 0]}"
        for value, words in ((down, ("up", "down")), (right, ("left", "right")))
        if value
    ]
    return ", ".join(turned + ([f"shifted {', '.join(moved)}"] if moved else [])) or AS_IT_IS


def mean_rate(document: Document, model: str, poses: Sequence[str]) -> float:
    """The mean of a network's rates in some poses."""
    return sum(document.rate(model, pose).value for pose in poses) / len(poses)


def similarities(document: Document, model: str, poses: Sequence[str]) -> dict[str, float]:
    """The mean similarity of each layer in some poses, in the order of the network; those that are known."""
    found: dict[str, list[float]] = {}
    for row in document.find(model, "similarity"):
        if row.pose in poses and row.value is not None:
            found.setdefault(row.layer, []).append(row.value)
    return {layer: sum(values) / len(values) for layer, values in found.items()}


def summary(document: Document) -> list[str]:
    """What was found, in plain words: a sentence for each network and kind of pose, and one for each test of two."""
    said = []
    for model in document.models:
        upright = document.rate(model.name, AS_IT_IS).value
        if document.labelled:
            of = f"{text.number(upright, 1)} % of {text.count(document.n)} images"
            said.append(f"{model.name} is wrong about {of} as they are.")
        for extreme in extremes(document):
            there = mean_rate(document, model.name, extreme.poses)
            if document.labelled:
                loss = there - upright
                what = f"loses {loss:.1f} points" if loss >= 0.05 else "loses nothing" if loss > -0.05 else ""
                what = what or f"gains {-loss:.1f} points"
            else:
                loss = there
                what = f"changes its answer for {there:.1f} % of the images"
            where = _where(document, model.name, extreme) if loss >= LEAST else ""
            said.append(f"{model.name} {what} when {extreme.words}{where}.")
    said += [_compared(document, pair) for pair in pairs(document)]
    return said


def _where(document: Document, model: str, extreme: Extreme) -> str:
    """The layer behind which features are less alike than before it, by the most."""
    found = list(similarities(document, model, extreme.poses).items())
    drops = {
        after: (before_value - value, before, before_value, value)
        for (before, before_value), (after, value) in itertools.pairwise(found)
    }
    drops = {layer: drop for layer, drop in drops.items() if drop[0] > 0.005}
    if not drops:
        return "; no layer makes its features less alike than those before it" if len(found) > 1 else ""
    layer, (drop, before, high, low) = max(drops.items(), key=lambda item: item[1][0])
    most = drop > sum(other for other, *_ in drops.values()) / 2
    part = "most of the change in its features" if most else "the largest part of the change in its features"
    return f"; {part} appears after layer {layer} (cosine {high:.2f} in {before}, {low:.2f} there)"


class Pair(NamedTuple):
    """Two networks over some poses: mean rates, and the images that one gets wrong in more of the poses."""

    where: str
    first: float
    second: float
    test: McNemar
    names: tuple[str, str]

    @property
    def verdict(self) -> str:
        if self.test.p >= 0.05:
            return "no difference shown"
        return f"{self.names[self.test.only_a > self.test.only_b]} is better"


def pairs(document: Document) -> list[Pair]:
    """The two networks of a comparison: for images as they are, and over each grid; an exact sign test over images."""
    if len(document.models) < 2:
        return []
    a, b = (model.name for model in document.models[:2])
    groups = {AS_IT_IS: [AS_IT_IS]} if document.labelled else {}
    found = []
    for where, poses in {**groups, **document.grids}.items():
        wrong = [Counter(_counted(document, model, poses)) for model in (a, b)]
        images = wrong[0].keys() | wrong[1].keys()
        test = mcnemar(
            [image for image in images if wrong[0][image] > wrong[1][image]],
            [image for image in images if wrong[1][image] > wrong[0][image]],
        )
        found.append(Pair(where, mean_rate(document, a, poses), mean_rate(document, b, poses), test, (a, b)))
    return found


def _counted(document: Document, model: str, poses: Sequence[str]) -> Iterator[int]:
    for row in document.find(model, "error" if document.labelled else "agreement"):
        if row.pose in poses:
            yield from row.indices


def _compared(document: Document, pair: Pair) -> str:
    a, b = (model.name for model in document.models[:2])
    where = "Of images as they are" if pair.where == AS_IT_IS else f"Over all poses of the grid {pair.where}"
    told = f"{where}, {a} has {pair.first:.1f} % {document.counted} and {b} {pair.second:.1f} %: {pair.verdict}"
    counts = f"{pair.test.only_a} images are worse for {a}, {pair.test.only_b} for {b}"
    return f"{told} ({counts}, {text.chance(pair.test.p)})."


# ---- files and the terminal ------------------------------------------------------------------------


def write(document: Document, file: Path) -> None:
    """Write the numbers as JSON, whole or not at all."""
    values = dataclasses.asdict(document)
    del values["worst"]
    values["models"] = [model._asdict() for model in document.models]
    values["rows"] = [{**row, **row.pop("facts"), "indices": list(row["indices"])} for row in values["rows"]]
    values["pairs"] = [{**pair._asdict(), "test": pair.test._asdict()} for pair in pairs(document)]
    values["summary"] = summary(document)
    write_whole(file, (json.dumps(clean(values), indent=1, allow_nan=False) + "\n").encode())


def show(document: Document, console: Console) -> None:
    """Print answers and layers as tables, and the summary."""
    names = [model.name for model in document.models]
    answers = Table(f"{document.counted}, %", *names, title_justify="left")
    for column in answers.columns[1:]:
        column.justify = "right"
    for title, poses in _told_poses(document):
        answers.add_row(title, *(text.number(mean_rate(document, name, poses), 1) for name in names))
    for grid in document.grids:
        found = [document.find(name, "consistency", grid=grid) for name in names]
        if all(found):
            answers.add_row(
                f"same answer in two poses ({grid}), %",
                *(text.number(rows[0].value, 1) for rows in found),
            )
    console.print(answers)
    for model in document.models:
        console.print(_layers(document, model.name))
    for sentence in summary(document):
        console.print(Text(clean(sentence)), soft_wrap=True)


def _told_poses(document: Document) -> Iterator[tuple[str, list[str]]]:
    yield AS_IT_IS, [AS_IT_IS]
    for extreme in extremes(document):
        yield extreme.words, extreme.poses


def _layers(document: Document, model: str) -> Table:
    found = extremes(document) if document.find(model, "similarity") else []
    grids = [grid for grid in document.grids if document.find(model, "invariance", grid=grid)]
    orders = {row.layer: row for row in document.find(model, "order")}
    table = Table(f"layer of {clean(model)}", title_justify="left")
    for extreme in found:
        table.add_column(f"cosine, {extreme.words}", justify="right")
    for grid in grids:
        table.add_column(f"invariance, {grid}", justify="right")
    if orders:
        table.add_column("order changed, %", justify="right")
    by_extreme = [similarities(document, model, extreme.poses) for extreme in found]
    for layer in document.layers(model):
        cells = [text.number(values.get(layer), 2) for values in by_extreme]
        for grid in grids:
            rows = document.find(model, "invariance", grid=grid, layer=layer)
            cells.append(text.number(rows[0].value if rows else None, 1))
        if orders:
            cells.append(text.number(mean_order(document, model, layer), 1) if layer in orders else text.NONE)
        table.add_row(Text(clean(layer)), *cells)
    return table


def mean_order(document: Document, model: str, layer: str) -> float | None:
    """Maps of a reordering layer whose order the smallest poses change, in percent, the mean over these poses."""
    values = [row.value for row in document.find(model, "order", layer=layer) if row.value is not None]
    return sum(values) / len(values) if values else None
