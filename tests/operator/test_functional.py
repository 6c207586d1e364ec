"""The meaning of the operator: every form against an oracle by different algebra, known answers, and arguments."""

import warnings

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from patchreorder import patch_reorder, undo_reorder
from tests import oracle
from tests.forms import RUNNABLE

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
THOROUGH = settings(
    max_examples=700,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are equal, with NaN in the same places and zeros of the same sign."""
    words = WORDS[a.element_size()]
    return torch.equal(a.contiguous().view(words), b.contiguous().view(words))


WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes of a number
VALUES = {
    "normal": lambda shape: torch.randn(shape),
    "sparse": lambda shape: torch.randn(shape).relu() * (torch.rand(shape) < 0.2),  # many ties at zero
    "few values": lambda shape: torch.randint(-2, 3, shape).float(),
    "tiny and huge": lambda shape: torch.randn(shape) * 10.0 ** torch.randint(-30, 31, shape).float(),
    "special": lambda shape: torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, 3.0e38])[
        torch.randint(0, 7, shape)
    ],
    "any bits": None,  # NaN of every payload among them
}


@st.composite
def cases(draw):
    grid = draw(st.sampled_from([2, 2, 2, 3, 4, 5, 6, 7, 13, 16, 17, "pixels", "pixels"]))
    levels = draw(st.integers(1, {2: 4, 3: 2, 4: 2}.get(grid, 1)))
    least = 1 if grid == "pixels" else grid**levels
    most = 18 if grid == "pixels" else 2 * least + 7
    h, w = draw(st.integers(least, most)), draw(st.integers(least, most))
    if h == w == 1:
        w = 2
    shape = (draw(st.integers(0, 2)), draw(st.sampled_from([0, 1, 2, 3, 5, 15, 16, 17, 33])), h, w)
    while shape[0] * shape[1] * h * w > 12000:
        shape = (1, max(1, shape[1] // 2), h, w)
    return {
        "shape": shape,
        "values": draw(st.sampled_from(sorted(VALUES))),
        "dtype": draw(st.sampled_from(DTYPES)),
        "layout": draw(st.sampled_from(["contiguous", "channels_last", "strided"])),
        "seed": draw(st.integers(0, 2**31)),
        "options": {
            "grid": grid,
            "levels": levels,
            "energy": draw(st.sampled_from(["l1", "l2"])),
            "per_channel": draw(st.booleans()),
            "descending": draw(st.booleans()),
        },
    }


def make(case) -> torch.Tensor:
    torch.manual_seed(case["seed"])
    b, c, h, w = case["shape"]
    if case["values"] == "any bits":
        x = any_bits((b, c, h, w), case["dtype"])
    else:
        x = VALUES[case["values"]]((b, c, h, w)).to(case["dtype"])
    if case["layout"] == "channels_last" and x.numel():
        return x.contiguous(memory_format=torch.channels_last)
    if case["layout"] == "strided":
        wide = torch.zeros(b, c, w, 2 * h, dtype=x.dtype)
        wide[..., ::2] = x.transpose(2, 3)
        return wide[..., ::2].transpose(2, 3)
    return x


def any_bits(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    words = WORDS[dtype.itemsize]
    x = torch.randint(torch.iinfo(words).min, torch.iinfo(words).max, shape, dtype=words)
    nan = torch.tensor(float("nan"), dtype=dtype).view(words)
    return torch.where(torch.rand(shape) < 0.3, x | nan, x).view(dtype)


@THOROUGH
@given(case=cases())
def test_every_form_equals_the_oracle(case, use_form):
    x = make(case)
    expected_z, expected_order = oracle.reorder(x, **case["options"])
    for name in ["torch", *RUNNABLE]:
        use_form(name)
        z, order = patch_reorder(x, **case["options"], return_order=True)
        assert torch.equal(order.long(), expected_order), name
        assert same_bits(z, expected_z), name
        assert same_bits(undo_reorder(z, order), x), name
        assert order.dtype == (torch.uint8 if order.shape[2] * order.shape[3] <= 256 else torch.int32), name
        if case["layout"] == "channels_last" and x.numel():
            assert z.is_contiguous(memory_format=torch.channels_last), name


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_forms_and_threads_agree_on_large_tensors(use_form, threads, layout):
    """Thousands of maps, split among threads, in the shapes that networks have."""
    before = torch.get_num_threads()
    try:
        for shape, options in [
            ((37, 65, 4, 4), {}),
            ((33, 64, 11, 11), {}),
            ((9, 130, 13, 13), {"levels": 2}),
            ((9, 128, 13, 13), {"grid": 4}),
            ((40, 96, 6, 6), {"grid": "pixels"}),
            ((1, 200, 31, 29), {"grid": 3, "levels": 2}),
            ((12, 64, 13, 13), {"grid": "pixels", "per_channel": False}),
            ((12, 64, 14, 14), {"per_channel": False}),
        ]:
            x = torch.randn(shape).relu().contiguous(memory_format=layout)
            torch.set_num_threads(1)
            use_form("torch")
            expected = patch_reorder(x, **options, return_order=True)
            torch.set_num_threads(threads)
            for name in RUNNABLE:
                use_form(name)
                z, order = patch_reorder(x, **options, return_order=True)
                assert torch.equal(z, expected[0]), (name, shape)
                assert torch.equal(order, expected[1]), (name, shape)
    finally:
        torch.set_num_threads(before)


def test_known_answers(form):
    x = torch.arange(16.0).reshape(1, 1, 4, 4)
    expected = [[10, 11, 8, 9], [14, 15, 12, 13], [2, 3, 0, 1], [6, 7, 4, 5]]
    assert patch_reorder(x)[0, 0].tolist() == expected
    assert patch_reorder(x, levels=2)[0, 0].tolist() == [
        [15, 14, 13, 12],
        [11, 10, 9, 8],
        [7, 6, 5, 4],
        [3, 2, 1, 0],
    ]
    assert patch_reorder(x, descending=False)[0, 0].equal(x[0, 0])
    assert patch_reorder(-x, grid="pixels").flatten().tolist() == [-v for v in range(15, -1, -1)]
    # The strongest pixel is in the last row and column, which no patch covers.
    y = torch.zeros(1, 1, 3, 3)
    y[0, 0, 1, 0], y[0, 0, 2, 2] = 1.0, 9.0
    assert patch_reorder(y)[0, 0].tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 9]]


def test_l1_and_l2_energy(form):
    x = torch.tensor([[3.0, 0.0, 2.0, 2.0]]).repeat(2, 1)[None, None]  # patches of 1x2: 3 and 4, or 9 and 8
    assert patch_reorder(x, energy="l1")[0, 0].tolist() == [[2, 2, 2, 2], [3, 0, 3, 0]]
    assert patch_reorder(x, energy="l2")[0, 0].tolist() == [[3, 0, 3, 0], [2, 2, 2, 2]]


def test_joint_ranking_moves_all_channels_together(form):
    x = torch.zeros(1, 3, 2, 2)
    x[0, 0, 0, 0], x[0, 1, 1, 1], x[0, 2, 1, 1] = 2.0, 1.5, 1.5
    z, order = patch_reorder(x, per_channel=False, return_order=True)
    assert order.tolist() == [[[[3, 0], [1, 2]]]]
    assert z[0, :, 0, 0].tolist() == [0.0, 1.5, 1.5]
    assert z[0, :, 0, 1].tolist() == [2.0, 0.0, 0.0]


BIG = 2.0**24  # plus 1 is rounded back to itself in float32, plus 2 is not


@pytest.mark.parametrize(
    ("energies", "moves"),
    [
        ([BIG, 1, 0, 1], True),  # by halving: (BIG + 0) + (1 + 1)
        ([BIG, 0, 1, 1], False),  # (BIG + 1) + (0 + 1)
        ([BIG, 1, 1], False),  # (BIG + 1) + 1
        ([1, 1, BIG], True),  # (1 + 1) + BIG
        ([BIG, 1, 0, 1, 0], True),  # ((BIG + 0) + (1 + 1)) + 0
        ([BIG, 0, 0, 1, 1], False),  # ((BIG + 0) + (0 + 1)) + 1
        ([1, 1, 0, 0, BIG], True),  # ((1 + 0) + (1 + 0)) + BIG
    ],
)
def test_the_order_of_summation_over_channels(form, energies, moves):
    x = torch.zeros(1, len(energies), 2, 2)
    x[0, energies.index(BIG), 0, 0] = BIG  # the first patch stays first unless the last has more energy
    x[0, :, 1, 1] = torch.tensor(energies)
    _, order = patch_reorder(x, energy="l1", per_channel=False, return_order=True)
    assert order.flatten().tolist() == ([3, 0, 1, 2] if moves else [0, 3, 1, 2])


@pytest.mark.parametrize(
    ("patch", "moves"),
    [
        ([[BIG, 1], [0, 1]], True),  # down the columns first: (BIG + 0) + (1 + 1)
        ([[BIG, 0], [1, 1]], False),  # (BIG + 1) + (0 + 1)
        ([[1, BIG], [1, 0]], True),  # (1 + 1) + (BIG + 0)
        ([[BIG, 1, 1], [0, 0, 0], [0, 0, 0]], False),  # from left to right: (BIG + 1) + 1
        ([[1, 1, BIG], [0, 0, 0], [0, 0, 0]], True),  # (1 + 1) + BIG
        ([[BIG, 0, 0], [1, 0, 0], [1, 0, 0]], False),  # from top to bottom: (BIG + 1) + 1
        ([[1, 0, 0], [1, 0, 0], [BIG, 0, 0]], True),  # (1 + 1) + BIG
    ],
)
def test_the_order_of_summation_in_a_patch(form, patch, moves):
    side = len(patch)
    x = torch.zeros(1, 1, 2 * side, 2 * side)
    x[0, 0, 0, 0], x[0, 0, side:, side:] = BIG, torch.tensor(patch)
    _, order = patch_reorder(x, energy="l1", return_order=True)
    assert order.flatten().tolist() == ([3, 0, 1, 2] if moves else [0, 3, 1, 2])


@pytest.mark.parametrize("options", [{}, {"levels": 2}, {"grid": "pixels"}, {"grid": 3, "per_channel": False}])
def test_invariance_to_the_order_of_the_coarsest_patches(form, options):
    """The patches of the coarsest level are permuted; their energies differ."""
    x = torch.rand(4, 5, 12, 12)
    n = 12 if options.get("grid") == "pixels" else options.get("grid", 2)
    size = 12 // n
    patches = x.reshape(4, 5, n, size, n, size).transpose(3, 4).reshape(4, 5, n * n, size, size)
    shuffled = patches[:, :, torch.arange(n * n).roll(1)]
    y = shuffled.reshape(4, 5, n, n, size, size).transpose(3, 4).reshape(4, 5, 12, 12)
    assert not torch.equal(x, y)
    assert torch.equal(patch_reorder(x, **options), patch_reorder(y, **options))


def test_pixels_are_invariant_to_rotations_by_90_degrees_and_cyclic_shifts(form):
    x = torch.rand(2, 3, 7, 7)
    expected = patch_reorder(x, grid="pixels")
    assert torch.equal(patch_reorder(x.rot90(1, (2, 3)), grid="pixels"), expected)
    assert torch.equal(patch_reorder(x.roll((3, 5), (2, 3)), grid="pixels"), expected)


@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("grid", [2, 4, "pixels"])
def test_nan_goes_first_and_nothing_is_lost(form, grid, descending):
    x = torch.randn(3, 4, 8, 8)
    x[0, 0, 5, 6], x[1, 2, 0, 0], x[1, 2, 7, 7], x[2, 3, 1, 7] = [float(v) for v in ("nan", "inf", "nan", "-inf")]
    z = patch_reorder(x, grid=grid, descending=descending)
    assert z[0, 0, : 8 // (8 if grid == "pixels" else grid)].isnan().any()
    for values in (x, z):
        values.nan_to_num_(nan=7e7, posinf=8e7, neginf=-8e7)
    assert torch.equal(x.flatten(2).sort().values, z.flatten(2).sort().values)


def test_float16_energy_does_not_overflow(form):
    x = torch.full((1, 1, 2, 2), 300.0, dtype=torch.float16)  # 300 * 300 is infinite in float16
    x[0, 0, 1, 1] = 400.0
    assert patch_reorder(x)[0, 0].tolist() == [[400, 300], [300, 300]]


def test_one_image_without_a_batch_dimension(form):
    x = torch.randn(3, 8, 8)
    z, order = patch_reorder(x, return_order=True)
    assert torch.equal(z, patch_reorder(x[None])[0])
    assert order.shape == (3, 2, 2)
    assert torch.equal(undo_reorder(z, order), x)


@pytest.mark.parametrize("shape", [(0, 3, 8, 8), (2, 0, 8, 8), (0, 0, 8, 8)])
@pytest.mark.parametrize("per_channel", [True, False])
def test_an_empty_batch_or_no_channels(form, shape, per_channel):
    z, order = patch_reorder(torch.zeros(shape), per_channel=per_channel, return_order=True)
    assert z.shape == shape
    assert order.shape == (shape[0], shape[1] if per_channel else 1, 2, 2)
    assert undo_reorder(z, order).shape == shape


def test_the_input_is_not_changed(form):
    x = torch.randn(2, 3, 8, 8)
    original = x.clone()
    patch_reorder(x, levels=3)
    assert torch.equal(x, original)


def test_a_view_with_the_negative_bit(form):
    x = torch._neg_view(torch.rand(1, 2, 4, 4))
    assert torch.equal(patch_reorder(x), patch_reorder(x.clone()))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"grid": 1}, ValueError, "grid (1)"),
        ({"grid": -3}, ValueError, "grid (-3)"),
        ({"grid": "pixel"}, ValueError, "'pixel'"),
        ({"grid": 2.0}, TypeError, "grid (2.0)"),
        ({"grid": True}, TypeError, "grid (True)"),
        ({"levels": 0}, ValueError, "levels (0)"),
        ({"levels": "2"}, TypeError, "levels ('2')"),
        ({"grid": "pixels", "levels": 2}, ValueError, "levels (2)"),
        ({"grid": 3, "levels": 2}, ValueError, "= 9 patches a side do not fit a 8x6 map"),
        ({"levels": 10**6}, ValueError, "grid (2) ** levels (1000000) patches a side do not fit a 8x6 map"),
        ({"levels": 10**10}, ValueError, "levels (10000000000) must be below 2**31"),
        ({"levels": 2**31 - 1}, ValueError, "levels (2147483647) patches a side do not fit"),
        ({"grid": 2**31 - 1, "levels": 2**31 - 1}, ValueError, "patches a side do not fit"),
        ({"grid": 10**5000}, ValueError, "grid (an integer of 16610 bits) must be below 2**31"),
        ({"levels": -(10**5000)}, ValueError, "levels (an integer of 16610 bits) must be"),
        ({"energy": "l3"}, ValueError, "energy ('l3')"),
        ({"per_channel": 1}, TypeError, "per_channel (1)"),
        ({"descending": None}, TypeError, "descending (None)"),
    ],
)
def test_wrong_arguments_are_named(options, error, words):
    with pytest.raises(error) as caught:
        patch_reorder(torch.rand(1, 2, 8, 6), **options)
    assert words in str(caught.value)


def nested(x: torch.Tensor, **options) -> torch.Tensor:
    with warnings.catch_warnings():  # torch calls them a prototype
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor(list(x), **options)


@pytest.mark.parametrize(
    ("x", "error", "words"),
    [
        (torch.rand(8, 8), ValueError, "(8, 8)"),
        (torch.rand(1, 1, 1, 8, 8), ValueError, "(1, 1, 1, 8, 8)"),
        (torch.ones(1, 1, 8, 8, dtype=torch.int32), TypeError, "int32"),
        (torch.ones(1, 1, 8, 8, dtype=torch.complex64), TypeError, "complex64"),
        (torch.ones(1, 1, 8, 8, dtype=torch.bool), TypeError, "bool"),
        (torch.ones(1, 1, 8, 8).to_sparse(), TypeError, "sparse"),
        (nested(torch.ones(2, 1, 8, 8)), TypeError, "nested"),
        (nested(torch.ones(2, 1, 8, 8), layout=torch.jagged), TypeError, "jagged"),
        ([[1.0]], TypeError, "list"),
    ],
)
def test_wrong_tensors_are_named(x, error, words):
    with pytest.raises(error) as caught:
        patch_reorder(x)
    assert words in str(caught.value)
    with pytest.raises(error):
        undo_reorder(x, torch.zeros(1, 1, 2, 2, dtype=torch.uint8))


def test_maps_without_pixels():
    with pytest.raises(ValueError, match="no pixels"):
        patch_reorder(torch.rand(1, 1, 0, 4), grid="pixels")


@pytest.mark.parametrize(
    ("order", "error", "words"),
    [
        (torch.zeros(2, 3, 2, 2, dtype=torch.uint8), ValueError, "not a permutation"),
        (torch.full((2, 3, 2, 2), 200, dtype=torch.uint8), ValueError, "not a permutation"),
        (torch.full((2, 3, 2, 2), -1, dtype=torch.int32), ValueError, "not a permutation"),
        (torch.zeros(2, 2, 2, 2, dtype=torch.uint8), ValueError, "(2, 2, 2, 2) does not fit z"),
        (torch.zeros(1, 3, 2, 2, dtype=torch.uint8), ValueError, "does not fit"),
        (torch.zeros(2, 3, 9, 2, dtype=torch.uint8), ValueError, "does not fit"),
        (torch.zeros(2, 3, 4, dtype=torch.uint8), ValueError, "does not fit"),
        (torch.zeros(2, 3, 2, 2), TypeError, "float32"),
        (torch.zeros(2, 3, 2, 2, dtype=torch.int64), TypeError, "int64"),
        (torch.zeros(2, 3, 2, 2, dtype=torch.uint8).to_sparse(), TypeError, "sparse"),
        (nested(torch.zeros(2, 3, 2, 2, dtype=torch.uint8)), TypeError, "nested"),
        (nested(torch.zeros(2, 3, 2, 2, dtype=torch.uint8), layout=torch.jagged), TypeError, "jagged"),
        (None, TypeError, "NoneType"),
    ],
)
def test_a_wrong_order_is_refused(order, error, words):
    with pytest.raises(error) as caught:
        undo_reorder(torch.rand(2, 3, 8, 8), order)
    assert words in str(caught.value)


CLOSE = {
    "neighbours": [1.0 + k * 2.0**-23 for k in range(5)],
    "zero and smaller than any normal number": [0.0, 2.0**-149, 2.0**-148, 2.0**-143, 1.0],
    "zero and NaN": [0.0, float("nan"), 1.0, float("inf")],
}


@pytest.mark.parametrize("values", CLOSE)
@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("shape", [(1, 17), (5, 5), (2, 13), (6, 6), (7, 7), (5, 10), (8, 8), (5, 13)])
def test_energies_that_are_nearly_equal_are_told_apart(use_form, values, descending, shape):
    """The kernel sorts up to 64 patches by the highest bits of their energies, where these suffice."""
    numbers = torch.tensor(CLOSE[values])
    x = numbers[torch.randint(len(numbers), (1, 35, *shape))]
    x[:, 20:] = torch.rand(1, 15, *shape)  # groups of maps without close numbers
    options = {"grid": "pixels", "energy": "l1", "descending": descending}
    z, order = oracle.reorder(x, **options)
    for name in ["torch", *RUNNABLE]:
        use_form(name)
        found, own = patch_reorder(x, **options, return_order=True)
        assert torch.equal(own.long(), order), name
        assert same_bits(found, z), name
