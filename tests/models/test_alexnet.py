"""AlexNet in both variants and every form: against torchvision's, against functions, and what the literature counts."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from patchreorder.layers.patch_reorder import PatchReorder
from patchreorder.layers.ranked_pool import ranked_pool
from patchreorder.layers.registry import create_layer
from patchreorder.models import alexnet, count_parameters, create_model
from patchreorder.models.alexnet import MODELS, VARIANTS, freeze_convolutions, load_convolutions, split
from patchreorder.models.joined import Joined
from patchreorder.models.rotation_conv import RotationConv2d
from patchreorder.operator.functional import patch_reorder
from tests import vision

torch.set_num_threads(1)
SMALL = {"width": 16, "classes": 5}
each_variant = pytest.mark.parametrize("variant", VARIANTS)
each_model = pytest.mark.parametrize("name", MODELS)


def made(name: str, variant: str, **options: object) -> alexnet.AlexNet:
    return create_model(name, dataset="imagenet", variant=variant, **{**SMALL, **options}).eval()


def on_meta(name: str, **options: object) -> nn.Module:
    with torch.device("meta"):
        return create_model(name, **options)


def seen(model: alexnet.AlexNet, images: Tensor) -> dict[str, Tensor]:
    """The outputs of all named layers."""
    outputs = {}
    for name, place in model.layers.items():
        model.get_submodule(place).register_forward_hook(lambda *x, name=name: outputs.__setitem__(name, x[2]))
    model(images)
    return outputs


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(3))


# ---- the two variants ------------------------------------------------------------------------------


def test_it_is_the_one_of_torchvision(images):
    torch.manual_seed(1)
    theirs = vision.torchvision().models.alexnet(num_classes=5)
    torch.manual_seed(1)
    ours = create_model("alexnet", variant="torchvision", classes=5)
    state = theirs.state_dict()
    assert list(ours.state_dict()) == list(state)
    assert all(torch.equal(value, state[name]) for name, value in ours.state_dict().items())
    mean, std = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]).view(2, 3, 1, 1)
    torch.testing.assert_close(ours.eval()(images), theirs.eval()((images - mean) / std))
    torch.manual_seed(2)
    noisy = ours.train()(images)
    torch.manual_seed(2)
    torch.testing.assert_close(noisy, theirs.train()((images - mean) / std))  # drops the same


def test_parameters_are_as_many_as_known():
    counts = {name: count_parameters(on_meta(name)) for name in MODELS}
    assert counts["alexnet"] == 60_965_224  # Caffe's
    assert count_parameters(on_meta("alexnet", variant="torchvision")) == 61_100_840
    assert counts["alexnet_si"] == counts["alexnet_pr"] == counts["alexnet_blur"] == counts["alexnet"]
    assert counts["alexnet_st"] - counts["alexnet"] == 160_758
    assert counts["alexnet_gap"] == counts["alexnet_gmp"] == counts["alexnet"] - (9216 - 256) * 4096


SIDES = {
    "caffe": {"conv1": (96, 54), "norm1": (96, 54), "pool1": (96, 27), "conv2": (256, 27), "norm2": (256, 27)},
    "torchvision": {"conv1": (64, 55), "pool1": (64, 27), "conv2": (192, 27)},
}


@each_variant
def test_sizes_of_all_maps(variant, images):
    maps = seen(made("alexnet", variant), images)
    filters = VARIANTS[variant].filters
    wanted = {**SIDES[variant], "pool2": (filters[1], 13), "conv3": (384, 13), "relu3": (384, 13)}
    wanted |= {"conv4": (filters[3], 13), "conv5": (256, 13), "relu5": (256, 13), "pool5": (256, 6)}
    assert {name: (maps[name].shape[1], maps[name].shape[2]) for name in wanted} == wanted
    flat = {"fc6": 16, "relu6": 16, "fc7": 16, "relu7": 16, "fc8": 5}
    assert {name: maps[name].shape for name in flat} == {name: (1, width) for name, width in flat.items()}
    assert set(maps) == {*wanted, *flat, "relu1", "relu2", "relu4"}


def by_hand(model: nn.Module, images: Tensor) -> Tensor:
    """Caffe's AlexNet in functions; the response normalisation as its documentation has it."""

    def norm(x: Tensor) -> Tensor:
        squares = F.pad(x.square(), (0, 0, 0, 0, 2, 2))
        around = sum(squares[:, shift : shift + x.shape[1]] for shift in range(5))
        return x / (1 + 1e-4 / 5 * around) ** 0.75

    def grouped(layer: nn.Module, x: Tensor, padding: int) -> Tensor:
        halves = zip(x.chunk(2, 1), layer.weight.chunk(2), layer.bias.chunk(2), strict=True)
        return torch.cat([F.conv2d(*half, padding=padding) for half in halves], 1)

    def pool(x: Tensor) -> Tensor:
        return F.max_pool2d(x, 3, 2, ceil_mode=True)

    convs, connected = model.features, model.classifier
    x = images * 255 - 255 * torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    x = pool(norm(F.relu(F.conv2d(x, convs.conv1.weight, convs.conv1.bias, stride=4))))
    x = pool(norm(F.relu(grouped(convs.conv2, x, 2))))
    x = F.relu(F.conv2d(x, convs.conv3.weight, convs.conv3.bias, padding=1))
    x = F.relu(grouped(convs.conv4, x, 1))
    x = pool(F.relu(grouped(convs.conv5, x, 1))).flatten(1)
    return connected.fc8(F.relu(connected.fc7(F.relu(connected.fc6(x)))))


def test_the_variant_of_caffe_in_functions(images):
    model = made("alexnet", "caffe")
    for parameter in model.parameters():  # with the small initial weights the logits are the last bias
        if parameter.dim() > 1:
            nn.init.kaiming_normal_(parameter)
    logits = model(images)
    assert logits.std() > 1
    torch.testing.assert_close(logits, by_hand(model, images), rtol=1e-4, atol=1e-3)


def test_initial_weights_are_those_of_the_paper():
    model = create_model("alexnet_st", width=64)
    for name, parameter in model.named_parameters():
        if name.startswith("transformer.head"):
            continue
        if name.endswith("bias"):
            assert torch.equal(parameter, torch.full_like(parameter, 0.1)), name
        else:
            wanted = 0.01 if parameter.dim() == 4 else 0.005
            error = 5 / (2 * parameter.numel()) ** 0.5
            assert abs(parameter.std().item() / wanted - 1) < error, name
            assert abs(parameter.mean().item() / wanted) < 5 / parameter.numel() ** 0.5, name


@each_variant
def test_dropout_follows_the_option(variant):
    rates = [layer.p for layer in made("alexnet", variant, dropout=0.2).modules() if isinstance(layer, nn.Dropout)]
    assert rates == [0.2, 0.2]


# ---- the forms -------------------------------------------------------------------------------------


@each_variant
@each_model
def test_every_form(name, variant, images):
    """Layouts, copies, the halves, the names of the weights: all of it here, since building and running takes time."""
    model = made(name, variant)
    with torch.no_grad():
        logits = model(images)
        assert logits.shape == (1, 5)
        front, classifier = split(model)
        features = front(images)
        assert features.shape == (1, 256 if name in ("alexnet_gap", "alexnet_gmp") else 9216)
        assert torch.equal(classifier(features), logits)
        assert sum(isinstance(layer, nn.Dropout) for layer in front.modules()) == 0
        other = copy.deepcopy(model)
        for parameter in model.parameters():
            parameter.add_(1)
        assert torch.equal(other(images), logits)
        model.load_state_dict(other.state_dict())
        model.to(memory_format=torch.channels_last)
        near = front(images.contiguous(memory_format=torch.channels_last))  # made of the same modules
        torch.testing.assert_close(near, features, atol=1e-5 * features.max().item(), rtol=1e-4)
    plain = on_meta("alexnet", variant=variant, **SMALL).state_dict()
    own = {key for key in model.state_dict() if not key.startswith("transformer.")}
    assert own == plain.keys()
    layers = dict(model.named_modules())
    assert {*model.layers.values()} <= layers.keys()


@pytest.mark.parametrize("name", ["alexnet_si", "alexnet_st", "alexnet_pr", "alexnet_blur"])
def test_the_same_seed_gives_the_same_weights(name):
    states = []
    for each in ("alexnet", name):
        torch.manual_seed(4)
        states.append(made(each, "torchvision").state_dict())
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())


@each_variant
@pytest.mark.parametrize("place", alexnet.PLACES)
def test_reordering_stands_where_it_should(place, variant, images):
    options: Mapping[str, object] = {"grid": 3, "levels": 1, "energy": "l1", "per_channel": False, "descending": False}
    torch.manual_seed(5)
    plain = made("alexnet", variant)
    torch.manual_seed(5)
    maps, reordered = seen(plain, images), seen(made("alexnet_pr", variant, place=place, **options), images)
    if place == "input":  # behind the normalisation
        given = patch_reorder(plain.normalise(images), **options)
        assert torch.equal(reordered["conv1"], plain.get_submodule(plain.layers["conv1"])(given))
        return
    name = place.replace("conv", "relu")
    assert torch.equal(reordered[name], patch_reorder(maps[name], **options))
    assert not torch.equal(reordered[name], maps[name])
    changed = [layer for layer in maps if not torch.equal(reordered[layer], maps[layer])]
    before = list(maps)[: list(maps).index(name)]
    assert set(changed) == set(maps) - set(before)


def test_reordering_is_by_default_that_of_the_paper():
    model = on_meta("alexnet_pr")
    (layer,) = (layer for layer in model.modules() if isinstance(layer, PatchReorder))
    assert (layer.grid, layer.levels, layer.energy, layer.per_channel) == (2, 2, "l2", True)
    assert model.features.relu5.reorder is layer


def test_rotations_are_in_the_first_second_and_fifth_convolution():
    for variant in VARIANTS:
        model = on_meta("alexnet_si", variant=variant)
        layers = [model.get_submodule(model.layers[f"conv{number}"]) for number in range(1, 6)]
        assert [isinstance(layer, RotationConv2d) for layer in layers] == [True, True, False, False, True]
        assert [layer.groups for layer in layers] == list(VARIANTS[variant].groups)
        assert layers[0].angles == (-90, -54, -18, 18, 54, 90)


@each_variant
def test_a_transformer_starts_as_the_identity_and_learns(variant, images):
    model = made("alexnet_st", variant)
    normal = model.normalise(images)
    torch.testing.assert_close(model.transformer(normal), normal, atol=255 * 1e-4, rtol=1e-3)
    F.cross_entropy(model(images), torch.tensor([1])).backward()
    assert model.transformer.head.weight.grad.abs().sum() > 0
    with torch.no_grad():
        model.transformer.head.bias[2] = 3.0  # so far to the side that nothing of the image is seen
        assert torch.equal(model.transformer(normal), torch.zeros_like(normal))  # but the mean colour


def test_the_localisation_network_is_the_paper_s():
    shapes = [tuple(p.shape) for p in on_meta("alexnet_st").transformer.parameters()]
    assert shapes[::2] == [(48, 3, 11, 11), (48, 48, 5, 5), (48, 48 * 36), (48, 48), (6, 48)]


@pytest.mark.parametrize(("name", "reduce"), [("alexnet_gap", torch.mean), ("alexnet_gmp", torch.amax)])
def test_global_pools_stand_for_the_last_pool(name, reduce, images):
    model = made(name, "torchvision")
    maps = seen(model, images)
    torch.testing.assert_close(split(model)[0](images), reduce(maps["relu5"], dim=(2, 3)))


# ---- weights of others -----------------------------------------------------------------------------


def tensors(model: nn.Module) -> dict[str, Tensor]:
    return {name: torch.randn_like(value) for name, value in model.state_dict().items()}


@pytest.mark.parametrize("name", ["alexnet", "alexnet_si", "alexnet_st", "alexnet_gap"])
def test_convolutions_are_loaded_and_frozen(name):
    model = made(name, "torchvision")
    before, given = copy.deepcopy(model.state_dict()), tensors(made("alexnet", "torchvision"))
    names = [f"features.{number}.{part}" for number in (0, 3, 6, 8, 10) for part in ("weight", "bias")]
    assert load_convolutions(model, given) == names
    for key, value in model.state_dict().items():
        assert torch.equal(value, given[key] if key in names else before[key]), key
    freeze_convolutions(model)
    assert {key for key, value in model.named_parameters() if not value.requires_grad} == {*names}


def test_connected_layers_are_loaded_where_they_fit():
    model, given = made("alexnet", "torchvision"), tensors(made("alexnet", "torchvision", classes=7))
    last = {key: model.state_dict()[key].clone() for key in ("classifier.6.weight", "classifier.6.bias")}
    names = load_convolutions(model, given, connected=True)
    assert names[10:] == ["classifier.1.weight", "classifier.1.bias", "classifier.4.weight", "classifier.4.bias"]
    for key, value in model.state_dict().items():
        assert torch.equal(value, last[key] if key in last else given[key])


def test_convolutions_that_do_not_fit_are_named():
    model = made("alexnet", "torchvision")
    given, before = tensors(model), copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"tensors lack features\.10\.bias: they hold features\.0\.weight"):
        load_convolutions(model, {key: value for key, value in given.items() if key != "features.10.bias"})
    with pytest.raises(ValueError, match=r"features\.10\.bias has shape \(3,\), the model's \(256,\)"):
        load_convolutions(model, given | {"features.10.bias": torch.zeros(3)})
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    with pytest.raises(ValueError, match=r"variant \('caffe'\) must be 'torchvision'"):
        load_convolutions(made("alexnet", "caffe"), given)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"dataset \('mnist-r'\) must be imagenet for alexnet"):
        create_model("alexnet", dataset="mnist-r")
    with pytest.raises(ValueError, match=r"name \('resnet'\) must be one of fcn, .*alexnet, .*cifar_cnn"):
        create_model("resnet", dataset="imagenet")
    with pytest.raises(ValueError, match=r"variant \('keras'\) must be one of caffe, torchvision"):
        create_model("alexnet", variant="keras")
    with pytest.raises(ValueError, match=r"classes \(0\) must be 1 or more"):
        create_model("alexnet", classes=0)
    with pytest.raises(ValueError, match=r"options .*depth.* do not fit alexnet_gap"):
        create_model("alexnet_gap", depth=3)
    with pytest.raises(ValueError, match=r"place \('conv6'\) must be one of conv5, pool5"):
        create_model("alexnet_pr", place="conv6")


@pytest.mark.parametrize("variant", ["caffe", "torchvision"])
@pytest.mark.parametrize("options", [{"place": "conv5"}, {"place": "pool5", "grid": "pixels", "levels": 1}])
def test_a_front_is_cut_behind_its_last_convolution(variant, options):
    front = alexnet.split(create_model("alexnet_pr", variant=variant, width=8, classes=5, **options).eval())[0]
    trunk, tail = alexnet.cut(front)
    images = torch.rand(2, 3, 224, 224)
    maps = trunk(images)
    assert maps.shape == (2, 256, 13, 13)
    assert bool((maps < 0).any())  # before ReLU
    assert torch.equal(tail(maps), front(images))
    plain = alexnet.split(create_model("alexnet", variant=variant, width=8, classes=5).eval())[0]
    plain.load_state_dict(front.state_dict())
    assert torch.equal(alexnet.cut(plain)[0](images), maps)
    assert not torch.equal(alexnet.cut(plain)[1](maps), tail(maps))


# ---- layers by name ---------------------------------------------------------------------------------


@each_variant
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
    x, inserted = torch.rand(1, 3, 224, 224), create_layer(layer)
    fc6 = model.get_submodule(model.layers["fc6"])
    assert fc6.in_features == 256 * numbers
    with torch.no_grad():
        given = plain.normalise(x)
        maps = plain.features[:-1](inserted(given) if place == "input" else given)  # 13x13
        pool = plain.features[-1]
        wanted = {
            "input": lambda: pool(maps),
            "pool5": lambda: inserted(pool(maps)),
            "conv5": lambda: inserted(maps) if inserted(maps).dim() == 3 else pool(inserted(maps)),
        }[place]()
        assert torch.equal(alexnet.split(model)[0](x), wanted.flatten(1))
        assert model(x).shape == (1, 5)
        trunk, tail = alexnet.cut(alexnet.split(model)[0])
        assert torch.equal(tail(trunk(x)), wanted.flatten(1))
    if variant == "torchvision":
        names = alexnet.load_convolutions(model, plain.state_dict())
        assert len(names) == 10


@each_variant
@pytest.mark.parametrize("names", [["conv1", "conv2", "conv3", "conv4", "conv5"], ["conv2", "conv4"]])
def test_several_convolutions_are_pooled_and_joined(variant, names):
    plain = create_model("alexnet", variant=variant, **SMALL).eval()
    text = "ranked:quantiles=8,centre=true"
    model = create_model("alexnet_pr", variant=variant, place="+".join(reversed(names)), layer=text, **SMALL).eval()
    own = model.features.state_dict()  # the names of the convolutions stay, up to the last that is pooled
    model.features.load_state_dict({name: plain.features.state_dict()[name] for name in own})
    x = torch.rand(2, 3, 224, 224)
    with torch.no_grad():
        maps = seen(plain, x)
        pool = plain.get_submodule(plain.layers["pool5"])
        parts = [
            ranked_pool(pool(maps[name.replace("conv", "relu")]), quantiles=8, centre=True).flatten(1) for name in names
        ]
        front = alexnet.split(model)[0]
        found = front(x)
        trunk, tail = alexnet.cut(front)
        assert torch.equal(tail(trunk(x)), found)
    pooled = found.split([part.shape[1] for part in parts], 1)
    assert torch.equal(pooled[-1], parts[-1])  # the last as it is, the others as strong
    strength = parts[-1].square().mean(1).sqrt()
    for values, part in zip(pooled, parts, strict=True):
        torch.testing.assert_close(values.square().mean(1).sqrt(), strength)
        torch.testing.assert_close(torch.cosine_similarity(values, part), torch.ones(2))
    assert model(x).shape == (2, 5)
    if len(names) == 5 and variant == "torchvision":  # 1,152 filters, eight values of each
        assert count_parameters(model) == count_parameters(plain)


def test_joined_places_that_do_not_fit_are_named():
    for place, layer, message in (
        ("conv1+pool5", "ranked", r"place \('conv1\+pool5'\) must join different ones of conv1"),
        ("conv1+conv1", "ranked", r"place \('conv1\+conv1'\) must join different"),
        ("conv1+conv5", None, r"place \('conv1\+conv5'\) joins pools: give the layer by name"),
        ("conv1+conv5", "align", r"layer \('align'\) gives maps"),
        ("conv1+conv5", "ranked:keep=37", r"does not fit conv5: keep \(37\)"),
    ):
        with pytest.raises(ValueError, match=message):
            create_model("alexnet_pr", place=place, layer=layer, **SMALL)
    with pytest.raises(ValueError, match=r"pools \(7\) must be for layers: 0"):
        Joined(nn.Sequential(nn.ReLU()), {"7": nn.Flatten()})


def test_layers_that_do_not_fit_alexnet_are_named():
    with pytest.raises(ValueError, match=r"layer \('orient'\) needs maps of a group convolution"):
        create_model("alexnet_pr", layer="orient", place="pool5")
    with pytest.raises(ValueError, match=r"layer \('ranked'\) at input gives no maps"):
        create_model("alexnet_pr", layer="ranked", place="input")
    with pytest.raises(ValueError, match=r"does not fit pool5: keep \(37\)"):
        create_model("alexnet_pr", layer="ranked:keep=37", place="pool5")
