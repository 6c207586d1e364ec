"""Rotated kernels, the maximum over blocks, and the convolution of SI-CNN, each against other algebra."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from patchreorder.models import rotation_conv
from patchreorder.models.rotation_conv import ANGLES, RotationConv2d, block_max, kernel_rotations, rotate_kernels

pytestmark = pytest.mark.usefixtures("one_thread")
LAST, PLAIN = torch.channels_last, torch.contiguous_format
PLANE = (-2, -1)
in_blocks = pytest.mark.parametrize("cache", [0, 1 << 20], ids=["in blocks", "at once"])


class TestKernelRotations:
    @pytest.mark.parametrize("side", [1, 2, 3, 4, 7, 9])
    def test_quarter_turns_are_exact(self, side):
        weight = torch.randn(3, 2, side, side, dtype=torch.float64)
        rotated = rotate_kernels(weight, rotations=kernel_rotations(side, angles=[0, 90, -90, 180, 270]))
        want = torch.cat([torch.rot90(weight, turns, PLANE) for turns in (0, 1, -1, 2, 3)])
        assert torch.equal(rotated, want)

    @pytest.mark.parametrize("angle", [-54.0, -18.0, 18.0, 54.0])
    def test_positive_is_counter_clockwise(self, angle):
        weight = torch.zeros(9, 9, dtype=torch.float64)
        weight[4, 7] = 1.0  # three to the right of the centre
        rotated = (kernel_rotations(9, angles=[angle]) @ weight.flatten()).view(9, 9)
        places = torch.arange(9.0) - 4
        x, y = (rotated.sum(0) * places).sum() / rotated.sum(), (rotated.sum(1) * places).sum() / rotated.sum()
        assert math.degrees(math.atan2(-y, x)) == pytest.approx(angle, abs=5)  # up is -y

    @pytest.mark.parametrize("side", [2, 3, 7, 9])
    def test_agree_with_grid_sample(self, side):
        angles = [*ANGLES, 33.3, 141.0]
        weight = torch.randn(2, 3, side, side, dtype=torch.float64)
        got = rotate_kernels(weight, rotations=kernel_rotations(side, angles=angles))
        want = []
        for angle in angles:
            c, s = math.cos(math.radians(angle)), math.sin(math.radians(angle))
            theta = torch.tensor([[c, -s, 0.0], [s, c, 0.0]], dtype=torch.float64).expand(2, 2, 3)
            want.append(F.grid_sample(weight, F.affine_grid(theta, weight.shape, False), align_corners=False))
        torch.testing.assert_close(got, torch.cat(want))

    def test_the_docstring_tells_what_is_lost(self):
        for side in (7, 9):
            rotations = kernel_rotations(side, angles=[18, 54, 90])
            kept = rotations.sum((1, 2)) / side**2
            assert [round(100 * (1 - share)) for share in kept.tolist()] == [12, pytest.approx(16.5, abs=0.5), 0]
            energy = rotations.square().sum((1, 2)) / side**2  # expected, of independent numbers of variance one
            assert energy.tolist() == [pytest.approx(0.4, abs=0.02)] * 2 + [1.0]

    def test_the_angles_are_the_papers(self):
        torch.testing.assert_close(torch.tensor(ANGLES), torch.linspace(-90, 90, 6))

    def test_layout_of_one_channel_is_the_weights(self):
        rotations = kernel_rotations(3).float()
        for channels in (1, 2):
            weight = torch.randn(2, channels, 3, 3)
            last = weight.to(memory_format=LAST)
            assert rotate_kernels(weight, rotations=rotations).stride() == weight.repeat(6, 1, 1, 1).stride()
            rotated = rotate_kernels(last, rotations=rotations)
            assert rotated.stride() == last.stride()
            assert torch.equal(rotated, rotate_kernels(weight, rotations=rotations))

    def test_bad_arguments_are_named(self):
        with pytest.raises(ValueError, match=r"kernel_size \(0\)"):
            kernel_rotations(0)
        for angles in ([], [float("nan")], [0.0, float("inf")]):
            with pytest.raises(ValueError, match="angles"):
                kernel_rotations(3, angles=angles)
        for shape in ((1, 1, 3, 3), (1, 1, 4, 1)):
            with pytest.raises(ValueError, match=r"\(6, 4, 4\) do not fit weight of \(1, 1"):
                rotate_kernels(torch.zeros(shape), rotations=kernel_rotations(2).float())


class TestBlockMax:
    @pytest.mark.parametrize("layout", [LAST, PLAIN])
    @pytest.mark.parametrize("shape", [(2, 12, 5, 4), (3, 6, 1, 1), (1, 6, 3, 2), (2, 18, 1, 7)])
    def test_is_the_maximum_over_blocks(self, shape, layout):
        x = torch.randn(shape).to(memory_format=layout).requires_grad_()
        reference = x.detach().clone().requires_grad_()
        got, want = block_max(x, blocks=6), reference.unflatten(1, (6, -1)).amax(1)
        assert torch.equal(got, want)
        assert got.is_contiguous(memory_format=layout)
        cotangent = torch.randn_like(want)
        got.backward(cotangent)
        want.backward(cotangent)
        assert torch.equal(x.grad, reference.grad)
        assert x.grad.is_contiguous(memory_format=layout)

    @pytest.mark.parametrize("layout", [LAST, PLAIN])
    def test_the_first_of_a_tie_has_the_gradient(self, layout):
        x = torch.tensor([1.0, 0.0, 3.0, 5.0, 3.0, 5.0]).view(1, 6, 1, 1).expand(2, 6, 3, 2)
        x = x.contiguous(memory_format=layout).requires_grad_()
        block_max(x, blocks=3).sum().backward()
        assert x.grad[0, :, 1, 1].tolist() == [0, 0, 1, 1, 0, 0]

    def test_nan_wins(self):
        x = torch.tensor([1.0, float("nan"), 2.0, 0.0]).view(1, 4, 1, 1)
        assert block_max(x, blocks=4).isnan().all()

    def test_bad_arguments_are_named(self):
        for shape, blocks in (((1, 7, 2, 2), 3), ((6, 2, 2), 3), ((1, 6, 2, 2), 0)):
            with pytest.raises(ValueError, match="blocks"):
                block_max(torch.zeros(shape), blocks=blocks)


class TestRotationConv:
    @in_blocks
    @pytest.mark.parametrize("options", [{}, {"bias": False}, {"stride": 2, "padding": 1}])
    def test_is_the_maximum_of_a_convolution_for_each_angle(self, options, cache, monkeypatch):
        monkeypatch.setattr(rotation_conv, "CACHE", cache)
        monkeypatch.setattr(rotation_conv, "VECTOR", 1)
        layer = RotationConv2d(2, 3, 5, **options).double()
        x = torch.randn(2, 2, 9, 8, dtype=torch.float64)
        with torch.no_grad():
            maps = []
            for angle in layer.angles:
                plain = nn.Conv2d(2, 3, 5, **options).double()
                plain.load_state_dict(layer.state_dict())
                plain.weight.copy_(rotate_kernels(layer.weight, rotations=kernel_rotations(5, angles=[angle])))
                maps.append(plain(x))
            torch.testing.assert_close(layer(x), torch.stack(maps).amax(0), atol=1e-6, rtol=1e-6)

    @pytest.mark.parametrize(("channels", "filters", "count"), [(1, 64, 1), (64, 64, 6), (64, 66, 1)])
    def test_many_kernels_are_convolved_angle_by_angle(self, channels, filters, count, monkeypatch):
        calls = []
        plain = F.conv2d
        monkeypatch.setattr(rotation_conv.F, "conv2d", lambda *arguments: (calls.append(1), plain(*arguments))[1])
        RotationConv2d(channels, filters, 7)(torch.rand(1, channels, 7, 7))
        assert len(calls) == count

    def test_rotating_the_kernel_is_rotating_the_image_and_the_maps_back(self):
        layer = RotationConv2d(2, 3, 3, angles=[-90, 0, 90])
        x = torch.randn(2, 2, 6, 8)
        back = [
            torch.rot90(F.conv2d(torch.rot90(x, -turns, PLANE), layer.weight, layer.bias), turns, PLANE)
            for turns in (-1, 0, 1)
        ]
        torch.testing.assert_close(layer(x), torch.stack(back).amax(0))

    def test_an_edge_is_found_at_every_angle(self):
        layer = RotationConv2d(1, 1, 7, bias=False)
        edge = torch.tensor([-1.0, -1, -1, 0, 1, 1, 1]).expand(7, 7)
        layer.weight.data[:] = edge * (torch.hypot(*torch.meshgrid(*[torch.arange(-3.0, 4)] * 2, indexing="ij")) < 3.4)
        patterns = rotate_kernels(
            layer.weight, rotations=kernel_rotations(7, angles=range(-90, 91, 6)).float()
        ).detach()
        patterns = patterns / patterns.norm(dim=(2, 3), keepdim=True)
        maps = layer(patterns).flatten()
        assert maps.min() > 0.75 * maps.max()
        plain = F.conv2d(patterns, layer.weight).flatten()
        assert plain.min() < 0.1 * plain.max()

    def test_parameters_are_those_of_a_convolution(self):
        torch.manual_seed(3)
        plain = nn.Conv2d(2, 4, 5)
        torch.manual_seed(3)
        layer = RotationConv2d(2, 4, 5)
        assert list(layer.state_dict()) == list(plain.state_dict())
        assert torch.equal(layer.weight, plain.weight)
        assert torch.equal(layer.bias, plain.bias)
        layer.load_state_dict(nn.Conv2d(2, 4, 5).state_dict())

    def test_on_an_empty_image_the_bias_gets_its_gradient_once(self):
        layer = RotationConv2d(1, 2, 3)
        layer(torch.zeros(2, 1, 5, 5)).sum().backward()
        assert layer.bias.grad.tolist() == [18, 18]

    def test_a_layout_is_chosen_as_by_a_convolution(self):
        """With one channel both layouts look alike, and the weight decides."""
        layer, plain = (make(1, 4, 3).to(memory_format=LAST) for make in (RotationConv2d, nn.Conv2d))
        x = torch.randn(2, 1, 6, 6)
        assert layer(x).stride() == plain(x).stride()

    def test_shows_its_angles(self):
        assert "angles=(0.0, 45.0)" in repr(RotationConv2d(1, 2, 3, angles=[0, 45]))

    def test_bad_arguments_are_named(self):
        with pytest.raises(ValueError, match="angles"):
            RotationConv2d(1, 1, 3, angles=[])


@pytest.mark.parametrize(("groups", "bias"), [(2, True), (4, False), (1, True)])
def test_rotations_in_groups(groups, bias):
    """Each group by itself, each angle by itself, the maximum of all."""
    layer = RotationConv2d(8, 12, 3, stride=2, padding=1, groups=groups, bias=bias)
    x = torch.randn(2, 8, 9, 7)
    rotations = kernel_rotations(3).float()
    maps = []
    for number, part in enumerate(x.chunk(groups, 1)):
        weight = layer.weight.chunk(groups)[number]
        own = layer.bias.chunk(groups)[number] if bias else None
        rotated = [rotate_kernels(weight, rotations=rotations[angle : angle + 1]) for angle in range(len(ANGLES))]
        maps.append(torch.stack([F.conv2d(part, kernels, own, 2, 1) for kernels in rotated]).amax(0))
    torch.testing.assert_close(layer(x), torch.cat(maps, 1))
    assert layer.weight.shape == nn.Conv2d(8, 12, 3, groups=groups).weight.shape
