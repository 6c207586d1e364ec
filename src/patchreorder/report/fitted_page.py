"""The report of `patchreorder fit` as one HTML file that loads nothing."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from patchreorder.files import write_whole

from . import fitted, page, text
from .curves import Line
from .drawing import BLUE, DASHES, GREY, ORANGE, STYLES, Drawing, Style
from .fitted import Report, short_name
from .line_chart import LineChart, Panel, Series
from .sheets import Sheet

SHOWN = 60  # photographs of each list
MATRIX = 25  # classes of a confusion matrix that can still be read
PAIRS, PAIRS_BESIDE_MATRIX = 30, 10  # pairs of classes
NAMED, UNTESTED = 12, 40  # classes in the first sentence, and of those without test photographs
CLASSES = 40  # classes that are not folded away
FEW, LISTED = 5, 200  # names of each fault that are shown, and with those that are folded away
NAME, FILE, HEAD = 60, 160, 24  # letters of a class, of a file, and of a class above a column
SHADES = 5
LOOKS = (Style(BLUE), Style(ORANGE, DASHES[1], "s"), Style(GREY, DASHES[2], "D"), *STYLES[3:])  # of methods


class Photograph(NamedTuple):
    """A photograph, its label and what was predicted."""

    name: str
    about: str
    source: str  # a data URI; "" without a thumbnail


class Photographs(NamedTuple):
    """The first photographs of a list."""

    shown: Sequence[Photograph]
    more: int
    folder: str  # that holds all of them


class Count(NamedTuple):
    """A cell of the confusion matrix."""

    number: str
    look: str  # names of CSS classes


def write(report: Report, file: Path, *, thumbnails: Mapping[str, bytes] | None = None) -> None:
    """Write the page, whole or not at all; arguments as of `render`."""
    write_whole(file, render(report, thumbnails=thumbnails).encode())


def render(report: Report, *, thumbnails: Mapping[str, bytes] | None = None) -> str:
    """The page; the same report makes the same page.

    Args:
        report: of `fit`.
        thumbnails: JPEGs by the names of photographs in `mistakes` and `mislabelled`; the first 60 of each are shown.
    """
    small = thumbnails or {}
    per_class = fitted.weakest(report)
    return page.rendered(
        "fitted.html.j2",
        title=f"A classifier for {text.count(len(report.get('classes') or ()))} classes",
        lead=_lead(report),
        verdict=fitted.verdict(report),
        faults=_faults(report),
        few=FEW,
        listed=LISTED,
        accuracy=fitted.accuracy_sheet(report, differences=True),
        angles=_angles(report),
        angle_sheet=_angle_sheet(report),
        angle_photographs=_angle_photographs(report),
        chosen=fitted.chosen(report),
        tried=_tried_sheet(report),
        classes=_class_sheet(per_class[:CLASSES]),
        every_class=_class_sheet(per_class if len(per_class) > CLASSES else []),
        untested=_untested(report),
        matrix=_matrix(report),
        pairs=_pairs_sheet(report),
        mistakes=_photographs(report.get("mistakes") or [], small),
        mistaken=len(report.get("mistakes") or []),
        mislabelled=_photographs(report.get("mislabelled") or [], small),
        doubtful=len(report.get("mislabelled") or []),
        calibration=fitted.calibration(report),
        refusal=fitted.refusal(report),
        refusal_sheet=_refusal_sheet(report),
        facts=_facts(report),
        command=short_name(report.get("command") or "", fitted.LONGEST),
    )


def _lead(report: Report) -> str:
    numbers = [
        f"{text.count(report[key])} {words}"
        for key, words in (("train", "to train"), ("test", "to test"))
        if report.get(key) is not None
    ]
    classes = report.get("classes") or []
    names = [short_name(name, NAME) for name in classes[:NAMED]]
    names += [f"{text.count(len(classes) - NAMED)} other classes"] if len(classes) > NAMED else []
    listed = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)
    return f"Photographs of {listed or 'no class'}{': ' if numbers else ''}{', '.join(numbers)}."


def _faults(report: Report) -> list[fitted.Fault]:
    found = fitted.faults(report, room=FILE)
    if copies := report.get("repeated"):
        what = f"{text.count(copies)} of the training photographs only repeat another, byte by byte"
        found.append(fitted.Fault(what))
    return found


def _angles(report: Report) -> Drawing | None:
    """Accuracy at every rotation, closed at 360 degrees; a band for ours, if its interval is known."""
    series = []
    for index, (name, own) in enumerate((report.get("angles") or {}).items()):
        if len(own.get("degrees") or ()) < 2:
            continue
        around = [*own["degrees"], own["degrees"][0] + 360]
        mean = [*own["values"], own["values"][0]]
        low, high = ([*own[key], own[key][0]] if not index and own.get(key) else mean for key in ("low", "high"))
        series.append(Series(short_name(name, NAME), Line(around, mean, low, high), LOOKS[index % len(LOOKS)]))
    if not series:
        return None
    alt = "Percentage of test photographs that are right at each rotation; the numbers are in the table below"
    return LineChart(
        panels=[Panel("Right at each rotation of the circle", series)],
        x="rotation, degrees",
        y="right, %",
        alt=alt,
        include=[100],
        band="95 % interval, each for its point alone",
    ).draw()


def _angle_sheet(report: Report) -> Sheet:
    angles = report.get("angles") or {}
    pairs = {name: zip(own.get("degrees") or (), own.get("values") or (), strict=True) for name, own in angles.items()}
    values = {short_name(name, NAME): dict(own) for name, own in pairs.items()}
    degrees = sorted({degree for own in values.values() for degree in own})
    rows = [[f"{degree:g}°", *(text.number(own.get(degree), 1) for own in values.values())] for degree in degrees]
    return Sheet("Right at each rotation, %", ["rotation", *values], rows)


def _angle_photographs(report: Report) -> str:
    """How many test photographs a rotation has."""
    numbers = [number for own in (report.get("angles") or {}).values() for number in own.get("n") or ()]
    return " to ".join(dict.fromkeys(text.count(number) for number in (min(numbers), max(numbers)))) if numbers else ""


def _tried_sheet(report: Report) -> Sheet:
    own = report.get("chosen")
    rows = []
    for tried in report.get("tried") or []:
        name = short_name(tried.get("name"), 200) + (", posed copies" if tried.get("copies") else "")
        rates = (text.number(tried.get(key), 1) for key in ("upright", "posed"))
        rows.append([f"{name} (chosen)" if tried == own else name, *rates, text.short(tried.get("strength"))])
    heads = ["the head reads", "as they are, %", "posed, %", "regularisation"]
    return Sheet("Everything that was tried, in cross-validation", heads, rows)


def _class_sheet(per_class: Sequence[Mapping[str, Any]]) -> Sheet:
    rows = [
        [
            short_name(own["class"], NAME),
            text.number(100 * own["right"] / own["test"], 1),
            text.number(100 * own["right"] / own["answered"] if own.get("answered") else None, 1),
            *(text.count(own.get(key)) for key in ("right", "test", "train")),
        ]
        for own in per_class
    ]
    heads = ["class", "recall, %", "precision, %", "right", "of tested", "trained on"]
    return Sheet("Classes, the weakest first", heads, rows)


def _untested(report: Report) -> list[str]:
    names = [own["class"] for own in report.get("per_class") or [] if not own.get("test")]
    more = [f"and {text.count(len(names) - UNTESTED)} more"] if len(names) > UNTESTED else []
    return [*(short_name(name, NAME) for name in names[:UNTESTED]), *more]


def _matrix(report: Report) -> dict[str, Any] | None:
    """The confusion matrix, if it is small enough to be read."""
    matrix, classes = fitted.confusion(report)
    if not 0 < len(matrix) <= MATRIX:
        return None
    most = max((number for i, row in enumerate(matrix) for j, number in enumerate(row) if i != j), default=0)
    rows = []
    for truth, row in enumerate(matrix):
        cells = []
        for answer, number in enumerate(row):
            shade = -(-SHADES * number // max(most, 1))
            look = "own" if truth == answer else f"wrong shade{shade}" if number else "none"
            cells.append(Count(text.count(number), look))
        rows.append((short_name(classes[truth], NAME), cells))
    return {"heads": [short_name(name, HEAD) for name in classes], "rows": rows}


def _pairs_sheet(report: Report) -> Sheet:
    found = fitted.confused(report)
    most = PAIRS if len(report.get("classes") or ()) > MATRIX else PAIRS_BESIDE_MATRIX
    rows = [
        [short_name(pair.first, NAME), short_name(pair.second, NAME), text.count(pair.there), text.count(pair.back)]
        for pair in found[:most]
    ]
    title = f"The {most} most confused of {text.count(len(found))} pairs" if len(found) > most else "Confused pairs"
    return Sheet(title, ["class", "taken for", "photographs", "the other way round"], rows, texts=2)


def _photographs(mistakes: Sequence[Mapping[str, Any]], thumbnails: Mapping[str, bytes]) -> Photographs:
    names = [str(each.get("name", "?")) for each in mistakes[:SHOWN]]
    folder = _folder(names)
    shown = []
    for name, each in zip(names, mistakes, strict=False):
        content = thumbnails.get(name)
        source = "data:image/jpeg;base64," + base64.b64encode(content).decode() if content else ""
        own = name.removeprefix(folder).lstrip("/\\") if folder else name
        shown.append(Photograph(short_name(own, FILE), fitted.doubt(each, room=NAME), source))
    return Photographs(shown, len(mistakes) - len(shown), short_name(folder, FILE))


def _folder(names: Sequence[str]) -> str:
    """The folder above the class folders that all files are in; "" if there is none."""
    parents = [PurePath(name).parent.parent.parts for name in names]
    common = 0
    for parts in zip(*parents, strict=False):
        if len(set(parts)) > 1:
            break
        common += 1
    return str(PurePath(*parents[0][:common])) if common else ""


def _refusal_sheet(report: Report) -> Sheet:
    found = report.get("refusal") or {}
    rows = [
        [words, text.number(found[key], 1)]
        for key, words in (
            ("own", "training photographs, cross-validation (wrongly)"),
            ("test", "test photographs (wrongly)"),
            ("others", "photographs of classes that were left out of training (rightly)"),
        )
        if found.get(key) is not None
    ]
    return Sheet('Photographs that are "none of these"', ["photographs", "refused, %"], rows)


def _facts(report: Report) -> list[tuple[str, str]]:
    """How the classifier was made."""
    same, cost, found = report.get("same_poses") or {}, report.get("cost") or {}, []
    if report.get("backbone"):
        size = f", {report['size']} pixels a side" if report.get("size") else ""
        found.append(("backbone", f"{short_name(report['backbone'], 80)}{size}"))
    if blocks := (report.get("chosen") or {}).get("blocks"):
        found.append(("the head reads", ", ".join(short_name(block, 80) for block in blocks)))
    if same:
        poses = [f"rotated by up to {same['rotations']:g}°" if same.get("rotations") else "not rotated"]
        poses += ["mirrored" if same.get("flips") else "not mirrored"]
        poses += [f"{words} {100 * same[key]:g} %" for key, words in _AMOUNTS.items() if same.get(key)]
        found.append(("poses that mean the same", ", ".join(poses)))
    if cost.get("seconds") is not None:
        cpu = f", {text.duration(cost['cpu_seconds'])} of processor time" if cost.get("cpu_seconds") is not None else ""
        found.append(("cost", f"{text.duration(cost['seconds'])}{cpu}"))
    return found


_AMOUNTS = {"shifts": "shifted by up to", "zoom": "scaled by up to"}
