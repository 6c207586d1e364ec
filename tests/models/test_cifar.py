"""The networks for CIFAR-10."""

import pytest
import torch
from torch.nn import functional as F

from patchreorder.data.images import MEAN
from patchreorder.models import count_parameters, create_model
from patchreorder.models.cifar import MODELS
from patchreorder.models.normalise import STD
from patchreorder.operator.functional import patch_reorder

torch.set_num_threads(1)


@pytest.mark.parametrize("name", MODELS)
def test_every_network_learns_in_either_layout(name):
    model, x, labels = create_model(name, dataset="cifar10"), torch.rand(8, 3, 32, 32), torch.arange(8)
    first = F.cross_entropy(model(x), labels)
    first.backward()
    assert model(x).shape == (8, 10)
    for parameter_name, parameter in model.named_parameters():
        if not parameter_name.startswith("transformer.localisation"):  # behind weights that start at zero
            assert parameter.grad.abs().sum() > 0, parameter_name
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.001 * parameter.grad
        logits = model(x)
        assert F.cross_entropy(logits, labels) < first
        last = model.to(memory_format=torch.channels_last)(x.contiguous(memory_format=torch.channels_last))
        torch.testing.assert_close(last, logits, atol=1e-5, rtol=1e-4)


def test_counts():
    with torch.device("meta"):
        counts = {name: count_parameters(create_model(name)) for name in MODELS}
    assert counts["cifar_cnn"] == counts["cifar_pr"] == counts["cifar_pr_fine"] == 545_482
    assert counts["cifar_st"] - counts["cifar_cnn"] == 13_286
    assert abs(counts["cifar_gap"] - counts["cifar_cnn"]) < 1000
    model, macs = create_model("cifar_cnn"), []
    for layer in model:
        if hasattr(layer, "weight"):
            layer.register_forward_hook(
                lambda layer, _, y: macs.append(layer.weight.numel() * (y.shape[2] * y.shape[3] if y.dim() == 4 else 1))
            )
    model(torch.rand(1, 3, 32, 32))
    assert 19e6 < sum(macs) < 20e6


@pytest.mark.parametrize("name", ["cifar_pr", "cifar_pr_fine"])
def test_the_network_in_functions(name):
    model, x = create_model(name), torch.rand(3, 3, 32, 32)
    maps = (x - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    maps = F.max_pool2d(F.relu(model.conv1(maps)), 2)
    maps = F.max_pool2d(F.relu(model.conv2(maps)), 2)
    maps = F.relu(model.conv5(F.relu(model.conv4(F.relu(model.conv3(maps))))))
    assert maps.shape == (3, 64, 8, 8)
    if name == "cifar_pr":
        maps = F.max_pool2d(patch_reorder(maps, grid=2, levels=2), 2)
    else:
        maps = patch_reorder(F.max_pool2d(maps, 2), grid="pixels")
    logits = model.fc8(F.relu(model.fc7(F.relu(model.fc6(maps.flatten(1))))))
    torch.testing.assert_close(model(x), logits, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["cifar_st", "cifar_pr", "cifar_pr_fine"])
def test_the_same_seed_gives_the_same_cnn(name):
    x, states = torch.rand(2, 3, 32, 32), []
    models = []
    for each in ("cifar_cnn", name):
        torch.manual_seed(1)
        models.append(create_model(each))
        states.append(models[-1].state_dict())
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())
    assert torch.allclose(models[0](x), models[1](x), atol=1e-4) == (name == "cifar_st")


def test_the_global_average_is_of_the_fifth_convolution():
    model, maps = create_model("cifar_gap"), []
    model.relu5.register_forward_hook(lambda layer, _, y: maps.append(y))
    model.flatten.register_forward_hook(lambda layer, _, y: maps.append(y))
    model(torch.rand(1, 3, 32, 32))
    torch.testing.assert_close(maps[1], maps[0].mean((2, 3)))


@pytest.mark.parametrize("filters", [48, 160, (128, 128, 96)])
def test_more_filters_are_paid_by_the_connected_layers(filters):
    for name, options in (("cifar_gap", {}), ("cifar_pr", {"layer": "ranked:quantiles=4"}), ("cifar_cnn", {})):
        model = create_model(name, filters=filters, **options)
        made = model.conv3.out_channels, model.conv4.out_channels, model.conv5.out_channels
        assert made == (filters if isinstance(filters, tuple) else (96, 96, filters))
        assert abs(count_parameters(model) - 545_482) < 2000
        assert model(torch.rand(2, 3, 32, 32)).shape == (2, 10)


def test_shares_beside_the_pool_are_of_the_same_maps():
    model = create_model("cifar_pr", layer="ranked:quantiles=4", beside=True).eval()
    assert abs(count_parameters(model) - 545_482) < 1000
    x = torch.rand(2, 3, 32, 32)
    for layer in model[: [name for name, _ in model.named_children()].index("both")]:
        x = layer(x)
    pooled, quantiles = model.both(x).split([64 * 16, 64 * 4], 1)
    assert torch.equal(pooled, F.max_pool2d(x, 2).flatten(1))
    torch.testing.assert_close(
        quantiles, x.flatten(2).sort(2, descending=True).values.view(2, 64, 4, 16).mean(3).flatten(1)
    )


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"filters \(0\) must be 1 or more"):
        create_model("cifar_gap", filters=0)
    with pytest.raises(ValueError, match=r"filters \(96, 96, 900\) have more parameters than the whole CNN"):
        create_model("cifar_gap", filters=900)
    for wrong in (True, (128, 96), (128, 0, 96), "96"):
        with pytest.raises(ValueError, match="must be 1 or more, of conv5, or of conv3, conv4 and conv5"):
            create_model("cifar_cnn", filters=wrong)
    with pytest.raises(ValueError, match=r"beside: layer \('align'\) must be ranked, and place \('conv5'\) conv5"):
        create_model("cifar_pr", layer="align", beside=True)
    with pytest.raises(ValueError, match=r"dataset \('mnist'\) must be one of cifar10, .* for cifar_cnn"):
        create_model("cifar_cnn", dataset="mnist")
    with pytest.raises(ValueError, match=r"dataset \('cifar10'\) must be one of mnist"):
        create_model("cnn", dataset="cifar10")
    with pytest.raises(ValueError, match=r"options .*depth.* do not fit cifar_cnn"):
        create_model("cifar_cnn", depth=3)
    with pytest.raises(ValueError, match=r"place \('end'\) must be one of conv1, .*, conv5, pool5"):
        create_model("cifar_pr", place="end")


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
    model, x = create_model("cifar_pr", layer=layer, place=place), torch.rand(3, 3, 32, 32)
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
