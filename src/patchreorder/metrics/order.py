"""How stable the order of a reordering layer is: how often a small transform changes it, at which rank, how nearly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from patchreorder.layers.patch_reorder import PatchReorder
from patchreorder.operator.functional import Energy, Grid, PatchReorderOptions, patch_reorder
from patchreorder.operator.torch_form import unit_energy

STEPS = 1000  # bins of margins, whose centres are 0, 0.001, ..., 1


class Margins(NamedTuple):
    """How margins are spread, from 0 (equal energies) to 1 (one of them is zero)."""

    quantiles: dict[float, float]  # NaN where there are none
    counts: Tensor  # in bins around 0, 0.001, ..., 1
    n: int


class LevelStability(NamedTuple):
    """What changed among the patches that are ranked together at one level, 1 being the coarsest."""

    level: int
    groups: int  # patches whose children were compared; at level 1 the maps themselves
    flipped: int  # groups in which something changed
    compared: Tensor  # for every rank how often it was compared, (ranks,)
    changed: Tensor  # and how often another patch was there
    first: Tensor  # and how often it was the first rank that changed
    flips: Margins  # between the patch of the first changed rank and the one that took its place
    neighbours: Margins  # between patches of successive ranks, of all groups, for comparison


class Stability(NamedTuple):
    """How many maps changed, and level by level what."""

    maps: int  # compared; without `per_channel` one for every image
    changed: int  # maps in which something changed at any level
    empty: int  # maps without energy, before and after: not among `maps`
    undefined: int  # margins left out because an energy is not a finite number
    levels: list[LevelStability]

    @property
    def rate(self) -> float:
        """Changed maps in percent."""
        return 100 * self.changed / self.maps if self.maps else math.nan


class OrderStability:
    """Compares the order of feature maps with the order of the maps of a transformed image.

    Ranks are compared level by level. At each, the patches inside one place of the level above are compared if the same
    patch is in that place both times; a rank has changed if another patch is there, and at least one of the two has
    energy: zeros that change places with zeros change nothing. The margin of two patches is the difference of their
    energies over the sum, before the transform.

    The order names places of the map. A transform that moves the content by a whole patch changes it even where the
    sorted maps stay the same: the measure is for transforms that are small against a patch.

    Args:
        grid, levels, energy, per_channel, descending: as of `patch_reorder`.
        quantiles: of the margins.

    Raises:
        ValueError: an argument is out of range, or the shapes do not fit.

    >>> x = torch.tensor([[[[4.0, 3.0], [2.0, 1.0]]]])
    >>> turned = torch.tensor([[[[4.0, 2.0], [3.0, 1.0]]]])
    >>> layer = OrderStability(grid="pixels", energy="l1")
    >>> layer.update(x, turned)
    >>> found = layer.result()
    >>> found.rate, found.levels[0].changed  # the second and the third changed places
    (100.0, tensor([0, 1, 1, 0]))
    >>> found.levels[0].flips.quantiles[0.5]  # (3 - 2) / (3 + 2)
    0.2
    """

    def __init__(
        self,
        *,
        grid: Grid = 2,
        levels: int = 1,
        energy: Energy = "l2",
        per_channel: bool = True,
        descending: bool = True,
        quantiles: Sequence[float] = (0.05, 0.25, 0.5, 0.75, 0.95),
    ) -> None:
        if not all(0 <= q <= 1 for q in quantiles):
            raise ValueError(f"quantiles ({list(quantiles)}) must be from 0 to 1")
        self.settings = PatchReorderOptions(grid, levels, energy, per_channel, descending)
        self.quantiles = tuple(quantiles)
        self.maps = self.changed = self.empty = self.undefined = 0
        self._size: tuple[int, int] | None = None
        self._levels: list[_Level] = []

    @classmethod
    def of(cls, layer: PatchReorder) -> OrderStability:
        """For a layer's own settings; give `update` what the layer is given."""
        return cls(**layer.options.arguments())

    @torch.no_grad()
    def update(self, original: Tensor, copies: Tensor) -> None:
        """Take the maps that the layer is given for a batch of images, and for transformed copies of them.

        Shape:
            original: (b, c, h, w); copies: (poses * b, c, h, w): the whole batch in one pose, then in the next.
        """
        shapes = f"{tuple(copies.shape)} of copies do not fit {tuple(original.shape)} of images"
        if original.dim() != 4 or copies.shape[1:] != original.shape[1:] or not len(original):
            raise ValueError(f"maps {shapes}: they must be (images, channels, height, width), of one size")
        if len(copies) % len(original):
            raise ValueError(f"maps {shapes}: every pose must have all images")
        size = (original.shape[2], original.shape[3])
        if self._size is None:
            self._size = size
            self._levels = self._start(*size)
        if size != self._size:
            raise ValueError(
                f"maps of {size[0]}x{size[1]}, but of {self._size[0]}x{self._size[1]} before: use one size"
            )
        before = self._rank(original)
        for part in copies.split(len(original)):
            self._compare(before, self._rank(part))

    def result(self) -> Stability:
        """The numbers so far."""
        levels = [level.result(self.quantiles) for level in self._levels]
        return Stability(self.maps, self.changed, self.empty, self.undefined, levels)

    def _start(self, height: int, width: int) -> list[_Level]:
        patches = self.settings.patch_grid(height, width)
        if self.settings.levels == 1:
            return [_Level(1, (patches.rows, patches.columns), (patches.rows, patches.columns))]
        grid = self.settings.grid
        assert grid != "pixels"  # which has one level only
        return [_Level(k, (grid**k, grid**k), (grid, grid)) for k in range(1, self.settings.levels + 1)]

    def _rank(self, maps: Tensor) -> Ranked:
        _, order = patch_reorder(maps, return_order=True, **self.settings.arguments())
        energy = unit_energy(maps, order.shape[2], order.shape[3], self.settings.energy)
        return Ranked(order.long(), energy if self.settings.per_channel else energy.sum(1, keepdim=True))

    def _compare(self, before: Ranked, after: Ranked) -> None:
        some = ~((before.energy == 0).all(3).all(2) & (after.energy == 0).all(3).all(2))  # b c
        alike = some[:, :, None, None]  # places of the level above that hold the same patch both times
        changed = torch.zeros_like(some)
        for level in self._levels:
            alike, flipped, undefined = level.compare(before, after, alike)
            changed = changed | flipped
            self.undefined += undefined
        self.maps += int(some.sum())
        self.empty += int((~some).sum())
        self.changed += int(changed.sum())


class Ranked(NamedTuple):
    """Unit patches of a batch of maps, both (b, c or 1, rows, columns)."""

    order: Tensor  # the patch that is at a place
    energy: Tensor  # of the patch that was there


class _Level:
    """Counts of one level: `side` patches down and across the map, `grid` inside one of the level above."""

    def __init__(self, number: int, side: tuple[int, int], grid: tuple[int, int]) -> None:
        self.number, self.side, self.grid = number, side, grid
        ranks = grid[0] * grid[1]
        self.groups = self.flipped = 0
        self.compared, self.changed, self.first = (torch.zeros(ranks, dtype=torch.int64) for _ in range(3))
        self.flips, self.neighbours = (torch.zeros(STEPS + 1, dtype=torch.int64) for _ in range(2))

    def compare(self, before: Ranked, after: Ranked, alike: Tensor) -> tuple[Tensor, Tensor, int]:
        """Count; return the places of this level that are alike, the maps in which some changed, undefined margins."""
        patch, other = (self._group(self._sources(ranked.order)) for ranked in (before, after))  # b c parents ranks
        energy, changed_energy = self._energies(before), self._energies(after)
        own, new = _pick(energy, patch), _pick(changed_energy, other)
        alike = alike.flatten(2).expand(patch.shape[:3])
        nothing = (own == 0) & (new == 0)
        compared = alike & ~nothing.all(3)
        changed = (patch != other) & ~nothing & compared[..., None]
        flipped = changed.any(3)
        self.groups += int(compared.sum())
        self.flipped += int(flipped.sum())
        self.compared = self.compared + compared.sum().cpu()
        self.changed = self.changed + changed.sum((0, 1, 2)).cpu()
        first = changed.int().argmax(3)[flipped]  # of several largest, torch gives the first
        self.first = self.first + torch.bincount(first, minlength=len(self.first)).cpu()
        lost = own[flipped].gather(1, first[:, None])[:, 0]
        won = _pick(energy, other)[flipped].gather(1, first[:, None])[:, 0]
        self.flips, undefined = _count_margins(self.flips, lost, won)
        succeeding = compared[..., None] & ((own[..., 1:] != 0) | (own[..., :-1] != 0))
        self.neighbours, more = _count_margins(self.neighbours, own[..., :-1][succeeding], own[..., 1:][succeeding])
        same = ((patch == other) & alike[..., None]).unflatten(2, self._parents)
        return _ungroup(same, self.grid), flipped.any(2), undefined + more

    def result(self, quantiles: Sequence[float]) -> LevelStability:
        return LevelStability(
            level=self.number,
            groups=self.groups,
            flipped=self.flipped,
            compared=self.compared.clone(),
            changed=self.changed.clone(),
            first=self.first.clone(),
            flips=_margins(self.flips, quantiles),
            neighbours=_margins(self.neighbours, quantiles),
        )

    @property
    def _parents(self) -> tuple[int, int]:
        return self.side[0] // self.grid[0], self.side[1] // self.grid[1]

    def _sources(self, order: Tensor) -> Tensor:
        """The patch of this level (raster index) at each of its places: that of the first unit patch there."""
        down, across = order.shape[2] // self.side[0], order.shape[3] // self.side[1]
        unit = order[:, :, ::down, ::across]
        columns = order.shape[3]
        return unit // columns // down * self.side[1] + unit % columns // across

    def _energies(self, ranked: Ranked) -> Tensor:
        """Of every patch of this level, (b, c, patches)."""
        down, across = ranked.order.shape[2] // self.side[0], ranked.order.shape[3] // self.side[1]
        units = ranked.energy.unflatten(3, (self.side[1], across)).unflatten(2, (self.side[0], down))
        return units.sum((3, 5)).flatten(2)

    def _group(self, places: Tensor) -> Tensor:
        """(b, c, rows, columns) of places as (b, c, parents, ranks)."""
        parents, grid = self._parents, self.grid
        places = places.unflatten(3, (parents[1], grid[1])).unflatten(2, (parents[0], grid[0]))
        return places.transpose(3, 4).flatten(4).flatten(2, 3)


def _ungroup(groups: Tensor, grid: tuple[int, int]) -> Tensor:
    """(b, c, parents down, parents across, ranks) as (b, c, rows, columns)."""
    return groups.unflatten(4, grid).transpose(3, 4).flatten(4).flatten(2, 3)


def _pick(energy: Tensor, patch: Tensor) -> Tensor:
    """The energies of patches, in their shape."""
    return energy.gather(2, patch.flatten(2)).view(patch.shape)


def _count_margins(counts: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, int]:
    """The counts with these margins in their bins, and how many are not numbers."""
    total = a.double() + b.double()
    margins = (a.double() - b.double()).abs() / total.where(total != 0, 1.0)
    known = margins[margins.isfinite()]
    found = torch.bincount((known * STEPS).round().long(), minlength=len(counts)).cpu()
    return counts + found, len(margins) - len(known)


def _margins(counts: Tensor, quantiles: Sequence[float]) -> Margins:
    n = int(counts.sum())
    passed = counts.cumsum(0)
    found = {q: int((passed < max(1, math.ceil(q * n))).sum()) / STEPS if n else math.nan for q in quantiles}
    return Margins(found, counts.clone(), n)
