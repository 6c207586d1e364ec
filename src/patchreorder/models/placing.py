"""A layer of the family at a place of a network: does it fit there, and what does the classifier get from it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from patchreorder.layers.orientation_reorder import OrientationReorder
from patchreorder.layers.patch_reorder import PatchReorder
from patchreorder.layers.registry import create_layer
from patchreorder.operator.functional import PatchReorderOptions


class Placed(NamedTuple):
    """A layer, how many numbers it leaves of each map (None if it leaves a map), and the side of what it leaves."""

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


def place_layer(
    text: str, *, side: int, place: str, before_convolutions: bool = False, any_side: bool = False
) -> Placed:
    """The layer that a text names, for plain maps of that side.

    Args:
        text: see `create_layer`.
        side: of the maps, in pixels.
        place: what to call it in errors.
        before_convolutions: a map must be left.
        any_side: it may be a smaller one, as behind `align:size=28`.

    Raises:
        ValueError: there is no such layer, or it does not fit.

    >>> place_layer("ranked:quantiles=16", side=6, place="pool")
    Placed(layer=RankedPool(quantiles=16), length=16, side=1)
    """
    layer = layer_for_maps(text)
    try:
        with torch.device("cpu"), torch.no_grad():
            left = layer(torch.zeros(1, 1, side, side))
    except ValueError as error:
        raise ValueError(f"layer ({text!r}) does not fit {place}: {error}") from None
    if left.dim() == 4:
        if left.shape[-2] != left.shape[-1]:
            raise ValueError(
                f"layer ({text!r}) leaves maps of {left.shape[-2]}x{left.shape[-1]} at {place}, and what follows is "
                "made for square ones: create_model('unrolled_cnn') is made for rings"
            )
        if left.shape[-1] != side and not any_side:
            raise ValueError(
                f"layer ({text!r}) leaves maps of {left.shape[-2]}x{left.shape[-1]} at {place}, and what follows is "
                f"made for {side}x{side}: leave size out"
            )
        return Placed(layer, None, left.shape[-1])
    if before_convolutions:
        raise ValueError(f"layer ({text!r}) at {place} leaves no maps for the convolutions behind it: use align")
    return Placed(layer, left.shape[2], 1)


def chosen(
    text: str | None,
    options: PatchReorderOptions,
    usual: PatchReorderOptions,
    *,
    side: int,
    place: str,
    before_convolutions: bool = False,
    any_side: bool = False,
) -> Placed:
    """The layer that a text names, or without one `PatchReorder` with these options.

    Raises:
        ValueError: a text, and options other than the usual ones.
    """
    if text is None:
        return Placed(PatchReorder(**options.arguments()), None, side)
    if options != usual:
        names = ", ".join(name for name in options.kinds if getattr(options, name) != getattr(usual, name))
        raise ValueError(f"layer ({text!r}) excludes {names}: write options behind its name, as in reorder:grid=2")
    return place_layer(text, side=side, place=place, before_convolutions=before_convolutions, any_side=any_side)
