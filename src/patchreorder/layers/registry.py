"""Layers of the family by name: `create_layer("ranked:quantiles=16")`, for command lines, options and saved files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import nn

from .orientation_reorder import OrientationReorder
from .patch_reorder import PatchReorder
from .pose_align import PoseAlign
from .ranked_pool import RankedPool
from .shift_align import ShiftAlign
from .unroll import Unroll

FAMILY = (PatchReorder, RankedPool, ShiftAlign, PoseAlign, OrientationReorder, Unroll)


class Option(NamedTuple):
    """What may stand behind `name=`: the types of the value, and in words."""

    types: tuple[type, ...]
    possible: str


NUMBER, POWER = Option((int,), "NUMBER"), Option((int, float), "DECIMAL")
YES_NO, ENERGY = Option((bool,), "true|false"), Option((str,), "l1|l2")


class Member(NamedTuple):
    """A layer of the family: its class, its options, and what they are if they are not given and the class differs."""

    make: Callable[..., nn.Module]
    options: Mapping[str, Option]
    usual: Mapping[str, Any] = {}


MEMBERS: Mapping[str, Member] = {
    "reorder": Member(
        PatchReorder,
        {
            "grid": Option((int, str), "NUMBER|pixels"),
            "levels": NUMBER,
            "energy": ENERGY,
            "per_channel": YES_NO,
            "descending": YES_NO,
        },
        {"grid": "pixels", "levels": 1},  # what does best, and fits maps of any size
    ),
    "ranked": Member(
        RankedPool,
        {
            "keep": NUMBER,
            "quantiles": NUMBER,
            "smooth": NUMBER,
            "stride": NUMBER,
            "weights": POWER,
            "mean": YES_NO,
            "focus": YES_NO,
            "centre": YES_NO,
        },
    ),
    "align": Member(ShiftAlign, {"energy": ENERGY, "per_channel": YES_NO, "jitter": NUMBER, "size": NUMBER}),
    "pose": Member(
        PoseAlign,
        {
            "energy": ENERGY,
            "ends": Option((str,), "heavier|nearest"),
            "by": Option((str,), "turn|shear"),
            "jitter": NUMBER,
            "tilt": POWER,
            "zoom": POWER,
            "bend": POWER,
            "size": NUMBER,
        },
    ),
    "orient": Member(
        OrientationReorder, {"orientations": NUMBER, "energy": ENERGY, "per_channel": YES_NO, "turn": YES_NO}
    ),
    "unroll": Member(
        Unroll,
        {
            "radii": NUMBER,
            "angles": NUMBER,
            "reach": POWER,
            "about": Option((str,), "middle|centroid"),
            "energy": ENERGY,
            "jitter": POWER,
            "zoom": POWER,
            "bend": POWER,
        },
    ),
}


def create_layer(text: str) -> nn.Module:
    """The layer that a text such as `ranked:keep=9,smooth=3` names.

    `reorder`, `ranked`, `align`, `pose`, `orient` and `unroll` are `PatchReorder`, `RankedPool`, `ShiftAlign`,
    `PoseAlign`, `OrientationReorder` and `Unroll`; options are their arguments, and those left out have their defaults,
    but `reorder` without a grid is `grid=pixels`.

    Raises:
        ValueError: there is no such layer or option, or a value is out of range.
        TypeError: text is not a string.

    >>> create_layer("ranked:keep=9,smooth=3,weights=-0.5")
    RankedPool(keep=9, smooth=3, weights=-0.5)
    >>> create_layer("align")
    ShiftAlign(energy='l2', per_channel=False)
    >>> create_layer("reorder:grid=2,levels=2,per_channel=false")
    PatchReorder(grid=2, levels=2, energy='l2', per_channel=False, descending=True)
    """
    name, options = read_layer(text)
    try:
        return MEMBERS[name].make(**options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"layer ({text!r}): {error}") from None


def read_layer(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the arguments that a text asks for, before the layer's own checks.

    >>> read_layer("reorder:energy=l1")
    ('reorder', {'grid': 'pixels', 'levels': 1, 'energy': 'l1'})
    """
    if not isinstance(text, str):
        raise TypeError(f"layer must be a text such as 'ranked:quantiles=16', got {type(text).__name__}")
    name, _, rest = text.partition(":")
    if name not in MEMBERS:
        raise ValueError(f"layer ({text!r}) must begin with one of {', '.join(MEMBERS)}, such as ranked:quantiles=16")
    options = MEMBERS[name].options
    given: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        option, _, value = (word.strip() for word in part.partition("="))
        known = _value(value)
        if option in given:
            raise ValueError(f"layer ({text!r}): {option} is given twice")
        if option not in options or type(known) not in options[option].types or not value:
            possible = ", ".join(f"{each}={words}" for each, (_, words) in options.items())
            raise ValueError(f"layer ({text!r}): {part!r} must be one of {possible}")
        given[option] = known
    return name, {**MEMBERS[name].usual, **given}


def _value(text: str) -> bool | int | float | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text
