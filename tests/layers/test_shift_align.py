"""Shift alignment: known answers, the circular centroid by trigonometry, and every cyclic shift, to the last bit."""

import io
import itertools

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch.nn import functional as F

from patchreorder import ShiftAlign, align_shift, undo_reorder
from patchreorder.layers.cycles import whole_energy
from tests.compiling import assert_compiles_alike
from tests.forms import RUNNABLE
from tests.layers.rolls import repeats

nan, inf = float("nan"), float("inf")
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
VALUES = {
    "normal": lambda shape: torch.randn(shape),
    "sparse": lambda shape: torch.randn(shape).relu() * (torch.rand(shape) < 0.3),
    "tiny and huge": lambda shape: torch.randn(shape) * 10.0 ** torch.randint(-30, 18, shape).float(),
    "special": lambda shape: torch.tensor([nan, inf, -inf, 0.0, 1.0, 3.0e38])[torch.randint(0, 6, shape)],
}


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    words = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.contiguous().view(words), b.contiguous().view(words))


def unclear(x: torch.Tensor, **options) -> torch.Tensor:
    """Images (or channels) whose rows or columns repeat in energy: the guarantee excludes them."""
    e = whole_energy(x, energy=options.get("energy", "l2"), per_channel=options.get("per_channel", False)).double()
    return repeats(e.sum(3)) | repeats(e.sum(2))


def test_known_answers(form):
    x = torch.zeros(1, 2, 5, 4)
    x[0, 0, 0, 3], x[0, 1, 4, 0] = 3.0, 1.0
    z = align_shift(x)  # row 4.9 of 5, column 3.1 of 4, by squares: row 0 and column 3 go to the middle
    assert z.nonzero().tolist() == [[0, 0, 2, 2], [0, 1, 1, 3]]
    z = align_shift(x, per_channel=True)
    assert z.nonzero().tolist() == [[0, 0, 2, 2], [0, 1, 2, 2]]
    line = torch.tensor([0.0, 0.0, 2.0, 1.0, 1.0, 1.0, 0.0, 0.0]).view(1, 1, 1, 8)
    assert align_shift(line, energy="l1")[0, 0, 0].tolist() == [0, 0, 0, 2, 1, 1, 1, 0]  # the middle is place 4
    line[0, 0, 0, 2] = 4.0
    assert align_shift(line, energy="l1")[0, 0, 0].tolist() == [0, 0, 0, 4, 1, 1, 1, 0]
    assert align_shift(line, energy="l2")[0, 0, 0].tolist() == [0, 0, 0, 0, 4, 1, 1, 1]
    assert align_shift(torch.tensor([[[5.0]]])).tolist() == [[[5.0]]]
    assert torch.equal(align_shift(x[0]), align_shift(x)[0])


@st.composite
def cases(draw):
    return {
        "shape": (draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 3, 16, 33])), *draw(SIDES)),
        "values": draw(st.sampled_from(sorted(VALUES))),
        "dtype": draw(st.sampled_from(DTYPES)),
        "last": draw(st.booleans()),
        "by": (draw(st.integers(0, 40)), draw(st.integers(0, 40))),
        "seed": draw(st.integers(0, 2**31)),
        "options": {"energy": draw(st.sampled_from(["l1", "l2"])), "per_channel": draw(st.booleans())},
    }


SIDES = st.tuples(st.integers(1, 19), st.integers(1, 19))


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(case=cases())
def test_cyclic_shifts_change_nothing(case, use_form):
    torch.manual_seed(case["seed"])
    x = VALUES[case["values"]](case["shape"]).to(case["dtype"])
    rolled = x.roll(case["by"], (2, 3))
    if case["last"]:
        rolled = rolled.contiguous(memory_format=torch.channels_last)
    clear = ~unclear(x, **case["options"])
    answers = []
    for name in ("torch", RUNNABLE[-1]):
        use_form(name)
        z, order = align_shift(x, **case["options"], return_order=True)
        again = align_shift(rolled, **case["options"])
        per_map = clear.expand(x.shape[:2])
        assert same_bits(again[per_map], z[per_map])
        assert same_bits(undo_reorder(z, order), x)
        answers.append(z)
    assert same_bits(*answers)


def test_every_shift_of_one_image(either):
    for shape in ((2, 3, 9, 7), (1, 1, 28, 28)):
        x = torch.randn(shape)
        z = align_shift(x)
        for by in itertools.product(range(shape[2]), range(shape[3])):
            assert torch.equal(align_shift(x.roll(by, (2, 3))), z)
        assert not torch.equal(align_shift(x.rot90(2, (2, 3))), z)


def test_a_centroid_half_way_between_two_rows(either):
    """Rows that hold the same values in another order, mirrored: on paper a tie, which rounded sums would break."""
    upper = torch.rand(60, 2, 4, 9, dtype=torch.float64)
    lower = torch.stack([row[..., torch.randperm(9)] for row in upper.unbind(2)][::-1], 2)
    x = torch.cat([upper, lower], 2)
    z = align_shift(x)
    for by in itertools.product(range(8), range(9)):
        assert torch.equal(align_shift(x.roll(by, (2, 3))), z)


def test_shifts_over_an_empty_background(either):
    thing = torch.rand(2, 1, 8, 6)
    poses = [F.pad(thing, (left, 14 - left, top, 12 - top)) for left in range(0, 15, 2) for top in range(0, 13, 3)]
    aligned = [align_shift(pose) for pose in poses]
    assert all(torch.equal(z, aligned[0]) for z in aligned)
    # In the middle, up to half a pixel: the centroid of what was moved.
    e = aligned[0].square()
    rows = (e.sum((1, 3)) * torch.arange(20)).sum(1) / e.sum((1, 2, 3))
    assert (rows - 10).abs().max() < 0.6


def test_one_shift_for_all_channels_or_one_for_each(either):
    x = torch.randn(2, 3, 8, 8)
    x[:, 1] = x[:, 0].roll((3, 5), (1, 2))
    together, alone = align_shift(x), align_shift(x, per_channel=True)
    assert torch.equal(together[:, 1], together[:, 0].roll((3, 5), (1, 2)))
    assert torch.equal(alone[:, 1], alone[:, 0])
    assert torch.equal(alone, torch.stack([align_shift(x[:, i : i + 1]) for i in range(3)], 1).squeeze(2))


def test_energies_that_repeat_have_no_first_row():
    """Rows that repeat in energy while the image does not: a diagonal has no first row."""
    line = torch.eye(6).view(1, 1, 6, 6)
    assert unclear(line).all()
    assert not torch.equal(align_shift(line.roll(1, 2)), align_shift(line))
    constant = torch.full((1, 1, 6, 6), 2.0)
    assert torch.equal(align_shift(constant.roll(1, 2)), align_shift(constant))
    stripes = torch.arange(6.0).view(1, 1, 1, 6).expand(1, 1, 5, 6)  # the same in every row: any row is the first
    for by in range(6):
        assert torch.equal(align_shift(stripes.roll((by, by), (2, 3))), align_shift(stripes))


def test_nan_is_neither_lost_nor_spread(form):
    x = torch.rand(3, 1, 5, 5)
    x[0, 0, 4, 0], x[1, 0, 0, 4] = nan, 1e30  # whose square is infinite
    z = align_shift(x)
    assert z.isnan().nonzero().tolist() == [[0, 0, 2, 2]]  # alone it decides: it comes to the middle
    assert z[1, 0, 2, 2] == 1e30
    assert torch.equal(z[2], align_shift(x[2]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_types_layouts_and_empty_batches(either, dtype):
    for size in (6, 17):
        x = torch.randn(2, 5, size, size).to(dtype)
        for per_channel in (False, True):
            z, order = align_shift(x, per_channel=per_channel, return_order=True)
            assert z.dtype == dtype
            assert order.dtype == (torch.uint8 if size == 6 else torch.int32)
            assert order.shape == (2, 5 if per_channel else 1, size, size)
            last = align_shift(x.contiguous(memory_format=torch.channels_last), per_channel=per_channel)
            assert torch.equal(last, z)
            assert last.is_contiguous(memory_format=torch.channels_last)
            assert align_shift(x[:0], per_channel=per_channel).shape == (0, 5, size, size)
            assert align_shift(x[:, :0], per_channel=per_channel).shape == (2, 0, size, size)
    large = torch.full((1, 1, 4, 4), 6e4, dtype=torch.float16)  # squares are beyond float16
    large[0, 0, 0, 0] = 6.5e4
    assert align_shift(large)[0, 0, 2, 2] == large[0, 0, 0, 0]


def test_gradient_rolls_back(either):
    for size in (6, 17):
        for per_channel in (False, True):
            x = torch.randn(2, 3, size, size, requires_grad=True)
            weight = torch.randn_like(x)
            z, order = align_shift(x, per_channel=per_channel, return_order=True)
            (z * weight).sum().backward()
            assert torch.equal(x.grad, undo_reorder(weight, order))
            assert not order.requires_grad


@pytest.mark.parametrize("per_channel", [False, True])
def test_gradcheck(either, per_channel):
    x = torch.rand(2, 2, 4, 5, dtype=torch.float64, requires_grad=True)
    f = lambda x: align_shift(x, per_channel=per_channel)  # noqa: E731
    assert torch.autograd.gradcheck(f, (x,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda x: f(x) ** 3, (x,))


@pytest.mark.parametrize("name", [RUNNABLE[-1], pytest.param("torch", marks=pytest.mark.slow)])
def test_compiles_as_one_graph(use_form, name):
    use_form(name)
    inputs = torch.randn(3, 2, 7, 7), torch.randn(4, 2, 7, 7)
    assert_compiles_alike(ShiftAlign(), inputs, exact=True, backend="aot_eager")


@pytest.mark.slow
def test_inductor(either):
    for layer in (ShiftAlign(), ShiftAlign(per_channel=True)):
        inputs = [torch.randn(8, 3, size, size) for size in (7, 20)]
        compiled = assert_compiles_alike(layer, inputs, exact=True)
        for x in inputs:
            assert torch.equal(compiled(x.roll((2, 3), (2, 3))), layer(x))


DIMS = {0: torch.export.Dim("n"), 2: torch.export.Dim("h", min=3, max=99), 3: torch.export.Dim("w", min=3, max=99)}


def test_exports_with_any_batch_and_size():
    layer = ShiftAlign().eval()
    program = torch.export.export(layer, (torch.rand(2, 3, 9, 8),), dynamic_shapes=(DIMS,))
    assert not any("patchreorder" in str(node.target) for node in program.graph.nodes)  # runs without this package
    for shape in ((5, 3, 9, 8), (1, 3, 30, 12)):
        x = torch.randn(shape)
        assert torch.equal(program.module()(x), layer(x))


@pytest.mark.parametrize("per_channel", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_onnx_with_any_batch_and_size_ties_and_nan(per_channel):
    onnxruntime = pytest.importorskip("onnxruntime")
    layer, file = ShiftAlign(per_channel=per_channel).eval(), io.BytesIO()
    torch.onnx.export(layer, (torch.rand(2, 3, 8, 7),), dynamo=True, dynamic_shapes=(DIMS,), verbose=False).save(file)
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    for shape in ((5, 3, 8, 7), (2, 3, 20, 11)):
        tied = torch.randint(-1, 2, shape).float()
        for x in (torch.randn(shape), tied, VALUES["special"](shape), torch.zeros(shape)):
            z = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])
            assert torch.equal(z.nan_to_num(9.0), layer(x).nan_to_num(9.0))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_size_returns_the_middle(either, layout):
    thing = torch.rand(4, 3, 5, 6)
    for height, width in ((12, 13), (13, 12), (8, 9)):
        layer, cut = ShiftAlign(size=8), []
        for down, right in itertools.product(range(height - 4), range(width - 5)):
            x = F.pad(thing, (right, width - right - 6, down, height - down - 5)).contiguous(memory_format=layout)
            assert torch.equal(layer(x).flatten(2).sort().values, F.pad(thing, (0, 2, 0, 3)).flatten(2).sort().values)
            cut.append(layer(x))
            top, left = height // 2 - 4, width // 2 - 4
            assert torch.equal(cut[-1], align_shift(x)[:, :, top : top + 8, left : left + 8])
            assert cut[-1].is_contiguous(memory_format=layout)
        assert all(torch.equal(cut[0], other) for other in cut)  # wherever it was
    x.requires_grad_()
    layer(x).sum().backward()
    assert x.grad.sum() == 4 * 3 * 64  # every pixel that is left came from one
    z, order = align_shift(x, size=8, return_order=True)
    assert torch.equal(z, x.flatten(2).gather(2, order.flatten(2).long().expand(-1, 3, -1)).view_as(z))
    assert layer(x[0]).shape == (3, 8, 8)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"size \(0\) must be 1 or more"):
        ShiftAlign(size=0)
    with pytest.raises(ValueError, match=r"size \(6\) is more than the 5x7 pixels of the maps"):
        ShiftAlign(size=6)(torch.rand(1, 1, 5, 7))
    with pytest.raises(ValueError, match=r"energy \('max'\)"):
        ShiftAlign(energy="max")
    with pytest.raises(ValueError, match="4x0"):
        align_shift(torch.rand(1, 1, 4, 0))
    with pytest.raises(ValueError, match="shape"):
        align_shift(torch.rand(4, 4))
    with pytest.raises(TypeError, match="int64"):
        align_shift(torch.ones(1, 1, 4, 4, dtype=torch.int64))
