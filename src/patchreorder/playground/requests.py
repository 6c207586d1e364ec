"""The JSON of a request, parsed and checked. Every error names the field and its value."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from patchreorder.data.poses import Pose
from patchreorder.operator.functional import Grid, PatchReorderOptions

MAX_ROTATION = 180  # degrees, counter-clockwise
MAX_SHIFT = 7  # pixels of a digit: as far as the canvas of MNIST-T reaches
MAX_PHOTO_SHIFT = 40  # percent of a photograph's sides
MAX_STROKES, MAX_POINTS = 64, 2048  # of a drawing
PAD = 1000  # largest coordinate of a drawing
Drawing = tuple[tuple[int, ...], ...]  # strokes; each is x, y, x, y, ... from 0 to PAD, y downwards
MAX_GRID, MAX_LEVELS = 64, 6
DATASETS = {"r": "mnist-r", "t": "mnist-t"}  # what the networks were trained on


class RequestError(ValueError):
    """A request that is not answered: the status of the response, and why."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class DigitPose(NamedTuple):
    """Rotation of a digit about its centre, in degrees counter-clockwise, then its shift in pixels."""

    rotation: int = 0
    down: int = 0
    right: int = 0


def parse(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a request."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise RequestError(422, f"the request ({_short(body)}) must be a JSON object")
    return found


def read_digit_pose(request: dict[str, Any]) -> DigitPose:
    """Return `rotation`, `down` and `right`, 0 by default."""
    return DigitPose(*_pose(request, MAX_SHIFT))


def read_photo_pose(request: dict[str, Any]) -> Pose:
    """Return `rotation` in degrees, `down` and `right` in percent, as a pose of a photograph; 0 by default."""
    rotation, down, right = _pose(request, MAX_PHOTO_SHIFT)
    return Pose(rotation, down / 100, right / 100)


def _pose(request: dict[str, Any], shift: int) -> list[int]:
    limits = {"rotation": MAX_ROTATION, "down": shift, "right": shift}
    return [_integer(request, name, -most, most) for name, most in limits.items()]


def read_dataset(request: dict[str, Any]) -> str:
    """Return the name of the data set that the networks are to be trained on, from `trained`."""
    return DATASETS[_one_of(request, "trained", tuple(DATASETS))]


def read_options(request: dict[str, Any], size: tuple[int, int]) -> PatchReorderOptions:
    """Return the options of the operator from `layer`, checked for maps of this height and width."""
    found = request.get("layer", {})
    if not isinstance(found, dict):
        raise RequestError(422, f"layer ({_short(found)}) must be an object with grid, levels, energy and per_channel")
    # Bounded before `grid ** levels` is computed, which could be a number of any length.
    grid: Grid = "pixels" if found.get("grid") == "pixels" else _integer(found, "grid", 2, MAX_GRID, default=2)
    levels = _integer(found, "levels", 1, MAX_LEVELS, default=1)
    per_channel = found.get("per_channel", True)
    if not isinstance(per_channel, bool):
        raise RequestError(422, f"per_channel ({_short(per_channel)}) must be true or false")
    try:
        options = PatchReorderOptions(grid, levels, _one_of(found, "energy", ("l2", "l1")), per_channel)
        options.patch_grid(*size)
    except ValueError as error:
        raise RequestError(422, str(error)) from None
    return options


def read_digit(request: dict[str, Any]) -> Drawing | int:
    """Return the drawing, or the index of a digit in MNIST's test set."""
    found = request.get("digit")
    if isinstance(found, dict) and "mnist" in found:
        return _integer(found, "mnist", 0, 9999)
    if isinstance(found, dict) and "strokes" in found:
        return _drawing(found["strokes"])
    raise RequestError(
        422, f'digit ({_short(found)}) must be {{"mnist": index}} or {{"strokes": [[x, y, x, y, ...], ...]}}'
    )


def _drawing(strokes: Any) -> Drawing:
    if not isinstance(strokes, list) or not 1 <= len(strokes) <= MAX_STROKES:
        raise RequestError(422, f"strokes ({_short(strokes)}) must be a list of 1 to {MAX_STROKES} strokes")
    for stroke in strokes:
        if not isinstance(stroke, list) or not stroke or len(stroke) % 2:
            raise RequestError(422, f"a stroke ({_short(stroke)}) must be a list x, y, x, y, ... of at least one point")
        if not all(type(value) is int and 0 <= value <= PAD for value in stroke):
            raise RequestError(422, f"a stroke ({_short(stroke)}) must hold integers from 0 to {PAD}")
    points = sum(map(len, strokes)) // 2
    if points > MAX_POINTS:
        raise RequestError(422, f"strokes have {points} points, more than {MAX_POINTS}")
    return tuple(map(tuple, strokes))


def _integer(request: dict[str, Any], name: str, low: int, high: int, *, default: int = 0) -> int:
    value = request.get(name, default)
    if type(value) is not int or not low <= value <= high:
        raise RequestError(422, f"{name} ({_short(value)}) must be an integer from {low} to {high}")
    return value


def _one_of(request: dict[str, Any], name: str, known: tuple[str, ...]) -> Any:
    value = request.get(name, known[0])
    if not isinstance(value, str) or value not in known:
        raise RequestError(422, f"{name} ({_short(value)}) must be one of {', '.join(known)}")
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
