"""Layers by name, and networks with such a layer: what a text gives, what the classifier gets, what is refused."""

import inspect
import json
import re

import pytest
import torch
from safetensors.torch import save as to_bytes
from torch import nn
from torch.nn import functional as F

import patchreorder
from patchreorder import OrientationReorder, PatchReorder, RankedPool, ShiftAlign, create_layer, create_model
from patchreorder.layers.ranked_pool import ranked_pool
from patchreorder.layers.registry import LAYER_TYPES, read_layer
from patchreorder.models import alexnet, count_parameters, saved
from patchreorder.operator.functional import patch_reorder

pytestmark = pytest.mark.usefixtures("one_thread")


# ---- the text --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "layer"),
    [
        ("reorder", PatchReorder(grid="pixels")),
        ("reorder:grid=pixels", PatchReorder(grid="pixels")),
        ("reorder:grid=2,levels=2", PatchReorder(grid=2, levels=2)),
        (
            "reorder:grid=3,energy=l1,per_channel=false,descending=False",
            PatchReorder(grid=3, energy="l1", per_channel=False, descending=False),
        ),
        ("ranked", RankedPool()),
        ("ranked:", RankedPool()),
        ("ranked:keep=9,smooth=3,weights=-0.5", RankedPool(keep=9, smooth=3, weights=-0.5)),
        ("ranked: quantiles = 16, stride=2 ,mean=true,", RankedPool(quantiles=16, stride=2, mean=True)),
        ("ranked:weights=-1", RankedPool(weights=-1)),
        ("ranked:quantiles=8,centre=true", RankedPool(quantiles=8, centre=True)),
        ("ranked:weights=1e-1", RankedPool(weights=0.1)),
        ("align", ShiftAlign()),
        ("align:energy=l1,per_channel=true", ShiftAlign(energy="l1", per_channel=True)),
        ("orient", OrientationReorder()),
        (
            "orient:orientations=8,turn=false,per_channel=true,energy=l1",
            OrientationReorder(orientations=8, turn=False, per_channel=True, energy="l1"),
        ),
    ],
)
def test_a_text_is_the_layer(text, layer):
    made = create_layer(text)
    assert type(made) is type(layer)
    assert repr(made) == repr(layer)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", r"layer \(''\) must begin with one of reorder, ranked, align, pose, orient"),
        ("sorted:keep=3", r"layer \('sorted:keep=3'\) must begin with one of reorder, ranked, align, pose, orient"),
        ("keep=3", r"must begin with one of reorder"),
        ("Ranked", r"must begin with one of reorder"),
        ("ranked:kept=3", r"layer \('ranked:kept=3'\): 'kept=3' must be one of keep=NUMBER, .*centre=true\|false"),
        ("ranked:grid=2", r"'grid=2' must be one of keep=NUMBER"),
        ("align:keep=3", r"'keep=3' must be one of energy=l1\|l2, per_channel=true\|false"),
        ("ranked:keep", r"'keep' must be one of"),
        ("ranked:keep=", r"'keep=' must be one of"),
        ("ranked:keep=many", r"'keep=many' must be one of"),
        ("ranked:keep=1.5", r"'keep=1.5' must be one of"),
        ("ranked:keep=true", r"'keep=true' must be one of"),
        ("ranked:mean=1", r"'mean=1' must be one of"),
        ("ranked:weights=x", r"'weights=x' must be one of .*weights=DECIMAL"),
        ("align:energy=", r"'energy=' must be one of"),
        ("align:energy=1", r"'energy=1' must be one of"),
        ("ranked:keep=2,keep=2", r"keep is given twice"),
        ("ranked:keep=0", r"layer \('ranked:keep=0'\): keep \(0\) must be 1 or more"),
        ("ranked:keep=2,quantiles=2", r"keep \(2\) and quantiles \(2\) exclude each other"),
        ("ranked:weights=nan", r"weights \(nan\) must be finite"),
        ("align:energy=l3", r"energy \('l3'\) must be 'l1' or 'l2'"),
        ("reorder:grid=pixel", r"grid \('pixel'\) must be a whole number"),
        ("reorder:levels=2", r"levels \(2\) must be 1 with grid='pixels'"),
        ("orient:orientations=6", r"orientations \(6\) must be a multiple of 4"),
    ],
)
def test_what_is_wrong_is_named(text, says):
    with pytest.raises(ValueError, match=says):
        create_layer(text)


def test_only_texts_are_read():
    with pytest.raises(TypeError, match="layer must be a text such as 'ranked:quantiles=16', got RankedPool"):
        create_layer(RankedPool())


@pytest.mark.parametrize("name", LAYER_TYPES)
def test_options_are_the_arguments_of_the_class(name):
    """None is missing, none is made up."""
    made = create_layer(name)
    assert list(LAYER_TYPES[name].options_type.kinds) == list(inspect.signature(type(made)).parameters)
    assert read_layer(name)[0] == name


def test_it_is_public():
    assert "create_layer" in patchreorder.__all__
    assert patchreorder.create_layer is create_layer


# ---- MNIST -----------------------------------------------------------------------------------------


def images(size: int, channels: int = 1) -> torch.Tensor:
    return torch.rand(3, channels, size, size)


def front(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The second convolution's answer."""
    return model.conv2(F.relu(F.max_pool2d(model.conv1(x), 2, ceil_mode=True)))


@pytest.mark.parametrize(
    ("place", "length"), [("conv", 121), ("relu", 121), ("pool", 36)]
)  # of 11x11 and 6x6 maps: before the pool it stands instead of it
def test_ranked_values_go_to_the_classifier(place, length):
    model, x = create_model("pr_cnn", dataset="mnist-t", layer="ranked", place=place), images(42)
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
    model(images(42)).sum().backward()
    assert model.conv1.weight.grad.abs().sum() > 0
    with torch.device("meta"):  # as recipes count parameters
        assert count_parameters(create_model("pr_cnn", dataset="mnist-t", layer=layer, place="pool")) == (
            count_parameters(model)
        )


def test_reorder_by_name_is_the_network_of_before():
    x = images(28)
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
    x = images(28)
    plain, model = create_model("c4_cnn"), create_model("c4_cnn", layer="orient")
    with torch.no_grad():
        torch.testing.assert_close(model(x.rot90(1, (2, 3))), model(x), atol=1e-5, rtol=1e-5)
        assert not torch.allclose(plain(x.rot90(1, (2, 3))), plain(x), atol=1e-4)
    width = model.conv1.out_channels
    assert model.classifier.in_features == 4 * width * 2 * 2  # all of them
    assert abs(count_parameters(model) / count_parameters(create_model("cnn")) - 1) < 0.07


def test_other_layers_in_the_group_convolutional_network():
    x = images(28)
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
    ("options", "says"),
    [
        ({"layer": "orient"}, r"layer \('orient'\) needs maps of a group convolution"),
        ({"layer": "ranked", "place": "input"}, r"layer \('ranked'\) at input leaves no maps for the convolutions"),
        ({"layer": "ranked:keep=37", "place": "pool"}, r"\('ranked:keep=37'\) does not fit pool: keep \(37\) is more"),
        ({"layer": "ranked:smooth=7", "place": "pool"}, r"does not fit pool: smooth \(7\)"),
        ({"layer": "reorder:grid=7", "place": "pool"}, r"does not fit pool: grid \(7\)"),
        ({"layer": "ranked:kept=1"}, r"'kept=1' must be one of keep=NUMBER"),
        ({"layer": "ranked", "grid": 3, "energy": "l1"}, r"layer \('ranked'\) excludes grid, energy: write options"),
        ({"layer": "ranked", "place": "end"}, r"place \('end'\) must be one of conv, relu, pool, input"),
    ],
)
def test_what_does_not_fit_the_cnn_is_named(options, says):
    with pytest.raises(ValueError, match=says):
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


# ---- CIFAR-10 --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "layer", "numbers"),
    [
        ("pool5", "ranked", 16),
        ("pool5", "ranked:quantiles=4", 4),
        ("conv5", "ranked:smooth=3,stride=2", 9),  # of 8x8 maps, instead of the pool
        ("conv5", "align", 16),
        ("input", "align", 16),
    ],
)
def test_layers_in_the_network_for_cifar10(place, layer, numbers):
    model, x = create_model("cifar_pr", layer=layer, place=place), images(32, 3)
    assert model(x).shape == (3, 10)
    assert model.fc6.in_features == 64 * numbers
    assert abs(count_parameters(model) - 545_482) < 1500
    if layer == "ranked":
        maps = model[: [name for name, _ in model.named_children()].index("reorder")](x)
        logits = model.fc8(F.relu(model.fc7(F.relu(model.fc6(patch_reorder(maps, grid="pixels").flatten(1))))))
        torch.testing.assert_close(model(x), logits, atol=1e-5, rtol=1e-4)
    if place == "input":
        assert [name for name, _ in model.named_children()][:3] == ["normalise", "reorder", "conv1"]
    with pytest.raises(ValueError, match=r"layer \('align'\) excludes levels"):
        create_model("cifar_pr", layer="align", levels=1)


# ---- AlexNet ---------------------------------------------------------------------------------------

SMALL = {"width": 8, "classes": 3}


@pytest.mark.parametrize("variant", alexnet.VARIANTS)
@pytest.mark.parametrize(
    ("place", "layer", "numbers"),
    [
        ("pool5", "ranked:quantiles=16", 16),
        ("pool5", "ranked", 36),
        ("conv5", "ranked:smooth=3,stride=2,weights=-0.5", 36),
        ("conv5", "align", 36),
        ("pool5", "align", 36),
        ("input", "align", 36),
    ],
)
def test_layers_in_alexnet(variant, place, layer, numbers):
    plain = create_model("alexnet", variant=variant, **SMALL).eval()
    model = create_model("alexnet_pr", variant=variant, place=place, layer=layer, **SMALL).eval()
    model.features.load_state_dict(plain.features.state_dict())
    x, made = torch.rand(1, 3, 224, 224), create_layer(layer)
    fc6 = model.get_submodule(model.layers["fc6"])
    assert fc6.in_features == 256 * numbers
    with torch.no_grad():
        given = plain.normalise(x)
        maps = plain.features[:-1](made(given) if place == "input" else given)  # 13x13
        pool = plain.features[-1]
        wanted = {
            "input": lambda: pool(maps),
            "pool5": lambda: made(pool(maps)),
            "conv5": lambda: made(maps) if made(maps).dim() == 3 else pool(made(maps)),
        }[place]()
        assert torch.equal(alexnet.split(model)[0](x), wanted.flatten(1))
        assert model(x).shape == (1, 3)
        trunk, tail = alexnet.cut(alexnet.split(model)[0])
        assert torch.equal(tail(trunk(x)), wanted.flatten(1))
    if variant == "torchvision":
        names = alexnet.load_convolutions(model, plain.state_dict())
        assert len(names) == 10


@pytest.mark.parametrize("variant", alexnet.VARIANTS)
@pytest.mark.parametrize("names", [["conv1", "conv2", "conv3", "conv4", "conv5"], ["conv2", "conv4"]])
def test_several_convolutions_are_pooled_and_joined(variant, names):
    plain = create_model("alexnet", variant=variant, **SMALL).eval()
    text = "ranked:quantiles=8,centre=true"
    model = create_model("alexnet_pr", variant=variant, place="+".join(reversed(names)), layer=text, **SMALL).eval()
    own = model.features.state_dict()  # the names of the convolutions stay, up to the last that is listened to
    model.features.load_state_dict({name: plain.features.state_dict()[name] for name in own})
    x, said = torch.rand(2, 3, 224, 224), {}
    for name in names:
        place = plain.layers[name.replace("conv", "relu")]
        plain.get_submodule(place).register_forward_hook(lambda *a, name=name: said.__setitem__(name, a[2]))
    with torch.no_grad():
        plain(x)
        pool = plain.get_submodule(plain.layers["pool5"])
        parts = [ranked_pool(pool(said[name]), quantiles=8, centre=True).flatten(1) for name in names]
        front = alexnet.split(model)[0]
        found = front(x)
        trunk, tail = alexnet.cut(front)
        assert torch.equal(tail(trunk(x)), found)
    shares = found.split([part.shape[1] for part in parts], 1)
    assert torch.equal(shares[-1], parts[-1])  # the last as it is, the others as strong
    strength = parts[-1].square().mean(1).sqrt()
    for share, part in zip(shares, parts, strict=True):
        torch.testing.assert_close(share.square().mean(1).sqrt(), strength)
        torch.testing.assert_close(torch.cosine_similarity(share, part), torch.ones(2))
    assert model(x).shape == (2, 3)
    if len(names) == 5 and variant == "torchvision":  # 1,152 filters, eight numbers of each
        assert count_parameters(model) == count_parameters(plain)


def test_joined_places_that_do_not_fit_are_named():
    for place, layer, says in (
        ("conv1+pool5", "ranked", r"place \('conv1\+pool5'\) must join different ones of conv1"),
        ("conv1+conv1", "ranked", r"place \('conv1\+conv1'\) must join different"),
        ("conv1+conv5", None, r"place \('conv1\+conv5'\) joins pools: give the layer by name"),
        ("conv1+conv5", "align", r"layer \('align'\) leaves maps"),
        ("conv1+conv5", "ranked:keep=37", r"does not fit conv5: keep \(37\)"),
    ):
        with pytest.raises(ValueError, match=says):
            create_model("alexnet_pr", place=place, layer=layer, **SMALL)
    with pytest.raises(ValueError, match=r"pools \(7\) must be for layers: 0"):
        alexnet.Joined(torch.nn.Sequential(torch.nn.ReLU()), {"7": torch.nn.Flatten()})


def test_layers_that_do_not_fit_alexnet_are_named():
    with pytest.raises(ValueError, match=r"layer \('orient'\) needs maps of a group convolution"):
        create_model("alexnet_pr", layer="orient", place="pool5")
    with pytest.raises(ValueError, match=r"layer \('ranked'\) at input leaves no maps"):
        create_model("alexnet_pr", layer="ranked", place="input")
    with pytest.raises(ValueError, match=r"does not fit pool5: keep \(37\)"):
        create_model("alexnet_pr", layer="ranked:keep=37", place="pool5")


# ---- saved classifiers -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("alexnet_pr", {"place": "pool5", "layer": "ranked:quantiles=3,weights=-0.5"}),
        ("alexnet_pr", {"place": "conv5", "layer": "ranked:keep=5"}),
        ("alexnet_pr", {"place": "input", "layer": "align"}),
        ("alexnet_pr", {"place": "conv1+conv4", "layer": "ranked:quantiles=2,centre=true"}),
        # As `fit` wrote them before there were other layers, and still does for these.
        ("alexnet_pr", {"place": "pool5", "grid": "pixels", "levels": 1}),
        ("alexnet_pr", {"place": "conv5", "grid": 2, "levels": 2, "per_channel": False}),
        ("alexnet", {}),
        ("alexnet_gap", {}),
    ],
)
def test_a_saved_classifier_is_the_same_again(name, options, tmp_path):
    options = {"variant": "torchvision", "width": 8, **options}
    model = create_model(name, classes=2, **options).eval()
    saved.save(tmp_path / "c.safetensors", model, name=name, options=options, classes=["cat", "dog"])
    again, classes = patchreorder.load_classifier(tmp_path / "c.safetensors")
    x = torch.rand(2, 3, 224, 224)
    assert classes == ["cat", "dog"]
    with torch.no_grad():
        assert torch.equal(again(x), model(x))


def test_an_old_file_is_read(tmp_path):
    """Its bytes put together here: names, shapes and facts as `fit` wrote them before layers had names."""
    shapes = {0: (64, 3, 11, 11), 3: (192, 64, 5, 5), 6: (384, 192, 3, 3), 8: (256, 384, 3, 3), 10: (256, 256, 3, 3)}
    weights = {f"features.{place}": shape for place, shape in shapes.items()}
    weights |= {"classifier.1": (4, 9216), "classifier.4": (4, 4), "classifier.6": (2, 4)}
    tensors = {f"{name}.weight": 0.01 * torch.randn(shape) for name, shape in weights.items()}
    tensors |= {f"{name}.bias": torch.zeros(shape[0]) for name, shape in weights.items()}
    options = {"width": 4, "variant": "torchvision", "place": "pool5", "grid": "pixels", "levels": 1}
    facts = {"model": "alexnet_pr", "options": options, "classes": ["cat", "dog"]}
    (tmp_path / "old.safetensors").write_bytes(to_bytes(tensors, metadata={"classifier": json.dumps(facts)}))
    model, _ = patchreorder.load_classifier(tmp_path / "old.safetensors")
    plain = create_model("alexnet", variant="torchvision", width=4, classes=2).eval()
    plain.load_state_dict(tensors)
    x = torch.rand(1, 3, 224, 224)
    with torch.no_grad():
        features = patch_reorder(plain.features(plain.normalise(x)), grid="pixels").flatten(1)
        torch.testing.assert_close(model(x), plain.classifier(features))


def test_a_file_with_a_layer_that_nobody_knows_is_named(tmp_path):
    facts = {"model": "alexnet_pr", "options": {"layer": "later:x=1", "place": "pool5"}, "classes": ["cat"]}
    (tmp_path / "c.safetensors").write_bytes(
        to_bytes({"x": torch.zeros(1)}, metadata={"classifier": json.dumps(facts)})
    )
    with pytest.raises(ValueError, match=re.escape("layer ('later:x=1') must begin with one of reorder")):
        patchreorder.load_classifier(tmp_path / "c.safetensors")
