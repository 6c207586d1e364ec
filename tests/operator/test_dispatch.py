"""The choice of the form, derivatives, vmap, compilation and custom operators."""

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jvp, vmap

from patchreorder import PatchReorder, patch_reorder, undo_reorder
from patchreorder.operator import native
from tests.compiling import assert_compiles_alike
from tests.forms import RUNNABLE

OPTIONS = [
    {},
    {"levels": 2},
    {"grid": 3, "per_channel": False},
    {"grid": "pixels", "descending": False},
]
COMPILED = [{}, {"levels": 2, "per_channel": False}, {"grid": "pixels", "descending": False}]  # few patches: fast


def test_the_kernel_is_used_up_to_16_patches_a_side(monkeypatch):
    assert RUNNABLE, "the kernel was not compiled: is there a C++ compiler?"
    calls = []
    real = native.reorder
    monkeypatch.setattr(native, "reorder", lambda *args: calls.append(args) or real(*args))
    patch_reorder(torch.rand(1, 1, 16, 16), grid="pixels")
    assert len(calls) == 1
    patch_reorder(torch.rand(1, 1, 17, 17), grid="pixels")
    patch_reorder(torch.rand(1, 1, 16, 16, device="meta"))
    assert len(calls) == 1


# Derivatives and vmap


def reference_gradient(x, weight, **options):
    """The gradient of (reordered x * weight).sum(): the weights, moved back by the order (Eq. 7)."""
    _, order = patch_reorder(x.detach(), **options, return_order=True)
    return undo_reorder(weight, order)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_gradient_is_the_inverse_permutation(form, options, layout):
    x = torch.randn(2, 5, 7, 9).contiguous(memory_format=layout).requires_grad_()
    weight = torch.randn(2, 5, 7, 9)
    (patch_reorder(x, **options) * weight).sum().backward()
    assert torch.equal(x.grad, reference_gradient(x, weight, **options))
    # And by indices: every pixel of x must get the gradient of the place it went to.
    numbered = torch.arange(63.0).repeat(10, 1).reshape(2, 5, 7, 9)
    _, order = patch_reorder(x.detach(), **options, return_order=True)
    place = undo_reorder(numbered, order).long().flatten(2)
    assert torch.equal(x.grad.flatten(2), weight.flatten(2).gather(2, place))


@pytest.mark.parametrize("options", OPTIONS)
def test_gradcheck_of_first_and_second_derivatives(form, options):
    x = torch.rand(1, 2, 4, 5, dtype=torch.float64, requires_grad=True)
    f = lambda x: patch_reorder(x, **options)  # noqa: E731
    assert torch.autograd.gradcheck(f, (x,), check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: f(x) ** 3, (x,), check_fwd_over_rev=True)


def test_gradient_of_undo(form):
    x = torch.rand(1, 2, 4, 4, dtype=torch.float64)
    z, order = patch_reorder(x, return_order=True)
    assert torch.autograd.gradcheck(lambda z: undo_reorder(z, order), (z.requires_grad_(),), check_forward_ad=True)


def test_the_order_has_no_gradient(form):
    _, order = patch_reorder(torch.rand(1, 1, 4, 4, requires_grad=True), return_order=True)
    assert not order.requires_grad
    assert order.grad_fn is None


@pytest.mark.parametrize("options", OPTIONS)
def test_forward_mode_permutes_the_tangent(form, options):
    x, tangent = torch.rand(2, 3, 6, 6), torch.rand(2, 3, 6, 6)
    with forward_ad.dual_level():
        z = forward_ad.unpack_dual(patch_reorder(forward_ad.make_dual(x, tangent), **options))
    expected, order = patch_reorder(x, **options, return_order=True)
    assert torch.equal(z.primal, expected)
    assert torch.equal(undo_reorder(z.tangent, order), tangent)


def test_vmap_grad_jvp_and_hessian(form):
    x = torch.rand(5, 2, 3, 6, 6)
    expected = torch.stack([patch_reorder(image, levels=1) for image in x])
    assert torch.equal(vmap(patch_reorder)(x), expected)
    assert torch.equal(vmap(patch_reorder, in_dims=1, out_dims=1)(x.transpose(0, 1)).transpose(0, 1), expected)
    z, order = vmap(lambda image: patch_reorder(image, per_channel=False, return_order=True))(x)
    assert torch.equal(vmap(undo_reorder)(z, order), x)
    assert torch.equal(vmap(undo_reorder, in_dims=(0, None))(z, order[0])[0], x[0])
    assert torch.equal(vmap(vmap(lambda image: patch_reorder(image)))(x), expected)  # (c, h, w) inside

    weight = torch.rand(3, 6, 6)
    loss = lambda image: (patch_reorder(image) * weight).sum()  # noqa: E731
    expected = torch.stack([reference_gradient(image, weight) for image in x[0]])
    assert torch.equal(vmap(grad(loss))(x[0]), expected)
    value, directional = jvp(loss, (x[0, 0],), (weight,))
    torch.testing.assert_close(directional, (expected[0] * weight).sum())
    torch.testing.assert_close(value, loss(x[0, 0]))
    small = torch.rand(1, 2, 2, dtype=torch.float64)
    assert torch.equal(jacfwd(patch_reorder)(small).sum(), torch.tensor(4.0, dtype=torch.float64))
    cube = hessian(lambda x: (patch_reorder(x) ** 3).sum())(small).reshape(4, 4)
    torch.testing.assert_close(cube, torch.diag(6 * small.flatten()))


def test_vmap_over_an_empty_batch(form):
    assert vmap(patch_reorder)(torch.zeros(0, 2, 3, 4, 4)).shape == (0, 2, 3, 4, 4)


def test_a_wrong_order_is_refused_under_vmap_and_compile(use_form):
    """The kernel writes where the order says, so it must never get a wrong one."""
    z, bad = torch.rand(3, 2, 4, 4), torch.full((3, 2, 2, 2), 9, dtype=torch.uint8)
    for name in ("torch", RUNNABLE[-1]):
        use_form(name)
        with pytest.raises(ValueError, match="not a permutation"):
            vmap(undo_reorder)(z, bad)
        for order in (bad, bad.int(), torch.zeros_like(bad), torch.zeros_like(bad, dtype=torch.int32)):
            torch._dynamo.reset()
            with pytest.raises(ValueError, match="not a permutation"):
                torch.compile(undo_reorder, fullgraph=True, backend="aot_eager")(z, order)


@pytest.mark.parametrize("name", ["torch", RUNNABLE[-1]])
def test_compiled_undo_takes_both_types_of_order(use_form, name):
    use_form(name)
    for size in (8, 20):  # uint8, and int32, which the kernel does not support
        x = torch.rand(2, 3, size, size)
        z, order = patch_reorder(x, grid="pixels", return_order=True)
        for given in {order, order.int()}:
            torch._dynamo.reset()
            compiled = torch.compile(undo_reorder, fullgraph=True, backend="aot_eager")
            z.requires_grad_().grad = None
            found = compiled(z, given)
            assert torch.equal(found, x)
            weight = torch.rand(2, 3, size, size)
            (found * weight).sum().backward()
            expected = torch.autograd.grad((undo_reorder(z, given) * weight).sum(), z)[0]
            assert torch.equal(z.grad, expected)


# Tracing and compilation


def test_meta_and_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    z, order = patch_reorder(torch.rand(2, 3, 8, 8, device="meta"), levels=2, return_order=True)
    assert (z.shape, z.device.type, order.shape, order.dtype) == (
        (2, 3, 8, 8),
        "meta",
        (2, 3, 4, 4),
        torch.uint8,
    )
    assert undo_reorder(z, order).shape == (2, 3, 8, 8)
    with FakeTensorMode():
        fake = patch_reorder(torch.rand(2, 3, 8, 8).to(memory_format=torch.channels_last), grid="pixels")
        assert type(fake).__name__ == "FakeTensor"
        assert fake.is_contiguous(memory_format=torch.channels_last)


def test_a_dispatch_mode_records_torch_operations():
    from torch.fx.experimental.proxy_tensor import make_fx

    x = torch.rand(1, 2, 4, 4)
    graph = make_fx(lambda x: patch_reorder(x))(x)
    y = torch.rand(1, 2, 4, 4)  # in another order, which a constant in the graph would not follow
    assert torch.equal(graph(y), patch_reorder(y))


class Small(nn.Module):
    """A convolution, the layer and a classifier."""

    def __init__(self, **options):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.reorder = PatchReorder(**options)
        self.head = nn.Linear(8 * 6 * 6, 4)

    def forward(self, x):
        return self.head(self.reorder(self.conv(x).relu()).flatten(1))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ["torch", RUNNABLE[-1]])
def test_compiles_as_one_graph(use_form, name, dynamic):
    use_form(name)
    for options in COMPILED[-1:] if name == "torch" and dynamic else COMPILED:  # symbolic sizes are slow
        inputs = [torch.rand(batch, 3, 8, 8) for batch in ((4, 7) if dynamic else (4,))]
        assert_compiles_alike(Small(**options), inputs, dynamic=dynamic, backend="aot_eager")


def test_a_compiled_graph_calls_the_kernel_and_keeps_the_layout(use_form):
    use_form(RUNNABLE[-1])
    torch._dynamo.reset()
    seen = []

    def spy(graph, _):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    x = torch.rand(2, 16, 8, 8).to(memory_format=torch.channels_last)
    z = torch.compile(lambda x: patch_reorder(x), fullgraph=True, backend=spy)(x)
    assert any("patchreorder.reorder" in name for name in seen)
    assert z.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(z, patch_reorder(x))


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ["torch", RUNNABLE[-1]])
def test_inductor(use_form, name, dynamic):
    use_form(name)
    for options in COMPILED:
        inputs = [torch.rand(batch, 3, 8, 8) for batch in ((4, 7) if dynamic else (4,))]
        assert_compiles_alike(Small(**options), inputs, dynamic=dynamic)
    # The operator alone is equal bit for bit: no multiply-add may be contracted.
    x = torch.randn(64, 8, 9, 9)
    f = torch.compile(lambda x: patch_reorder(x, grid=3, return_order=True), fullgraph=True, dynamic=dynamic)
    for a, b in zip(f(x), patch_reorder(x, grid=3, return_order=True), strict=True):
        assert torch.equal(a, b)


def test_custom_operators_are_well_formed():
    x = torch.rand(2, 3, 8, 8, requires_grad=True)
    torch.library.opcheck(torch.ops.patchreorder.reorder.default, (x, 2, 2, 1, "l2", True, True))
    last = torch.rand(2, 3, 8, 8).to(memory_format=torch.channels_last).requires_grad_()
    torch.library.opcheck(torch.ops.patchreorder.reorder.default, (last, 4, 4, 2, "l1", True, False))
    order = patch_reorder(x.detach(), return_order=True)[1]
    torch.library.opcheck(torch.ops.patchreorder.permute.default, (x, order, True, True))
