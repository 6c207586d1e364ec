"""Group convolutions: rotations of the image, the definition of the group correlation, and e2cnn."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from patchreorder.models import rotation_conv
from patchreorder.models.group_conv import GroupConv2d, GroupLift2d, OrientationMax, lift_kernels, regular_kernels

pytestmark = pytest.mark.usefixtures("one_thread")
PLANE = (-2, -1)
in_blocks = pytest.mark.parametrize("cache", [0, 1 << 20], ids=["in blocks", "at once"])


def rotate_maps(x: Tensor, turns: int) -> Tensor:
    """Maps of the image rotated counter-clockwise by quarters: they rotate, and each orientation moves on by one."""
    return torch.rot90(x, turns, PLANE).roll(turns * x.shape[1] // 4, 1)


class TestGroupConv:
    turns = pytest.mark.parametrize("turns", [0, 1, 2, 3])

    @turns
    @pytest.mark.parametrize("padding", [0, 2])
    def test_lift_rotates_with_the_image(self, turns, padding):
        layer = GroupLift2d(2, 3, 3, padding=padding).double()
        x = torch.randn(2, 2, 7, 7).double()
        got, want = layer(torch.rot90(x, turns, PLANE)), rotate_maps(layer(x), turns)
        assert got.shape == (2, 12, 5 + 2 * padding, 5 + 2 * padding)
        torch.testing.assert_close(got, want, atol=1e-14, rtol=1e-13)
        assert turns == 0 or not torch.allclose(got, layer(x), atol=1e-2)

    @turns
    @pytest.mark.parametrize("side", [1, 2, 3, 7])
    def test_convolution_rotates_with_the_maps(self, turns, side):
        layer = GroupConv2d(3, 2, side).double()
        x = torch.randn(2, 12, 8, 8).double()
        got, want = layer(rotate_maps(x, turns)), rotate_maps(layer(x), turns)
        torch.testing.assert_close(got, want, atol=1e-13, rtol=1e-12)
        assert turns == 0 or not torch.allclose(got, layer(x), atol=1e-2)

    @turns
    def test_a_network_of_both_rotates_with_the_image(self, turns):
        network = nn.Sequential(
            GroupLift2d(1, 4, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            GroupConv2d(4, 3, 3),
            OrientationMax(),
        )
        x = torch.randn(2, 1, 16, 16)
        got, want = network(torch.rot90(x, turns, PLANE)), torch.rot90(network(x), turns, PLANE)
        torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-5)
        assert got.shape == (2, 3, 4, 4)

    def test_orientation_zero_is_an_ordinary_convolution(self):
        for layer, x in (
            (GroupLift2d(2, 3, 3), torch.randn(1, 2, 5, 5)),
            (GroupConv2d(2, 3, 3), torch.randn(1, 8, 5, 5)),
        ):
            torch.testing.assert_close(layer(x)[:, :3], F.conv2d(x, layer.weight, layer.bias))

    @in_blocks
    def test_group_correlation_by_its_definition(self, cache, monkeypatch):
        """Cohen and Welling, Eq. 11, summed one element of the group after the other."""
        monkeypatch.setattr(rotation_conv, "CACHE", cache)
        monkeypatch.setattr(rotation_conv, "VECTOR", 1)
        layer = GroupConv2d(2, 3, 3).double()
        x = torch.randn(1, 8, 5, 5).double()
        maps = x.view(1, 4, 2, 5, 5)
        filters = layer.weight.view(3, 4, 2, 3, 3)  # out, orientation, in
        for r in range(4):
            want = layer.bias.view(1, 3, 1, 1).expand(1, 3, 3, 3).clone()
            for s in range(4):
                want = want + F.conv2d(maps[:, s], torch.rot90(filters[:, (s - r) % 4], r, PLANE))
            torch.testing.assert_close(layer(x)[:, 3 * r : 3 * r + 3], want)

    def test_kernels_by_hand(self):
        weight = torch.arange(8).view(1, 4, 1, 2).expand(1, 4, 2, 2)  # orientation s is [[2 s, 2 s + 1]] * 2
        second = regular_kernels(weight)[1]  # rotated once: its first part reads orientation 1
        assert second[1].tolist() == [[1, 1], [0, 0]]
        assert second[0].tolist() == [[7, 7], [6, 6]]
        assert lift_kernels(weight)[3].tolist() == torch.rot90(weight[0], 3, PLANE).tolist()

    def test_orientation_max_is_over_orientations(self):
        x = torch.randn(2, 24, 3, 3)
        assert torch.equal(OrientationMax()(x), x.view(2, 4, 6, 3, 3).amax(1))

    @pytest.mark.parametrize("make", [GroupLift2d, GroupConv2d])
    def test_first_values_are_those_of_a_convolution(self, make):
        layer = make(16, 64, 5)
        inputs = layer.weight[0].numel()
        assert inputs == 16 * 25 * (4 if make is GroupConv2d else 1)
        plain = nn.Conv2d(inputs // 25, 64, 5)
        for got, want in ((layer.weight, plain.weight), (layer.bias, plain.bias)):
            assert got.abs().max() <= inputs**-0.5
            assert got.std().item() == pytest.approx(want.std().item(), rel=0.3)
        assert make(2, 3, 3, bias=False).bias is None
        assert repr(make(2, 3, 5)) == f"{make.__name__}(2, 3, kernel_size=5, padding=0, bias=True)"

    def test_bad_arguments_are_named(self):
        for make in (GroupLift2d, GroupConv2d):
            for name, arguments in (
                ("in_channels", (0, 1, 3)),
                ("out_channels", (1, 0, 3)),
                ("kernel_size", (1, 1, 0)),
            ):
                with pytest.raises(ValueError, match=rf"{name} \(0\)"):
                    make(*arguments)
            with pytest.raises(ValueError, match=r"padding \(-1\)"):
                make(1, 1, 3, padding=-1)
        with pytest.raises(ValueError, match="blocks"):
            OrientationMax()(torch.zeros(1, 6, 2, 2))
        with pytest.raises(ValueError, match=r"\(1, 6, 3, 3\) must have a multiple of 4"):
            regular_kernels(torch.zeros(1, 6, 3, 3))

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore")
    @pytest.mark.parametrize("side", [3, 7])
    def test_agrees_with_e2cnn(self, side):
        """Both layers against e2cnn (0.2.3), whose channels stand field by field, orientations inside."""
        e2nn, gspaces = pytest.importorskip("e2cnn.nn"), pytest.importorskip("e2cnn.gspaces")
        space = gspaces.Rot2dOnR2(4)
        plain, regular_in, regular_out = (
            e2nn.FieldType(space, [kind] * n)
            for kind, n in ((space.trivial_repr, 2), (space.regular_repr, 3), (space.regular_repr, 5))
        )

        def ours(x: Tensor) -> Tensor:
            return x.unflatten(1, (-1, 4)).transpose(1, 2).flatten(1, 2)

        for kind, x in ((plain, torch.randn(2, 2, 9, 9)), (regular_in, torch.randn(2, 12, 9, 9))):
            theirs = e2nn.R2Conv(kind, regular_out, side)
            nn.init.normal_(theirs.bias)
            filters, bias = theirs.expand_parameters()
            first = filters[::4]  # orientation 0 of each field
            layer = GroupLift2d(2, 5, side) if kind is plain else GroupConv2d(3, 5, side)
            layer.weight.data = first if kind is plain else ours(first)
            layer.bias.data = bias[::4]
            maps = x if kind is plain else ours(x)
            torch.testing.assert_close(layer(maps), ours(theirs(e2nn.GeometricTensor(x, kind)).tensor))
