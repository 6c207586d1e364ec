"""What `patch_reorder` does to feature maps, as numbers that the page can draw."""

from __future__ import annotations

import base64
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from patchreorder.operator.functional import PatchReorderOptions, patch_reorder
from patchreorder.operator.torch_form import unit_energy

CHANNELS = 16  # maps to show


def layer_view(maps: Tensor, options: PatchReorderOptions) -> dict[str, Any]:
    """Return the strongest maps of an image before and after reordering, upright and posed, and the order.

    Pixels are base64 of bytes, scaled by the maximum of the channel. `order` holds, by channel, the index of the patch
    that moves to each position; `energy` holds the energy of each patch. Both are those of the posed image. The maps
    are (2, c, h, w), of the upright image and of the posed one.
    """
    after, order = patch_reorder(maps, **options.arguments(), return_order=True)
    rows, columns = order.shape[2:]
    energy = unit_energy(maps[1:], rows, columns, options.energy)[0]
    strength = maps.square().sum((2, 3)).log().sum(0)  # a sum of logarithms: strong in both poses, not in one alone
    strongest = strength.argsort(descending=True, stable=True)[:CHANNELS]
    channels = strongest.sort().values
    scale = maps[:, channels].amax((0, 2, 3)).clamp(min=1e-12).view(-1, 1, 1)

    def encode(chosen: Tensor) -> str:
        return to_base64(chosen / scale)

    if options.per_channel:
        order, energy = order[1, channels], energy[channels]
    else:
        order, energy = order[1, :1], energy.sum(0, keepdim=True)
    return {
        "size": list(maps.shape[2:]),
        "patches": [rows, columns],
        "grid": options.grid,
        "levels": options.levels,
        "channels": channels.tolist(),
        "strongest": int(strongest[0]),
        "upright": {"before": encode(maps[0, channels]), "after": encode(after[0, channels])},
        "posed": {"before": encode(maps[1, channels]), "after": encode(after[1, channels])},
        "order": order.flatten(1).tolist(),
        "energy": [[float(f"{value:.3g}") for value in channel] for channel in energy.flatten(1).tolist()],
        "similarity": {"before": similarity(maps[:1], maps[1:]), "after": similarity(after[:1], after[1:])},
    }


def similarity(maps: Tensor, others: Tensor) -> float:
    """Return the mean cosine similarity of the maps of one image (1, c, h, w) to those of others (b, c, h, w)."""
    return round(float(F.cosine_similarity(maps.flatten(1), others.flatten(1)).mean()), 4)


def to_base64(values: Tensor) -> str:
    """Return values from 0 to 1 as base64 of bytes."""
    pixels = values.mul(255).round().clamp(0, 255).to(torch.uint8)
    return base64.b64encode(pixels.numpy().tobytes()).decode()
