"""The poses of `patchreorder measure` in words, in order along an axis, and the farthest ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

AS_IT_IS = "as it is"
Poses = Mapping[
    str, Sequence[float]
]  # name -> degrees, shift down in parts of the height, right of the width, scale, flip
_REST = (0.0, 0.0, 0.0, 1.0, 0.0)


class PoseAxis(NamedTuple):
    """The poses that differ in one parameter, including the unposed image."""

    title: str
    x: str  # the parameter
    points: list[tuple[float, str]]  # its value and the pose, ascending


class Extreme(NamedTuple):
    """The farthest poses of one kind."""

    words: str  # such as "rotated by 45°"
    poses: list[str]


class _Axis(NamedTuple):
    title: str
    x: str
    rest: float
    value: Callable[[Sequence[float]], float]  # of a pose
    pose: Callable[[float], tuple[float, ...]]  # with a value: others are not on the axis


_AXES = (
    _Axis("Rotated", "angle, degrees (counter-clockwise)", 0.0, lambda p: p[0], lambda v: (v, 0, 0, 1, 0)),
    _Axis(
        *("Shifted horizontally", "shift to the right, % of the width", 0.0),
        *(lambda p: 100 * p[2], lambda v: (0, 0, v / 100, 1, 0)),
    ),
    _Axis(
        *("Shifted vertically", "shift down, % of the height", 0.0),
        *(lambda p: 100 * p[1], lambda v: (0, v / 100, 0, 1, 0)),
    ),
    _Axis(
        *("Shifted diagonally", "shift right and down, %", 0.0),
        *(lambda p: 100 * p[1], lambda v: (0, v / 100, v / 100, 1, 0)),
    ),
    _Axis("Scaled", "size, % of the image as it is", 100.0, lambda p: 100 * p[3], lambda v: (0, 0, 0, v / 100, 0)),
)


def pose_axes(poses: Poses) -> list[PoseAxis]:
    """The poses by rotation angle, by horizontal, vertical and diagonal shift, and by scale.

    >>> [(axis.title, axis.points) for axis in pose_axes({"as it is": (0, 0, 0), "x 0.2": (0, 0, 0.2)})]
    [('Shifted horizontally', [(0.0, 'as it is'), (20.0, 'x 0.2')])]
    """
    found = []
    for axis in _AXES:
        points = []
        for name, pose in poses.items():
            whole = _whole(pose)
            value = axis.value(whole)
            there = all(abs(a - b) < 1e-9 for a, b in zip(whole, axis.pose(value), strict=True))
            if there and value != axis.rest:
                points.append((round(value, 6), name))
        if points:
            found.append(PoseAxis(axis.title, axis.x, sorted([*points, (axis.rest, AS_IT_IS)])))
    return found


def extremes(poses: Poses) -> list[Extreme]:
    """The largest rotations, the largest shifts of all directions, the smallest and the largest scale, and flips."""
    found: dict[str, list[str]] = {}
    for axis in pose_axes(poses):
        ends = axis.points[0][0], axis.points[-1][0]
        if axis.title == "Scaled":
            for value, name in (axis.points[0], axis.points[-1]):
                if name != AS_IT_IS:
                    found[f"scaled by {value / 100:g}"] = [name]
            continue
        most = max(map(abs, ends))
        words = f"rotated by {most:g}°" if axis.title == "Rotated" else f"shifted by {most:g} %"
        found.setdefault(words, []).extend(name for value, name in axis.points if abs(value) == most)
    for name, pose in poses.items():
        if _whole(pose) == (0, 0, 0, 1, 1):
            found["mirrored"] = [name]
        elif _whole(pose) == (180, 0, 0, 1, 1):
            found["flipped vertically"] = [name]
    return [Extreme(*pair) for pair in found.items()]


def in_words(pose: Sequence[float]) -> str:
    """A pose in words.

    >>> in_words((9.0, 0, 0)), in_words((0, 0, -0.04)), in_words((0, 0.2, 0.2))
    ('rotated 9° left', 'shifted 4 % left', 'shifted 20 % down, 20 % right')
    >>> in_words((-120.0, 0, 0, 0.8, True)), in_words((0, 0, 0, 1.0, False))
    ('mirrored, scaled by 0.8, rotated 120° right', 'as it is')
    >>> in_words((180.0, 0, 0, 1.0, True))
    'flipped vertically'
    """
    degrees, down, right, scale, flip = _whole(pose)
    if flip and degrees == 180:
        return ", ".join(["flipped vertically", in_words((0.0, down, right, scale))]).removesuffix(f", {AS_IT_IS}")
    words = ["mirrored"] * bool(flip) + [f"scaled by {scale:.3g}"] * (scale != 1)
    words += [f"rotated {abs(degrees):.4g}° {'left' if degrees > 0 else 'right'}"] if degrees else []
    shifted = [
        f"{abs(100 * value):.3g} % {names[value > 0]}"
        for value, names in ((down, ("up", "down")), (right, ("left", "right")))
        if value
    ]
    return ", ".join(words + ([f"shifted {', '.join(shifted)}"] if shifted else [])) or AS_IT_IS


def _whole(pose: Sequence[float]) -> tuple[float, ...]:
    return tuple(map(float, (*pose, *_REST[len(pose) :])))
