"""Spatial transformer: sampling grids against torch's and by hand, the identity at the start, and learning."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from patchreorder.models.spatial_transformer import HORIZON, Localisation, SpatialTransformer, projective_grid
from tests.models.transformers import ChannelMeans, random_transformer

pytestmark = pytest.mark.usefixtures("one_thread")
PLANE = (-2, -1)


class TestProjectiveGrid:
    size = (3, 2, 5, 4)

    def test_without_projection_it_is_affine(self):
        theta = torch.randn(3, 2, 3, dtype=torch.float64)
        want = F.affine_grid(theta, self.size, align_corners=False)
        torch.testing.assert_close(projective_grid(F.pad(theta.flatten(1), (0, 2)), self.size), want)
        last = torch.tensor([0.0, 0.0, 1.0]).double().expand(3, 1, 3)
        torch.testing.assert_close(projective_grid(torch.cat([theta, last], 1), self.size), want)

    def test_a_point_by_hand(self):
        theta = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [0.25, 0.5, 2.0]]).unsqueeze(0)
        x, y = 0.75, -0.8  # the last column of four, the first row of five
        u, v, w = 1 * x + 2 * y + 3, 4 * x + 5 * y + 6, 0.25 * x + 0.5 * y + 2
        got = projective_grid(theta, (1, 1, 5, 4))[0, 0, 3]
        torch.testing.assert_close(got, torch.tensor([u / w, v / w]))

    def test_two_maps_after_one_another_are_their_product(self):
        first, second = (torch.eye(3).double() + 0.2 * torch.randn(1, 3, 3).double() for _ in range(2))
        grid = projective_grid(first, (1, 1, 6, 6)).view(-1, 2)
        far = F.pad(grid, (0, 1), value=1.0) @ second[0].T
        want = (far[:, :2] / far[:, 2:]).view(1, 6, 6, 2)
        torch.testing.assert_close(projective_grid(second @ first, (1, 1, 6, 6)), want)

    @pytest.mark.parametrize(
        "theta",
        [
            [1.0, 0, 0, 0, 1, 0, -1.0 / 0.75, 0],  # w = 0 exactly on the last column
            [0.0, 0, 0, 0, 0, 0, 4.0 / 3.0, 0],  # and u = v = 0
            [1.0, 0, 0, 0, 1, 0, 1e30, -1e30],
            [1e30, 0, 0, 0, 1e30, 0, 0, 4.0],
            [1.0, 0, 0, 0, 1, 0, -3.0, 1e-9],
        ],
    )
    def test_the_horizon_is_finite(self, theta):
        theta = torch.tensor([theta], requires_grad=True)
        x = torch.rand(1, 1, 4, 4, requires_grad=True)
        grid = projective_grid(theta, x.shape)
        assert grid.isfinite().all()
        warped = F.grid_sample(x, grid, align_corners=False)
        assert warped.isfinite().all()
        warped.square().sum().backward()
        assert theta.grad.isfinite().all()
        assert x.grad.isfinite().all()

    def test_the_denominator_keeps_its_sign(self):
        theta = torch.tensor([[0.0, 0, 1, 0, 0, 1, 1e-3, 0]]).double()
        theta = F.pad(theta, (0, 1)).view(1, 3, 3)  # u = v = 1, w = x / 1000
        grid = projective_grid(theta, (1, 1, 1, 4))
        assert grid[0, 0, :, 0].tolist() == pytest.approx([-1 / HORIZON, -1 / HORIZON, 1 / HORIZON, 1 / HORIZON])

    def test_gradients_are_right(self):
        theta = torch.tensor([[1.0, 0.1, 0.2, -0.1, 0.9, 0.1, 0.2, -0.3]], dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda theta: projective_grid(theta, (1, 1, 3, 4)), (theta,))

    def test_half_precision_is_computed_in_single(self):
        theta = torch.tensor([[1.0, 0, 0, 0, 1, 0, 0, 0]])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = projective_grid(theta.bfloat16(), (1, 1, 50, 50))
        assert torch.equal(got, projective_grid(theta, (1, 1, 50, 50)))

    def test_bad_arguments_are_named(self):
        with pytest.raises(ValueError, match=r"theta .* got \(2, 6\)"):
            projective_grid(torch.zeros(2, 6), (2, 1, 4, 4))
        for size in ((1, 1, 4, 4), (2, 4, 4)):
            with pytest.raises(ValueError, match="size"):
                projective_grid(torch.zeros(2, 8), size)


class TestSpatialTransformer:
    @pytest.mark.parametrize("transform", ["affine", "projective"])
    @pytest.mark.parametrize("size", [28, 42])
    def test_starts_as_the_identity(self, transform, size):
        layer = SpatialTransformer(Localisation(1, size), transform=transform)
        x = torch.rand(4, 1, size, size)
        torch.testing.assert_close(layer(x), x, atol=5e-6, rtol=0)
        layer(x).square().sum().backward()
        assert layer.head.weight.grad.abs().sum() > 0  # and can leave it

    @pytest.mark.parametrize("transform", ["affine", "projective"])
    def test_a_shift_reads_beside(self, transform):
        layer = SpatialTransformer(ChannelMeans(2), transform=transform)
        x = torch.rand(2, 2, 8, 10)
        layer.head.bias.data[2] = 2 * 3 / 10  # three columns to the right
        layer.head.bias.data[5] = -2 * 1 / 8  # one row up
        got, want = layer(x), torch.zeros_like(x)
        want[:, :, 1:, :-3] = x[:, :, :-1, 3:]
        torch.testing.assert_close(got, want, atol=1e-5, rtol=0)

    @pytest.mark.parametrize("transform", ["affine", "projective"])
    def test_a_quarter_turn_is_rot90(self, transform):
        layer = SpatialTransformer(ChannelMeans(2), transform=transform)
        layer.head.bias.data[:6] = torch.tensor([0.0, -1, 0, 1, 0, 0])
        x = torch.rand(2, 2, 7, 7)
        torch.testing.assert_close(layer(x), torch.rot90(x, 1, PLANE), atol=1e-5, rtol=0)

    def test_each_image_has_its_own_transformation(self):
        layer = random_transformer("projective", 2)
        x = torch.rand(3, 2, 6, 6)
        torch.testing.assert_close(layer(x)[1:2], layer(x[1:2]))

    def test_positions_stay_precise_under_autocast(self):
        layer = SpatialTransformer(ChannelMeans(1), transform="affine")
        layer.head.bias.data[2] = 2 * 3 / 200 + 1e-4
        x = torch.rand(1, 1, 200, 200)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = layer(x)
        torch.testing.assert_close(got, layer(x), atol=1e-5, rtol=0)

    def test_learns_to_undo_a_shift(self):
        layer = SpatialTransformer(ChannelMeans(1), transform="projective")
        y, x = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")
        target, image = (torch.exp(-((x - at) ** 2 + y**2) * 6).view(1, 1, 16, 16) for at in (0.0, 0.4))
        optimiser = torch.optim.SGD(layer.parameters(), lr=0.2)
        before = F.mse_loss(layer(image), target).item()
        for _ in range(60):
            optimiser.zero_grad()
            loss = F.mse_loss(layer(image), target)
            loss.backward()
            optimiser.step()
        assert loss.item() < before / 20

    @pytest.mark.parametrize(("size", "inputs"), [(28, 20), (42, 500), (25, 20)])
    def test_localisation_is_the_papers(self, size, inputs):
        network = Localisation(1, size)
        assert [type(layer).__name__ for layer in network] == (
            ["MaxPool2d", "Conv2d", "MaxPool2d", "ReLU", "Conv2d", "ReLU", "Flatten", "Linear", "ReLU"]
        )
        assert network[7].in_features == inputs
        assert network(torch.rand(2, 1, size, size)).shape == (2, 20)
        assert sum(p.numel() for p in network.parameters()) == 20 * 26 + 20 * (20 * 25 + 1) + (inputs + 1) * 20

    def test_any_network_can_be_the_localisation(self):
        layer = SpatialTransformer(nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten()), features=12)
        x = torch.rand(2, 3, 9, 9)
        torch.testing.assert_close(layer(x), x, atol=5e-6, rtol=0)

    def test_bad_arguments_are_named(self):
        with pytest.raises(ValueError, match=r"transform \('rigid'\)"):
            SpatialTransformer(ChannelMeans(1), transform="rigid")
        with pytest.raises(ValueError, match=r"features \(None\)"):
            SpatialTransformer(nn.Flatten())
        with pytest.raises(ValueError, match=r"features \(0\)"):
            SpatialTransformer(ChannelMeans(1), features=0)
        with pytest.raises(ValueError, match=r"in_size \(24\)"):
            Localisation(1, 24)
