"""Pose alignment: known answers, what does not change, what changes little, gradients, compilers and exporters."""

import math
from typing import get_args

import pytest
import torch
from torch import nn

from patchreorder import PoseAlign, ShiftAlign, align_pose, align_shift
from patchreorder.data.poses import Pose, apply_pose
from patchreorder.layers.pose_align import Ends, PoseAlignOptions
from tests.compiling import assert_exports_alike


def wedge(size=32, *, angle=0.0, down=0.0, right=0.0):
    """A smooth wedge, heavier and broader at one end, rotated counter-clockwise about the middle and then shifted."""
    y, x = (torch.arange(size, dtype=torch.float64) - (size - 1) / 2 for _ in range(2))
    y, x = y.view(-1, 1) - down, x.view(1, -1) - right
    t = math.radians(angle)
    u, v = x * math.sin(t) + y * math.cos(t), x * math.cos(t) - y * math.sin(t)  # along the axis, across
    wide = (2.4 + 0.1 * u).clamp(min=1)
    return (torch.exp(-((u / 7) ** 4) - (v / wide) ** 2) * (1.2 + u / 8)).clamp(min=0).float()[None, None]


@pytest.mark.parametrize("ends", get_args(Ends))
def test_a_bar_becomes_vertical_in_the_middle(ends):
    x = torch.zeros(2, 1, 7, 7)
    x[0, 0, 5, 0:3] = torch.tensor([1.0, 3.0, 1.0])
    x[1, 0, 0:3, 6] = torch.tensor([1.0, 3.0, 1.0])
    z = align_pose(x, ends=ends)
    wanted = torch.zeros(7, 7)
    wanted[2:5, 3] = torch.tensor([1.0, 3.0, 1.0])
    for image in z[:, 0]:
        torch.testing.assert_close(image, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("angle", range(-180, 180, 30))
def test_rotations_change_little(angle):
    before, after = align_pose(wedge()), align_pose(wedge(angle=angle))
    cosine = torch.cosine_similarity(before.flatten(), after.flatten(), dim=0)
    assert cosine > 0.998
    assert torch.cosine_similarity(wedge().flatten(), wedge(angle=angle).flatten(), dim=0) < 0.85 or angle == 0


def test_the_heavier_end_is_always_the_same_and_the_nearest_is_not():
    up, over = wedge(angle=20), wedge(angle=200)
    torch.testing.assert_close(align_pose(up), align_pose(over), atol=0.05, rtol=0)
    near, far = (align_pose(x, ends="nearest") for x in (up, over))
    torch.testing.assert_close(near, far.rot90(2, (2, 3)), atol=0.02, rtol=0)
    assert not torch.allclose(near, far, atol=0.1)
    rotated = (align_pose(wedge(angle=angle), ends="nearest").flatten() for angle in (60, -60))
    assert torch.cosine_similarity(*rotated, dim=0) > 0.998


def test_the_end_that_reaches_farther_out_comes_down():
    x = torch.zeros(1, 1, 23, 23)
    x[0, 0, 2:4, 4:11], x[0, 0, 4:13, 7] = 3.0, 1.0  # a hammer, its handle down
    for turn in range(4):
        z = align_pose(x.rot90(turn, (2, 3)))[0, 0]
        assert z.sum(1).argmax() in (10, 11)  # the head, near the centroid
        rows = (z.sum(1) > 0.05).nonzero()[:, 0]
        assert rows.max() - 11 > 11 - rows.min()  # the handle reaches farther


@pytest.mark.parametrize("shift", [(3, -2), (-5, 4), (11, 17)])
def test_shifts_by_whole_pixels_change_nothing_to_the_last_bit(shift):
    x = torch.cat([wedge(angle=33), wedge(angle=-70)]).expand(2, 3, -1, -1) * torch.tensor([1.0, 0.3, 2.0]).view(
        1, 3, 1, 1
    )
    assert torch.equal(align_pose(x.roll(shift, (2, 3))), align_pose(x))
    moved = apply_pose(x, Pose(right=3 / 32))
    torch.testing.assert_close(align_pose(moved), align_pose(x), atol=1e-4, rtol=0)


def test_parts_of_a_pixel_change_little():
    before, after = align_pose(wedge(angle=10)), align_pose(wedge(angle=10, down=0.4, right=-0.3))
    assert (before - after).abs().max() < 0.05


def test_images_without_an_axis_are_not_rotated():
    y, x = torch.meshgrid(torch.arange(9.0) - 4, torch.arange(9.0) - 4, indexing="ij")
    disc = torch.exp(-(x * x + y * y) / 4)[None, None]
    torch.testing.assert_close(align_pose(disc), disc, atol=1e-5, rtol=0)
    for value in (0.0, math.nan, math.inf):
        maps = torch.zeros(1, 2, 6, 6)
        maps[0, 1, 1, 4], maps[0, 0, 2, 2] = value, 0.0 if value == 0 else 1.0
        torch.testing.assert_close(align_pose(maps), align_shift(maps, energy="l1"), equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_types_layouts_and_empty_batches(dtype):
    x = wedge(16, angle=40).expand(2, 3, -1, -1).to(dtype)
    z = align_pose(x)
    assert (z.dtype, z.shape) == (dtype, x.shape)
    laid = align_pose(x.contiguous(memory_format=torch.channels_last))
    assert laid.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(laid, z)
    assert torch.equal(align_pose(x[0]), z[0])
    assert align_pose(x[:0]).shape == (0, 3, 16, 16)
    large = align_pose(x.float() * 1e19, energy="l2") / 1e19  # their squares are infinite in float32
    assert large.isfinite().all()


def test_the_gradient_goes_to_the_pixels_that_were_read():
    x = (wedge(8, angle=25) + 0.01).double().requires_grad_()
    fixed = torch.rand(8, 8, dtype=torch.float64)
    (align_pose(x) * fixed).sum().backward()
    from patchreorder.layers.pose_align import _axes, _grid

    rolled, order = align_shift(x.detach(), energy="l1", return_order=True)
    grid = _grid(_axes(rolled, PoseAlignOptions()), rolled, rolled)
    again = rolled.clone().requires_grad_()
    (nn.functional.grid_sample(again, grid, align_corners=False) * fixed).sum().backward()
    wanted = torch.zeros(64, dtype=torch.float64).scatter(0, order.flatten().long(), again.grad.flatten())
    torch.testing.assert_close(x.grad.flatten(), wanted)


def test_compiles_as_one_graph():
    layer, x = PoseAlign(energy="l2", ends="nearest"), wedge(12, angle=50).expand(2, 2, -1, -1)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x))


def test_onnx_with_any_batch():
    assert_exports_alike(PoseAlign().eval(), torch.cat([wedge(12, angle=angle) for angle in (10, 50, 130)]))


def test_a_slanted_bar_becomes_vertical_by_shear():
    x = torch.zeros(1, 1, 9, 9)
    for row in range(5):
        x[0, 0, 2 + row, 6 - row] = 1.0 + row % 2  # symmetric about its middle: it stays there
    z = align_pose(x, by="shear")
    wanted = torch.zeros(9, 9)
    wanted[2:7, 4] = torch.tensor([1.0, 2.0, 1.0, 2.0, 1.0])
    torch.testing.assert_close(z[0, 0], wanted, atol=1e-5, rtol=0)
    lying = torch.zeros(1, 1, 9, 9)
    lying[0, 0, 4, 2:7] = torch.tensor([1.0, 2.0, 1.0, 2.0, 1.0])
    torch.testing.assert_close(
        align_pose(lying, by="shear"), lying, atol=1e-5, rtol=0
    )  # it has no height to slant over


@pytest.mark.parametrize("size", [None, 12, 13])
@pytest.mark.parametrize("side", [16, 17])
def test_rows_stay_rows_by_shear(size, side):
    x = nn.functional.pad(torch.rand(3, 2, 5, 4), (2, side - 6, 1, side - 6))
    z, rolled = PoseAlign(by="shear", size=size)(x), ShiftAlign(energy="l1", size=size)(x)
    torch.testing.assert_close(z.sum(3), rolled.sum(3))
    columns = torch.arange(z.shape[3]) - (z.shape[3] - 1) / 2
    energy = z.abs().sum(1)
    across = (energy.sum(1) @ columns) / energy.sum((1, 2))
    assert across.abs().max() < 0.6  # nearly in the middle: the line is where it meets the middle row


def test_shear_removes_slants_and_no_rotations():
    def slanted(slant):
        rows = torch.arange(32.0) - 15.5
        grid = torch.stack([(rows[None] + slant * rows[:, None]) / 16, (rows / 16)[:, None].expand(-1, 32)], 2)
        return nn.functional.grid_sample(wedge(), grid[None], align_corners=False)

    before = align_pose(slanted(0.0), by="shear")
    for slant in (-0.6, -0.3, 0.25, 0.5):
        after = align_pose(slanted(slant), by="shear")
        assert torch.cosine_similarity(before.flatten(), after.flatten(), dim=0) > 0.995
        assert torch.cosine_similarity(slanted(0.0).flatten(), slanted(slant).flatten(), dim=0) < 0.97
        assert torch.equal(align_pose(slanted(slant).roll((5, -3), (2, 3)), by="shear"), after)
    half = align_pose(wedge(angle=180), by="shear")
    rotated = [before.rot90(2, (2, 3)).roll(row, 2).flatten() for row in (-1, 0, 1)]  # the middle is between two rows
    assert max(torch.cosine_similarity(half.flatten(), each, dim=0) for each in rotated) > 0.995  # it keeps its ends
    flat = wedge(angle=80)  # a slant of more than a pixel a row is only lessened
    assert torch.cosine_similarity(align_pose(flat, by="shear").flatten(), before.flatten(), dim=0) < 0.9


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_size_returns_the_middle(layout):
    x = torch.cat([wedge(32, angle=angle, down=5, right=-4).expand(-1, 2, -1, -1) for angle in (10, 50, 130)])
    x = torch.cat([x, torch.zeros(1, 2, 32, 32)]).contiguous(memory_format=layout)
    for ends in get_args(Ends):
        cut = PoseAlign(ends=ends, size=20)(x)
        assert torch.equal(cut, align_pose(x, ends=ends)[:, :, 6:26, 6:26])
        assert cut.is_contiguous(memory_format=layout)
        assert torch.equal(PoseAlign(ends=ends, size=20)(x.roll((3, 9), (2, 3))), cut)
    odd = PoseAlign(size=19)(x)
    assert odd.shape == (4, 2, 19, 19)
    rows = torch.arange(19.0) - 9
    assert abs((odd[0, 0].sum(1) * rows).sum() / odd[0, 0].sum()) < 0.1  # the centroid, in the middle
    nan = x.clone()
    nan[0, 0, 4, 7] = torch.nan
    assert PoseAlign(size=5)(nan)[0, 0, 2, 2].isnan()  # only rolled, and cut
    assert align_pose(x[0], size=7).shape == (2, 7, 7)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"by \('skew'\) must be 'turn' or 'shear'"):
        PoseAlign(by="skew")
    with pytest.raises(ValueError, match=r"size \(5\) is more than the 4x9 pixels of the maps"):
        align_pose(torch.ones(1, 1, 4, 9), size=5)
    with pytest.raises(ValueError, match=r"ends \('longer'\) must be 'heavier' or 'nearest'"):
        PoseAlign(ends="longer")
    with pytest.raises(ValueError, match=r"energy \('max'\)"):
        PoseAlign(energy="max")
    with pytest.raises(ValueError, match="no pixels"):
        align_pose(torch.ones(1, 1, 0, 2))
    with pytest.raises(TypeError, match="int64"):
        align_pose(torch.ones(1, 1, 4, 4, dtype=torch.int64))
