"""Orientation reordering: known answers, an oracle by `rot90` and `roll`, and every quarter turn, to the last bit."""

import io

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import nn

from patchreorder import OrientationReorder, reorder_orientations
from patchreorder.models.group_conv import GroupConv2d, GroupLift2d
from tests.compiling import assert_compiles_alike
from tests.forms import RUNNABLE

nan, inf = float("nan"), float("inf")
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    words = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.contiguous().view(words), b.contiguous().view(words))


def rotated(x: torch.Tensor, quarters: int) -> torch.Tensor:
    """The features (b, c, r, h, w) of an image rotated counter-clockwise: maps rotate, responses move on."""
    return x.rot90(quarters, (3, 4)).roll(quarters * x.shape[2] // 4, 2)


def oracle(x: torch.Tensor, *, energy="l2", per_channel=False, turn=True) -> torch.Tensor:
    """Image by image; energies in float64, so only for features without near-ties."""
    z = torch.empty_like(x)
    for image, result in zip(x, z, strict=True):
        e = (image.double().abs() if energy == "l1" else image.double() ** 2).sum((2, 3))  # c r
        for field, place, own in zip(image, result, e, strict=True):
            first = int((own if per_channel else e.sum(0)).argmax())
            back = -(first // (x.shape[2] // 4)) if turn else 0
            place.copy_(torch.stack([m.rot90(back) for m in (*field[first:], *field[:first])]))
    return z


@st.composite
def cases(draw):
    turn = draw(st.booleans())
    height = draw(st.integers(1, 9))
    return {
        "shape": (
            draw(st.integers(0, 3)),
            draw(st.sampled_from([1, 2, 3, 17])),
            draw(st.sampled_from([4, 8, 12])),
            height,
            height if turn else draw(st.integers(1, 9)),
        ),
        "dtype": draw(st.sampled_from(DTYPES)),
        "seed": draw(st.integers(0, 2**31)),
        "options": {"energy": draw(st.sampled_from(["l1", "l2"])), "per_channel": draw(st.booleans()), "turn": turn},
    }


@settings(
    max_examples=120, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(case=cases())
def test_every_form_is_the_oracle(case, use_form):
    torch.manual_seed(case["seed"])
    x = torch.randn(case["shape"])
    x = x * (1 + torch.rand(1, 1, case["shape"][2], 1, 1)) ** 3  # no near-ties
    x = x.to(case["dtype"])
    expected = oracle(x, **case["options"])
    for name in ("torch", RUNNABLE[-1]):
        use_form(name)
        assert torch.equal(reorder_orientations(x, orientations=x.shape[2], **case["options"]), expected)


def test_known_answers(form):
    x = torch.zeros(1, 2, 4, 2, 2)
    x[0, 0, 3] = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    x[0, 1, 0, 0, 0] = 5.0
    z = reorder_orientations(x)  # 30 in orientation 3, 25 in orientation 0: back by 3, on by 1
    assert z[0, 0, 0].tolist() == [[2, 4], [1, 3]]
    assert z[0, 1, 1].tolist() == [[0, 0], [5, 0]]
    assert z.count_nonzero() == 5
    z = reorder_orientations(x, energy="l1", per_channel=True)
    assert z[0, 0, 0].tolist() == [[2, 4], [1, 3]]
    assert z[0, 1, 0].tolist() == [[5, 0], [0, 0]]
    z = reorder_orientations(x, turn=False)
    assert torch.equal(z, x.roll(1, 2))


@pytest.mark.parametrize("orientations", [4, 8])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_quarter_turns_change_nothing(either, orientations, per_channel, dtype):
    """Bit for bit, also where float sums would differ: rotated maps are summed in another order."""
    for size in (1, 2, 7, 12):
        x = torch.randn(50, 2, orientations, size, size).to(dtype)
        # Orientations whose energies nearly tie: the same values in another order.
        x[:25, :, 1] = x[:25, :, 0].flatten(2)[:, :, torch.randperm(size * size)].view(25, 2, size, size)
        options = {"orientations": orientations, "per_channel": per_channel}
        z = reorder_orientations(x, **options)
        for quarters in (1, 2, 3):
            assert same_bits(reorder_orientations(rotated(x, quarters), **options), z)
        if size > 1:
            assert not torch.equal(
                reorder_orientations(x.rot90(1, (3, 4)), **options), z
            )  # not the features of a rotation


def test_special_values(either):
    x = torch.tensor([nan, inf, -inf, 0.0, 1.0, 3.0e38])[torch.randint(0, 6, (60, 2, 4, 3, 3))]
    x[:30] = torch.randn(30, 2, 4, 3, 3)
    x[:30, 0, 2, 1, 0] = nan
    z = reorder_orientations(x)
    assert (z[:30].isnan().nonzero()[:, 2] == 0).all()  # the orientation with the NaN comes first
    assert int(z[:30].isnan().sum()) == 30
    counts = (~x.square().sum(1).isfinite()).sum((2, 3))  # b r: only the number of such pixels decides
    clear = torch.stack([(counts.roll(by, 1) != counts).any(1) for by in (1, 2, 3)]).all(0)
    assert int(clear.sum()) > 45
    for quarters in (1, 2, 3):
        assert same_bits(reorder_orientations(rotated(x, quarters))[clear], z[clear])


def test_ties_by_content(either):
    """Two orientations with the same energy: those that follow around the cycle decide which is the first."""
    x = torch.zeros(1, 1, 4, 3, 3)
    x[0, 0, 0, 0, 1], x[0, 0, 1, 2, 2], x[0, 0, 3, 1, 1] = 2.0, 2.0, 1.0
    z = reorder_orientations(x)
    for quarters in (1, 2, 3):
        assert torch.equal(reorder_orientations(rotated(x, quarters)), z)
    symmetric = torch.randn(2, 3, 1, 5, 5)
    symmetric = torch.cat(
        [symmetric.rot90(r, (3, 4)) for r in range(4)], 2
    )  # features of an image that equals its rotations
    for quarters in (1, 2, 3):
        assert torch.equal(reorder_orientations(rotated(symmetric, quarters)), reorder_orientations(symmetric))


def test_energies_that_repeat_have_no_first_orientation():
    """Energies that repeat around the cycle while the features do not: no orientation is the first."""
    x = torch.zeros(1, 1, 4, 2, 2)
    x[0, 0, :, 0, 0] = torch.tensor([1.0, -1.0, 1.0, -1.0])
    assert not torch.equal(reorder_orientations(rotated(x, 1)), reorder_orientations(x))
    eighth = torch.randn(1, 1, 8, 3, 3)
    eighth[0, 0, 1] *= 9  # strongest
    on = eighth.roll(1, 2)  # a rotation by 45 degrees moves responses on by one,
    plain, moved = (reorder_orientations(y, orientations=8, turn=False) for y in (eighth, on))
    assert torch.equal(plain, moved)
    # but maps have only quarter turns: here the first is rotated back by none, the second by one.
    plain, moved = (reorder_orientations(y, orientations=8) for y in (eighth, on))
    assert torch.equal(moved, plain.rot90(-1, (3, 4)))


def network(*, dtype=torch.float32):
    lift, conv = GroupLift2d(1, 4, 5), GroupConv2d(4, 3, 3)
    return nn.Sequential(lift, nn.ReLU(), nn.MaxPool2d(2), conv, nn.ReLU(), OrientationReorder()).to(dtype)


def test_behind_a_group_convolution_up_to_its_rounding():
    """The convolution adds the products of a rotated image in another order, so its maps differ in the last bits."""
    for dtype, most in ((torch.float32, 2e-6), (torch.float64, 4e-15)):
        model, x = network(dtype=dtype), torch.randn(20, 1, 20, 20, dtype=dtype)
        z = model(x)
        assert z.shape == (20, 12, 6, 6)
        for quarters in (1, 2, 3):
            away = (model(x.rot90(quarters, (2, 3))) - z).abs().max()
            assert 0 < away < most * z.abs().max()


def test_behind_a_group_convolution_bit_for_bit_where_that_is_exact():
    """Weights and pixels of few bits: no sum is rounded, so the convolution is exact, and all of it invariant."""
    model, x = network(), torch.randint(0, 16, (20, 1, 20, 20)).float()
    for parameter in model.parameters():
        parameter.data = torch.randint_like(parameter, -8, 9)
    z = model(x)
    assert z.abs().max() < 2**24
    for quarters in (1, 2, 3):
        assert torch.equal(model(x.rot90(quarters, (2, 3))), z)
    plain = nn.Sequential(*list(model)[:-1])
    assert not torch.equal(plain(x.rot90(1, (2, 3))), plain(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_both_layouts_of_channels_and_empty_batches(either, dtype):
    for size in (3, 9):
        fields = torch.randn(3, 5, 4, size, size).to(dtype)
        maps = fields.transpose(1, 2).flatten(1, 2)  # orientation outside, as group convolutions have it
        for per_channel in (False, True):
            expected = reorder_orientations(fields, per_channel=per_channel).transpose(1, 2).flatten(1, 2)
            z = reorder_orientations(maps, per_channel=per_channel)
            assert z.dtype == dtype
            assert torch.equal(z, expected)
            last = reorder_orientations(maps.contiguous(memory_format=torch.channels_last), per_channel=per_channel)
            assert torch.equal(last, z)
            assert last.is_contiguous(memory_format=torch.channels_last)
            assert reorder_orientations(maps[:0], per_channel=per_channel).shape == (0, 20, size, size)
            assert reorder_orientations(fields[:, :0]).shape == (3, 0, 4, size, size)


@pytest.mark.parametrize("per_channel", [False, True])
def test_gradcheck(either, per_channel):
    x = torch.rand(2, 8, 3, 3, dtype=torch.float64, requires_grad=True)
    f = lambda x: reorder_orientations(x, per_channel=per_channel)  # noqa: E731
    assert torch.autograd.gradcheck(f, (x,), check_forward_ad=True)


def test_the_gradient_goes_back_the_way_the_pixels_came(either):
    for size in (3, 9):
        x = torch.randn(4, 2, 4, size, size, requires_grad=True)
        weight = torch.randn_like(x)
        (reorder_orientations(x) * weight).sum().backward()
        z = reorder_orientations(x.detach())
        for i in range(x.shape[0]):  # values are unique, so they tell where each pixel went
            for c in range(2):
                went = (z[i, c].flatten()[None] == x[i, c].detach().flatten()[:, None]).int().argmax(1)
                assert torch.equal(x.grad[i, c].flatten(), weight[i, c].flatten()[went])


@pytest.mark.parametrize("name", [RUNNABLE[-1], pytest.param("torch", marks=pytest.mark.slow)])
def test_compiles_as_one_graph(use_form, name):
    use_form(name)
    inputs = torch.randn(3, 8, 4, 4), torch.randn(4, 8, 4, 4)
    assert_compiles_alike(OrientationReorder(), inputs, exact=True, backend="aot_eager")


@pytest.mark.slow
def test_inductor(either):
    for layer in (OrientationReorder(), OrientationReorder(8, per_channel=True)):
        x = torch.randn(6, 2, layer.orientations, 5, 5)
        compiled = assert_compiles_alike(layer, [x], exact=True)
        assert torch.equal(compiled(rotated(x, 1)), layer(x))


def test_exports_with_any_batch():
    layer = OrientationReorder().eval()
    program = torch.export.export(layer, (torch.rand(2, 8, 5, 5),), dynamic_shapes=({0: torch.export.Dim("n")},))
    assert not any("patchreorder" in str(node.target) for node in program.graph.nodes)  # runs without this package
    x = torch.randn(7, 8, 5, 5)
    assert torch.equal(program.module()(x), layer(x))


@pytest.mark.parametrize("options", [{}, pytest.param({"per_channel": True}, marks=pytest.mark.slow)])
def test_onnx_with_any_batch_ties_and_nan(options):
    onnxruntime = pytest.importorskip("onnxruntime")
    layer, file, dims = OrientationReorder(**options).eval(), io.BytesIO(), {0: torch.export.Dim("n")}
    torch.onnx.export(layer, (torch.rand(2, 8, 5, 5),), dynamo=True, dynamic_shapes=(dims,), verbose=False).save(file)
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    shape = (9, 8, 5, 5)
    special = torch.tensor([nan, inf, 1.0, -2.0])[torch.randint(0, 4, shape)]
    for x in (torch.randn(shape), torch.randint(-1, 2, shape).float(), special, torch.zeros(shape)):
        z = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])
        assert torch.equal(z.nan_to_num(9.0), layer(x).nan_to_num(9.0))


@pytest.mark.parametrize("orientations", [0, 6])
def test_orientations_must_be_a_multiple_of_4(orientations):
    with pytest.raises(ValueError, match=rf"orientations \({orientations}\) must be a multiple of 4"):
        OrientationReorder(orientations)


def test_features_that_do_not_fit():
    with pytest.raises(ValueError, match=r"\(1, 6, 3, 3\)"):
        reorder_orientations(torch.rand(1, 6, 3, 3))
    with pytest.raises(ValueError, match=r"\(1, 2, 8, 3, 3\)"):
        reorder_orientations(torch.rand(1, 2, 8, 3, 3))
    with pytest.raises(ValueError, match="3x4 cannot be rotated"):
        reorder_orientations(torch.rand(1, 8, 3, 4))
    with pytest.raises(ValueError, match="0x0"):
        reorder_orientations(torch.rand(1, 8, 0, 0))
    with pytest.raises(TypeError, match="int64"):
        reorder_orientations(torch.ones(1, 4, 3, 3, dtype=torch.int64))
    with pytest.raises(TypeError, match="list"):
        reorder_orientations([1.0])
