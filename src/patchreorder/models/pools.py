"""Pools by name: feature maps (b, c, h, w) to one vector (b, d) for each image."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from patchreorder.layers.patch_reorder import PatchReorder
from patchreorder.layers.registry import LAYER_TYPES

from .inserted_layer import layer_for_maps


def global_average(maps: Tensor) -> Tensor:
    """The mean over all positions: (b, c, h, w) to (b, c)."""
    return maps.mean((2, 3))


def gem(maps: Tensor, *, power: float = 3.0) -> Tensor:
    """Generalised mean over all positions (Radenovic et al., 2018): power 1 is the average, infinity the maximum.

    Shape:
        maps: (b, c, h, w), to (b, c). Negative values count as 0.

    >>> gem(torch.tensor([[[[2.0, 0.0]]]]), power=1), gem(torch.tensor([[[[2.0, 2.0]]]]))
    (tensor([[1.]]), tensor([[2.]]))
    """
    if not power > 0:
        raise ValueError(f"power ({power}) must be more than 0")
    return maps.clamp(min=0).pow(power).mean((2, 3)).pow(1 / power)


def rmac_regions(side: int, *, levels: int = 3) -> list[tuple[int, int, int]]:
    """Top, left and side of the squares of R-MAC on a square map: l x l squares at level l, 2 side / (l + 1) wide.

    >>> rmac_regions(13, levels=2)
    [(0, 0, 13), (0, 0, 8), (0, 5, 8), (5, 0, 8), (5, 5, 8)]
    """
    found = []
    for level in range(1, levels + 1):
        width = max(1, 2 * side // (level + 1))
        starts = [step * (side - width) // max(level - 1, 1) for step in range(level)]
        found += [(top, left, width) for top in starts for left in starts]
    return found


def rmac(maps: Tensor, *, levels: int = 3) -> Tensor:
    """Sum of the normalised maxima of many regions (Tolias et al., 2016), without whitening.

    Shape:
        maps: (b, c, s, s), to (b, c).

    Raises:
        ValueError: the maps are not square.
    """
    if maps.ndim != 4 or maps.shape[2] != maps.shape[3]:
        raise ValueError(f"maps must have shape (batch, channels, side, side), got {tuple(maps.shape)}")
    squares = rmac_regions(maps.shape[2], levels=levels)
    maxima = [maps[:, :, y : y + side, x : x + side].amax((2, 3)) for y, x, side in squares]
    return sum((F.normalize(region) for region in maxima), torch.zeros_like(maxima[0]))


def weight_by_rank(maps: Tensor, *, power: float = -0.5) -> Tensor:
    """Multiply the positions of sorted maps by rank ** power, where the first position has rank 1.

    Shape:
        maps: (b, c, h, w), to the same shape.

    >>> weight_by_rank(torch.ones(1, 1, 2, 2))
    tensor([[[[1.0000, 0.7071],
              [0.5774, 0.5000]]]])
    """
    ranks = torch.arange(1, maps.shape[2] * maps.shape[3] + 1, dtype=maps.dtype, device=maps.device)
    return maps * ranks.pow(power).view(maps.shape[2:])


class Pool(nn.Module):
    """A function of feature maps as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, maps: Tensor) -> Tensor:
        return self.function(maps)

    def extra_repr(self) -> str:
        return self.function.__name__


def flattened(*parts: nn.Module) -> nn.Sequential:
    """Modules in sequence, and their output as vectors."""
    return nn.Sequential(*parts, nn.Flatten())


# "ranked" and "weighted" sort by energy, the layer "ranked:..." sorts by value: the same where no value is negative.
POOLS: Mapping[str, Callable[[], nn.Module]] = {
    "flatten": flattened,
    "ranked": lambda: flattened(PatchReorder(grid="pixels")),
    "gap": lambda: Pool(global_average),
    "gem": lambda: Pool(gem),
    "rmac": lambda: Pool(rmac),
    "weighted": lambda: flattened(nn.AvgPool2d(3, 2), PatchReorder(grid="pixels"), Pool(weight_by_rank)),
}


def create_pool(text: str) -> nn.Module:
    """One of `POOLS`, or a layer by name (`create_layer`) whose output is flattened.

    Raises:
        ValueError: there is no such pool.

    >>> create_pool("ranked:quantiles=4")(torch.zeros(1, 3, 5, 5)).shape
    torch.Size([1, 12])
    """
    if text in POOLS:
        return POOLS[text]()
    if text.partition(":")[0] not in LAYER_TYPES:
        raise ValueError(f"pool ({text!r}) must be one of {', '.join(POOLS)}, or a layer such as ranked:quantiles=16")
    return flattened(layer_for_maps(text))


def check_pool_fits(pool: str, maps: Tensor, *, source: str) -> None:
    """Raise a ValueError if a pool needs feature maps and `source` gives something else."""
    if maps.ndim != 4 and pool != "flatten":
        raise ValueError(f"pool ({pool!r}) needs maps (b, c, h, w), {source} gives {tuple(maps.shape)}: use flatten")
