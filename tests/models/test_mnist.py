"""The networks of Table 1: sizes, parameter counts, what each changes of the CNN."""

import copy
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from patchreorder.data import datasets, sources
from patchreorder.data.datasets import MNIST_VARIANTS
from patchreorder.engine.predict import predict
from patchreorder.laboratory.rows import read as read_rows
from patchreorder.layers.patch_reorder import PatchReorder
from patchreorder.metrics.accuracy import mistakes
from patchreorder.models import MODELS, count_parameters, create_model, mnist, shipped
from patchreorder.models.blur_pool import max_blur_pool
from patchreorder.models.thin_conv import ThinConv2d
from patchreorder.operator.functional import patch_reorder

SETS = ("mnist-r", "mnist-t")


def images(dataset: str, count: int = 3) -> torch.Tensor:
    return torch.rand(count, 1, mnist.SIZES[dataset], mnist.SIZES[dataset])


def test_sizes_are_those_of_the_data():
    assert {name: variant.size for name, variant in MNIST_VARIANTS.items()} == mnist.SIZES


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


# ---- the fast gradient of a first convolution ------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
def test_a_thin_convolution_has_the_gradients_of_any(channels):
    layer = ThinConv2d(channels, 2, 3).double()
    x = torch.rand(2, channels, 5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.equal(layer(x), F.conv2d(x, layer.weight, layer.bias))
    towards = torch.rand(2, 2, 3, 2, dtype=torch.float64)
    wanted = torch.autograd.grad(F.conv2d(x, layer.weight, layer.bias), (x, layer.weight, layer.bias), towards)
    for got, want in zip(torch.autograd.grad(layer(x), (x, layer.weight, layer.bias), towards), wanted, strict=True):
        assert torch.allclose(got, want)
    assert torch.autograd.gradcheck(layer, (x,))
    assert torch.autograd.gradgradcheck(layer, (x,))


def test_a_thin_convolution_is_a_plain_one_without_a_gradient():
    layer, x = ThinConv2d(1, 5, 3), torch.rand(2, 1, 7, 7)
    assert "ThinConv" not in layer(x).grad_fn.name()
    assert "ThinConv" in layer(x.requires_grad_()).grad_fn.name()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer(x).sum().backward()
    assert x.grad is not None


# ---- the trained weights we ship -------------------------------------------------------------------

SHIPPED = [(name, dataset) for name in ("cnn", "pr_cnn", "st_cnn") for dataset in SETS] + [("unrolled_cnn", "mnist-r")]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def test_digits():
    try:
        sources.fetch(sources.MNIST)
    except OSError as error:
        pytest.skip(f"MNIST cannot be fetched here: {error}")
    return {dataset: datasets.mnist(dataset, split="test").first(2000) for dataset in SETS}


@pytest.mark.parametrize(("name", "dataset"), SHIPPED)
def test_shipped_weights_make_the_mistakes_of_their_row(name, dataset, test_digits):
    row = shipped.row(name, dataset)
    wrong, _ = mistakes(*predict(create_model(name, dataset=dataset, pretrained=True), test_digits[dataset]))
    wanted = {index for index in row["errors"] if index < 2000}
    assert len(wanted ^ set(wrong.tolist())) <= 2
    assert len(wanted) > 4  # else a network that is never tested would pass


@pytest.mark.parametrize(("name", "dataset"), SHIPPED)
def test_rows_of_shipped_weights_are_committed_results(name, dataset):
    row = shipped.row(name, dataset)
    assert row in [asdict(result) for result in read_rows(ROOT / "results" / "table1.jsonl").results]
    assert (row["recipe"], row["setting"], row["split"]) == ("table1", "short", "test")
    assert row["parameters"] == count_parameters(create_model(name, dataset=dataset))


def test_shipped_weights_are_small():
    assert sum(file.stat().st_size for file in shipped.FOLDER.iterdir()) < 8_000_000
    assert len(list(shipped.FOLDER.glob("*.safetensors"))) == len(SHIPPED)


def test_a_row_that_is_not_shipped_is_named():
    with pytest.raises(ValueError, match="no row of fcn for mnist is shipped"):
        shipped.row("fcn", "mnist")


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
        ("align:size=5", "relu", "leaves maps of 5x5 at relu, and what follows is made for 11x11: leave size out"),
    ):
        with pytest.raises(ValueError, match=why):
            create_model("pr_cnn", dataset="mnist-t", layer=layer, place=place)
