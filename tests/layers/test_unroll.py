"""Unrolling: known answers, rotations that become shifts, gradients, compilers and exporters."""

import math

import numpy as np
import pytest
import torch

from patchreorder import Unroll, align_shift, create_layer, unroll
from patchreorder.data.poses import Pose, apply_pose
from tests.compiling import assert_exports_alike


def blob(size=33, *, angle=0.0, down=0.0, right=0.0):
    """Three smooth spots at different radii, rotated counter-clockwise about the middle and then shifted."""
    at = torch.arange(size, dtype=torch.float64) - (size - 1) / 2
    y, x = at.view(-1, 1) - down, at.view(1, -1) - right
    image = torch.zeros(size, size, dtype=torch.float64)
    for radius, degrees, wide, high in ((7, 0, 2.2, 1.0), (4, 100, 2.0, 0.7), (9, 215, 2.5, 0.8)):
        t = math.radians(degrees + angle)
        image += high * torch.exp(-((x - radius * math.cos(t)) ** 2 + (y + radius * math.sin(t)) ** 2) / wide**2)
    return image.float()[None, None]


def bilinear(image, top, left):
    """Between the four pixels around a place, which are zero outside: by hand."""
    value = 0.0
    for row in (math.floor(top), math.floor(top) + 1):
        for column in (math.floor(left), math.floor(left) + 1):
            if 0 <= row < image.shape[0] and 0 <= column < image.shape[1]:
                value += image[row, column] * (1 - abs(top - row)) * (1 - abs(left - column))
    return value


@pytest.mark.parametrize(("shape", "angles"), [((7, 7), 8), ((8, 8), 12), ((6, 9), 8), ((7, 7), 5)])
def test_against_reading_by_hand(shape, angles):
    x = torch.rand(2, 3, *shape, dtype=torch.float64)
    z = unroll(x, radii=4, angles=angles, reach=5)
    assert z.shape == (2, 3, 4, angles)
    wanted = np.zeros(z.shape)
    for place in np.ndindex(*wanted.shape):
        radius, angle = (place[2] + 0.5) * 5 / 4, 2 * math.pi * place[3] / angles
        top, left = (shape[0] - 1) / 2 - radius * math.sin(angle), (shape[1] - 1) / 2 + radius * math.cos(angle)
        wanted[place] = bilinear(x[place[0], place[1]].numpy(), top, left)
    torch.testing.assert_close(z, torch.from_numpy(wanted))


def test_sizes_by_default():
    assert unroll(torch.rand(1, 1, 28, 28)).shape == (1, 1, 14, 44)
    assert unroll(torch.rand(2, 9, 20)).shape == (2, 5, 16)
    assert unroll(torch.rand(0, 2, 8, 8), radii=3).shape == (0, 2, 3, 16)
    assert unroll(torch.rand(1, 1, 1, 1)).shape == (1, 1, 1, 4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("side", [12, 13])
def test_quarter_turns_are_shifts_to_the_last_bit(side, dtype):
    x = torch.randn(3, 2, side, side).to(dtype)
    z = unroll(x, radii=7, angles=20, reach=8)
    assert z.dtype == dtype
    for quarters in (1, 2, 3):
        assert torch.equal(unroll(x.rot90(quarters, (2, 3)), radii=7, angles=20, reach=8), z.roll(5 * quarters, 3))


@pytest.mark.parametrize("about", ["middle", "centroid"])
@pytest.mark.parametrize("step", [1, 5, 17, 30])
def test_other_rotations_are_nearly_shifts(step, about):
    before, after = (unroll(blob(angle=angle), angles=36, about=about) for angle in (0, 10 * step))
    shifted = before.roll(step, 3)
    assert torch.cosine_similarity(after.flatten(), shifted.flatten(), dim=0) > 0.999
    assert torch.cosine_similarity(after.flatten(), before.flatten(), dim=0) < 0.95


@pytest.mark.parametrize("shift", [(3, -2), (-5, 4), (11, 17)])
def test_about_the_centroid_shifts_change_nothing_to_the_last_bit(shift):
    x = torch.cat([blob(), blob(angle=70)]).expand(2, 3, -1, -1) * torch.tensor([1.0, 0.3, 2.0]).view(1, 3, 1, 1)
    z = unroll(x, about="centroid")
    assert torch.equal(unroll(x.roll(shift, (2, 3)), about="centroid"), z)
    assert not torch.allclose(unroll(x.roll(shift, (2, 3))), unroll(x), atol=0.1)
    torch.testing.assert_close(unroll(apply_pose(x, Pose(right=2 / 33)), about="centroid"), z, atol=1e-3, rtol=0)
    between = unroll(blob(down=0.4, right=-0.3), about="centroid")
    assert (between - unroll(blob(), about="centroid")).abs().max() < 0.05


def test_images_without_a_centroid_are_read_about_the_middle_of_the_roll():
    assert torch.equal(unroll(torch.zeros(1, 1, 6, 6), about="centroid"), torch.zeros(1, 1, 3, 12))
    x = torch.zeros(1, 1, 9, 9)
    x[0, 0, 2, 3], x[0, 0, 5, 5] = math.inf, 1.0
    rolled = align_shift(x, energy="l1")
    torch.testing.assert_close(unroll(x, about="centroid"), unroll(rolled), equal_nan=True)


def test_layouts_and_single_images():
    x = torch.rand(2, 3, 10, 10)
    z = unroll(x, angles=12)
    laid = unroll(x.contiguous(memory_format=torch.channels_last), angles=12)
    assert laid.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(laid, z)
    torch.testing.assert_close(unroll(x[0], angles=12), z[0])


def test_gradients_are_right():
    assert torch.autograd.gradcheck(
        lambda x: unroll(x, radii=4, angles=8), torch.rand(1, 2, 6, 6, dtype=torch.float64, requires_grad=True)
    )


def test_the_centroid_is_a_constant_to_the_gradient():
    x, other = blob(11, right=2).double() + 0.01, torch.rand(1, 1, 11, 11, dtype=torch.float64)
    weights = torch.rand(1, 1, 4, 8, dtype=torch.float64)
    given = x.clone().requires_grad_()
    (unroll(given, radii=4, angles=8, about="centroid") * weights).sum().backward()
    # What is read of another image about the centroid of x: beside it, too faint to count.
    both = unroll(torch.cat([x, other * 1e-13], 1), radii=4, angles=8, about="centroid")
    torch.testing.assert_close((given.grad * other).sum(), (weights * both[:, 1:]).sum() * 1e13)


def test_compiles_as_one_graph():
    layer, x = Unroll(radii=5, angles=12, about="centroid"), blob(12, angle=50).expand(2, 2, -1, -1)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x))


@pytest.mark.parametrize("about", ["middle", "centroid"])
def test_onnx_with_any_batch(about):
    assert_exports_alike(Unroll(about=about).eval(), torch.cat([blob(12, angle=angle) for angle in (10, 50, 130)]))


def test_bad_arguments_are_named():
    for reach in (0, math.inf, math.nan):
        with pytest.raises(ValueError, match=rf"reach \({reach}\) must be more than 0 pixels, and finite"):
            Unroll(reach=reach)
    with pytest.raises(ValueError, match="no pixels to unroll: its maps are 0x2"):
        unroll(torch.ones(1, 1, 0, 2))
    with pytest.raises(TypeError, match="int64"):
        unroll(torch.ones(1, 1, 4, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"about=middle\|centroid"):
        create_layer("unroll:centre=middle")
