"""The networks of Table 1: sizes, parameter counts, what each changes of the CNN."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from patchreorder.layers.patch_reorder import PatchReorder
from patchreorder.layers.ranked_pool import ranked_pool
from patchreorder.models import MODELS, count_parameters, create_model, mnist
from patchreorder.models.blur_pool import max_blur_pool
from patchreorder.operator.functional import patch_reorder

SETS = ("mnist-r", "mnist-t")


def images(dataset: str, count: int = 3) -> torch.Tensor:
    return torch.rand(count, 1, mnist.SIZES[dataset], mnist.SIZES[dataset])


@pytest.mark.parametrize("dataset", SETS)
@pytest.mark.parametrize("name", MODELS)
def test_every_network_learns_something_in_a_step(name, dataset):
    model, x, labels = create_model(name, dataset=dataset), images(dataset, 8), torch.arange(8)
    first = F.cross_entropy(model(x), labels)
    first.backward()
    assert model(x).shape == (8, 10)
    for parameter_name, parameter in model.named_parameters():
        # The transformer starts as the identity: nothing comes back through its zero weights.
        if not parameter_name.startswith("transformer.localisation"):
            assert parameter.grad is not None, parameter_name
            assert parameter.grad.abs().sum() > 0, parameter_name
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01 * parameter.grad
    assert F.cross_entropy(model(x), labels) < first


@pytest.mark.parametrize("dataset", SETS)
@pytest.mark.parametrize("name", MODELS)
def test_the_memory_layout_changes_nothing(name, dataset):
    model, x = create_model(name, dataset=dataset), images(dataset)
    last = copy.deepcopy(model).to(memory_format=torch.channels_last)
    assert torch.allclose(model(x), last(x.contiguous(memory_format=torch.channels_last)), atol=1e-5)


@pytest.mark.parametrize("dataset", SETS)
def test_parameters_are_nearly_as_many_as_the_cnn_has(dataset):
    counts = {name: count_parameters(create_model(name, dataset=dataset)) for name in MODELS}
    assert counts["cnn"] == {"mnist-r": 208_586, "mnist-t": 229_066}[dataset]
    for name in ("si_cnn", "pr_cnn", "pr_cnn_fine", "cnn_blur"):
        assert counts[name] == counts["cnn"]
    for name, count in counts.items():
        most = {"st_cnn_affine": 0.1, "st_cnn": 0.1, "c4_cnn": 0.07, "unrolled_cnn": 0.07}.get(name, 0.02)
        assert abs(count / counts["cnn"] - 1) < most, f"{name}: {count}"


@pytest.mark.parametrize(("dataset", "sides"), [("mnist-r", (10, 2)), ("mnist-t", (17, 6))])
def test_pools_round_up(dataset, sides):
    model = create_model("cnn", dataset=dataset)
    x, seen = images(dataset), []
    for layer in model[:-2]:
        x = layer(x)
        if isinstance(layer, nn.MaxPool2d):
            seen.append(x.shape[-1])
    assert tuple(seen) == sides


@pytest.mark.parametrize("place", mnist.PLACES)
@pytest.mark.parametrize("dataset", SETS)
def test_reordering_stands_where_it_should(place, dataset):
    """Against the network written out in functions, ReLU before the pool as the paper has it."""
    options = {"grid": 2, "per_channel": False, "energy": "l1"}
    model, x = create_model("pr_cnn", dataset=dataset, place=place, **options), images(dataset)
    maps = patch_reorder(x, **options) if place == "input" else x
    maps = F.relu(model.conv1(maps))
    if place == "conv1":
        maps = patch_reorder(maps, **options)
    maps = F.max_pool2d(maps, 2, 2, ceil_mode=True)
    maps = model.conv2(maps)
    if place == "conv":
        maps = patch_reorder(maps, **options)
    maps = F.relu(maps)
    if place == "relu":
        maps = patch_reorder(maps, **options)
    maps = F.max_pool2d(maps, 2, 2, ceil_mode=True)
    if place == "pool":
        maps = patch_reorder(maps, **options)
    assert torch.allclose(model(x), model.classifier(maps.flatten(1)), atol=1e-6)


def test_the_fine_form_is_one_pixel_a_patch_after_the_pool():
    model = create_model("pr_cnn_fine", dataset="mnist-t")
    names = [name for name, _ in model.named_children()]
    assert names.index("reorder") > names.index("pool2")
    assert model.reorder.grid == "pixels"
    maps = model[: names.index("reorder") + 1](images("mnist-t")).flatten(2)
    assert torch.equal(maps, maps.sort(dim=2, descending=True).values)


def test_reordering_changes_no_names_of_weights():
    plain, reordered = create_model("cnn"), create_model("pr_cnn")
    assert plain.state_dict().keys() == reordered.state_dict().keys()
    assert sum(isinstance(layer, PatchReorder) for layer in reordered.modules()) == 1


@pytest.mark.parametrize("name", ["st_cnn_affine", "st_cnn"])
def test_a_transformer_starts_as_the_cnn_behind_it(name):
    model, x = create_model(name), images("mnist-r")
    assert torch.allclose(model(x), model.cnn(x), atol=1e-4)


def test_the_same_seed_gives_the_same_cnn_in_each():
    made = []
    for name in ("cnn", "pr_cnn", "pr_cnn_fine", "cnn_blur"):
        torch.manual_seed(3)
        made.append(create_model(name).state_dict())
    for other in made[1:]:
        assert all(torch.equal(value, made[0][key]) for key, value in other.items())


def test_global_pooling_forgets_the_place():
    """Away from the borders (on a larger canvas than MNIST has) and by an even number of pixels, for the first pool."""
    digit = torch.rand(2, 1, 12, 12)
    a, b, odd = (F.pad(digit, (24 + d, 28 - d, 24, 28)) for d in (0, 4, 1))
    for name in ("cnn_gap", "cnn_gmp"):
        model = create_model(name, dataset="mnist-t")
        assert torch.allclose(model(a), model(b), atol=1e-5)
        assert not torch.allclose(model(a), model(odd), atol=1e-5)


def test_blurred_maps_went_through_relu_before():
    model, x = create_model("cnn_blur"), images("mnist-r")
    maps = max_blur_pool(F.relu(model.conv2(max_blur_pool(F.relu(model.conv1(x))))))
    assert torch.allclose(model(x), model.classifier(maps.flatten(1)), atol=1e-6)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"name \('resnet'\) must be one of fcn, cnn"):
        create_model("resnet")
    with pytest.raises(ValueError, match=r"dataset \('imagenet'\) must be one of mnist"):
        create_model("cnn", dataset="imagenet")
    with pytest.raises(ValueError, match=r"options .*depth.* do not fit cnn"):
        create_model("cnn", depth=3)
    with pytest.raises(ValueError, match=r"place \('end'\) must be one of conv, relu, pool"):
        create_model("pr_cnn", place="end")
    with pytest.raises(ValueError, match=r"pretrained=True has no weights for other options \(grid\)"):
        create_model("pr_cnn", pretrained=True, grid=3)
    with pytest.raises(ValueError, match="no trained weights of fcn for mnist are shipped"):
        create_model("fcn", dataset="mnist", pretrained=True)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("pr_cnn", {"layer": "align", "place": "input"}),
        ("pr_cnn", {"layer": "align:size=28", "place": "input"}),
        ("c4_cnn", {"layer": "orient", "first": "align"}),
        ("c4_cnn", {"layer": "orient", "first": "align:size=28"}),
    ],
)
def test_an_aligned_network_answers_the_same_wherever_the_digit_is(name, options):
    model = create_model(name, dataset="mnist-t", **options).eval()
    x = torch.zeros(3, 1, 42, 42)
    x[..., 7:35, 7:35] = torch.rand(3, 1, 28, 28)
    assert torch.equal(model(x.roll((5, -7), (2, 3))), model(x))
    other = create_model(name, dataset="mnist-t").eval()
    assert not torch.allclose(other(x.roll((5, -7), (2, 3))), other(x), atol=1e-3)


def test_without_the_second_pool_the_classifier_sees_every_place():
    options = {"layer": "align:size=28", "place": "input"}
    torch.manual_seed(0)
    model, x = create_model("pr_cnn", dataset="mnist-t", halve=False, **options).eval(), torch.rand(2, 1, 42, 42)
    assert count_parameters(model) == count_parameters(create_model("cnn", dataset="mnist")) + 10 * 64 * (16 - 4)
    hidden = F.max_pool2d(model.conv1(model.reorder(x)), 2).relu()
    torch.testing.assert_close(model(x), model.classifier(model.conv2(hidden).relu().flatten(1)))
    with pytest.raises(ValueError, match=r"halve \(False\) needs place 'input', not 'relu'"):
        create_model("pr_cnn", halve=False)


def test_behind_a_cut_input_the_network_is_made_for_what_is_left():
    model = create_model("pr_cnn", dataset="mnist-t", layer="align:size=28", place="input")
    small = create_model("cnn", dataset="mnist")
    assert {name: p.shape for name, p in model.named_parameters()} == {
        name: p.shape for name, p in small.named_parameters()
    }
    assert create_model("pr_cnn", dataset="mnist-t", layer="align:size=21", place="input")(
        torch.rand(1, 1, 42, 42)
    ).shape == (1, 10)
    for layer, place, why in (
        ("align:size=20", "input", "leaves 20x20 pixels, the CNN needs 21x21"),
        ("align:size=50", "input", r"size \(50\) is more than the 42x42 pixels of the maps"),
        ("align:size=5", "relu", "gives maps of 5x5 at relu, and the rest of the network needs 11x11: leave size out"),
    ):
        with pytest.raises(ValueError, match=why):
            create_model("pr_cnn", dataset="mnist-t", layer=layer, place=place)


# ---- layers by name ---------------------------------------------------------------------------------


def front(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The output of the second convolution."""
    return model.conv2(F.relu(F.max_pool2d(model.conv1(x), 2, ceil_mode=True)))


@pytest.mark.parametrize(
    ("place", "length"), [("conv", 121), ("relu", 121), ("pool", 36)]
)  # of 11x11 and 6x6 maps: before the pool the layer replaces it
def test_ranked_values_go_to_the_classifier(place, length):
    model, x = create_model("pr_cnn", dataset="mnist-t", layer="ranked", place=place), images("mnist-t")
    maps = front(model, x)
    if place == "pool":
        maps = F.max_pool2d(maps, 2, ceil_mode=True)
    values = ranked_pool(maps.relu())
    assert values.shape[2] == length
    torch.testing.assert_close(model(x), model.classifier(values.flatten(1)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("layer", "numbers"), [("ranked:quantiles=16", 16), ("ranked:keep=5", 5), ("ranked:mean=true", 1), ("align", 36)]
)
def test_the_classifier_is_as_wide_as_it_must_be(layer, numbers):
    torch.manual_seed(1)
    plain = create_model("cnn", dataset="mnist-t")
    torch.manual_seed(1)
    model = create_model("pr_cnn", dataset="mnist-t", layer=layer, place="pool")
    assert model.classifier.in_features == 64 * numbers
    assert count_parameters(model) == count_parameters(plain) - (36 - numbers) * 64 * 10
    assert torch.equal(model.conv2.weight, plain.conv2.weight)  # the same seed, the same convolutions
    model(images("mnist-t")).sum().backward()
    assert model.conv1.weight.grad.abs().sum() > 0
    with torch.device("meta"):  # as recipes count parameters
        assert count_parameters(create_model("pr_cnn", dataset="mnist-t", layer=layer, place="pool")) == (
            count_parameters(model)
        )


def test_reorder_by_name_is_the_network_of_before():
    x = images("mnist")
    for options, layer in (
        ({"grid": "pixels", "place": "pool"}, "reorder"),
        ({"grid": 2, "place": "relu"}, "reorder:grid=2"),
        ({"grid": 2, "place": "conv", "per_channel": False}, "reorder:grid=2,per_channel=false"),
    ):
        torch.manual_seed(0)
        first = create_model("pr_cnn", **options)
        torch.manual_seed(0)
        second = create_model("pr_cnn", layer=layer, place=options["place"])
        assert repr(first) == repr(second)
        assert torch.equal(first(x), second(x))


def test_an_aligned_input_makes_a_network_blind_to_shifts():
    x = torch.zeros(2, 1, 42, 42)
    x[:, :, 3:20, 5:25] = torch.rand(2, 1, 17, 20)
    moved = x.roll((11, 9), (2, 3))
    plain = create_model("cnn", dataset="mnist-t")
    aligned = create_model("pr_cnn", dataset="mnist-t", layer="align", place="input")
    assert list(aligned.state_dict()) == list(plain.state_dict())
    with torch.no_grad():
        assert torch.equal(aligned(moved), aligned(x))
        assert not torch.allclose(plain(moved), plain(x), atol=1e-4)


def test_oriented_features_make_a_network_blind_to_quarter_turns():
    x = images("mnist")
    plain, model = create_model("c4_cnn"), create_model("c4_cnn", layer="orient")
    with torch.no_grad():
        torch.testing.assert_close(model(x.rot90(1, (2, 3))), model(x), atol=1e-5, rtol=1e-5)
        assert not torch.allclose(plain(x.rot90(1, (2, 3))), plain(x), atol=1e-4)
    width = model.conv1.out_channels
    assert model.classifier.in_features == 4 * width * 2 * 2  # all of them
    assert abs(count_parameters(model) / count_parameters(create_model("cnn")) - 1) < 0.07


def test_other_layers_in_the_group_convolutional_network():
    x = images("mnist")
    ranked = create_model("c4_cnn", layer="ranked", place="pool")
    aligned = create_model("c4_cnn", layer="align", place="input")
    with torch.no_grad():
        torch.testing.assert_close(ranked(x.rot90(1, (2, 3))), ranked(x), atol=1e-5, rtol=1e-5)
        assert torch.equal(aligned(x.roll(3, 3)), aligned(x))
    both = create_model("c4_cnn", dataset="mnist-t", layer="orient", first="align:size=28")
    assert count_parameters(both) == count_parameters(create_model("c4_cnn", dataset="mnist-r", layer="orient"))
    with pytest.raises(ValueError, match=r"layer \('align:size=20'\) leaves 20x20 pixels, the CNN needs 21x21"):
        create_model("c4_cnn", first="align:size=20")
    two = create_model("c4_cnn", layer="ranked:quantiles=2", place="pool")
    assert two.classifier.in_features == 2 * two.conv2.out_channels


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": "orient"}, r"layer \('orient'\) needs maps of a group convolution"),
        ({"layer": "ranked", "place": "input"}, r"layer \('ranked'\) at input gives no maps for the convolutions"),
        ({"layer": "ranked:keep=37", "place": "pool"}, r"\('ranked:keep=37'\) does not fit pool: keep \(37\) is more"),
        ({"layer": "ranked:smooth=7", "place": "pool"}, r"does not fit pool: smooth \(7\)"),
        ({"layer": "reorder:grid=7", "place": "pool"}, r"does not fit pool: grid \(7\)"),
        ({"layer": "ranked:kept=1"}, r"'kept=1' must be one of keep=NUMBER"),
        ({"layer": "ranked", "grid": 3, "energy": "l1"}, r"layer \('ranked'\) excludes grid, energy: write options"),
        ({"layer": "ranked", "place": "end"}, r"place \('end'\) must be one of conv, relu, pool, input"),
    ],
)
def test_what_does_not_fit_the_cnn_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        create_model("pr_cnn", dataset="mnist-t", **options)


def test_what_does_not_fit_the_group_convolutional_network_is_named():
    with pytest.raises(ValueError, match=r"layer \('ranked'\) must be orient, of 4 orientations, at place orientation"):
        create_model("c4_cnn", layer="ranked")
    with pytest.raises(ValueError, match=r"must be orient, of 4 orientations"):
        create_model("c4_cnn", layer="orient:orientations=8")
    with pytest.raises(ValueError, match=r"layer \('orient'\) needs maps of a group convolution"):
        create_model("c4_cnn", layer="orient", place="pool")  # behind the maximum there are no orientations
    with pytest.raises(ValueError, match=r"place \('relu'\) must be one of orientation, pool, input"):
        create_model("c4_cnn", layer="orient", place="relu")


# ---- augmentation ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "first"),
    [
        ("cnn", {}, ["augment", "conv1"]),
        ("fcn", {}, ["augment", "0"]),
        ("st_cnn", {}, ["augment", "transformer"]),
        ("pr_cnn", {}, ["augment", "conv1"]),
        ("pr_cnn", {"layer": "align:size=28", "place": "input"}, ["reorder", "augment", "conv1"]),
        ("c4_cnn", {"layer": "orient", "first": "align"}, ["first", "augment", "conv1"]),
        ("unrolled_cnn", {}, ["augment", "reorder", "wrap1"]),
    ],
)
def test_augmentation_stands_where_the_image_enters_the_network(name, options, first):
    torch.manual_seed(0)
    plain = create_model(name, dataset="mnist-t", **options).eval()
    torch.manual_seed(0)
    model = create_model(name, dataset="mnist-t", augment="jitter=2,bend=1", **options).eval()
    assert [child for child, _ in model.named_children()][: len(first)] == first
    assert list(model.state_dict()) == list(plain.state_dict())
    x = torch.rand(2, 1, 42, 42)
    assert torch.equal(model(x), plain(x))
    assert not torch.allclose(model.train()(x), plain(x), atol=1e-4)


def test_a_bad_augmentation_of_a_network_is_named():
    with pytest.raises(ValueError, match=r"augment \('tilt'\): 'tilt' must be one of"):
        create_model("cnn", augment="tilt")
    with pytest.raises(ValueError, match=r"zoom \(2\) must be from 0 \(none\) to 1"):
        create_model("cnn", augment="zoom=2")


# ---- the unrolled CNN -------------------------------------------------------------------------------


class TestUnrolledCNN:
    @pytest.mark.parametrize("halve", [True, False])
    def test_quarter_turns_change_nothing_if_any_turn_will_do(self, halve):
        model = create_model("unrolled_cnn", dataset="mnist-r", any_turn=True, halve=halve).eval()
        assert model.classifier.turns == (12 if halve else 24)
        x = torch.rand(3, 1, 28, 28)
        for quarters in (1, 2, 3):
            torch.testing.assert_close(model(x.rot90(quarters, (2, 3))), model(x), atol=1e-5, rtol=0)
        known = create_model("unrolled_cnn", dataset="mnist-r").eval()
        nn.init.normal_(known.classifier.bias)
        assert not torch.allclose(known(x.rot90(1, (2, 3))), known(x), atol=1e-3)

    def test_about_the_centroid_shifts_change_nothing(self):
        model = create_model("unrolled_cnn", dataset="mnist-c", any_turn=True).eval()
        assert repr(model.reorder) == "Unroll(radii=22, angles=48, reach=13, about='centroid')"
        x = F.pad(torch.rand(2, 1, 9, 12), (10, 20, 20, 13))
        assert torch.equal(model(x.roll((7, -5), (2, 3))), model(x))

    def test_layers_that_do_not_fit_are_named(self):
        with pytest.raises(ValueError, match="layer \\('align'\\) must be unroll"):
            create_model("unrolled_cnn", dataset="mnist-r", layer="align")
        with pytest.raises(ValueError, match="gives 14x44, the CNN needs 21 radii"):
            create_model("unrolled_cnn", dataset="mnist-r", layer="unroll")
        with pytest.raises(ValueError, match=r"layer \('unroll:radii=22'\).*22x44"):
            create_model("pr_cnn", dataset="mnist-r", layer="unroll:radii=22", place="input")
