"""What the page may ask: JSON of anybody becomes checked values here, or a refusal that names the value."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from patchreorder.operator.functional import Grid, Settings

TURNS = (-180, 180)  # degrees, counter-clockwise
SHIFTS = (-7, 7)  # pixels of a digit: the whole canvas of T
SLIDES = (-40, 40)  # percent of a photograph's sides
MAX_STROKES, MAX_POINTS, PAD = 64, 2048, 1000  # of a drawing; its coordinates are from 0 to PAD
TRAINED = {"r": "mnist-r", "t": "mnist-t"}  # what the networks that answer were trained on
MOST_PATCHES = 64  # a side


class Refused(ValueError):
    """A request for something that is not there or not possible; the message says what and why."""


class Pose(NamedTuple):
    """How a picture lies: turned about its centre, then moved."""

    turn: int = 0
    down: int = 0
    right: int = 0


class Drawing(NamedTuple):
    """Lines of a pen: each one x, y, x, y and so on, from 0 to PAD, y downwards."""

    strokes: tuple[tuple[int, ...], ...]


class Pick(NamedTuple):
    """A digit of MNIST's test set."""

    number: int


def parsed(body: bytes) -> dict[str, Any]:
    """The JSON object of a request.

    Raises:
        Refused: if it is anything else.
    """
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused("the request must be a JSON object") from None
    if not isinstance(found, dict):
        raise Refused(f"the request must be a JSON object, not {type(found).__name__}")
    return found


def pose(ask: dict[str, Any], *, shifts: tuple[int, int] = SHIFTS) -> Pose:
    """Its turn, down and right; each 0 if it is not there."""
    return Pose(_whole(ask, "turn", *TURNS), _whole(ask, "down", *shifts), _whole(ask, "right", *shifts))


def trained(ask: dict[str, Any]) -> str:
    """The data set that the networks shall have been trained on."""
    return TRAINED[_one_of(ask, "trained", tuple(TRAINED))]


def settings(ask: dict[str, Any], *, height: int, width: int) -> Settings:
    """The layer's settings, which fit maps of this size."""
    found = ask.get("layer", {})
    if not isinstance(found, dict):
        raise Refused(f"layer ({_short(found)}) must be an object with grid, levels, energy and per_channel")
    # Bounded before they are multiplied: grid ** levels may be a number of any length.
    grid: Grid = "pixels" if found.get("grid") == "pixels" else _whole(found, "grid", 2, MOST_PATCHES, default=2)
    levels = _whole(found, "levels", 1, 6, default=1)
    per_channel = found.get("per_channel", True)
    if not isinstance(per_channel, bool):
        raise Refused(f"per_channel ({_short(per_channel)}) must be true or false")
    try:
        made = Settings(grid, levels, _one_of(found, "energy", ("l2", "l1")), per_channel).check()
        made.patch_grid(height, width)
    except ValueError as error:
        raise Refused(str(error)) from None
    return made


def digit(ask: dict[str, Any]) -> Drawing | Pick:
    """The drawing, or the number of the digit in MNIST."""
    found = ask.get("digit")
    if isinstance(found, dict) and "mnist" in found:
        return Pick(_whole(found, "mnist", 0, 9999))
    if isinstance(found, dict) and "strokes" in found:
        return _drawing(found["strokes"])
    raise Refused(f'digit ({_short(found)}) must be {{"mnist": number}} or {{"strokes": [[x, y, x, y, ...], ...]}}')


def _drawing(strokes: Any) -> Drawing:
    if not isinstance(strokes, list) or not 1 <= len(strokes) <= MAX_STROKES:
        raise Refused(f"strokes ({_short(strokes)}) must be a list of 1 to {MAX_STROKES} lines")
    for line in strokes:
        if not isinstance(line, list) or not line or len(line) % 2:
            raise Refused(f"a line of strokes ({_short(line)}) must be a list x, y, x, y, ... with a point at least")
        if not all(type(value) is int and 0 <= value <= PAD for value in line):
            raise Refused(f"a line of strokes ({_short(line)}) must hold whole numbers from 0 to {PAD}")
    points = sum(map(len, strokes)) // 2
    if points > MAX_POINTS:
        raise Refused(f"strokes have {points} points, more than {MAX_POINTS}")
    return Drawing(tuple(tuple(line) for line in strokes))


def _whole(ask: dict[str, Any], name: str, low: int, high: int, *, default: int = 0) -> int:
    value = ask.get(name, default)
    if type(value) is not int or not low <= value <= high:
        raise Refused(f"{name} ({_short(value)}) must be a whole number from {low} to {high}")
    return value


def _one_of(ask: dict[str, Any], name: str, known: tuple[str, ...]) -> Any:
    value = ask.get(name, known[0])
    if not isinstance(value, str) or value not in known:
        raise Refused(f"{name} ({_short(value)}) must be one of {', '.join(known)}")
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
