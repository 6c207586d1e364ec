"""How stable a reordering layer's order is: how often a small transform changes it, at which rank, by which margin."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from patchreorder.layers.patch_reorder import PatchReorder
from patchreorder.operator.functional import patch_reorder
from patchreorder.operator.torch_form import unit_energy

STEPS = 1000  # bins of margins, with centres 0, 0.001, ..., 1


class Margins(NamedTuple):
    """The distribution of margins, from 0 (equal energies) to 1 (one energy is zero)."""

    median: float  # NaN without margins
    counts: Tensor  # in bins around 0, 0.001, ..., 1
    n: int


class LevelStability(NamedTuple):
    """Changes among patches that are ranked together at one level, 1 being the coarsest."""

    level: int
    groups: int  # groups of patches that were compared; at level 1 one for each map
    flipped: int  # groups in which the order changed
    changed: Tensor  # for every rank, in how many groups another patch has it, (ranks,)
    first: Tensor  # for every rank, in how many groups it is the first to change
    flips: Margins  # between the patch of the first changed rank and the one that takes its place
    neighbours: Margins  # between patches of successive ranks, of all groups, for comparison


class Stability(NamedTuple):
    """How many maps changed, and the changes at every level."""

    maps: int  # compared; without `per_channel` one for every image
    changed: int  # maps whose order changed at any level
    empty: int  # maps without energy, before and after: not among `maps`
    undefined: int  # margins left out because an energy is not finite
    levels: list[LevelStability]
    images: int = 0  # compared, over all poses

    @property
    def rate(self) -> float:
        """Changed maps in percent."""
        return 100 * self.changed / self.maps if self.maps else math.nan


class OrderStability:
    """Compares the order of the feature maps of images and of transformed copies, level by level.

    At the first level all patches of a map are compared; at the next those inside every place that holds the same patch
    both times. A rank has changed if another patch has it and at least one of the two has energy: zeros that change
    places with zeros do not count. The margin of two patches is the difference of their energies over the sum, before
    the transform.

    The order names positions in the map. A transform that moves the content by a whole patch changes it even where the
    sorted maps stay the same, so transforms should be small against a patch.

    Args:
        layer: whose order is measured.

    Raises:
        ValueError: the shapes do not match.

    >>> x = torch.tensor([[[[4.0, 3.0], [2.0, 1.0]]]])
    >>> transposed = torch.tensor([[[[4.0, 2.0], [3.0, 1.0]]]])
    >>> order = OrderStability(PatchReorder(grid="pixels", energy="l1"))
    >>> order.update(x, transposed)
    >>> found = order.result()
    >>> found.rate, found.levels[0].changed  # the second and the third change places
    (100.0, tensor([0, 1, 1, 0]))
    >>> found.levels[0].flips.median  # (3 - 2) / (3 + 2)
    0.2
    """

    def __init__(self, layer: PatchReorder) -> None:
        self.options = layer.options
        self.maps = self.changed = self.empty = self.undefined = self.images = 0
        self._size: tuple[int, int] | None = None
        self._levels: list[_Level] = []

    @torch.no_grad()
    def update(self, original: Tensor, copies: Tensor) -> None:
        """Add the inputs of the layer for a batch of images, and for transformed copies of them.

        Shape:
            original: (b, c, h, w); copies: (poses * b, c, h, w): the whole batch in one pose, then in the next.
        """
        shapes = f"{tuple(copies.shape)} of copies do not match {tuple(original.shape)} of images"
        if original.dim() != 4 or copies.shape[1:] != original.shape[1:] or not len(original):
            raise ValueError(f"maps {shapes}: they must be (images, channels, height, width), of one size")
        if len(copies) % len(original):
            raise ValueError(f"maps {shapes}: every pose must have all images")
        size = (original.shape[2], original.shape[3])
        before = self._rank(original)
        if self._size is None:
            self._size, self._levels = size, self._start(before.order.shape[2], before.order.shape[3])
        if size != self._size:
            raise ValueError(
                f"maps of {size[0]}x{size[1]}, but of {self._size[0]}x{self._size[1]} before: use one size"
            )
        for part in copies.split(len(original)):
            self._compare(before, self._rank(part))

    def result(self) -> Stability:
        """The numbers so far."""
        return Stability(
            *(self.maps, self.changed, self.empty, self.undefined),
            [level.result() for level in self._levels],
            self.images,
        )

    def _start(self, rows: int, columns: int) -> list[_Level]:
        grid = self.options.grid
        if grid == "pixels" or self.options.levels == 1:
            return [_Level(1, (rows, columns), (rows, columns))]
        return [_Level(k, (grid**k, grid**k), (grid, grid)) for k in range(1, self.options.levels + 1)]

    def _rank(self, maps: Tensor) -> _Ranked:
        _, order = patch_reorder(maps, return_order=True, **self.options.arguments())
        energy = unit_energy(maps, order.shape[2], order.shape[3], self.options.energy)
        return _Ranked(order.long(), energy if self.options.per_channel else energy.sum(1, keepdim=True))

    def _compare(self, before: _Ranked, after: _Ranked) -> None:
        some = ~((before.energy == 0).all(3).all(2) & (after.energy == 0).all(3).all(2))  # b c
        same = some[:, :, None, None]  # places of the level above that hold the same patch both times
        changed = torch.zeros_like(some)
        for level in self._levels:
            same, flipped, undefined = level.compare(before, after, same)
            changed = changed | flipped
            self.undefined += undefined
        self.maps += int(some.sum())
        self.images += int(some.any(1).sum())
        self.empty += int((~some).sum())
        self.changed += int(changed.sum())


class _Ranked(NamedTuple):
    """The unit patches (of the last level) of a batch of maps, both (b, c or 1, rows, columns)."""

    order: Tensor  # the patch that is moved to a place
    energy: Tensor  # of the patch that was there


class _Level:
    """Counts of one level: `side` patches down and across the map, `grid` inside one of the level above."""

    def __init__(self, number: int, side: tuple[int, int], grid: tuple[int, int]) -> None:
        self.number, self.side, self.grid = number, side, grid
        self.parents = side[0] // grid[0], side[1] // grid[1]
        ranks = grid[0] * grid[1]
        self.groups = self.flipped = 0
        self.changed, self.first = (torch.zeros(ranks, dtype=torch.int64) for _ in range(2))
        self.flips, self.neighbours = (torch.zeros(STEPS + 1, dtype=torch.int64) for _ in range(2))

    def compare(self, before: _Ranked, after: _Ranked, same: Tensor) -> tuple[Tensor, Tensor, int]:
        """Count changes; returns the places of this level with the same patch, the changed maps, undefined margins."""
        patch, other = (self._group(self._sources(ranked.order)) for ranked in (before, after))  # b c parents ranks
        energy = self._energies(before)
        own, new = _pick(energy, patch), _pick(self._energies(after), other)
        same = same.flatten(2).expand(patch.shape[:3])
        nothing = (own == 0) & (new == 0)
        compared = same & ~nothing.all(3)
        changed = (patch != other) & ~nothing & compared[..., None]
        flipped = changed.any(3)
        self.groups += int(compared.sum())
        self.flipped += int(flipped.sum())
        self.changed = self.changed + changed.sum((0, 1, 2)).cpu()
        first = changed.int().argmax(3)[flipped]  # of several largest, torch gives the first
        self.first = self.first + torch.bincount(first, minlength=len(self.first)).cpu()
        lost = own[flipped].gather(1, first[:, None])[:, 0]
        won = _pick(energy, other)[flipped].gather(1, first[:, None])[:, 0]
        self.flips, undefined = _count_margins(self.flips, lost, won)
        pairs = compared[..., None] & ((own[..., 1:] != 0) | (own[..., :-1] != 0))
        self.neighbours, more = _count_margins(self.neighbours, own[..., :-1][pairs], own[..., 1:][pairs])
        unchanged = ((patch == other) & same[..., None]).unflatten(2, self.parents)
        places = unchanged.unflatten(4, self.grid).transpose(3, 4).flatten(4).flatten(2, 3)  # b c rows columns
        return places, flipped.any(2), undefined + more

    def result(self) -> LevelStability:
        return LevelStability(
            level=self.number,
            groups=self.groups,
            flipped=self.flipped,
            changed=self.changed.clone(),
            first=self.first.clone(),
            flips=_margins(self.flips),
            neighbours=_margins(self.neighbours),
        )

    def _sources(self, order: Tensor) -> Tensor:
        """The patch of this level (raster index) at each of its places: that of the first unit patch there."""
        down, across = order.shape[2] // self.side[0], order.shape[3] // self.side[1]
        unit = order[:, :, ::down, ::across]
        columns = order.shape[3]
        return unit // columns // down * self.side[1] + unit % columns // across

    def _energies(self, ranked: _Ranked) -> Tensor:
        """Of every patch of this level, (b, c, patches)."""
        down, across = ranked.order.shape[2] // self.side[0], ranked.order.shape[3] // self.side[1]
        units = ranked.energy.unflatten(3, (self.side[1], across)).unflatten(2, (self.side[0], down))
        return units.sum((3, 5)).flatten(2)

    def _group(self, places: Tensor) -> Tensor:
        """(b, c, rows, columns) as (b, c, parents, ranks)."""
        parents, grid = self.parents, self.grid
        places = places.unflatten(3, (parents[1], grid[1])).unflatten(2, (parents[0], grid[0]))
        return places.transpose(3, 4).flatten(4).flatten(2, 3)


def _pick(energy: Tensor, patch: Tensor) -> Tensor:
    """The energies of patches, in their shape."""
    return energy.gather(2, patch.flatten(2)).view(patch.shape)


def _count_margins(counts: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, int]:
    """The counts with the margins of a and b in their bins, and how many are not finite."""
    total = a.double() + b.double()
    margins = (a.double() - b.double()).abs() / total.where(total != 0, 1.0)
    known = margins[margins.isfinite()]
    found = torch.bincount((known * STEPS).round().long(), minlength=len(counts)).cpu()
    return counts + found, len(margins) - len(known)


def _margins(counts: Tensor) -> Margins:
    n = int(counts.sum())
    median = int((counts.cumsum(0) < max(1, math.ceil(n / 2))).sum()) / STEPS if n else math.nan
    return Margins(median, counts.clone(), n)
