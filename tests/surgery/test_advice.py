"""`advise` on small models whose right answers are known by construction."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from io import StringIO
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn

from patchreorder import PatchReorder, RankedPool, advise, create_layer, create_model, patch_reorder
from patchreorder.models.group_conv import GroupLift2d
from patchreorder.surgery.advice import Advice
from patchreorder.surgery.insertion import insert_after

pytestmark = pytest.mark.usefixtures("one_thread")
QUIET = Console(quiet=True)


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


def warnings_of(model: nn.Module, example: Any) -> dict[str, str]:
    return {advice.name: advice.warning for advice in advise(model, example, console=QUIET)}


def layers_of(model: nn.Module, example: Any) -> dict[str, str]:
    return {advice.name: advice.layer for advice in advise(model, example, console=QUIET) if advice.layer}


def printed(model: nn.Module, example: Any, width: int = 120, table: bool = True) -> str:
    console = Console(record=True, file=StringIO(), width=width)
    advise(model, example, table=table, console=console)
    return console.export_text()


def sentence_of(model: nn.Module, example: Any) -> str:
    return advise(model, example, console=QUIET).sentence


def run_last_line(model: nn.Module, text: str) -> None:
    names = {"insert_after": insert_after, "create_layer": create_layer, "model": model, "nn": nn}
    exec(text.splitlines()[-1].strip(), names)


# The table


def test_a_network_with_a_flat_classifier(images: Tensor) -> None:
    found = advise(Flat(), images, console=QUIET)
    assert [advice[:5] for advice in found] == [
        ("features.0", "Conv2d", 8, 13, 13),
        ("features.1", "ReLU", 8, 13, 13),
        ("features.2", "Conv2d", 8, 11, 11),
        ("features.3", "ReLU", 8, 11, 11),
        ("features.4", "MaxPool2d", 8, 5, 5),
        ("drop", "Dropout2d", 8, 5, 5),
    ]
    assert [advice.warning for advice in found] == ["early: 1"] * 2 + [""] * 4
    fits = (("pixels", 1, 0, 0), (2, 1, 1, 1), (2, 2, 1, 1), (3, 1, 2, 2), (4, 1, 1, 1))
    assert found[-2] == Advice("features.4", "MaxPool2d", 8, 5, 5, fits, "", "reorder:grid=pixels")


def test_the_table_shows_names_sizes_leftovers_and_warnings(images: Tensor) -> None:
    text = printed(Flat(), images)
    rows = {row.split()[0]: " ".join(row.split()) for row in text.splitlines() if row.strip()}
    # 13x13: 2x2 and 4x4 patches leave 169 - 144 = 25 pixels, 8x8 leave 169 - 64; 3x3 leave 25, 9x9 leave 88.
    assert rows["features.0"] == "features.0 Conv2d 8x13x13 25 25 105 25 88 25 early: 1"
    assert rows["features.4"] == "features.4 MaxPool2d 8x5x5 9 9 16 9 reorder"
    assert "early: so many convolutions follow" in text
    assert "no-op" not in text


def test_the_table_is_readable_at_80_columns() -> None:
    """Every row is one line of text, and its cells are whole, except long class names."""
    model = create_model("cnn", dataset="mnist-t")
    text = printed(model, torch.rand(1, 1, 42, 42), width=80)
    rows = [line.split() for line in text.splitlines()[1:8]]
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


def test_names_are_printed_in_full_and_without_markup() -> None:
    name = "[bold]a_module_with_a_name_that_fills_most_of_the_line"
    model = nn.Sequential()
    model.add_module(name, nn.Sequential(nn.Conv2d(3, 2, 3), nn.Conv2d(2, 2, 3)))
    model.append(nn.Flatten())
    text = printed(model, torch.randn(1, 3, 9, 9), width=80)
    assert any(row.startswith(f"{name}.0 ") for row in text.splitlines())
    assert f'insert_after(model, "{name}.1", "ranked")' in text


@pytest.mark.parametrize("size", [(1, 7), (2, 2), (5, 9), (13, 13), (64, 28)])
def test_the_settings_that_fit_are_those_the_operator_accepts(size: tuple[int, int]) -> None:
    (advice,) = advise(nn.ReLU(), torch.randn(1, 1, *size), console=QUIET)
    fits = {fit[:2]: fit[2:] for fit in advice.fits}
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


def test_a_model_without_feature_maps_gets_a_message() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    assert advise(model, torch.randn(2, 3, 2, 2), console=QUIET) == []
    assert "No module returns feature maps" in printed(model, torch.randn(2, 3, 2, 2))


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_shown_on_a_terminal_only(terminal: bool, images: Tensor) -> None:
    file = StringIO()
    advise(Flat(), images, console=Console(file=file, force_terminal=terminal, width=100))
    assert ("shuffling maps" in file.getvalue()) is terminal


def test_one_sentence_comes_first_and_the_table_on_demand(images: Tensor) -> None:
    found = advise(Flat(), images, console=QUIET)
    sentence = "Insert `reorder:grid=pixels` after features.4: no convolution follows, and positions matter there."
    assert found.sentence == sentence
    assert repr(found) == f"<advice on 6 modules: {sentence}>"
    text = printed(Flat(), images, table=False)
    assert text.splitlines()[:2] == [sentence, "All 6 modules: advise(model, example, table=True)."]
    assert "8x13x13" not in text
    assert "early:" not in text
    assert "8x13x13" in printed(Flat(), images)


@pytest.mark.parametrize(("pool", "words"), [(nn.AdaptiveAvgPool2d(1), "average"), (nn.AdaptiveMaxPool2d(1), "pool")])
def test_a_global_pool_is_said_first(pool: nn.Module, words: str, images: Tensor) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), pool, nn.Flatten(), nn.Linear(8, 4))
    assert advise(model, images, console=QUIET).sentence == (
        f"The network ends in a global {words} (2): reordering its maps changes nothing. What is left is `unroll` or "
        "`align` at the input, or `ranked:quantiles=16` in place of the pool."
    )


class Vit(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.patch_embed, self.attn, self.head = nn.Conv2d(3, 8, 5, stride=5), attention, nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch_embed(x).flatten(2).transpose(1, 2)
        tokens = self.attn(tokens, tokens, tokens)[0] if isinstance(self.attn, nn.MultiheadAttention) else tokens
        return self.head(tokens.mean(1))


def test_transformers_are_refused_with_a_reason(images: Tensor) -> None:
    class WindowAttention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(8, 24)

    for attention in (nn.MultiheadAttention(8, 2, batch_first=True), WindowAttention()):
        with pytest.raises(ValueError, match=r"model \(Vit\) is a transformer, with attention in attn: its tokens"):
            advise(Vit(attention), images, console=QUIET)

    class ChannelAttention(nn.Linear):
        """A gate of a convolutional network."""

    class Gated(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).flatten(1)

    assert advise(Gated(nn.Conv2d(3, 4, 3), ChannelAttention(13, 13)), images, console=QUIET)


def test_names_cannot_command_a_terminal(images: Tensor) -> None:
    model = nn.Sequential()
    model.add_module("\x1b[2J", nn.Conv2d(3, 2, 3))
    for table in (True, False):
        assert "\x1b" not in printed(model, images, table=table)
    assert "\x1b" not in repr(advise(model, images, console=QUIET))


def test_images_without_content_are_said_to_be_so() -> None:
    found = advise(create_model("cnn", dataset="mnist"), torch.full((2, 1, 28, 28), 0.3), console=QUIET)
    assert found.sentence.startswith("Every pixel of the example images is the same")


# Warnings


@pytest.mark.parametrize("pool", [nn.AdaptiveAvgPool2d(1), nn.AdaptiveMaxPool2d(1), nn.LPPool2d(3, 5)])
def test_before_a_global_pool_it_is_a_no_op(pool: nn.Module, images: Tensor) -> None:
    model = nn.Sequential(*convolutions(), pool, nn.Flatten(), nn.Linear(8, 4))
    # 2 and 3 are no no-ops: the 2x2 pool before the global one depends on which values are neighbours.
    assert warnings_of(model, images) == {"0": "early: 1", "1": "early: 1", "2": "", "3": "", "4": "no-op"}


def test_a_branch_that_other_maps_bypass(images: Tensor) -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.conv2(self.conv1(x))

    model = nn.Sequential(Residual(), nn.Flatten(), nn.Linear(3 * 15 * 15, 4))
    assert warnings_of(model, images) == {"0.conv1": "early: 1", "0.conv2": "branch", "0": ""}
    assert "branch: other maps bypass this module" in printed(model, images)


def test_a_constant_output(images: Tensor) -> None:
    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Hardtanh(5.0, 6.0), nn.Flatten(), nn.Linear(2 * 13 * 13, 2))
    nn.init.zeros_(model[3].weight)
    assert set(warnings_of(model, images).values()) == {"constant"}
    text = printed(model, images)
    assert "no module can be judged" in text
    assert "insert_after(" not in text


def test_a_reordering_layer_that_follows_already(images: Tensor) -> None:
    model = insert_after(Flat(), "features.4", PatchReorder("pixels"))
    found = advise(model, images, console=QUIET)
    assert [advice.name for advice in found if advice.warning == "reordered"] == ["features.4"]
    assert not any(advice.kind == "PatchReorder" or advice.layer for advice in found)
    text = printed(model, images)
    assert "reordered: a reordering layer follows already." in text
    assert "insert_after(" not in text


class Own(nn.Module):
    """Has a reordering layer of its own."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.features, self.between = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh()), between
        self.reorder = PatchReorder("pixels")

    def forward(self, x: Tensor) -> Tensor:
        return self.reorder(self.between(self.features(x))).flatten(1)


def test_a_reordering_layer_that_follows_later(images: Tensor) -> None:
    assert warnings_of(Own(lambda x: x), images) == {"features.0": "no-op", "features.1": "reordered"}
    assert warnings_of(Own(lambda x: F.max_pool2d(x, 2)), images) == {"features.0": "", "features.1": ""}
    found = advise(Own(torch.relu), images, console=QUIET)
    assert [advice[-2:] for advice in found] == [("no-op", ""), ("no-op", "")]  # due to the layer, not to a global pool


# Recommendations


def test_before_a_flat_classifier_pixels_are_reordered(images: Tensor) -> None:
    fine = "reorder:grid=pixels"
    assert layers_of(Flat(), images) == dict.fromkeys(["features.2", "features.3", "features.4"], fine)
    model = Flat().eval()
    text, plain = printed(model, images), model(images)
    assert f"  {fine} after features.4, or after features.3, features.2:" in text  # before the dropout
    assert "They are rules of thumb; measured results are in docs/choosing.md." in text
    run_last_line(model, text)
    assert isinstance(model.features[4].reorder, PatchReorder)
    assert not torch.allclose(model(images), plain)


def test_negative_maps_are_ranked_by_value_if_the_model_accepts_it(images: Tensor) -> None:
    def ends(*more: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), *more, nn.Flatten(), nn.Linear(4 * 13 * 13, 2)).eval()

    model = ends()
    assert layers_of(model, images) == {"0": "ranked"}
    plain = model(images)
    run_last_line(model, printed(model, images))
    assert isinstance(model[0].reorder, RankedPool)
    assert model(images).shape == plain.shape
    assert layers_of(ends(nn.ReLU()), images) == {"0": "ranked", "1": "reorder:grid=pixels"}
    # A pool raises for sorted values, and Dropout2d warns.
    for layer in (nn.AdaptiveAvgPool2d(13), nn.Dropout2d()):
        assert layers_of(ends(layer), images)["0"] == "reorder:grid=pixels"


@pytest.mark.parametrize(("side", "quantiles"), [(15, 16), (5, 9)])
def test_a_global_pool_is_replaced_and_the_next_layer_is_named(side: int, quantiles: int) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Dropout(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model.append(nn.Linear(8, 4))
    example = torch.randn(2, 3, side, side)
    assert layers_of(model, example) == {"1": f"ranked:quantiles={quantiles}"}  # the last before the dropout
    text = printed(model, example)
    assert f"ranked:quantiles={quantiles} in place of the global pool after 1 (3):" in text
    assert f"the next layer then needs 8 x {quantiles} inputs, not 8." in text
    run_last_line(model, text)
    model[5] = nn.Linear(8 * quantiles, 4)
    assert model(example).shape == (2, 4)
    assert warnings_of(model.eval(), example)["2"] == "reordered"
    assert not layers_of(model, example)


def test_a_global_pool_that_is_no_module(images: Tensor) -> None:
    class Mean(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).mean((2, 3))

    text = printed(Mean(nn.Conv2d(3, 8, 3)), images)
    assert "ranked:quantiles=16 in place of the global pool after 0:" in text
    assert "set_submodule" not in text


def test_without_a_free_module_it_says_what_to_do(images: Tensor) -> None:
    class Bypassed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return (x + self.conv(x)).flatten(1)

    assert "No module returns the last maps: other maps bypass conv" in printed(Bypassed(), images)
    dropped = nn.Sequential(nn.Dropout2d(), nn.AdaptiveAvgPool2d(1))
    assert warnings_of(dropped, images) == {"0": "no-op"}
    assert not layers_of(dropped, images)
    assert sentence_of(dropped, images).startswith("The last maps are pooled globally: flatten them")


def test_maps_that_are_the_answer_stay_where_they_are(images: Tensor) -> None:
    """A segmentation, or a network without its classifier."""
    model = nn.Sequential(*convolutions(), nn.Conv2d(8, 2, 1))
    assert layers_of(model, images) == {}
    assert sentence_of(model, images).startswith("The output is feature maps, with an answer for each place")
    assert layers_of(nn.Sequential(model, nn.Flatten()), images) != {}


def test_attention_that_follows_counts_as_a_convolution(images: Tensor) -> None:
    class Hybrid(nn.Module):
        """Maps that become tokens."""

        def __init__(self) -> None:
            super().__init__()
            self.features, self.attention = nn.Sequential(*convolutions()), nn.MultiheadAttention(8, 2)
            self.classifier = nn.Linear(8 * 25, 4)

        def forward(self, x: Tensor) -> Tensor:
            tokens = self.features(x).flatten(2).permute(2, 0, 1)
            return self.classifier(self.attention(tokens, tokens, tokens)[0].transpose(0, 1).flatten(1))

    assert warnings_of(Hybrid(), images)["features.4"] == "early: 1"
    assert layers_of(Hybrid(), images) == {}
    assert sentence_of(Hybrid(), images).startswith("Attention follows the last maps (features.4)")


class Siamese(nn.Module):
    """One network for two images."""

    def __init__(self) -> None:
        super().__init__()
        self.same = Flat()

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return self.same(first) - self.same(second)


def test_convolutions_of_another_image_do_not_follow(images: Tensor) -> None:
    found = warnings_of(Siamese(), (images, images.flip(0)))
    assert found == {
        "same.features.0": "early: 2",  # one for each image
        "same.features.1": "early: 2",
        **dict.fromkeys(["same.features.2", "same.features.3", "same.features.4", "same.drop"], ""),
    }
    shared = nn.Conv2d(3, 3, 3, padding=1)
    repeated = nn.Sequential(shared, shared, nn.Flatten(), nn.Linear(3 * 15 * 15, 2))
    assert warnings_of(repeated, images) == {"0": "early: 1"}


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
    assert '"pose" instead of "align" also undoes rotations' in text
    assert "align at the input" in printed(nn.Sequential(nn.Flatten(), nn.Linear(784, 3)), on_background())
    mixed = torch.cat([on_background(), torch.rand(1, 1, 28, 28)])
    for other, example in [
        (aligned, on_background()),  # ignores shifts already
        (model, torch.rand(2, 1, 28, 28)),
        (model, mixed),
        (model, torch.zeros(2, 1, 28, 28)),
        (nn.Conv2d(1, 4, 3), on_background()),  # its output is feature maps, which would be shifted
    ]:
        assert "align" not in printed(other, example)


def test_a_background_that_is_not_zero_has_to_be_subtracted() -> None:
    model = create_model("cnn", dataset="mnist-r")
    assert "subtract it from the images first" in printed(model, on_background(-0.42))
    assert "subtract it" not in printed(model, on_background())


def test_group_convolutions_are_oriented() -> None:
    model, images = create_model("c4_cnn", dataset="mnist-r").eval(), torch.rand(2, 1, 28, 28)
    found = {advice.name: advice for advice in advise(model, images, console=QUIET)}
    assert found["conv1"].warning == "early: 1"
    assert {name for name, advice in found.items() if advice.layer == "orient"} == {"conv2"}
    text = printed(model, images)
    assert text.index("orient after conv2") < text.index("after relu2")
    insert_after(model, "conv2", "orient")
    with torch.no_grad():
        torch.testing.assert_close(model(images.rot90(1, (2, 3))), model(images), atol=1e-5, rtol=1e-5)
    assert warnings_of(model, images)["conv2"] == "reordered"

    averaged = nn.Sequential(GroupLift2d(1, 4, 5), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert [advice[-2:] for advice in advise(averaged, images, console=QUIET)] == [("no-op", "orient")]
    assert "in place of the global pool" not in printed(averaged, images)
    assert not torch.allclose(averaged(images.rot90(1, (2, 3))), averaged(images), atol=1e-3)
    insert_after(averaged, "0", "orient")  # shuffling changes nothing here, but rotations do
    torch.testing.assert_close(averaged(images.rot90(1, (2, 3))), averaged(images), atol=1e-5, rtol=1e-5)

    class Eight(nn.Conv2d):
        orientations = 8

    eight = nn.Sequential(Eight(1, 16, 3), nn.Flatten(), nn.Linear(16 * 26 * 26, 2))
    assert layers_of(eight, images) == {"0": "orient:orientations=8"}
    assert layers_of(eight[:2], images[:, :, 1:]) == {"0": "ranked"}  # not square


# Arguments


def test_several_arguments_go_in_a_tuple(images: Tensor) -> None:
    class Scaled(nn.Conv2d):
        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            return super().forward(x) * scale

    assert warnings_of(Scaled(3, 2, 3), (images, torch.tensor(2))) == {"": ""}

    class Informed(Flat):
        """Facts that come with an image bypass its maps, but are no maps."""

        def forward(self, x: Tensor, facts: Tensor) -> Tensor:
            return super().forward(x) + facts

    assert warnings_of(Informed(), (images, torch.rand(2, 4)))["features.4"] == ""
    with pytest.raises(ValueError, match=r"model \(Informed\) cannot take the example .*'facts'.* as a tuple"):
        advise(Informed(), images)


@pytest.mark.parametrize(("example", "kind"), [([1.0], "list"), (None, "NoneType"), ((3, "a"), "tuple")])
def test_an_example_without_tensors_is_refused(example: Any, kind: str) -> None:
    with pytest.raises(TypeError, match=f"example must be a tensor or a tuple with tensors, got {kind}"):
        advise(Flat(), example)


def test_empty_examples_and_wrapped_models_are_refused(images: Tensor) -> None:
    with pytest.raises(ValueError, match=r"example is empty: its shape is \[\(0, 3, 15, 15\)\]"):
        advise(Flat(), images[:0])
    with pytest.raises(TypeError, match="the model is compiled"):
        advise(torch.compile(Flat()), images)
    with pytest.raises(TypeError, match=r"model must be an nn\.Module, got the class Flat"):
        advise(Flat, images)


def test_the_model_is_restored_after_an_error(images: Tensor) -> None:
    model = Flat()
    model.drop.eval()
    modes = [module.training for module in model.modules()]
    with pytest.raises(
        ValueError, match=r"model \(Flat\) cannot take the example \(2x4x15x15 torch.float32\): .*channels"
    ):
        advise(model, torch.randn(2, 4, 15, 15), console=QUIET)
    assert [module.training for module in model.modules()] == modes
