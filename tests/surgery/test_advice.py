"""advise on small models whose right answers are known by construction."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn

from patchreorder import PatchReorder, RankedPool, create_layer, create_model, patch_reorder
from patchreorder.models.group_conv import GroupLift2d
from patchreorder.surgery.advice import Advice, advise
from patchreorder.surgery.insertion import insert_after
from patchreorder.surgery.probe import Probe, shuffle

torch.set_num_threads(1)
QUIET = Console(quiet=True)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def images() -> Tensor:
    return torch.randn(2, 3, 15, 15)


def convolutions() -> list[nn.Module]:
    return [
        nn.Conv2d(3, 8, 3),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    ]


class Flat(nn.Module):
    """Maps 8x5x5 at the end, and a classifier that sees every position."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(*convolutions())
        self.drop = nn.Dropout2d(0.5)
        self.classifier = nn.Linear(8 * 5 * 5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.drop(self.features(x)).flatten(1))


def pooled(pool: nn.Module) -> nn.Sequential:
    return nn.Sequential(*convolutions(), pool, nn.Flatten(), nn.Linear(8, 4))


def warnings_of(model: nn.Module, example: Any) -> dict[str, str]:
    return {line.name: line.warning for line in advise(model, example, console=QUIET)}


def printed(model: nn.Module, example: Any, width: int = 120) -> str:
    console = Console(record=True, file=StringIO(), width=width)
    advise(model, example, console=console)
    return console.export_text()


# The table


def test_a_network_with_a_flat_classifier(images: Tensor) -> None:
    lines = advise(Flat(), images, console=QUIET)
    assert [line[:5] for line in lines] == [
        ("features.0", "Conv2d", 8, 13, 13),
        ("features.1", "ReLU", 8, 13, 13),
        ("features.2", "Conv2d", 8, 11, 11),
        ("features.3", "ReLU", 8, 11, 11),
        ("features.4", "MaxPool2d", 8, 5, 5),
        ("drop", "Dropout2d", 8, 5, 5),
    ]  # and not "features", which returns what features.4 returned
    assert [line.warning for line in lines] == ["early: a convolution follows"] * 2 + [""] * 4


def test_the_table_shows_names_sizes_leftovers_and_warnings(images: Tensor) -> None:
    text = printed(Flat(), images)
    rows = {row.split()[0]: " ".join(row.split()) for row in text.splitlines() if row.strip()}
    # 13x13: 2x2 and 4x4 patches leave 169 - 144 = 25 pixels, 8x8 leave 169 - 64; 3x3 leave 25, 9x9 leave 88.
    assert rows["features.0"] == "features.0 Conv2d 8x13x13 25 25 105 25 88 25 early: 1"
    assert rows["features.4"] == "features.4 MaxPool2d 8x5x5 9 9 16 9 reorder"
    assert "early: so many convolutions follow" in text
    assert "no-op" not in text


def test_the_printed_line_of_code_works_and_matters(images: Tensor) -> None:
    model = Flat().eval()
    code = printed(model, images).splitlines()[-1].strip()
    assert code == 'insert_after(model, "features.4", "reorder:grid=pixels")'  # before the dropout
    plain = model(images)
    eval(code, {"insert_after": insert_after, "model": model})
    assert not torch.allclose(model(images), plain)


def test_names_stay_whole_on_a_narrow_terminal_whatever_they_are() -> None:
    name = "[bold]a_module_with_a_name_that_fills_most_of_the_line"
    model = nn.Sequential()
    model.add_module(name, nn.Sequential(nn.Conv2d(3, 2, 3), nn.Conv2d(2, 2, 3)))
    text = printed(model, torch.randn(1, 3, 9, 9), width=80)
    assert any(row.startswith(f"{name}.0 ") for row in text.splitlines())
    assert f'insert_after(model, "{name}.1", "reorder:grid=pixels")' in text


@pytest.mark.parametrize("size", [(1, 7), (2, 2), (5, 9), (13, 13), (64, 28)])
def test_the_settings_that_fit_are_those_the_operator_takes(size: tuple[int, int]) -> None:
    (line,) = advise(nn.ReLU(), torch.randn(1, 1, *size), console=QUIET)
    fits = {fit[:2]: fit[2:] for fit in line.fits}
    assert fits.pop(("pixels", 1)) == (0, 0)
    maps = torch.arange(1.0, 1 + size[0] * size[1]).view(1, 1, *size)  # ascending: every patch has to move
    for setting in product((2, 3, 4), (1, 2, 3)):
        if setting not in fits:
            with pytest.raises(ValueError, match="do not fit"):
                patch_reorder(maps, grid=setting[0], levels=setting[1])
            continue
        moved = (patch_reorder(maps, grid=setting[0], levels=setting[1]) != maps)[0, 0]
        covered = (int(moved.any(1).nonzero().max()) + 1, int(moved.any(0).nonzero().max()) + 1)
        assert covered == (size[0] - fits[setting][0], size[1] - fits[setting][1])


# No-ops, decided by numbers


@pytest.mark.parametrize("pool", [nn.AdaptiveAvgPool2d(1), nn.AdaptiveMaxPool2d(1), nn.LPPool2d(3, 5)])
def test_after_the_last_convolution_a_global_pool_makes_it_a_no_op(pool: nn.Module, images: Tensor) -> None:
    early = "early: a convolution follows"
    # Not at 2 and 3: the 2x2 pool before the global one sees which values are neighbours.
    expected = {"0": early, "1": early, "2": "", "3": "", "4": "no-op"}
    assert warnings_of(pooled(pool), images) == expected


def test_where_no_place_is_left_it_says_why(images: Tensor) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert warnings_of(model, images) == {"0": "early: a convolution follows", "1": "no-op"}
    text = printed(model, images)
    assert "no-op: these maps can be shuffled" in text
    assert "insert_after(" not in text

    class Bypassed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return (x + self.conv(x)).flatten(1)

    assert warnings_of(Bypassed(), images) == {"conv": "branch"}
    assert "No place is free of warnings: flatten the last maps" in printed(Bypassed(), images)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_rounding_in_a_global_average_is_no_effect(dtype: torch.dtype, layout: torch.memory_format) -> None:
    tail = [part for _ in range(4) for part in (nn.Linear(16, 16), nn.LayerNorm(16), nn.ReLU())]
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), *tail)
    model = model.to(dtype=dtype, memory_format=layout)
    example = torch.randn(2, 3, 64, 64).to(dtype).to(memory_format=layout)
    with torch.no_grad():
        changed = Probe(model, (example,)).run((example,), model[0], shuffle)[0]
        assert dtype == torch.bfloat16 or not torch.equal(changed, model(example))  # there is rounding to ignore
    assert warnings_of(model, example) == {"0": "no-op"}


def test_rounding_is_measured_where_it_matters() -> None:
    class Difference(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[:, ::2] - x[:, 1::2]  # of numbers near 1000: leaves few digits

    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), Difference())
    nn.init.constant_(model[0].bias, 1000.0)
    assert warnings_of(model, torch.randn(2, 3, 64, 64)) == {"0": "no-op"}


def test_what_drowns_in_other_maps_is_a_no_op() -> None:
    class Whisper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return (x + 1e-7 * self.conv(x)).mean((2, 3))  # so faint that noise of the size of rounding is lost

    assert warnings_of(Whisper(), torch.randn(2, 3, 64, 64)) == {"conv": "no-op"}


class Nearly(nn.Module):
    """Global averages, and a trace of the positions."""

    def __init__(self, trace: float) -> None:
        super().__init__()
        self.conv, self.trace = nn.Conv2d(3, 8, 3), trace
        self.averages, self.positions = nn.Linear(8, 10), nn.Linear(8 * 13 * 13, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.averages(x.mean((2, 3))) + self.trace * self.positions(x.flatten(1))


@pytest.mark.parametrize(("trace", "warning"), [(1e-2, ""), (1e-4, ""), (1e-5, ""), (0.0, "no-op")])
def test_a_small_effect_is_still_an_effect(trace: float, warning: str, images: Tensor) -> None:
    assert warnings_of(Nearly(trace), images) == {"conv": warning}


@pytest.mark.parametrize("trace", [0.03, 0.1])
def test_few_digits_do_not_hide_an_effect(trace: float, images: Tensor) -> None:
    assert warnings_of(Nearly(trace).bfloat16(), images.bfloat16()) == {"conv": ""}


def test_every_channel_is_shuffled_by_itself() -> None:
    # Moving all channels together would be undone by the pool, in spite of the 1x1 convolution between.
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    assert warnings_of(model, torch.randn(2, 3, 15, 15)) == {"0": "", "1": "no-op", "2": "no-op"}


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
        lambda x: (1e6 * x.mean((2, 3)), 1e-6 * x),  # each output by its own size
        lambda x: (x.mean((2, 3)), x.flatten(1).argmax(1)),
        lambda x: (x.mean((2, 3)), torch.where(x > 0, 0.0, -torch.inf)),
        lambda x: (x.mean((2, 3)), torch.where(x > 0, 0.0, torch.nan)),
        lambda x: [x.mean((2, 3)), x.flatten(1)[:, : 1 + int(x.flatten(1).argmax(1)[0])]],  # another shape
    ],
)
def test_any_of_several_outputs_may_show_the_effect(pack: Callable[[Tensor], Any], images: Tensor) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 2, 3)

        def forward(self, x: Tensor) -> Any:
            return pack(self.conv(x))

    assert warnings_of(Model(), images) == {"conv": ""}


def test_missing_values_in_the_output_are_compared_too(images: Tensor) -> None:
    class Masked(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            return torch.cat([y.amax((2, 3)), y.mean((2, 3)) * torch.nan], 1)

    assert warnings_of(Masked(nn.Conv2d(3, 2, 3)), images) == {"0": "no-op"}


def test_an_output_that_ignores_the_input_is_called_constant(images: Tensor) -> None:
    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Hardtanh(5.0, 6.0), nn.Flatten(), nn.Linear(2 * 13 * 13, 2))
    nn.init.zeros_(model[3].weight)
    assert set(warnings_of(model, images).values()) == {"constant output"}
    text = printed(model, images)
    assert "nothing can be said about any place" in text
    assert "No place is free" not in text


# Which modules are shown


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x + self.conv2(self.act(self.conv1(x))))


def test_a_branch_that_others_bypass_is_named(images: Tensor) -> None:
    model = nn.Sequential(nn.Sequential(Residual()), nn.Flatten(), nn.Linear(3 * 15 * 15, 4))
    # The activation is used twice, so its own line is that of its first use; the block shows the last one.
    early = "early: a convolution follows"
    expected = {"0.0.conv1": early, "0.0.act": early, "0.0.conv2": "branch", "0.0": ""}
    assert warnings_of(model, images) == expected
    assert "branch: other maps bypass it" in printed(model, images)


def test_a_module_used_twice_is_shuffled_at_both_uses(images: Tensor) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act, self.out = nn.Tanh(), nn.Linear(3 * 15 * 15, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.act(x).mean((2, 3), keepdim=True).add(self.act(-x)).flatten(1))

    assert warnings_of(Twice(), images) == {"act": ""}  # only the second use shows


def test_a_module_used_on_maps_and_on_vectors(images: Tensor) -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = nn.Tanh()

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.act(x).amax((2, 3)))

    assert warnings_of(Shared(), images) == {"act": "no-op"}


def test_a_module_without_a_name_gets_no_line(images: Tensor) -> None:
    class Hidden(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return hidden(super().forward(x)).flatten(1)

    hidden = nn.Tanh()
    assert list(warnings_of(Hidden(nn.Conv2d(3, 4, 3)), images)) == ["0"]


def test_a_normalisation_over_channels_as_many_as_columns_returns_maps() -> None:
    class Norm2d(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.movedim(1, 3)).movedim(3, 1)

    model = nn.Sequential(nn.Conv2d(3, 6, 3), Norm2d(6), nn.Flatten())
    assert list(warnings_of(model, torch.randn(1, 3, 8, 8))) == ["0", "1"]


def test_outputs_with_the_channels_last_and_vectors_are_no_maps(images: Tensor) -> None:
    class Next(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.LayerNorm(8)
            self.fc1, self.act, self.fc2 = nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)
            self.same, self.pool = nn.Identity(), nn.AdaptiveAvgPool2d(1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.conv(x)
            return self.pool(x * self.same(self.fc2(self.act(self.fc1(self.norm(x.movedim(1, 3)))))).movedim(3, 1))

    assert list(warnings_of(Next(), images)) == ["conv"]


def test_placeholders_and_containers_of_the_same_maps_get_no_line(images: Tensor) -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList([nn.Sequential(nn.Conv2d(3, 4, 3), nn.Identity())])

        def forward(self, x: Tensor) -> Tensor:
            return self.parts[0](x)

    model = nn.Sequential(Deep(), nn.Flatten())
    assert list(warnings_of(model, images)) == ["0.parts.0.0"]


@pytest.mark.parametrize("place", ["features.4", "features", "features.3", "whole"])
def test_a_reordering_layer_in_place_is_seen(place: str, images: Tensor) -> None:
    class Loop(nn.ModuleList):
        def forward(self, x: Tensor) -> Tensor:
            for layer in self:
                x = layer(x)
            return x * 1

    model = Flat()
    if place == "whole":  # held by a hook alone
        model.features = Loop(convolutions())
    insert_after(model, "features" if place == "whole" else place, PatchReorder("pixels"))
    lines = advise(model, images, console=QUIET)
    reordered = [line.name for line in lines if line.warning == "already reordered"]
    assert reordered == {"whole": ["features"], "features": ["features.4"]}.get(place, [place])
    assert not any(line.kind == "PatchReorder" for line in lines)
    text = printed(model, images)
    assert f"A reordering layer is in place already, after {reordered[0]}." in text
    assert "insert_after(" not in text


class Own(nn.Module):
    """Has a reordering layer of its own."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.features, self.between = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh()), between
        self.reorder = PatchReorder("pixels")

    def forward(self, x: Tensor) -> Tensor:
        return self.reorder(self.between(self.features(x))).flatten(1)


def test_a_reordering_layer_is_right_behind_or_it_is_not(images: Tensor) -> None:
    assert warnings_of(Own(lambda x: x), images) == {"features.0": "no-op", "features.1": "already reordered"}
    assert warnings_of(Own(lambda x: F.max_pool2d(x, 2)), images) == {"features.0": "", "features.1": ""}
    lines = advise(Own(torch.relu), images, console=QUIET)
    assert [line[-2:] for line in lines] == [("no-op", ""), ("no-op", "")]  # because of the layer, not of a global pool


def test_a_model_without_maps_gets_a_message() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    assert advise(model, torch.randn(2, 3, 2, 2), console=QUIET) == []
    assert "No module returns maps" in printed(model, torch.randn(2, 3, 2, 2))


def test_several_arguments_go_in_a_tuple(images: Tensor) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 2, 3)

        def forward(self, x: Tensor, scale: Tensor, mean: bool) -> Tensor:
            y = self.conv(x) * scale
            return y.mean((2, 3)) if mean else y.flatten(1)

    assert warnings_of(Two(), (images, torch.tensor(2), True)) == {"conv": "no-op"}
    assert warnings_of(Two(), (images, torch.tensor(2), False)) == {"conv": ""}


# Which layer


def layers_of(model: nn.Module, example: Any) -> dict[str, str]:
    return {line.name: line.layer for line in advise(model, example, console=QUIET) if line.layer}


def run_last_line(model: nn.Module, text: str) -> None:
    names = {"insert_after": insert_after, "create_layer": create_layer, "model": model, "nn": nn}
    exec(text.splitlines()[-1].strip(), names)


def test_before_a_flat_classifier_pixels_are_reordered(images: Tensor) -> None:
    fine = "reorder:grid=pixels"
    assert layers_of(Flat(), images) == dict.fromkeys(["features.2", "features.3", "features.4"], fine)
    text = printed(Flat(), images)
    assert f"  {fine} after features.4, or after features.3, features.2:" in text
    assert "These are rules; what was measured is in the README." in text


def test_negative_maps_are_ranked_by_value_where_the_rest_takes_it(images: Tensor) -> None:
    def ends(*more: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), *more, nn.Flatten(), nn.Linear(4 * 13 * 13, 2)).eval()

    model = ends()
    assert layers_of(model, images) == {"0": "ranked"}
    plain = model(images)
    run_last_line(model, printed(model, images))
    assert isinstance(model[0].reorder, RankedPool)
    assert model(images).shape == plain.shape
    assert layers_of(ends(nn.ReLU()), images) == {"0": "ranked", "1": "reorder:grid=pixels"}
    # A pool of maps, and the warning of a dropout of maps: these cannot take sorted values.
    for layer in (nn.AdaptiveAvgPool2d(13), nn.Dropout2d()):
        assert layers_of(ends(layer), images)["0"] == "reorder:grid=pixels"


@pytest.mark.parametrize(("side", "shares"), [(15, 16), (5, 9)])
def test_a_global_pool_is_replaced_and_the_next_layer_is_named(side: int, shares: int) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Dropout(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model.append(nn.Linear(8, 4))
    example = torch.randn(2, 3, side, side)
    assert layers_of(model, example) == {"1": f"ranked:quantiles={shares}"}  # the last before the dropout
    text = printed(model, example)
    assert f"ranked:quantiles={shares} instead of the global pool behind 1 (3):" in text
    assert f"the next layer has to be made for 8 x {shares} numbers then, not 8." in text
    run_last_line(model, text)
    model[5] = nn.Linear(8 * shares, 4)
    assert model(example).shape == (2, 4)
    assert warnings_of(model.eval(), example)["2"] == "already reordered"
    assert not layers_of(model, example)


def test_behind_nothing_but_dropout_there_is_no_place(images: Tensor) -> None:
    model = nn.Sequential(nn.Dropout2d(), nn.AdaptiveAvgPool2d(1))
    assert warnings_of(model, images) == {"0": "no-op"}
    assert not layers_of(model, images)


def test_a_global_pool_that_is_no_module(images: Tensor) -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.squeeze, self.conv = nn.AdaptiveAvgPool2d(1), nn.Conv2d(3, 8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x * self.squeeze(x)).mean((2, 3))  # the pool that is a module is another one

    text = printed(Mean(), images)
    assert "ranked:quantiles=16 instead of the global pool behind conv:" in text
    assert "set_submodule" not in text


def on_background(value: float = 0.0) -> Tensor:
    images = torch.full((2, 1, 28, 28), value)
    images[:, :, 4:20, 6:20] += torch.rand(2, 1, 16, 14)
    return images


def test_on_an_empty_background_the_input_is_aligned() -> None:
    model = create_model("cnn", dataset="mnist-r").eval()
    text = printed(model, on_background())
    (code,) = (line for line in text.splitlines() if "align" in line and "model" in line)
    aligned = eval(code.partition("= ")[2], {"nn": nn, "create_layer": create_layer, "model": model})
    images = on_background()
    with torch.no_grad():
        assert torch.equal(aligned(images), aligned(images.roll((5, 6), (2, 3))))
    assert text.index("align at the input") < text.index("reorder:grid=pixels after")
    assert '"pose" instead of "align" also undoes turns' in text
    assert "align" not in printed(aligned, on_background())  # it ignores shifts
    assert "align" not in printed(model, torch.rand(2, 1, 28, 28))
    some = torch.cat([on_background(), torch.rand(1, 1, 28, 28)])
    assert "align" not in printed(model, some)
    assert "align" not in printed(model, torch.zeros(2, 1, 28, 28))
    assert "align" not in printed(nn.Conv2d(1, 4, 3), on_background())  # its output are maps, which would move
    assert "align at the input" in printed(nn.Sequential(nn.Flatten(), nn.Linear(784, 3)), on_background())


def test_a_background_that_is_not_zero_has_to_be_subtracted() -> None:
    model = create_model("cnn", dataset="mnist-r")
    assert "is not zero, as it has to be: subtract it" in printed(model, on_background(-0.42))
    assert "is not zero" not in printed(model, on_background())


def test_group_convolutions_are_oriented() -> None:
    model, images = create_model("c4_cnn", dataset="mnist-r").eval(), torch.rand(2, 1, 28, 28)
    lines = {line.name: line for line in advise(model, images, console=QUIET)}
    assert lines["conv1"].warning == "early: a convolution follows"
    assert {name for name, line in lines.items() if line.layer == "orient"} == {"conv2"}
    text = printed(model, images)
    assert text.index("orient after conv2") < text.index("after relu2")
    insert_after(model, "conv2", "orient")
    with torch.no_grad():
        torch.testing.assert_close(model(images.rot90(1, (2, 3))), model(images), atol=1e-5, rtol=1e-5)
    assert warnings_of(model, images)["conv2"] == "already reordered"
    assert not layers_of(model, images)

    averaged = nn.Sequential(GroupLift2d(1, 4, 5), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert [line[-2:] for line in advise(averaged, images, console=QUIET)] == [("no-op", "orient")]
    assert "instead of the global pool" not in printed(averaged, images)
    assert not torch.allclose(averaged(images.rot90(1, (2, 3))), averaged(images), atol=1e-3)
    insert_after(averaged, "0", "orient")  # shuffling changes nothing here, but turns do
    torch.testing.assert_close(averaged(images.rot90(1, (2, 3))), averaged(images), atol=1e-5, rtol=1e-5)

    class Eight(nn.Conv2d):
        orientations = 8

    eight = nn.Sequential(Eight(1, 16, 3), nn.Flatten(), nn.Linear(16 * 26 * 26, 2))
    assert layers_of(eight, images) == {"0": "orient:orientations=8"}
    assert layers_of(eight[:2], images[:, :, 1:]) == {"0": "ranked"}  # not square


def test_the_table_is_readable_at_80_columns() -> None:
    """Every line of the table is one line of text, and its cells are whole, but for kinds with long names."""
    model = create_model("cnn", dataset="mnist-t")
    text = printed(model, torch.rand(1, 1, 42, 42), width=80)
    rows = [line.split() for line in text.splitlines()[:7]]
    assert [row[0] for row in rows] == ["name", "conv1", "pool1", "relu1", "conv2", "pool2", "relu2"]
    assert [row[-1] for row in rows] == ["advice", "1", "1", "1", "reorder", "ranked", "reorder"]
    assert rows[1][-2] == "early:"
    parts = [part for _ in range(11) for part in (nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16))]
    model = nn.Sequential(OrderedDict(a_name_of_some_length=nn.Sequential(*parts), flat=nn.Flatten()))
    text = printed(model, torch.rand(1, 16, 32, 32), width=80)
    for number, later in enumerate([10, 10, 9, 9]):
        (row,) = (line for line in text.splitlines() if line.startswith(f"a_name_of_some_length.{number} "))
        assert "16x32x32" in row
        assert f"early: {later}" in row


# The model is left alone


def state_of(model: nn.Module) -> tuple[Any, ...]:
    modes = [module.training for module in model.modules()]
    hooks = [len(module._forward_hooks) for module in model.modules()]
    values = {key: value.clone() for key, value in model.state_dict().items()}
    return modes, hooks, torch.get_rng_state().tolist(), torch.is_grad_enabled(), values


def assert_same_state(model: nn.Module, before: tuple[Any, ...]) -> None:
    after = state_of(model)
    assert after[:4] == before[:4]
    assert all(torch.equal(value, before[4][key]) for key, value in after[4].items())
    assert not nn.modules.module._global_forward_hooks


def mixed_modes() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Sequential(nn.ReLU()))
    model.train()
    model[1].eval()
    model[3][0].eval()
    return model


def test_modes_random_state_buffers_and_hooks_are_put_back(images: Tensor) -> None:
    model, kept = mixed_modes(), images.clone()
    before = state_of(model)
    advise(model, images, console=QUIET)
    assert_same_state(model, before)
    assert torch.equal(images, kept)


@pytest.mark.parametrize("run", range(5))
def test_they_are_put_back_after_an_error_in_any_run(run: int, images: Tensor) -> None:
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.runs = mixed_modes(), 0

        def forward(self, x: Tensor) -> Tensor:
            self.runs += 1
            if self.runs > run:
                raise ZeroDivisionError
            return self.inner(x)

    model = Failing()
    before = state_of(model)
    with pytest.raises(ZeroDivisionError):
        advise(model, images, console=QUIET)
    assert_same_state(model, before)


def test_a_model_that_writes_into_its_input_and_output(images: Tensor) -> None:
    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.result = nn.Conv2d(3, 4, 3), torch.zeros(2, 4, 13, 13)

        def forward(self, x: Tensor) -> Tensor:
            return self.result.copy_(self.conv(x.add_(1.0))).flatten(1)

    kept = images.clone()
    assert warnings_of(Writing(), images) == {"conv": ""}
    assert torch.equal(images, kept)


def test_the_model_runs_in_eval_mode_without_gradients(images: Tensor) -> None:
    class Strict(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            assert not self.training
            assert not torch.is_grad_enabled()
            return super().forward(x)

    advise(Strict(3, 4, 3), images, console=QUIET)


def test_random_numbers_of_torch_are_the_same_in_every_run(images: Tensor) -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(self.conv(x).mean((2, 3)), training=True)

    assert warnings_of(Noisy(), images) == {"conv": "no-op"}


# Bad input


def test_other_random_numbers_are_an_error(images: Tensor) -> None:
    mood = random.Random(3)  # not torch's: advise() cannot put it back

    class Moody(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * mood.random()

    with pytest.raises(ValueError, match="changes from run to run"):
        advise(Moody(3, 4, 3), images, console=QUIET)


@pytest.mark.parametrize(("example", "kind"), [([1.0], "list"), (None, "NoneType"), ((3, "a"), "tuple")])
def test_an_example_without_tensors_is_refused(example: Any, kind: str) -> None:
    with pytest.raises(TypeError, match=f"example must be a tensor or a tuple with tensors, got {kind}"):
        advise(Flat(), example)


def test_empty_examples_wrapped_models_and_outputs_without_tensors_are_refused(images: Tensor) -> None:
    class Name(nn.Module):
        def forward(self, x: Tensor) -> str:
            return "cat"

    with pytest.raises(ValueError, match=r"example is empty: its shape is \[\(0, 3, 15, 15\)\]"):
        advise(Flat(), images[:0])
    with pytest.raises(ValueError, match="the model returned no tensor"):
        advise(Name(), images)
    with pytest.raises(TypeError, match="the model is compiled"):
        advise(torch.compile(Flat()), images)
    with pytest.raises(TypeError, match=r"model must be an nn\.Module, got the class Flat"):
        advise(Flat, images)


# Progress, and the shuffle itself


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_shows_after_two_seconds_on_a_terminal_only(
    terminal: bool, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock:
        now, step = 0.0, 0.0

        def monotonic(self) -> float:
            self.now += self.step
            return self.now

    def output() -> str:
        file = StringIO()
        advise(Flat(), images, console=Console(file=file, force_terminal=terminal, width=100))
        return file.getvalue()

    clock = Clock()
    monkeypatch.setattr("patchreorder.surgery.advice.time", clock)
    quick = output()
    clock.step = 1.0
    assert "shuffling maps" not in quick
    assert ("shuffling maps" in output()) is terminal
    assert (output() == quick) is not terminal


@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (2, 3, 5, 4)])
def test_the_shuffle_moves_every_position_of_every_map(shape: tuple[int, ...]) -> None:
    maps = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)
    maps = maps.to(memory_format=torch.channels_last)
    shuffled = shuffle(maps, torch.Generator().manual_seed(0))
    assert (shuffled != maps).all()
    assert shuffled.stride() == maps.stride()
    assert torch.equal(shuffled.flatten(2).sort(2).values, maps.flatten(2))
    orders = {tuple(order) for order in (shuffled - maps.amin((2, 3), keepdim=True)).flatten(0, 1).flatten(1).tolist()}
    assert len(orders) == shape[0] * shape[1]


def test_a_line_is_a_plain_tuple(images: Tensor) -> None:
    line = advise(Flat(), images, console=QUIET)[-2]
    fits = (("pixels", 1, 0, 0), (2, 1, 1, 1), (2, 2, 1, 1), (3, 1, 2, 2), (4, 1, 1, 1))
    assert line == Advice("features.4", "MaxPool2d", 8, 5, 5, fits, "", "reorder:grid=pixels")
