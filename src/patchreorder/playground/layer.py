"""What the layer does to maps, in numbers that the page can draw; it is `patch_reorder` that does it."""

from __future__ import annotations

import base64
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from patchreorder.operator.functional import Settings, patch_reorder
from patchreorder.operator.torch_form import unit_energy

CHANNELS = 16  # maps that are shown


def view(maps: Tensor, settings: Settings) -> dict[str, Any]:
    """The maps that are strong in both poses of a picture, before and after reordering, and what moved where.

    Pixels are bytes (base64), scaled by the largest value of the channel. `order` has, for each channel, the source
    patch of every place; `energy` that of every patch where it lies; both are those of the posed picture.

    Shape:
        maps: (2, c, h, w), of the upright picture and of the posed one.
    """
    named: dict[str, Any] = settings._asdict()
    after, order = patch_reorder(maps, **named, return_order=True)
    rows, columns = order.shape[2:]
    energy = unit_energy(maps[1:], rows, columns, settings.energy)[0]
    both = maps.square().sum((2, 3)).log().sum(0)  # of a map that is silent in one of them there is little to see
    strongest = both.argsort(descending=True, stable=True)[:CHANNELS]
    chosen = strongest.sort().values
    top = maps[:, chosen].amax((0, 2, 3)).clamp(min=1e-12)
    each = chosen if settings.per_channel else torch.zeros(1, dtype=torch.long)
    energy = energy if settings.per_channel else energy.sum(0, keepdim=True)
    upright, posed = (_bytes(maps[number, chosen], top) for number in (0, 1))
    upright_after, posed_after = (_bytes(after[number, chosen], top) for number in (0, 1))
    return {
        "size": list(maps.shape[2:]),
        "patches": [rows, columns],
        "grid": settings.grid,
        "levels": settings.levels,
        "channels": chosen.tolist(),
        "strongest": int(strongest[0]),
        "upright": {"before": upright, "after": upright_after},
        "posed": {"before": posed, "after": posed_after},
        "order": order[1, each].flatten(1).tolist(),
        "energy": [[float(f"{value:.3g}") for value in channel] for channel in energy[each].flatten(1).tolist()],
        "similarity": {"before": similarity(maps[0], maps[1]), "after": similarity(after[0], after[1])},
    }


def similarity(one: Tensor, other: Tensor) -> float:
    """The cosine between all maps of one picture and all maps of another, as long vectors."""
    return round(float(F.cosine_similarity(one.flatten(), other.flatten(), dim=0)), 4)


def _bytes(maps: Tensor, top: Tensor) -> str:
    scaled = (maps.clamp(min=0) / top.view(-1, 1, 1) * 255).round().to(torch.uint8)
    return base64.b64encode(scaled.contiguous().numpy().tobytes()).decode()
