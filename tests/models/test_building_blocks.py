"""What every building block of the compared networks must do: gradients, layouts, types, compiling, copies."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import Tensor, nn

from patchreorder.models.blur_pool import MaxBlurPool2d
from patchreorder.models.group_conv import GroupConv2d, GroupLift2d, OrientationMax
from patchreorder.models.rotation_conv import RotationConv2d
from tests.models.transformers import random_transformer

pytestmark = pytest.mark.usefixtures("one_thread")
LAST = torch.channels_last
# Every block, with the number of channels of its input.
LAYERS = {
    "rotation": (lambda: RotationConv2d(4, 3, 3), 4),
    "rotation of one channel": (lambda: RotationConv2d(1, 3, 3), 1),
    "affine": (lambda: random_transformer("affine", 4), 4),
    "projective": (lambda: random_transformer("projective", 4), 4),
    "lift": (lambda: GroupLift2d(4, 3, 3), 4),
    "C4": (lambda: GroupConv2d(1, 3, 3), 4),
    "orientation": (lambda: OrientationMax(), 4),
    "max blur": (lambda: MaxBlurPool2d(), 4),
}
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
    def test_repr_begins_with_the_name(self, name):
        layer, _ = made(name)
        assert repr(layer).startswith(type(layer).__name__)
