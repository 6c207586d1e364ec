"""CIFAR-10: the networks for it, its files, and what batches are made of; only the slow test fetches it."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from patchreorder.data import datasets, sources
from patchreorder.data.datasets import COLOURED, MEAN_COLOUR, Pictures
from patchreorder.models import alexnet, cifar, count_parameters, create_model
from patchreorder.models.cifar import MODELS
from patchreorder.operator.functional import patch_reorder

torch.set_num_threads(1)
MEAN = torch.tensor(MEAN_COLOUR).view(3, 1, 1) / 255


# ---- networks --------------------------------------------------------------------------------------


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
    maps = (x - torch.tensor(alexnet.MEAN).view(3, 1, 1)) / torch.tensor(alexnet.STD).view(3, 1, 1)
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
    pooled, shares = model.both(x).split([64 * 16, 64 * 4], 1)
    assert torch.equal(pooled, F.max_pool2d(x, 2).flatten(1))
    torch.testing.assert_close(
        shares, x.flatten(2).sort(2, descending=True).values.view(2, 64, 4, 16).mean(3).flatten(1)
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
    with pytest.raises(ValueError, match=r"variant \('mnist'\) must be one of cifar10, cifar10-r"):
        pictures("mnist")
    with pytest.raises(ValueError, match=r"split \('dev'\) must be train, test, fit or validation"):
        datasets.cifar10("cifar10", split="dev")


def test_networks_and_pictures_agree():
    assert tuple(COLOURED) == cifar.DATASETS
    assert {variant.size for variant in COLOURED.values()} == {cifar.SIZE}
    assert [round(255 * part) for part in alexnet.MEAN] == list(MEAN_COLOUR)


# ---- batches ---------------------------------------------------------------------------------------


def pictures(variant: str, count: int = 40, seed: int = 0) -> Pictures:
    images = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8)
    return Pictures(images, torch.arange(count) % 10, variant, seed)


@pytest.mark.parametrize("variant", COLOURED)
def test_a_picture_is_the_same_whatever_the_batch(variant):
    data = pictures(variant)
    whole, labels = data.batch(torch.arange(40), epoch=3)
    assert whole.shape == (40, 3, 32, 32)
    assert whole.is_contiguous()
    assert whole.min() > -1e-6
    assert whole.max() < 1 + 1e-6
    part, part_labels = data.batch(torch.tensor([31, 2]), epoch=3)
    assert torch.equal(part, whole[[31, 2]])
    assert torch.equal(part_labels, labels[[31, 2]])
    assert isinstance(data.first(10), Pictures)
    assert torch.equal(data.first(10).batch(torch.arange(10), epoch=3)[0], whole[:10])
    other, _ = Pictures(data.images, data.labels, variant, seed=1).batch(torch.arange(40), epoch=3)
    next_one, _ = data.batch(torch.arange(40), epoch=4)
    assert torch.equal(whole, other) == torch.equal(whole, next_one) == (variant == "cifar10")


def test_plain_pictures_are_what_they_were():
    data = pictures("cifar10")
    assert torch.equal((data.batch(torch.arange(40))[0] * 255).round().byte(), data.images)


@pytest.mark.parametrize("variant", [name for name in COLOURED if COLOURED[name].numbers])
def test_the_mean_colour_stays_and_fills(variant):
    """A picture of nothing but the mean colour does not change, and a black one gets no lighter than that."""
    plain = torch.tensor(MEAN_COLOUR, dtype=torch.uint8).view(3, 1, 1).expand(30, 3, 32, 32)
    images, _ = Pictures(plain, torch.zeros(30), variant).batch(torch.arange(30))
    torch.testing.assert_close(images, MEAN.expand_as(images))
    black, _ = Pictures(torch.zeros_like(plain), torch.zeros(30), variant).batch(torch.arange(30))
    shares = (black / MEAN).amax((2, 3))
    torch.testing.assert_close(shares.max(), torch.tensor(1.0))
    torch.testing.assert_close(shares, shares[:, :1].expand_as(shares), atol=1e-4, rtol=0)


def centres(images: torch.Tensor) -> torch.Tensor:
    """Where the mass of bright spots on the mean colour is: pixels down and to the right of the centre."""
    mass = (images - MEAN).sum(1).clamp(min=1e-3)
    mass = torch.where(mass > 0.01, mass, 0)
    places = torch.arange(32) - 15.5
    return torch.stack([(mass.sum(2) * places).sum(1), (mass.sum(1) * places).sum(1)], 1) / mass.sum((1, 2))[:, None]


def spots(count: int, row: int, column: int, variant: str) -> torch.Tensor:
    """Batches of one white spot of 2x2 on the mean colour."""
    images = torch.tensor(MEAN_COLOUR, dtype=torch.uint8).view(1, 3, 1, 1).repeat(count, 1, 32, 32)
    images[:, :, row : row + 2, column : column + 2] = 255
    return Pictures(images, torch.zeros(count), variant).batch(torch.arange(count))[0]


def test_turned_pictures():
    found = centres(spots(600, 5, 15, "cifar10-r"))
    angles = torch.rad2deg(torch.atan2(-found[:, 1], -found[:, 0]))  # 0 is up, positive counter-clockwise
    assert -45.5 < angles.min() < -44
    assert 44 < angles.max() < 45.5
    assert angles.mean().abs() < 4
    assert angles.std() == pytest.approx(90 / 12**0.5, rel=0.1)
    torch.testing.assert_close(found.norm(dim=1), torch.full((600,), 10.0), atol=0.2, rtol=0)


def test_shifted_pictures():
    found = centres(spots(600, 15, 15, "cifar10-t"))
    assert found.min() > -6.45
    assert found.max() < 6.45
    for axis in (0, 1):
        assert found[:, axis].min() < -6.2
        assert found[:, axis].max() > 6.2
        assert found[:, axis].std() == pytest.approx(12.8 / 12**0.5, rel=0.1)
    assert torch.corrcoef(found.T)[0, 1].abs() < 0.15


def test_pictures_to_train_on_are_flipped_half_the_time_and_cropped():
    found = centres(spots(3000, 15, 9, "cifar10-train"))
    steps = found.round().long()
    torch.testing.assert_close(found, steps.float(), atol=1e-3, rtol=0)  # whole pixels
    assert sorted(steps[:, 0].unique().tolist()) == list(range(-4, 5))
    assert sorted(steps[:, 1].unique().tolist()) == [*range(-10, -1), *range(2, 11)]
    assert (steps[:, 1] < 0).float().mean().item() == pytest.approx(0.5, abs=0.04)
    counts = torch.bincount((steps[:, 0] + 4) * 9 + (steps[:, 1].abs() - 2), minlength=81)
    assert counts.min() > 12  # 37 on average


def test_augmented_pictures_are_turned_shifted_or_neither():
    """Two spots tell a turn by their direction, a shift by what flips and crops do not do: parts of pixels."""
    images = torch.tensor(MEAN_COLOUR, dtype=torch.uint8).view(1, 3, 1, 1).repeat(900, 1, 32, 32)
    images[:, 0, 9:11, 15:17] = 255
    images[:, 2, 21:23, 15:17] = 255
    data = Pictures(images, torch.zeros(900), "cifar10-train-aug").batch(torch.arange(900))[0]
    red, blue = (centres(data[:, [channel] * 3] - MEAN[channel] + MEAN) for channel in (0, 2))
    angles = torch.rad2deg(torch.atan2(*(red - blue).flip(1).T))
    angles = torch.where(angles > 90, angles - 180, torch.where(angles < -90, angles + 180, angles))
    turned = angles.abs() > 0.7
    middle = (red + blue) / 2
    whole = (middle - middle.round()).abs().amax(1) < 0.02
    assert turned.float().mean().item() == pytest.approx(1 / 3, abs=0.05)
    assert (whole & ~turned).float().mean().item() == pytest.approx(1 / 3, abs=0.05)
    assert angles.abs().max() < 46
    assert angles.abs().max() > 43
    assert middle[~turned].abs().max() > 9  # 6.4 and 4
    assert middle[turned].abs().max() < 4.6


def test_poses():
    data = pictures("cifar10-r", count=6)
    every, images = torch.arange(6), data.images / 255
    still, labels = data.posed().batch(every, epoch=4)
    torch.testing.assert_close(still, images, atol=1e-5, rtol=0)
    assert torch.equal(labels, data.labels)
    turned, _ = data.posed(degrees=90).batch(every)
    torch.testing.assert_close(turned, torch.rot90(images, 1, (2, 3)), atol=1e-4, rtol=0)
    right, _ = data.posed(right=3).batch(every[2:])
    torch.testing.assert_close(right[..., 3:], images[2:, ..., :-3], atol=1e-4, rtol=0)
    torch.testing.assert_close(right[..., :3], MEAN.expand(4, 3, 32, 3), atol=1e-4, rtol=0)
    assert len(data.posed()) == 6


def test_generated_pictures_can_be_told_apart():
    data = datasets.generated_pictures("cifar10", count=30)
    images, labels = data.batch(torch.arange(30))
    assert images.shape == (30, 3, 32, 32)
    assert labels.bincount().tolist() == [3] * 10
    directions = F.normalize(images.flatten(1))
    same, alike = directions @ directions.T, labels[:, None] == labels
    assert same[alike].min() > 0.99
    assert same[~alike].max() < 0.97


# ---- files -----------------------------------------------------------------------------------------


def write(path, pixels: np.ndarray) -> None:
    Image.fromarray(pixels).save(path)


def test_a_batch_of_pictures_is_read(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4, 4, 3), np.uint8)
    write(tmp_path / "batch.png", pixels.reshape(5, 16, 3))
    found = sources.read_pictures(tmp_path / "batch.png", count=5, side=4)
    assert found.flags.writeable
    np.testing.assert_array_equal(found, pixels.transpose(0, 3, 1, 2))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("grey", r"holds \('L', 16, 5\) \(colours, width, height\), expected \('RGB', 16, 5\)"),
        ("long", r"holds \('RGB', 16, 6\)"),
        ("cut", "cannot be read as PNG"),
        ("jpeg", "cannot be read as PNG"),
        ("empty", "cannot be read as PNG"),
    ],
)
def test_other_pictures_are_refused(kind, reason, tmp_path):
    path = tmp_path / "batch.png"
    pixels = np.random.default_rng(0).integers(0, 256, (6 if kind == "long" else 5, 16, 3), np.uint8)
    write(path, pixels[..., 0] if kind == "grey" else pixels)
    if kind == "cut":
        path.write_bytes(path.read_bytes()[:150])
    if kind == "empty":
        path.write_bytes(b"")
    if kind == "jpeg":
        Image.fromarray(pixels).save(path, format="JPEG")
    with pytest.raises(ValueError, match=reason):
        sources.read_pictures(path, count=5, side=4)


@pytest.mark.parametrize("content", ["[0, 1]", "[0, 1, 10]", "[0, 1, true]", "[0, 1.0, 2]", "{}", "[0,", "[0, -1, 2]"])
def test_other_labels_are_refused(content, tmp_path):
    path = tmp_path / "labels.json"
    path.write_text("[0, 9, 2]")
    assert sources.read_labels(path, count=3, classes=10).tolist() == [0, 9, 2]
    path.write_text(content)
    with pytest.raises(ValueError, match=r"labels\.json"):
        sources.read_labels(path, count=3, classes=10)


def test_the_splits(tmp_path, monkeypatch):
    """On stand-ins of two pictures a batch: which go where, and that labels go with them."""
    labels = {"train": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], "test": [7, 3]}
    for part, found in labels.items():
        (tmp_path / f"{part}_lables.json").write_text(json.dumps(found))
        for start in range(0, len(found), 2):
            name = "test_batch" if part == "test" else f"data_batch_{start // 2 + 1}"
            rows = np.array(found[start : start + 2], np.uint8)[:, None, None]
            write(tmp_path / f"{name}.png", np.ascontiguousarray(np.broadcast_to(rows, (2, 1024, 3))))
    monkeypatch.setattr(
        sources, "fetch", lambda source, **_: {file.name: tmp_path / file.name for file in source.files}
    )
    monkeypatch.setattr(datasets, "BATCH", 2)
    monkeypatch.setattr(datasets, "HELD_OUT", 2)
    splits = {name: datasets.cifar10("cifar10", split=name) for name in datasets.SPLITS}
    wanted = {"train": labels["train"], "test": [7, 3], "fit": list(range(8)), "validation": [8, 9]}
    assert {name: data.labels.tolist() for name, data in splits.items()} == wanted
    for data in splits.values():
        assert torch.equal(data.images[:, 2, 31, 31].long(), data.labels)
        assert data.images.shape[1:] == (3, 32, 32)
    assert datasets.cifar10("cifar10-r", split="train").images is not None
    assert datasets._decoded.cache_info().misses <= 2  # decoded once


@pytest.mark.slow
def test_cifar10_for_real():
    try:
        sets = {split: datasets.cifar10("cifar10", split=split) for split in ("train", "test")}
    except OSError as error:
        pytest.skip(f"CIFAR-10 cannot be fetched here: {error}")
    assert {split: data.labels.bincount().tolist() for split, data in sets.items()} == {
        "train": [5000] * 10,
        "test": [1000] * 10,
    }
    assert sets["test"].labels[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    assert sets["train"].labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    # The means and deviations that everybody normalises CIFAR-10 with.
    pixels = sets["train"].images.float() / 255
    assert [round(part, 4) for part in pixels.mean((0, 2, 3)).tolist()] == [0.4914, 0.4822, 0.4465]
    assert [round(part, 4) for part in pixels.std((0, 2, 3)).tolist()] == [0.247, 0.2435, 0.2616]
