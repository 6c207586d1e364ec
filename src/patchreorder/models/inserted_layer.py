"""A layer by name at a place of a network: whether it fits there, and what the classifier gets from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from patchreorder.layers.orientation_reorder import OrientationReorder
from patchreorder.layers.patch_reorder import PatchReorder
from patchreorder.layers.registry import create_layer


class InsertedLayer(NamedTuple):
    """A layer, the number of values it gives for each map (None if it gives a map), and the side of its output."""

    layer: nn.Module
    length: int | None
    side: int


def layer_for_maps(text: str) -> nn.Module:
    """`create_layer` for the maps of ordinary convolutions.

    Raises:
        ValueError: for `orient` as well, since these maps have no orientations.
    """
    layer = create_layer(text)
    if isinstance(layer, OrientationReorder):
        raise ValueError(
            f"layer ({text!r}) needs maps of a group convolution, such as those of create_model('c4_cnn'): plain maps "
            "have no orientations; use reorder, ranked, align or pose"
        )
    return layer


def inserted_layer(
    text: str, *, side: int, place: str, before_convolutions: bool = False, any_side: bool = False
) -> InsertedLayer:
    """The layer that a text names, for plain maps of that side.

    Args:
        text: see `create_layer`.
        side: of the maps, in pixels.
        place: its name in errors.
        before_convolutions: the output must be a map.
        any_side: the map may be smaller than the input, as behind `align:size=28`.

    Raises:
        ValueError: there is no such layer, or it does not fit.

    >>> inserted_layer("ranked:quantiles=16", side=6, place="pool")
    InsertedLayer(layer=RankedPool(quantiles=16), length=16, side=1)
    """
    layer = layer_for_maps(text)
    try:
        with torch.device("cpu"), torch.no_grad():
            output = layer(torch.zeros(1, 1, side, side))
    except ValueError as error:
        raise ValueError(f"layer ({text!r}) does not fit {place}: {error}") from None
    if output.dim() == 3:
        if before_convolutions:
            raise ValueError(f"layer ({text!r}) at {place} gives no maps for the convolutions behind it: use align")
        return InsertedLayer(layer, output.shape[2], 1)
    height, width = output.shape[2:]
    if height != width:
        raise ValueError(
            f"layer ({text!r}) gives maps of {height}x{width} at {place}, and the rest of the network needs square "
            "ones: create_model('unrolled_cnn') is made for rings"
        )
    if width != side and not any_side:
        raise ValueError(
            f"layer ({text!r}) gives maps of {height}x{width} at {place}, and the rest of the network needs "
            f"{side}x{side}: leave size out"
        )
    return InsertedLayer(layer, None, width)


def inserted_layer_or_reorder(
    text: str | None, reorder: Mapping[str, Any], *, side: int, place: str, levels: int = 1, **where: bool
) -> InsertedLayer:
    """The layer that a text names, or without one `PatchReorder`.

    Args:
        text: see `create_layer`.
        reorder: options of `PatchReorder`.
        levels: of `PatchReorder` by default.
        side, place, where: see `inserted_layer`.

    Raises:
        ValueError: there are both a text and options.
    """
    if text is None:
        return InsertedLayer(PatchReorder(**{"levels": levels, **reorder}), None, side)
    if reorder:
        raise ValueError(f"layer ({text!r}) excludes {', '.join(reorder)}: write options behind its name, as grid=2")
    return inserted_layer(text, side=side, place=place, **where)
