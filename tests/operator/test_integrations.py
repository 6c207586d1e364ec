"""Everything PyTorch does with a function: derivatives, transforms, compilers, exporters, copies, processes."""

import copy
import io
import os
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jvp, vmap

from patchreorder import PatchReorder, patch_reorder, undo_reorder
from tests.compiling import assert_compiles_alike
from tests.forms import RUNNABLE

OPTIONS = [
    {},
    {"levels": 2},
    {"grid": 3, "per_channel": False},
    {"grid": "pixels", "descending": False},
]


def reference_gradient(x, weight, **options):
    """The gradient of (reordered x * weight).sum(): the weights moved back by the order (Eq. 7)."""
    _, order = patch_reorder(x.detach(), **options, return_order=True)
    return undo_reorder(weight, order)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_gradient_is_the_inverse_permutation(form, options, layout):
    x = torch.randn(2, 5, 7, 9).contiguous(memory_format=layout).requires_grad_()
    weight = torch.randn(2, 5, 7, 9)
    (patch_reorder(x, **options) * weight).sum().backward()
    assert torch.equal(x.grad, reference_gradient(x, weight, **options))
    # and by indices: pixel p of x must get the gradient of the place where it went
    numbered = torch.arange(63.0).repeat(10, 1).reshape(2, 5, 7, 9)
    _, order = patch_reorder(x.detach(), **options, return_order=True)
    place = undo_reorder(numbered, order).long().flatten(2)
    assert torch.equal(x.grad.flatten(2), weight.flatten(2).gather(2, place))


@pytest.mark.parametrize("options", OPTIONS)
def test_gradcheck_of_every_order(form, options):
    x = torch.rand(1, 2, 4, 5, dtype=torch.float64, requires_grad=True)
    f = lambda x: patch_reorder(x, **options)  # noqa: E731
    assert torch.autograd.gradcheck(f, (x,), check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: f(x) ** 3, (x,), check_fwd_over_rev=True)


def test_undo_has_a_gradient_too(form):
    x = torch.rand(1, 2, 4, 4, dtype=torch.float64)
    z, order = patch_reorder(x, return_order=True)
    assert torch.autograd.gradcheck(lambda z: undo_reorder(z, order), (z.requires_grad_(),), check_forward_ad=True)


def test_order_needs_no_gradient(form):
    _, order = patch_reorder(torch.rand(1, 1, 4, 4, requires_grad=True), return_order=True)
    assert not order.requires_grad
    assert order.grad_fn is None


@pytest.mark.parametrize("options", OPTIONS)
def test_forward_mode_keeps_the_tangent(form, options):
    x, tangent = torch.rand(2, 3, 6, 6), torch.rand(2, 3, 6, 6)
    with forward_ad.dual_level():
        z = forward_ad.unpack_dual(patch_reorder(forward_ad.make_dual(x, tangent), **options))
    marked = patch_reorder(x, **options)
    assert torch.equal(z.primal, marked)
    # a small step in the direction of the tangent changes nothing in the order here
    step = (patch_reorder(x + 1e-6 * tangent, **options) - marked) / 1e-6
    assert (z.tangent - step).abs().median() < 0.1
    assert torch.equal(z.tangent.flatten(2).sort().values, tangent.flatten(2).sort().values)


def test_functional_transforms(form):
    x = torch.rand(5, 2, 3, 6, 6)
    expected = torch.stack([patch_reorder(image, levels=1) for image in x])
    assert torch.equal(vmap(patch_reorder)(x), expected)
    assert torch.equal(vmap(patch_reorder, in_dims=1, out_dims=1)(x.transpose(0, 1)).transpose(0, 1), expected)
    z, order = vmap(lambda image: patch_reorder(image, per_channel=False, return_order=True))(x)
    assert torch.equal(vmap(undo_reorder)(z, order), x)
    assert torch.equal(vmap(undo_reorder, in_dims=(0, None))(z, order[0])[0], x[0])
    assert torch.equal(vmap(vmap(lambda image: patch_reorder(image)))(x), expected)  # unbatched inside

    weight = torch.rand(3, 6, 6)
    loss = lambda image: (patch_reorder(image) * weight).sum()  # noqa: E731
    by_hand = torch.stack([reference_gradient(image, weight) for image in x[0]])
    assert torch.equal(vmap(grad(loss))(x[0]), by_hand)
    value, directional = jvp(loss, (x[0, 0],), (weight,))
    torch.testing.assert_close(directional, (by_hand[0] * weight).sum())
    torch.testing.assert_close(value, loss(x[0, 0]))
    small = torch.rand(1, 2, 2, dtype=torch.float64)
    assert torch.equal(jacfwd(patch_reorder)(small).sum(), torch.tensor(4.0, dtype=torch.float64))
    cube = hessian(lambda x: (patch_reorder(x) ** 3).sum())(small).reshape(4, 4)
    torch.testing.assert_close(cube, torch.diag(6 * small.flatten()))


def test_vmap_over_nothing(form):
    assert vmap(patch_reorder)(torch.zeros(0, 2, 3, 4, 4)).shape == (0, 2, 3, 4, 4)


def test_a_bad_order_is_found_wherever_it_comes_from(use_form):
    """The kernel writes where the order says, so an order from outside is checked before it gets there."""
    z, bad = torch.rand(3, 2, 4, 4), torch.full((3, 2, 2, 2), 9, dtype=torch.uint8)
    for name in ("torch", RUNNABLE[-1]):
        use_form(name)
        with pytest.raises(ValueError, match="not a permutation"):
            vmap(undo_reorder)(z, bad)
    torch._dynamo.reset()
    with pytest.raises(ValueError, match="not a permutation"):
        torch.compile(undo_reorder, fullgraph=True, backend="aot_eager")(z, bad)


def test_autocast_leaves_the_type_alone(form):
    x = torch.rand(2, 3, 8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(patch_reorder(x), patch_reorder(x.clone()))
        assert patch_reorder(x).dtype == torch.float32
        half = nn.Sequential(nn.Conv2d(3, 4, 3), PatchReorder())(x)
    assert half.dtype == torch.bfloat16


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


def test_a_dispatch_mode_sees_torch_operations():
    from torch.fx.experimental.proxy_tensor import make_fx

    x = torch.rand(1, 2, 4, 4)
    graph = make_fx(lambda x: patch_reorder(x))(x)
    y = torch.rand(1, 2, 4, 4)  # another order: a constant baked into the graph would show
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
    for options in OPTIONS[:1] if name == "torch" and dynamic else OPTIONS:  # symbolic sizes take their time
        inputs = [torch.rand(batch, 3, 8, 8) for batch in ((4, 7) if dynamic else (4,))]
        assert_compiles_alike(Small(**options), inputs, dynamic=dynamic, backend="aot_eager")


def test_compiled_graph_calls_the_kernel_and_keeps_the_layout(use_form):
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
    for options in [{}, {"grid": "pixels"}, {"grid": 2, "per_channel": False}]:
        inputs = [torch.rand(batch, 3, 8, 8) for batch in ((4, 7) if dynamic else (4,))]
        assert_compiles_alike(Small(**options), inputs, dynamic=dynamic)
    # The operator alone, bit for bit: no multiply-add may be contracted.
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


@pytest.mark.parametrize("options", OPTIONS)
def test_torch_export_with_a_dynamic_batch(options):
    model = Small(**options).eval()
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, (torch.rand(4, 3, 8, 8),), dynamic_shapes=({0: batch},))
    assert not any("patchreorder" in str(node.target) for node in program.graph.nodes)  # runs without this package
    x = torch.rand(9, 3, 8, 8)
    torch.testing.assert_close(program.module()(x), model(x))


@pytest.mark.parametrize(
    "options",
    [  # each export takes many seconds
        {"grid": 3, "per_channel": False},
        {"grid": "pixels"},
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"levels": 2}, marks=pytest.mark.slow),
        pytest.param({"descending": False}, marks=pytest.mark.slow),
    ],
)
def test_onnx_with_a_dynamic_batch_ties_and_nan(options):
    onnxruntime = pytest.importorskip("onnxruntime")

    class Both(nn.Module):
        def forward(self, x):
            z, order = patch_reorder(x, **options, return_order=True)
            return z, order

    file = io.BytesIO()
    program = torch.onnx.export(
        Both().eval(),
        (torch.rand(2, 3, 7, 6),),
        dynamo=True,
        dynamic_shapes=({0: torch.export.Dim("n")},),
        verbose=False,
    )
    program.save(file)
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    tied = torch.randint(-1, 2, (5, 3, 7, 6)).float()
    special = torch.tensor([float("nan"), float("inf"), 1.0, 0.0])[torch.randint(0, 4, (5, 3, 7, 6))]
    for x in (torch.randn(5, 3, 7, 6), tied, special):
        z, order = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        expected_z, expected_order = patch_reorder(x, **options, return_order=True)
        assert torch.equal(torch.from_numpy(order), expected_order)
        assert torch.equal(torch.from_numpy(z).nan_to_num(9.0), expected_z.nan_to_num(9.0))


def test_an_exported_program_goes_on_to_onnx():
    pytest.importorskip("onnxruntime")
    program = torch.export.export(PatchReorder(levels=2).eval(), (torch.rand(2, 3, 8, 8),))
    assert torch.onnx.export(program, verbose=False) is not None


def test_jit_trace_is_the_torch_form():
    x = torch.rand(2, 3, 8, 8)
    with pytest.warns(torch.jit.TracerWarning), pytest.warns(DeprecationWarning, match="trace"):
        traced = torch.jit.trace(PatchReorder(), (x,), check_trace=False)
    y = torch.rand(2, 3, 8, 8)
    assert torch.equal(traced(y), patch_reorder(y))


def test_module_copies_and_pickles():
    layer = PatchReorder(grid="pixels", energy="l1", per_channel=False, descending=False)
    x = torch.rand(1, 2, 3, 4)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert repr(other) == repr(layer)
        assert torch.equal(other(x), layer(x))
    assert repr(layer) == "PatchReorder(grid='pixels', energy='l1', per_channel=False, descending=False)"
    assert layer.state_dict() == {}
    assert torch.equal(functional_call(layer, {}, (x,)), layer(x))


@pytest.mark.parametrize("options", [{"grid": 1}, {"levels": 0}, {"energy": "max"}, {"per_channel": None}])
def test_module_refuses_when_it_is_made(options):
    with pytest.raises((ValueError, TypeError)):
        PatchReorder(**options)


WORKER = """
import os, torch, torch.distributed as dist
from torch import nn
from patchreorder import PatchReorder
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 4, 3), PatchReorder(levels=1), nn.Flatten(), nn.Linear(4 * 36, 2)).double()
whole = torch.rand(6, 3, 8, 8, dtype=torch.float64)
single = torch.autograd.grad(model(whole).square().mean(), model.parameters())
ddp = nn.parallel.DistributedDataParallel(model)
ddp(whole[rank * 3 : rank * 3 + 3]).square().mean().backward()
for p, g in zip(model.parameters(), single):
    torch.testing.assert_close(p.grad, g)
print("equal", flush=True)
dist.barrier()
os._exit(0)  # gloo's threads sometimes abort a process that ends in the ordinary way
"""


def test_distributed_data_parallel(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("equal") == 2
