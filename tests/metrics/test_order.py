"""How stable an order is: maps written by hand, an oracle that walks through the levels, and any order of batches."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from patchreorder import PatchReorder, patch_reorder
from patchreorder.metrics.order import OrderStability


def stability(original, copies, **arguments):
    order = OrderStability(PatchReorder(**arguments))
    order.update(original, copies)
    return order.result()


def one(rows):
    return torch.tensor(rows, dtype=torch.float32)[None, None]


def test_equal_maps_do_not_change():
    x = torch.rand(4, 3, 8, 8)
    found = stability(x, torch.cat([x, 0.5 * x]), levels=2)
    assert (found.maps, found.changed, found.rate) == (24, 0, 0.0)
    assert [level.groups for level in found.levels] == [24, 96]
    assert all(level.flips.n == 0 and math.isnan(level.flips.median) for level in found.levels)


def test_two_patches_change_places():
    before, after = one([[9, 5, 4], [3, 2, 1]]), one([[9, 5, 3.5], [3.75, 2, 1]])
    found = stability(before, after, grid="pixels", energy="l1")
    (level,) = found.levels
    assert (found.maps, found.changed, level.groups, level.flipped) == (1, 1, 1, 1)
    assert level.changed.tolist() == [0, 0, 1, 1, 0, 0]
    assert level.first.tolist() == [0, 0, 1, 0, 0, 0]
    assert level.flips.median == pytest.approx(1 / 7, abs=0.0005)  # (4 - 3) / (4 + 3)
    assert level.flips.counts.nonzero().tolist() == [[143]]
    assert level.neighbours.n == 5  # 4/14, 1/9, 1/7, 1/5, 1/3
    assert level.neighbours.median == pytest.approx(1 / 5, abs=0.0005)


def test_the_margin_is_of_energies():
    before, after = one([[3, 2]]), one([[2, 3]])
    margin = stability(before, after, grid="pixels", energy="l2").levels[0].flips.median
    assert margin == pytest.approx(5 / 13, abs=0.0005)  # (9 - 4) / (9 + 4)


def test_ascending():
    before, after = one([[1, 2, 5]]), one([[1, 5, 2]])
    found = stability(before, after, grid="pixels", energy="l1", descending=False)
    assert found.levels[0].changed.tolist() == [0, 1, 1]
    assert found.levels[0].flips.median == pytest.approx(3 / 7, abs=0.0005)


def test_levels_are_compared_separately():
    """Patches of 2x2 pixels: the coarse order is that of the sums, the fine one inside each."""
    before = one([[8, 7, 4, 3], [6, 5, 2, 1], [0, 0, 0.5, 0], [0, 0, 0, 0]])
    inside = before.clone()
    inside[0, 0, 0, :2] = torch.tensor([7.0, 8.0])  # the strongest two inside the first patch
    found = stability(before, inside, levels=2, energy="l1")
    assert [level.flipped for level in found.levels] == [0, 1]
    assert found.levels[1].changed.tolist() == [1, 1, 0, 0]
    assert found.levels[1].groups == 3  # the patch of zeros is not compared
    assert found.changed == 1
    swapped = before.roll(2, 3)  # the first two patches change places: their insides cannot be compared
    found = stability(before, swapped, levels=2, energy="l1")
    assert found.levels[0].changed.tolist() == [1, 1, 1, 0]  # the last holds zeros both times
    assert found.levels[0].first.tolist() == [1, 0, 0, 0]
    assert found.levels[0].flips.median == pytest.approx(16 / 36, abs=0.0005)  # 26 and 10
    assert found.levels[1].groups == 0


def test_zeros_that_change_places_do_not_count():
    before, after = one([[5, 3, 0, 0]]), one([[5, 0, 0, 3]])  # order 0 1 2 3, then 0 3 1 2
    found = stability(before, after, grid="pixels")
    assert found.levels[0].changed.tolist() == [0, 1, 0, 0]
    assert found.levels[0].flips.median == 1.0  # against zero energy
    assert found.levels[0].neighbours.n == 2  # zero and zero have no margin


def test_empty_maps_are_counted_apart():
    before = torch.zeros(2, 3, 2, 2)
    before[0, 0, 0, 0] = 1.0
    after = torch.zeros(2, 3, 2, 2)
    after[1, 2, 1, 1] = 1.0
    found = stability(before, after)
    assert (found.maps, found.empty, found.changed) == (2, 4, 1)  # of the first map all patches keep their places
    nothing = OrderStability(PatchReorder()).result()
    assert nothing.maps == 0
    assert math.isnan(nothing.rate)


def test_channels_ranked_together():
    before = torch.tensor([[[[3.0, 1.0]], [[0.0, 1.0]]]])
    after = torch.tensor([[[[1.0, 3.0]], [[9.0, 1.0]]]])
    own = stability(before, after, grid="pixels", energy="l1")
    together = stability(before, after, grid="pixels", energy="l1", per_channel=False)
    assert (own.maps, own.changed) == (2, 2)
    assert (together.maps, together.changed) == (1, 0)
    assert together.levels[0].neighbours.median == pytest.approx(1 / 5, abs=0.0005)


def test_nan_and_inf_have_no_margin():
    before, after = one([[math.nan, 2, 1]]), one([[1, 2, math.nan]])
    found = stability(before, after, grid="pixels")
    assert found.levels[0].first.tolist() == [1, 0, 0]
    assert found.levels[0].flips.n == 0
    assert found.undefined == 2  # of the flip and of one pair of neighbours
    assert stability(one([[math.inf, 1]]), one([[1, math.inf]]), grid="pixels").undefined == 2


def test_errors():
    x = torch.rand(2, 3, 4, 4)
    layer = OrderStability(PatchReorder())
    for copies in (torch.rand(3, 3, 4, 4), torch.rand(2, 3, 4, 5)):
        with pytest.raises(ValueError, match="do not match"):
            layer.update(x, copies)
    layer.update(x, x)
    with pytest.raises(ValueError, match="6x6, but of 4x4"):
        layer.update(torch.rand(1, 3, 6, 6), torch.rand(1, 3, 6, 6))
    with pytest.raises(ValueError, match="4x4 map"):
        OrderStability(PatchReorder(grid=5)).update(x, x)


def walk(before, after, grid, levels, energy):
    """Counts by recursion through the places of single maps (h, w), lists of numbers only."""
    u = grid**levels
    orders = [
        patch_reorder(x[None, None], grid=grid, levels=levels, energy=energy, return_order=True)[1]
        for x in (before, after)
    ]
    orders = [order.flatten().tolist() for order in orders]
    size = (before.shape[0] // u, before.shape[1] // u)
    strength = (lambda v: abs(v)) if energy == "l1" else (lambda v: v * v)

    def energy_of(x, top, left, units):
        block = x[top * size[0] : (top + units) * size[0], left * size[1] : (left + units) * size[1]]
        return math.fsum(strength(v) for v in block.flatten().tolist())

    ranks = grid * grid
    counts = [{"groups": 0, "changed": [0] * ranks, "first": [0] * ranks, "margins": []} for _ in range(levels)]

    def visit(level, top, left):
        """The place at (top, left) holds the same patch both times: compare its children."""
        units = u // grid ** (level + 1)
        places = [(top + i * units, left + j * units) for i in range(grid) for j in range(grid)]
        held = []
        for order in orders:
            sources = [divmod(order[row * u + column], u) for row, column in places]
            held.append([(row // units * units, column // units * units) for row, column in sources])
        energies = [
            [energy_of(x, *source, units) for source in sources]
            for x, sources in zip((before, after), held, strict=True)
        ]
        if not any(energies[0]) and not any(energies[1]):
            pass
        else:
            found = counts[level]
            found["groups"] += 1
            changed = [
                r for r in range(ranks) if held[0][r] != held[1][r] and (energies[0][r] != 0 or energies[1][r] != 0)
            ]
            for r in changed:
                found["changed"][r] += 1
            if changed:
                found["first"][changed[0]] += 1
                a, b = energies[0][changed[0]], energy_of(before, *held[1][changed[0]], units)
                found["margins"].append((a - b) / (a + b) if a + b else 0.0)
        if level + 1 < levels:
            for r in range(ranks):
                if held[0][r] == held[1][r]:
                    visit(level + 1, *places[r])

    if bool(before.any()) or bool(after.any()):
        visit(0, 0, 0)
    return counts


@settings(max_examples=40, deadline=None)
@given(
    grid_levels=st.sampled_from([(2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (4, 1)]),
    extra=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    energy=st.sampled_from(["l1", "l2"]),
    seed=st.integers(0, 10**6),
    size=st.integers(1, 5),
)
def test_against_a_walk_through_the_levels(grid_levels, extra, energy, seed, size):
    grid, levels = grid_levels
    random = torch.Generator().manual_seed(seed)
    shape = (5, 2, grid**levels + extra[0], grid**levels + extra[1])
    before = (torch.randint(-6, 7, shape, generator=random) * torch.randint(0, 2, shape, generator=random)).float()
    after = before.clone()
    moved = torch.rand(shape, generator=random) < 0.1
    after[moved] += torch.randint(-3, 4, shape, generator=random).float()[moved]
    before[0, 0] = after[0, 0] = 0
    layer = OrderStability(PatchReorder(grid=grid, levels=levels, energy=energy))
    for part in torch.randperm(5, generator=random).split(size):
        layer.update(before[part], after[part])
    found = layer.result()
    walks = [walk(a, b, grid, levels, energy) for a, b in zip(before.flatten(0, 1), after.flatten(0, 1), strict=True)]
    assert found.changed == sum(any(any(level["first"]) for level in walked) for walked in walks)
    for place, level in enumerate(found.levels):
        mine = [walked[place] for walked in walks]
        assert level.groups == sum(counts["groups"] for counts in mine)
        assert level.changed.tolist() == [sum(column) for column in zip(*(c["changed"] for c in mine), strict=True)]
        assert level.first.tolist() == [sum(column) for column in zip(*(c["first"] for c in mine), strict=True)]
        margins = sorted(margin for counts in mine for margin in counts["margins"])
        assert level.flipped == level.flips.n == len(margins)
        binned = torch.repeat_interleave(torch.arange(1001), level.flips.counts) / 1000
        assert binned.tolist() == pytest.approx(margins, abs=0.000501)


def test_updates_in_and_outside_inference_mode():
    x = torch.rand(2, 1, 4, 4)
    with torch.inference_mode():
        layer = OrderStability(PatchReorder())
        layer.update(x + 0, x + 0)
    layer.update(x, x.requires_grad_())
    assert layer.result().maps == 4
