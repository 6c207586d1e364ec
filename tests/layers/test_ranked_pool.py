"""Ranked pooling: known answers, an oracle by Python's own sort, invariant permutations, and derivatives."""

import io

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import nn
from torch.nn import functional as F

from patchreorder import PatchReorder, RankedPool, ranked_pool
from patchreorder.models.pools import Pool, weight_by_rank
from tests.compiling import assert_compiles_alike
from tests.forms import RUNNABLE

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
OPTIONS = [
    {},
    {"keep": 1},
    {"keep": 5},
    {"quantiles": 4},
    {"quantiles": 3, "weights": -0.5},
    {"weights": -1},
    {"weights": -0.5, "mean": True},
    {"keep": 4, "mean": True},
    {"quantiles": 3, "weights": -1},
    {"quantiles": 4, "centre": True},
]
nan, inf = float("nan"), float("inf")


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal to the last bit but for the sign of zeros, and NaN where NaN is."""
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


def oracle(values: list[float], *, keep=None, quantiles=None, weights=None, mean=False) -> list[float]:
    """The definition for one map, by Python's sort and a sum over a fine division of the ranks."""
    found = sorted(values, reverse=True)[:keep]
    if quantiles is not None:  # every value `quantiles` times, so that all parts are whole
        repeated, n = [value for value in found for _ in range(quantiles)], len(found)
        found = [sum(repeated[i * n : (i + 1) * n]) / n for i in range(quantiles)]
    by_rank = [(i + 1) ** (weights or 0) for i in range(len(found))]
    weighted = [value * weight for value, weight in zip(found, by_rank, strict=True)]
    return [sum(weighted) / sum(by_rank)] if mean else weighted


@st.composite
def cases(draw):
    h, w = draw(st.integers(1, 18)), draw(st.integers(1, 18))
    kind = draw(st.sampled_from(["keep", "quantiles", "all"]))
    return {
        "shape": (draw(st.integers(0, 2)), draw(st.integers(1, 5)), h, w),
        "values": draw(st.sampled_from(["normal", "relu", "few"])),
        "last": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**31)),
        "options": {
            "keep": draw(st.integers(1, h * w)) if kind == "keep" else None,
            "quantiles": draw(st.integers(1, 20)) if kind == "quantiles" else None,
            "weights": draw(st.sampled_from([None, -0.5, -1.0, 0.3])),
            "mean": draw(st.booleans()),
        },
    }


@settings(
    max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(case=cases())
def test_every_form_is_the_oracle_whatever_the_positions(case, use_form):
    torch.manual_seed(case["seed"])
    x = {
        "normal": torch.randn,
        "relu": lambda s: torch.randn(s).relu(),
        "few": lambda s: torch.randint(-2, 3, s) * 1.0,
    }[case["values"]](case["shape"])
    x = x.contiguous(memory_format=torch.channels_last if case["last"] else torch.contiguous_format)
    options = case["options"]
    expected = [oracle(values, **options) for image in x.flatten(2).tolist() for values in image]
    shuffled = x.flatten(2)[:, :, torch.randperm(x.shape[2] * x.shape[3])].reshape(x.shape)
    for name in ("torch", RUNNABLE[-1]):
        use_form(name)
        z = ranked_pool(x, **options)
        assert z.dtype == x.dtype
        if expected:
            torch.testing.assert_close(z, torch.tensor(expected).reshape(z.shape), rtol=2e-5, atol=2e-6)
        assert same(ranked_pool(shuffled, **options), z)


def test_known_answers(form):
    x = torch.tensor([[[[1.0, -4.0, 2.0], [0.0, 3.0, -1.0]]]])
    assert ranked_pool(x).tolist() == [[[3, 2, 1, 0, -1, -4]]]
    assert ranked_pool(x, keep=2).tolist() == [[[3, 2]]]
    torch.testing.assert_close(ranked_pool(x, quantiles=2), torch.tensor([[[2, -5 / 3]]]))
    assert ranked_pool(x, quantiles=12).tolist() == [[[3, 3, 2, 2, 1, 1, 0, 0, -1, -1, -4, -4]]]
    # 6 values in 4 parts of 1.5: 3 and half of 2; the other half of 2 and 1; ...
    torch.testing.assert_close(ranked_pool(x, quantiles=4), torch.tensor([[[8 / 3, 4 / 3, -1 / 3, -3.0]]]))
    torch.testing.assert_close(ranked_pool(x, keep=3, weights=-1), torch.tensor([[[3, 1, 1 / 3]]]))
    torch.testing.assert_close(ranked_pool(x, keep=3, weights=1, mean=True), torch.tensor([[[10 / 6]]]))
    assert ranked_pool(x[0], keep=2).tolist() == [[3, 2]]


def test_centred_ranks_have_no_mean_over_channels(either):
    x = torch.tensor([[[[1.0, 5.0]], [[3.0, 1.0]], [[0.0, -3.0]]]])
    wanted = torch.tensor([[[7 / 3, 4 / 3], [1 / 3, 4 / 3], [-8 / 3, -8 / 3]]])  # the means were 8/3 and -1/3
    torch.testing.assert_close(ranked_pool(x, centre=True), wanted)
    x = torch.randn(2, 7, 5, 6)
    for options in ({}, {"keep": 3}, {"quantiles": 4}, {"mean": True}, {"smooth": 2, "weights": -0.5}):
        plain, centred = ranked_pool(x, **options), ranked_pool(x, centre=True, **options)
        torch.testing.assert_close(centred, plain - plain.mean(1, keepdim=True))
        assert torch.equal(
            ranked_pool(x.contiguous(memory_format=torch.channels_last), centre=True, **options), centred
        )
    assert ranked_pool(x[:, :1], centre=True).abs().max() == 0  # a single channel is its own mean


def test_max_average_and_the_finest_grid_are_special_cases(form):
    x = torch.randn(3, 5, 6, 7).relu()
    assert torch.equal(ranked_pool(x, keep=1), F.adaptive_max_pool2d(x, 1).flatten(2))
    for options in ({"quantiles": 1}, {"mean": True}, {"mean": True, "weights": 0}, {"quantiles": 6, "mean": True}):
        torch.testing.assert_close(ranked_pool(x, **options), F.adaptive_avg_pool2d(x, 1).flatten(2))
    assert torch.equal(ranked_pool(x), PatchReorder(grid="pixels")(x).flatten(2))
    nearly_max = ranked_pool(x, weights=-60, mean=True)
    torch.testing.assert_close(nearly_max, ranked_pool(x, keep=1))


def test_the_weighted_pool_is_a_special_case(either):
    x = torch.randn(2, 8, 13, 13).relu()
    chain = nn.Sequential(nn.AvgPool2d(3, 2), PatchReorder(grid="pixels"), Pool(weight_by_rank), nn.Flatten())
    assert torch.equal(ranked_pool(x, smooth=3, stride=2, weights=-0.5).flatten(1), chain(x))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("size", [8, 17])  # with the kernel and without
def test_rotations_shifts_and_mirroring_change_nothing(either, options, size):
    x = torch.randn(2, 4, size, size)
    z = ranked_pool(x, **options)
    for changed in (x.rot90(1, (2, 3)), x.rot90(2, (2, 3)), x.flip(3), x.transpose(2, 3), x.roll((3, 5), (2, 3))):
        assert torch.equal(ranked_pool(changed, **options), z)
    assert not torch.equal(ranked_pool(x + 0.01 * torch.randn_like(x), **options), z)


@pytest.mark.parametrize("stride", [1, 2])
def test_smoothing_keeps_shifts_over_an_empty_background(either, stride):
    patch = torch.randn(2, 3, 5, 5)
    pooled = []
    for top in range(2, 2 + 4 * stride, stride):
        x = torch.zeros(2, 3, 17, 17)
        x[:, :, top : top + 5, 2 : 2 + 5] = patch
        pooled.append(ranked_pool(x, smooth=3, stride=stride, weights=-0.5))
    assert all(torch.equal(each, pooled[0]) for each in pooled)
    x = torch.zeros(2, 3, 17, 17)
    x[:, :, :5, 2 : 2 + 5] = patch  # at the border: some windows are missing
    assert not torch.equal(ranked_pool(x, smooth=3, stride=stride, weights=-0.5), pooled[0])


def test_rotations_with_smoothing_differ_by_rounding_only(either):
    x = torch.randn(2, 3, 9, 9)
    torch.testing.assert_close(ranked_pool(x.rot90(1, (2, 3)), smooth=3), ranked_pool(x, smooth=3))


def test_one_length_for_any_size(either):
    ramp = [torch.linspace(0, 1, side * side).view(1, 1, side, side) for side in (3, 8, 16, 17, 40)]
    pooled = [ranked_pool(x, quantiles=4) for x in ramp]
    assert {tuple(z.shape) for z in pooled} == {(1, 1, 4)}
    # Means of equal parts of the same values: images of all sizes give nearly the same.
    for z in pooled[2:]:
        torch.testing.assert_close(z, torch.tensor([[[0.875, 0.625, 0.375, 0.125]]]), atol=1e-2, rtol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [4, 20])
def test_types_layouts_and_empty_batches(either, dtype, size):
    x = torch.randn(2, 3, size, size).to(dtype)
    for options in OPTIONS:
        z = ranked_pool(x, **options)
        assert z.dtype == dtype
        assert same(ranked_pool(x.contiguous(memory_format=torch.channels_last), **options), z)
        assert same(ranked_pool(x.transpose(2, 3).contiguous().transpose(2, 3), **options), z)
        assert ranked_pool(x[:0], **options).shape == (0, *z.shape[1:])
        assert ranked_pool(x[:, :0], **options).shape == (2, 0, z.shape[2])
        exact = ranked_pool(x.double(), **options)
        torch.testing.assert_close(z.double(), exact, rtol=torch.finfo(dtype).eps * 8, atol=torch.finfo(dtype).eps * 8)


def test_nan_goes_first_and_stays_in_its_quantile(either):
    for size in (4, 17):
        x = torch.arange(size * size * 1.0).view(1, 1, size, size) - 5
        x[0, 0, 2, 1], x[0, 0, 3, 3], x[0, 0, 0, 0] = nan, inf, -inf
        z = ranked_pool(x)[0, 0]
        assert z[0].isnan()
        assert z[1] == inf
        assert z[-1] == -inf
        assert z[1:].isfinite().sum() == size * size - 3
        assert torch.equal(z[1:].sort(descending=True).values, z[1:])
        assert ranked_pool(x, keep=1).isnan().all()
        parts = ranked_pool(x, quantiles=4)[0, 0]
        assert parts.isnan().tolist() == [True, False, False, False]
        assert parts.isfinite().tolist() == [False, True, True, False]
        assert parts[3] == -inf
        finite = ranked_pool(x.nan_to_num(1e6, 1e5, -1e6), quantiles=4)[0, 0]
        torch.testing.assert_close(finite[1:3], parts[1:3])
        x[0, 0, 2, 1] = 0.0
        assert ranked_pool(x, quantiles=4)[0, 0, 0] == inf


@pytest.mark.parametrize("options", [*OPTIONS, {"smooth": 2, "keep": 3}, {"smooth": 2, "stride": 2, "quantiles": 3}])
@pytest.mark.parametrize("sign", [0.0, 0.5])
def test_gradcheck(either, options, sign):
    # No two values, and no two windows, are near each other.
    x = (torch.randperm(40).view(1, 2, 4, 5) / 40 + torch.randn(1, 2, 4, 5) / 200 - sign).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: ranked_pool(x, **options), (x,), check_forward_ad=True)


def test_the_gradient_of_a_value_goes_to_its_pixel(either):
    for size in (3, 17):
        x = torch.randn(2, 2, size, size, requires_grad=True)
        weight = torch.randn(2, 2, size * size)
        (ranked_pool(x) * weight).sum().backward()
        rank = (x.detach().flatten(2)[:, :, None, :] > x.detach().flatten(2)[:, :, :, None]).sum(3)  # larger ones
        assert torch.equal(x.grad.flatten(2), weight.gather(2, rank))


@pytest.mark.parametrize("size", [3, 17])
@pytest.mark.parametrize("value", [0.0, 2.0, -2.0])
def test_equal_values_get_the_gradient_in_order(either, size, value):
    for keep in (1, 4):
        x = torch.full((1, 1, size, size), value, requires_grad=True)
        (ranked_pool(x, keep=keep) * torch.arange(1.0, keep + 1)).sum().backward()
        assert x.grad.flatten().tolist() == [*range(1, keep + 1), *[0] * (size * size - keep)]


class Small(nn.Module):
    """A convolution, the layer and a classifier."""

    def __init__(self, length, **options):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.pool = RankedPool(**options)
        self.head = nn.Linear(4 * length, 2)

    def forward(self, x):
        return self.head(self.pool(self.conv(x)).flatten(1))


def test_compiles_as_one_graph(either):
    inputs = torch.randn(4, 3, 8, 8), torch.randn(5, 3, 8, 8)
    assert_compiles_alike(Small(6, quantiles=6, weights=-0.5), inputs, backend="aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"keep": 6}, {"quantiles": 6, "weights": -0.5}, {"smooth": 3, "stride": 2}])
def test_inductor(either, options):
    assert_compiles_alike(RankedPool(**options), [torch.randn(4, 3, size, size) for size in (8, 20)])


def test_exports_with_any_batch_and_size():
    model = Small(5, quantiles=5, weights=-0.5, smooth=2).eval()
    dims = {0: torch.export.Dim("n"), 2: torch.export.Dim("h", min=8, max=99), 3: torch.export.Dim("w", min=8, max=99)}
    program = torch.export.export(model, (torch.rand(2, 3, 9, 8),), dynamic_shapes=(dims,))
    for shape in ((5, 3, 9, 8), (1, 3, 30, 12)):
        x = torch.randn(shape)
        torch.testing.assert_close(program.module()(x), model(x))


@pytest.mark.parametrize(
    "options",
    [
        {"quantiles": 5, "weights": -0.5},
        pytest.param({"keep": 5}, marks=pytest.mark.slow),
        pytest.param({"keep": 1}, marks=pytest.mark.slow),
        pytest.param({"smooth": 3, "stride": 2}, marks=pytest.mark.slow),
    ],
)
def test_onnx_with_any_batch_and_size_ties_and_nan(options):
    onnxruntime = pytest.importorskip("onnxruntime")
    layer, file = RankedPool(**options).eval(), io.BytesIO()
    dims = {0: torch.export.Dim("n"), 2: torch.export.Dim("h", min=6, max=99), 3: torch.export.Dim("w", min=6, max=99)}
    torch.onnx.export(layer, (torch.rand(2, 3, 8, 7),), dynamo=True, dynamic_shapes=(dims,), verbose=False).save(file)
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    for shape in ((5, 3, 8, 7), (2, 3, 20, 11)):
        special = torch.tensor([nan, inf, 1.0, -2.0])[torch.randint(0, 4, shape)]
        for x in (torch.randn(shape), torch.randint(-1, 2, shape).float(), special):
            z = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])
            torch.testing.assert_close(z, layer(x), equal_nan=True)


def test_autocast_and_meta():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert RankedPool(quantiles=3)(torch.rand(2, 3, 8, 8)).dtype == torch.float32
    for options in OPTIONS:
        x = torch.rand(2, 3, 8, 8)
        assert ranked_pool(x.to("meta"), **options).shape == ranked_pool(x, **options).shape


def test_bad_arguments_are_named():
    for name in ("keep", "quantiles", "smooth", "stride"):
        with pytest.raises(ValueError, match=rf"{name} \(0\) must be 1 or more"):
            RankedPool(**{name: 0})
    with pytest.raises(ValueError, match=r"keep \(3\) and quantiles \(2\) exclude each other"):
        RankedPool(keep=3, quantiles=2)
    with pytest.raises(ValueError, match=r"weights \(inf\) must be finite"):
        RankedPool(weights=inf)


def test_maps_that_are_too_small():
    with pytest.raises(ValueError, match=r"keep \(17\) is more than the 4x4 values"):
        ranked_pool(torch.rand(1, 1, 4, 4), keep=17)
    with pytest.raises(ValueError, match=r"smooth \(5\) does not fit maps of 4x6"):
        ranked_pool(torch.rand(1, 1, 4, 6), smooth=5)
    with pytest.raises(ValueError, match="0x4"):
        ranked_pool(torch.rand(1, 1, 0, 4))
    with pytest.raises(ValueError, match="shape"):
        ranked_pool(torch.rand(4, 4))
    with pytest.raises(TypeError, match="int64"):
        ranked_pool(torch.ones(1, 1, 4, 4, dtype=torch.int64))
