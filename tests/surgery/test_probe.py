"""The probe: whether a change to the maps of a module changes the output by more than rounding."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from patchreorder.surgery.probe import Probe, evaluating, shuffle

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def images() -> Tensor:
    return torch.randn(2, 3, 15, 15)


def ignores_positions(model: nn.Module, name: str, *arguments: Any) -> bool:
    with evaluating(model):
        return Probe(model, arguments).ignores_positions(model.get_submodule(name))


class Conv(nn.Module):
    """A convolution, and any function of its output."""

    def __init__(self, function: Callable[[Tensor], Any], padding: int = 0) -> None:
        super().__init__()
        self.conv, self.function = nn.Conv2d(3, 4, 3, padding=padding), function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.conv(x))


# Rounding is no effect


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_rounding_in_a_global_average_is_ignored(dtype: torch.dtype, layout: torch.memory_format) -> None:
    tail = [part for _ in range(4) for part in (nn.Linear(16, 16), nn.LayerNorm(16), nn.ReLU())]
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), *tail)
    model = model.to(dtype=dtype, memory_format=layout)
    example = torch.randn(2, 3, 64, 64).to(dtype).to(memory_format=layout)
    with torch.no_grad():
        changed = Probe(model, (example,)).run((example,), model[0], shuffle)[0]
        assert dtype == torch.bfloat16 or not torch.equal(changed, model(example))  # there is rounding to ignore
    assert ignores_positions(model, "0", example)


def test_rounding_is_measured_at_the_module_itself() -> None:
    class Difference(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[:, ::2] - x[:, 1::2]  # of numbers near 1000: few digits remain

    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), Difference())
    nn.init.constant_(model[0].bias, 1000.0)
    assert ignores_positions(model, "0", torch.randn(2, 3, 64, 64))


def test_an_effect_below_the_precision_of_the_output_is_ignored() -> None:
    class Faint(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return (x + 1e-7 * self.conv(x)).mean((2, 3))

    assert ignores_positions(Faint(), "conv", torch.randn(2, 3, 64, 64))


class Nearly(nn.Module):
    """Global averages, and a small part that depends on the positions."""

    def __init__(self, part: float) -> None:
        super().__init__()
        self.conv, self.part = nn.Conv2d(3, 8, 3), part
        self.averages, self.positions = nn.Linear(8, 10), nn.Linear(8 * 13 * 13, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.averages(x.mean((2, 3))) + self.part * self.positions(x.flatten(1))


@pytest.mark.parametrize("part", [1e-2, 1e-4, 1e-5, 0.0])
def test_a_small_effect_is_found(part: float, images: Tensor) -> None:
    assert ignores_positions(Nearly(part), "conv", images) is (part == 0.0)


@pytest.mark.parametrize("part", [0.03, 0.1])
def test_a_small_effect_is_found_in_bfloat16(part: float, images: Tensor) -> None:
    assert not ignores_positions(Nearly(part).bfloat16(), "conv", images.bfloat16())


def test_nan_in_the_output_is_compared(images: Tensor) -> None:
    def pool(y: Tensor) -> Tensor:
        return torch.cat([y.amax((2, 3)), y.mean((2, 3)) * torch.nan], 1)

    assert ignores_positions(Conv(pool), "conv", images)


# Where an effect shows


def test_every_channel_is_shuffled_by_itself(images: Tensor) -> None:
    # The pool would undo a permutation of all channels together, in spite of the 1x1 convolution in between.
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    assert [ignores_positions(model, name, images) for name in ("0", "1", "2")] == [False, True, True]


def test_a_module_called_twice_is_shuffled_at_both_calls(images: Tensor) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act, self.out = nn.Tanh(), nn.Linear(3 * 15 * 15, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.act(x).mean((2, 3), keepdim=True).add(self.act(-x)).flatten(1))

    assert not ignores_positions(Twice(), "act", images)  # only the second call matters


def test_a_module_called_on_maps_and_on_vectors(images: Tensor) -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = nn.Tanh()

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.act(x).amax((2, 3)))

    assert ignores_positions(Shared(), "act", images)


class Outputs(NamedTuple):
    pooled: Tensor
    parts: list[dict[str, Tensor]]


@dataclass
class Record:
    pooled: Tensor
    name: str
    more: tuple[Tensor, ...]


@pytest.mark.parametrize(
    "pack",
    [
        lambda x: (x.mean((2, 3)), x),
        lambda x: {"pooled": x.mean((2, 3)), "maps": [x]},
        lambda x: Outputs(x.mean((2, 3)), [{"maps": x}]),
        lambda x: Record(x.mean((2, 3)), "a", (x,)),
        lambda x: (1e6 * x.mean((2, 3)), 1e-6 * x),  # each output relative to its own size
        lambda x: (x.mean((2, 3)), x.flatten(1).argmax(1)),
        lambda x: (x.mean((2, 3)), torch.where(x > 0, 0.0, -torch.inf)),
        lambda x: (x.mean((2, 3)), torch.where(x > 0, 0.0, torch.nan)),
        lambda x: [x.mean((2, 3)), x.flatten(1)[:, : 1 + int(x.flatten(1).argmax(1)[0])]],  # another shape
    ],
)
def test_all_outputs_are_compared(pack: Callable[[Tensor], Any], images: Tensor) -> None:
    assert not ignores_positions(Conv(pack), "conv", images)


def test_several_arguments(images: Tensor) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 2, 3)

        def forward(self, x: Tensor, scale: Tensor, mean: bool) -> Tensor:
            y = self.conv(x) * scale
            return y.mean((2, 3)) if mean else y.flatten(1)

    assert ignores_positions(Two(), "conv", images, torch.tensor(2), True)
    assert not ignores_positions(Two(), "conv", images, torch.tensor(2), False)


# Other questions


@torch.no_grad()
def test_is_bypassed(images: Tensor) -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.conv(x)

    residual, plain = Residual(), Conv(torch.relu)
    assert Probe(residual, (images,)).is_bypassed(residual.conv)
    assert not Probe(plain, (images,)).is_bypassed(plain.conv)


@torch.no_grad()
def test_accepts_changes_without_errors_warnings_and_other_shapes(images: Tensor) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout2d(), nn.Flatten(), nn.Linear(4 * 13 * 13, 2)).eval()
    probe = Probe(model, (images,))
    assert probe.accepts(model[0], lambda maps, _: maps.flip(2))
    assert not probe.accepts(model[0], lambda maps, _: maps[:, :, 1:])  # the linear layer raises
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not probe.accepts(model[0], lambda maps, _: maps.flatten(2))  # the dropout warns
    headless = Conv(torch.relu)
    assert not Probe(headless, (images,)).accepts(headless.conv, lambda maps, _: maps[:, :, 1:])


@torch.no_grad()
def test_ignores_shifts_and_input(images: Tensor) -> None:
    pooled = Probe(nn.AdaptiveAvgPool2d(1), (images,))
    assert (pooled.ignores_shifts(), pooled.ignores_input()) == (True, False)
    flat = Probe(nn.Flatten(), (images,))
    assert (flat.ignores_shifts(), flat.ignores_input()) == (False, False)
    constant = Probe(Conv(torch.zeros_like), (images,))
    assert (constant.ignores_shifts(), constant.ignores_input()) == (True, True)


# The model and the random state are left unchanged


def state_of(model: nn.Module) -> tuple[Any, ...]:
    modes = [module.training for module in model.modules()]
    hooks = [len(module._forward_hooks) for module in model.modules()]
    values = {key: value.tolist() for key, value in model.state_dict().items()}
    return modes, hooks, torch.get_rng_state().tolist(), torch.is_grad_enabled(), values


@pytest.mark.parametrize("failing_run", [0, 1, 2, None])
def test_modes_hooks_buffers_and_random_state_are_restored(failing_run: int | None, images: Tensor) -> None:
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Sequential(nn.ReLU()))
            self.runs = 0

        def forward(self, x: Tensor) -> Tensor:
            assert not torch.is_grad_enabled()
            assert not any(module.training for module in self.modules())
            if self.runs == failing_run:
                raise ZeroDivisionError
            self.runs += 1
            return self.inner(x)

    model, original = Failing(), images.clone()
    model.inner[1].eval()
    model.inner[3][0].eval()
    before = state_of(model)
    if failing_run is None:
        ignores_positions(model, "inner.0", images)
    else:
        with pytest.raises(ZeroDivisionError):
            ignores_positions(model, "inner.0", images)
    assert state_of(model) == before
    assert torch.equal(images, original)


def test_a_model_that_writes_to_its_input_and_output(images: Tensor) -> None:
    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.result = nn.Conv2d(3, 4, 3), torch.zeros(2, 4, 13, 13)

        def forward(self, x: Tensor) -> Tensor:
            return self.result.copy_(self.conv(x.add_(1.0))).flatten(1)

    original = images.clone()
    assert not ignores_positions(Writing(), "conv", images)
    assert torch.equal(images, original)


def test_every_run_has_the_same_random_numbers(images: Tensor) -> None:
    model = Conv(lambda y: F.dropout(y.mean((2, 3)), training=True))
    assert ignores_positions(model, "conv", images)


def test_random_numbers_that_are_not_torchs_are_an_error(images: Tensor) -> None:
    generator = random.Random(3)
    with pytest.raises(ValueError, match="changes from run to run"):
        Probe(Conv(lambda y: y * generator.random()), (images,))


def test_an_output_without_tensors_is_an_error(images: Tensor) -> None:
    with pytest.raises(ValueError, match="the model returned no tensor"):
        Probe(Conv(lambda y: "cat"), (images,))


@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (2, 3, 5, 4)])
def test_shuffle_moves_every_position_of_every_map(shape: tuple[int, ...]) -> None:
    maps = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)
    maps = maps.to(memory_format=torch.channels_last)
    shuffled = shuffle(maps, torch.Generator().manual_seed(0))
    assert (shuffled != maps).all()
    assert shuffled.stride() == maps.stride()
    assert torch.equal(shuffled.flatten(2).sort(2).values, maps.flatten(2))
    orders = {tuple(order) for order in (shuffled - maps.amin((2, 3), keepdim=True)).flatten(0, 1).flatten(1).tolist()}
    assert len(orders) == shape[0] * shape[1]
