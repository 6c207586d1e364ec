"""Layers by name: `create_layer("ranked:quantiles=16")`, for command lines, options and saved files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from .layer import Layer
from .orientation_reorder import OrientationReorder
from .patch_reorder import PatchReorder
from .pose_align import PoseAlign
from .ranked_pool import RankedPool
from .shift_align import ShiftAlign
from .unroll import Unroll

LAYER_TYPES: Mapping[str, type[Layer[Any]]] = {
    "reorder": PatchReorder,
    "ranked": RankedPool,
    "align": ShiftAlign,
    "pose": PoseAlign,
    "orient": OrientationReorder,
    "unroll": Unroll,
}
# Without a grid, the one that does best and fits maps of any size.
DEFAULTS: Mapping[str, Mapping[str, Any]] = {"reorder": {"grid": "pixels", "levels": 1}}


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
    ShiftAlign()
    >>> create_layer("reorder:grid=2,levels=2,per_channel=false")
    PatchReorder(levels=2, per_channel=False)
    """
    name, arguments = read_layer(text)
    try:
        return LAYER_TYPES[name](**arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"layer ({text!r}): {error}") from None


def read_layer(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the arguments in a text, before the layer's own checks.

    >>> read_layer("reorder:energy=l1")
    ('reorder', {'grid': 'pixels', 'levels': 1, 'energy': 'l1'})
    """
    if not isinstance(text, str):
        raise TypeError(f"layer must be a text such as 'ranked:quantiles=16', got {type(text).__name__}")
    name, _, rest = text.partition(":")
    if name not in LAYER_TYPES:
        raise ValueError(
            f"layer ({text!r}) must begin with one of {', '.join(LAYER_TYPES)}, such as ranked:quantiles=16"
        )
    try:
        return name, {**DEFAULTS.get(name, {}), **LAYER_TYPES[name].options_type.read(rest)}
    except ValueError as error:
        raise ValueError(f"layer ({text!r}): {error}") from None
