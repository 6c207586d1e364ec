"""The layers of the compared networks, each against other algebra: rotations, warps, quarter turns, blurred pools."""

from __future__ import annotations

import copy
import io
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from patchreorder.models import rotation_conv
from patchreorder.models.blur_pool import BlurPool2d, MaxBlurPool2d, blur_pool, blur_rows, max_blur_pool
from patchreorder.models.group_conv import (
    GroupConv2d,
    GroupLift2d,
    OrientationMax,
    first_quarter,
    lift_kernels,
    orientation_max,
    regular_kernels,
)
from patchreorder.models.rotation_conv import ANGLES, RotationConv2d, block_max, kernel_rotations, rotate_kernels
from patchreorder.models.spatial_transformer import HORIZON, Localisation, SpatialTransformer, projective_grid

torch.set_num_threads(1)
LAST, PLAIN = torch.channels_last, torch.contiguous_format
PLANE = (-2, -1)


class Look(nn.Module):
    """The smallest localisation: means of the channels."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def restless(transform: str, channels: int) -> SpatialTransformer:
    """A transformer that has left the identity, so that every part of it does something."""
    layer = SpatialTransformer(Look(channels), transform=transform)
    nn.init.uniform_(layer.head.weight, -0.2, 0.2)
    with torch.no_grad():
        layer.head.bias += torch.empty_like(layer.head.bias).uniform_(-0.1, 0.1)
    return layer


# Every layer, with the number of channels it is called with.
LAYERS = {
    "rotation": (lambda: RotationConv2d(4, 3, 3), 4),
    "rotation of one channel": (lambda: RotationConv2d(1, 3, 3), 1),
    "affine": (lambda: restless("affine", 4), 4),
    "projective": (lambda: restless("projective", 4), 4),
    "lift": (lambda: GroupLift2d(4, 3, 3), 4),
    "lift to eight": (lambda: GroupLift2d(4, 3, 3, orientations=8), 4),
    "C4": (lambda: GroupConv2d(1, 3, 3), 4),
    "C8": (lambda: GroupConv2d(1, 3, 3, orientations=8), 8),
    "orientation": (lambda: OrientationMax(), 4),
    "blur": (lambda: BlurPool2d(), 4),
    "max blur": (lambda: MaxBlurPool2d(), 4),
}
in_blocks = pytest.mark.parametrize("cache", [0, 1 << 20], ids=["in blocks", "at once"])
each_layer = pytest.mark.parametrize("name", LAYERS)


def made(name: str) -> tuple[nn.Module, Tensor]:
    make, channels = LAYERS[name]
    return make(), torch.randn(2, channels, 6, 7)


class TestEveryLayer:
    @each_layer
    def test_gradients_are_right(self, name):
        layer, _ = made(name)
        layer.double()
        x = torch.randn(2, LAYERS[name][1], 4, 5, dtype=torch.float64, requires_grad=True)
        parameters = tuple(layer.parameters())

        def run(x: Tensor, *parameters: Tensor) -> Tensor:
            names = [name for name, _ in layer.named_parameters()]
            return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))

        assert torch.autograd.gradcheck(run, (x, *parameters))

    @each_layer
    def test_layout_of_the_input_is_kept_and_changes_nothing(self, name):
        layer, x = made(name)
        plain, last = layer(x), layer(x.to(memory_format=LAST))
        assert plain.is_contiguous()
        assert last.is_contiguous(memory_format=LAST)
        torch.testing.assert_close(last, plain)
        cut = torch.randn(2, x.shape[1], 6, 9)[..., 1:-1]  # neither layout
        torch.testing.assert_close(layer(cut), layer(cut.contiguous()))

    @each_layer
    def test_a_model_in_channels_last_stays_in_it(self, name):
        layer, x = made(name)
        want = layer(x)
        got = layer.to(memory_format=LAST)(x.to(memory_format=LAST))
        assert got.is_contiguous(memory_format=LAST)
        torch.testing.assert_close(got, want)

    @each_layer
    def test_computes_in_the_type_of_its_input(self, name):
        layer, x = made(name)
        want = layer(x)
        precise = layer.double()(x.double())
        assert precise.dtype == torch.float64
        torch.testing.assert_close(precise.float(), want, atol=1e-5, rtol=1e-4)
        half = layer.bfloat16()(x.bfloat16())
        assert half.dtype == torch.bfloat16
        torch.testing.assert_close(half.float(), want, atol=0.15, rtol=0.05)

    @each_layer
    def test_works_under_autocast(self, name):
        layer, x = made(name)
        want = layer(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = layer(x)
            got.float().sum().backward() if got.requires_grad else None
        torch.testing.assert_close(got.float(), want, atol=0.1, rtol=0.05)
        assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())

    @each_layer
    def test_copies_and_reloads(self, name):
        layer, x = made(name)
        want = layer(x)
        assert torch.equal(copy.deepcopy(layer)(x), want)
        stored = io.BytesIO()
        torch.save(layer.state_dict(), stored)
        stored.seek(0)
        fresh, _ = made(name)
        fresh.load_state_dict(torch.load(stored, weights_only=True))
        assert torch.equal(fresh(x), want)
        assert set(layer.state_dict()) == {key for key, _ in layer.named_parameters()}  # constants are not stored

    @each_layer
    def test_compiles_whole_and_exports(self, name):
        layer, x = made(name)
        want = layer(x)
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(layer, backend="aot_eager", fullgraph=True)(x), want)
        torch.testing.assert_close(torch.export.export(layer.eval(), (x,)).module()(x), want)
        assert torch.equal(layer(x), want)  # and tracing leaves nothing behind

    @each_layer
    def test_inference_first_and_training_later(self, name):
        make, channels = LAYERS[name]
        layer, x = make(), torch.randn(1, channels, 13, 15)  # a size that no other test has used
        with torch.inference_mode():
            layer(x)
        x.requires_grad_()
        layer(x).sum().backward()
        assert x.grad is not None

    @each_layer
    def test_says_what_it_is(self, name):
        layer, _ = made(name)
        assert repr(layer).startswith(type(layer).__name__)


class TestKernelRotations:
    @pytest.mark.parametrize("side", [1, 2, 3, 4, 7, 9])
    def test_quarter_turns_are_exact(self, side):
        weight = torch.randn(3, 2, side, side, dtype=torch.float64)
        turned = rotate_kernels(weight, rotations=kernel_rotations(side, angles=[0, 90, -90, 180, 270]))
        want = torch.cat([torch.rot90(weight, turns, PLANE) for turns in (0, 1, -1, 2, 3)])
        assert torch.equal(turned, want)

    @pytest.mark.parametrize("angle", [-54.0, -18.0, 18.0, 54.0])
    def test_positive_is_counter_clockwise(self, angle):
        weight = torch.zeros(9, 9, dtype=torch.float64)
        weight[4, 7] = 1.0  # three to the right of the centre
        turned = (kernel_rotations(9, angles=[angle]) @ weight.flatten()).view(9, 9)
        places = torch.arange(9.0) - 4
        x, y = (turned.sum(0) * places).sum() / turned.sum(), (turned.sum(1) * places).sum() / turned.sum()
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
            turned = rotate_kernels(last, rotations=rotations)
            assert turned.stride() == last.stride()
            assert torch.equal(turned, rotate_kernels(weight, rotations=rotations))

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
            answers = []
            for angle in layer.angles:
                plain = nn.Conv2d(2, 3, 5, **options).double()
                plain.load_state_dict(layer.state_dict())
                plain.weight.copy_(rotate_kernels(layer.weight, rotations=kernel_rotations(5, angles=[angle])))
                answers.append(plain(x))
            torch.testing.assert_close(layer(x), torch.stack(answers).amax(0), atol=1e-6, rtol=1e-6)

    @pytest.mark.parametrize(("channels", "filters", "count"), [(1, 64, 1), (64, 64, 6), (64, 66, 1)])
    def test_many_kernels_are_convolved_angle_by_angle(self, channels, filters, count, monkeypatch):
        calls = []
        plain = F.conv2d
        monkeypatch.setattr(rotation_conv.F, "conv2d", lambda *arguments: (calls.append(1), plain(*arguments))[1])
        RotationConv2d(channels, filters, 7)(torch.rand(1, channels, 7, 7))
        assert len(calls) == count

    def test_turning_the_kernel_is_turning_the_image_and_the_answer_back(self):
        layer = RotationConv2d(2, 3, 3, angles=[-90, 0, 90])
        x = torch.randn(2, 2, 6, 8)
        back = [
            torch.rot90(F.conv2d(torch.rot90(x, -turns, PLANE), layer.weight, layer.bias), turns, PLANE)
            for turns in (-1, 0, 1)
        ]
        torch.testing.assert_close(layer(x), torch.stack(back).amax(0))

    def test_an_edge_is_found_at_every_angle_it_is_turned_to(self):
        layer = RotationConv2d(1, 1, 7, bias=False)
        edge = torch.tensor([-1.0, -1, -1, 0, 1, 1, 1]).expand(7, 7)
        layer.weight.data[:] = edge * (torch.hypot(*torch.meshgrid(*[torch.arange(-3.0, 4)] * 2, indexing="ij")) < 3.4)
        patterns = rotate_kernels(
            layer.weight, rotations=kernel_rotations(7, angles=range(-90, 91, 6)).float()
        ).detach()
        patterns = patterns / patterns.norm(dim=(2, 3), keepdim=True)
        answers = layer(patterns).flatten()
        assert answers.min() > 0.75 * answers.max()
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
        layer = SpatialTransformer(Look(2), transform=transform)
        x = torch.rand(2, 2, 8, 10)
        layer.head.bias.data[2] = 2 * 3 / 10  # three columns to the right
        layer.head.bias.data[5] = -2 * 1 / 8  # one row up
        got, want = layer(x), torch.zeros_like(x)
        want[:, :, 1:, :-3] = x[:, :, :-1, 3:]
        torch.testing.assert_close(got, want, atol=1e-5, rtol=0)

    @pytest.mark.parametrize("transform", ["affine", "projective"])
    def test_a_quarter_turn_is_rot90(self, transform):
        layer = SpatialTransformer(Look(2), transform=transform)
        layer.head.bias.data[:6] = torch.tensor([0.0, -1, 0, 1, 0, 0])
        x = torch.rand(2, 2, 7, 7)
        torch.testing.assert_close(layer(x), torch.rot90(x, 1, PLANE), atol=1e-5, rtol=0)

    def test_each_image_has_its_own_transformation(self):
        layer = restless("projective", 2)
        x = torch.rand(3, 2, 6, 6)
        torch.testing.assert_close(layer(x)[1:2], layer(x[1:2]))

    def test_positions_stay_precise_under_autocast(self):
        layer = SpatialTransformer(Look(1), transform="affine")
        layer.head.bias.data[2] = 2 * 3 / 200 + 1e-4
        x = torch.rand(1, 1, 200, 200)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = layer(x)
        torch.testing.assert_close(got, layer(x), atol=1e-5, rtol=0)

    def test_learns_to_undo_a_shift(self):
        layer = SpatialTransformer(Look(1), transform="projective")
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

    def test_localisation_of_other_widths(self):
        network = Localisation(3, 28, widths=(4, 5, 6))
        layer = SpatialTransformer(network)
        assert network(torch.rand(2, 3, 28, 28)).shape == (2, 6)
        assert layer.head.in_features == network.features == 6
        assert repr(layer).startswith("SpatialTransformer(\n  transform='affine'")

    def test_any_network_can_look(self):
        layer = SpatialTransformer(nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten()), features=12)
        x = torch.rand(2, 3, 9, 9)
        torch.testing.assert_close(layer(x), x, atol=5e-6, rtol=0)

    def test_bad_arguments_are_named(self):
        with pytest.raises(ValueError, match=r"transform \('rigid'\)"):
            SpatialTransformer(Look(1), transform="rigid")
        with pytest.raises(ValueError, match=r"features \(None\)"):
            SpatialTransformer(nn.Flatten())
        with pytest.raises(ValueError, match=r"features \(0\)"):
            SpatialTransformer(Look(1), features=0)
        with pytest.raises(ValueError, match=r"in_size \(24\)"):
            Localisation(1, 24)


def turn_maps(x: Tensor, turns: int, orientations: int) -> Tensor:
    """Maps of the image turned counter-clockwise by quarters: they turn, and each orientation moves on by a quarter."""
    quarter = x.shape[1] // 4
    assert x.shape[1] % orientations == 0
    return torch.rot90(x, turns, PLANE).roll(turns * quarter, 1)


def smooth(side: int, *, seed: int, blobs: int = 6, width: float = 1.5) -> Tensor:
    """A few Gaussians near the middle of a square: nothing at the border, nothing as fine as a pixel."""
    at = torch.arange(side, dtype=torch.float64) - (side - 1) / 2
    generator = torch.Generator().manual_seed(seed)
    centres = (torch.rand(blobs, 2, generator=generator, dtype=torch.float64) - 0.5) * side / 2.5
    heights = torch.randn(blobs, generator=generator, dtype=torch.float64)
    along = torch.exp(-((at - centres.unsqueeze(2)) ** 2) / (2 * width**2))  # blobs 2 side
    return torch.einsum("b,by,bx->yx", heights, along[:, 0], along[:, 1])


class TestGroupConv:
    turns = pytest.mark.parametrize("turns", [0, 1, 2, 3])
    orientations = pytest.mark.parametrize("orientations", [4, 8])

    @turns
    @orientations
    @pytest.mark.parametrize("padding", [0, 2])
    def test_lift_turns_with_the_image(self, turns, padding, orientations):
        layer = GroupLift2d(2, 3, 3, padding=padding, orientations=orientations).double()
        x = torch.randn(2, 2, 7, 7).double()
        got, want = layer(torch.rot90(x, turns, PLANE)), turn_maps(layer(x), turns, orientations)
        assert got.shape == (2, 3 * orientations, 5 + 2 * padding, 5 + 2 * padding)
        torch.testing.assert_close(got, want, atol=1e-14, rtol=1e-13)
        assert turns == 0 or not torch.allclose(got, layer(x), atol=1e-2)

    @turns
    @orientations
    @pytest.mark.parametrize("side", [1, 2, 3, 7])
    def test_convolution_turns_with_the_maps(self, turns, side, orientations):
        layer = GroupConv2d(3, 2, side, orientations=orientations).double()
        x = torch.randn(2, 3 * orientations, 8, 8).double()
        got, want = layer(turn_maps(x, turns, orientations)), turn_maps(layer(x), turns, orientations)
        torch.testing.assert_close(got, want, atol=1e-13, rtol=1e-12)
        assert turns == 0 or not torch.allclose(got, layer(x), atol=1e-2)

    @turns
    @orientations
    def test_a_network_of_both_turns_with_the_image(self, turns, orientations):
        network = nn.Sequential(
            GroupLift2d(1, 4, 5, orientations=orientations),
            nn.ReLU(),
            nn.MaxPool2d(2),
            GroupConv2d(4, 3, 3, orientations=orientations),
            OrientationMax(orientations),
        )
        x = torch.randn(2, 1, 16, 16)
        got, want = network(torch.rot90(x, turns, PLANE)), torch.rot90(network(x), turns, PLANE)
        torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-5)
        assert got.shape == (2, 3, 4, 4)

    def test_eight_orientations_are_45_degrees_apart(self):
        weight = torch.randn(3, 2, 5, 5).double()
        angles = [22.5 + 45 * r for r in range(8)]
        want = rotate_kernels(weight, rotations=kernel_rotations(5, angles=angles))
        torch.testing.assert_close(lift_kernels(weight, rotations=first_quarter(5, 8)), want)
        weight = torch.randn(3, 16, 5, 5).double()
        kernels = regular_kernels(weight, rotations=first_quarter(5, 8)).chunk(8)
        for r, angle in enumerate(angles):  # part s of the weight reads orientation s + r, of two fields
            want = rotate_kernels(weight.roll(2 * r, 1), rotations=kernel_rotations(5, angles=[angle]))
            torch.testing.assert_close(kernels[r], want)

    def test_eight_orientations_follow_a_turn_by_45_degrees_of_what_is_smooth(self):
        """Up to interpolation: each orientation answers as the one before it did, at the place it is turned to."""
        turn = kernel_rotations(31, angles=[45])[0]
        image = smooth(31, seed=0, width=2.5)
        network = nn.Sequential(GroupLift2d(1, 2, 9, orientations=8), GroupConv2d(2, 1, 7, orientations=8)).double()
        for layer in network:
            kernels = [smooth(layer.kernel_size, seed=seed) for seed in range(layer.weight[:, :, 0, 0].numel())]
            layer.weight.data = torch.stack(kernels).view_as(layer.weight)
        turned = (turn @ image.flatten()).view(31, 31)
        with torch.no_grad():
            before, after = network(image[None, None]), network(turned[None, None])
        want = (before.flatten(2) @ kernel_rotations(17, angles=[45])[0].T).view_as(before).roll(1, 1)
        cut = (..., slice(4, -4), slice(4, -4))  # the corners of a turned square are lost
        wrong = (after[cut] - want[cut]).norm() / want[cut].norm()
        unmoved = (after[cut] - want.roll(-1, 1)[cut]).norm() / want[cut].norm()
        assert wrong < 0.03
        assert unmoved > 0.3

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
        second = regular_kernels(weight)[1]  # turned once: its first part reads orientation 1
        assert second[1].tolist() == [[1, 1], [0, 0]]
        assert second[0].tolist() == [[7, 7], [6, 6]]
        assert lift_kernels(weight)[3].tolist() == torch.rot90(weight[0], 3, PLANE).tolist()

    def test_orientation_max_is_over_orientations(self):
        x = torch.randn(2, 24, 3, 3)
        assert torch.equal(orientation_max(x), x.view(2, 4, 6, 3, 3).amax(1))
        assert torch.equal(orientation_max(x, orientations=8), x.view(2, 8, 3, 3, 3).amax(1))
        assert torch.equal(OrientationMax(8)(x), orientation_max(x, orientations=8))
        assert repr(OrientationMax(8)) == "OrientationMax(orientations=8)"

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
        assert repr(make(2, 3, 5)) == f"{make.__name__}(2, 3, kernel_size=5, orientations=4, padding=0, bias=True)"

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
            for count in (0, 6):
                with pytest.raises(ValueError, match=rf"orientations \({count}\) must be a multiple of 4"):
                    make(1, 1, 3, orientations=count)
        with pytest.raises(ValueError, match=r"orientations \(2\)"):
            OrientationMax(2)
        with pytest.raises(ValueError, match="blocks"):
            orientation_max(torch.zeros(1, 6, 2, 2))
        with pytest.raises(ValueError, match=r"\(1, 6, 3, 3\) must have a multiple of 4"):
            regular_kernels(torch.zeros(1, 6, 3, 3))
        with pytest.raises(ValueError, match=r"\(1, 12, 3, 3\) must have a multiple of 8"):
            regular_kernels(torch.zeros(1, 12, 3, 3), rotations=first_quarter(3, 8).float())

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


class TestBlurPool:
    sizes = pytest.mark.parametrize("size", [(20, 20), (4, 4), (34, 34), (11, 11), (2, 3), (1, 1), (1, 5), (9, 6)])

    @sizes
    @pytest.mark.parametrize("pool", [blur_pool, max_blur_pool])
    def test_size_is_that_of_a_pool_in_ceil_mode(self, size, pool):
        x = torch.randn(2, 3, *size)
        assert pool(x).shape == F.max_pool2d(x, 2, 2, ceil_mode=True).shape

    @sizes
    @pytest.mark.parametrize("pool", [blur_pool, max_blur_pool])
    def test_constants_stay(self, size, pool):
        x = torch.full((1, 2, *size), 3.25)
        assert torch.equal(pool(x), torch.full_like(pool(x), 3.25))

    @pytest.mark.parametrize("size", [(20, 20), (11, 11), (9, 6), (2, 3)])
    def test_is_a_padded_depthwise_convolution(self, size):
        x = torch.randn(2, 3, *size)
        line = torch.tensor([1.0, 2.0, 1.0]) / 4
        kernel = torch.outer(line, line).expand(3, 1, 3, 3)
        want = F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), kernel, stride=2, groups=3)
        torch.testing.assert_close(blur_pool(x), want)

    def test_an_impulse_spreads_to_the_binomial_kernel(self):
        """Every place of the kernel is seen from an impulse at one of four neighbouring pixels."""
        kernel = torch.zeros(3, 3)
        for y in (3, 4, 5):
            for x in (3, 4, 5):
                image = torch.zeros(1, 1, 9, 9)
                image[0, 0, y, x] = 16
                kernel[y - 3, x - 3] = blur_pool(image)[0, 0, 2, 2]
        assert kernel.tolist() == [[1, 2, 1], [2, 4, 2], [1, 2, 1]]

    @pytest.mark.parametrize("size", [(20, 20), (11, 11), (9, 6), (5, 3)])
    def test_max_blur_pool_in_steps(self, size):
        x = torch.randn(2, 3, *size)
        odd = [side % 2 for side in size]
        whole = F.pad(x, (0, odd[1], 0, odd[0]), value=-math.inf)  # a window at the end covers what there is
        largest = torch.stack([whole[:, :, i : i + size[0] - 1 + odd[0], :] for i in (0, 1)]).amax(0)
        largest = torch.stack([largest[..., i : i + size[1] - 1 + odd[1]] for i in (0, 1)]).amax(0)
        torch.testing.assert_close(max_blur_pool(x), blur_pool(largest))

    def test_moves_less_than_a_plain_pool(self):
        """What it is for: shifted by one pixel, the pooled map changes less."""
        x = F.avg_pool2d(torch.randn(8, 4, 44, 44), 3, 1)
        inside = (..., slice(2, -2), slice(2, -2))
        changes = []
        for pool in (max_blur_pool, lambda x: F.max_pool2d(x, 2)):
            still, moved = pool(x[..., :40, :40])[inside], pool(x[..., :40, 1:41])[inside]
            changes.append(((still - moved).norm() / still.norm()).item())
        assert changes[0] < 0.8 * changes[1]

    def test_rows_by_hand(self):
        assert blur_rows(1) == [[1.0]]
        assert blur_rows(2) == [[0.5, 0.5]]
        assert blur_rows(4) == [[0.5, 0.5, 0, 0], [0, 0.25, 0.5, 0.25]]
        assert blur_rows(3, skip=1) == [[0, 0.5, 0.5, 0], [0, 0, 0.5, 0.5]]
        assert blur_rows(1, skip=1) == [[0, 1.0]]

    def test_the_layers_call_the_functions(self):
        x = torch.randn(1, 2, 5, 6)
        assert torch.equal(BlurPool2d()(x), blur_pool(x))
        assert torch.equal(MaxBlurPool2d()(x), max_blur_pool(x))

    def test_bad_arguments_are_named(self):
        for pool in (blur_pool, max_blur_pool):
            for shape in ((3, 4, 4), (1, 3, 0, 4)):
                with pytest.raises(ValueError, match=r"x must have shape .* got \("):
                    pool(torch.zeros(shape))
