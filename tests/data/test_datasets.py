"""MNIST and CIFAR-10: images depend on (seed, epoch, index) and on nothing else; only the slow test fetches."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from patchreorder.data import datasets, formats, sources, transforms
from patchreorder.data.datasets import CIFAR10_VARIANTS, MNIST_VARIANTS, ColourImages, Digits, Mnist
from patchreorder.data.generated import generate_digits
from patchreorder.data.images import MEAN_COLOUR

MEAN = torch.tensor(MEAN_COLOUR).view(3, 1, 1) / 255


def digits(variant: str, seed: int = 0) -> Digits:
    generator = torch.Generator().manual_seed(5)
    images = torch.randint(1, 256, (40, 1, 28, 28), generator=generator, dtype=torch.uint8)
    return Digits(images, torch.arange(40) % 10, variant, seed)


@pytest.mark.parametrize("variant", MNIST_VARIANTS)
def test_images_do_not_depend_on_the_batch(variant):
    whole, labels = digits(variant).batch(torch.arange(40), epoch=3)
    size = MNIST_VARIANTS[variant].size
    assert whole.shape == (40, 1, size, size)
    assert whole.min() >= 0
    assert whole.max() <= 1 + 1e-6
    part, part_labels = digits(variant).batch(torch.tensor([31, 2]), epoch=3)
    assert torch.equal(part, whole[[31, 2]])
    assert torch.equal(part_labels, labels[[31, 2]])
    assert torch.equal(digits(variant).first(10).batch(torch.arange(10), epoch=3)[0], whole[:10])


@pytest.mark.parametrize("variant", [name for name in MNIST_VARIANTS if MNIST_VARIANTS[name].numbers])
def test_epochs_and_seeds_differ(variant):
    every = torch.arange(40)
    first, _ = digits(variant).batch(every, epoch=0)
    data = digits(variant)
    again, other = data.batch(every, epoch=0)[0], data.batch(every, epoch=1)[0]
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, digits(variant, seed=1).batch(every, epoch=0)[0])


def test_plain_digits_are_the_stored_ones():
    data = digits("mnist")
    assert torch.equal(data.batch(torch.arange(40))[0] * 255, data.images.float())


def test_shifted_digits_cover_every_position():
    data = Digits(torch.full((8000, 1, 28, 28), 255, dtype=torch.uint8), torch.zeros(8000).long(), "mnist-t")
    images, _ = data.batch(torch.arange(8000))
    rows, columns = images[:, 0].amax(2).argmax(1), images[:, 0].amax(1).argmax(1)
    counts = torch.bincount(rows * 15 + columns, minlength=225)
    assert len(counts) == 225  # 15 x 15 positions of 28 on 42
    assert counts.min() > 10  # 35.6 on average
    assert images.sum((1, 2, 3)).unique().tolist() == [28 * 28]


def test_rotated_digits_cover_half_a_circle_and_no_more():
    """A line from the centre upwards points in the direction of the rotation."""
    image = torch.zeros(1, 28, 28, dtype=torch.uint8)
    image[0, :12, 13:15] = 255
    data = Digits(image.expand(2000, 1, 28, 28), torch.zeros(2000).long(), "mnist-r")
    images, _ = data.batch(torch.arange(2000))
    positions = torch.arange(28) - 13.5
    x = (images[:, 0] * positions).sum((1, 2))
    y = (images[:, 0] * -positions[:, None]).sum((1, 2))
    angles = torch.rad2deg(torch.atan2(-x, y))  # 0 is up, positive counter-clockwise
    expected = transforms.uniform(2000, 1, seed=0, epoch=0)[:, 0] * 180 - 90
    assert torch.allclose(angles.double(), expected, atol=1.5)
    assert expected.min() < -85 < 85 < expected.max()


def test_a_wrong_variant_or_split_is_named():
    with pytest.raises(ValueError, match=r"variant \('mnist-x'\) must be one of mnist, mnist-r"):
        digits("mnist-x")
    with pytest.raises(ValueError, match=r"variant \('mnist'\) must be one of cifar10, cifar10-r"):
        colour_images("mnist")
    for load in (datasets.mnist, datasets.cifar10):
        with pytest.raises(ValueError, match=r"split \('dev'\) must be train, test, fit or validation"):
            load("mnist", split="dev")


def test_fit_and_validation_divide_the_training_digits(monkeypatch):
    """On stand-ins for the four files: which digits go where, and that labels go with them."""
    pixels = {"train": np.arange(60_000, dtype=np.int64) % 251, "t10k": np.arange(10_000, dtype=np.int64) % 241}

    def read(name: str) -> np.ndarray:
        part, kind = name.split("-")[:2]
        if kind == "labels":
            return (pixels[part] % 10).astype(np.uint8)
        return np.broadcast_to(pixels[part].astype(np.uint8)[:, None, None], (len(pixels[part]), 28, 28)).copy()

    decoded = []
    monkeypatch.setattr(sources, "fetch", lambda source, **_: {file.name: file.name for file in source.files})
    monkeypatch.setattr(formats, "read_idx", lambda name: decoded.append(name) or read(name))
    files = Mnist()
    splits = {name: files.load("mnist", split=name) for name in ("train", "test", "fit", "validation")}
    assert len(decoded) == 4  # each file once
    assert {name: len(data) for name, data in splits.items()} == {
        "train": 60_000,
        "test": 10_000,
        "fit": 50_000,
        "validation": 10_000,
    }
    both = torch.cat([splits["fit"].images, splits["validation"].images])
    assert torch.equal(both, splits["train"].images)
    assert splits["test"].images[-1, 0, 0, 0] == pixels["t10k"][-1]
    for data in splits.values():
        assert torch.equal(data.labels, data.images[:, 0, 0, 0].long() % 10)


def test_centred_digits_are_in_the_centre_of_the_canvas_of_t():
    plain, centred = (generate_digits(name, count=6).batch(torch.arange(6))[0] for name in ("mnist", "mnist-c"))
    assert torch.equal(centred[..., 7:35, 7:35], plain)
    assert centred.count_nonzero() == plain.count_nonzero()  # nothing else is on it
    rotated, both = (generate_digits(name, count=6).batch(torch.arange(6))[0] for name in ("mnist-r", "mnist-cr"))
    assert torch.equal(both[..., 7:35, 7:35], rotated)


def test_digits_of_any_rotation_are_rotated_by_up_to_180_degrees():
    change = datasets.MNIST_VARIANTS["mnist-c360"].apply
    plain, centred = (generate_digits(name, count=2).batch(torch.arange(2))[0] for name in ("mnist", "mnist-c"))
    quarter, half = torch.tensor([[0.75]] * 2), torch.tensor([[0.0]] * 2)
    torch.testing.assert_close(change(plain, quarter), centred.rot90(1, (2, 3)), atol=1e-4, rtol=0)
    torch.testing.assert_close(change(plain, half), centred.rot90(2, (2, 3)), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("name", "plain"), [("mnist-r-aug", "mnist-r"), ("mnist-t-aug", "mnist-t")])
def test_augmented_digits_are_rotated_and_scaled_by_little(name, plain, monkeypatch):
    count = 200
    images, augmented = (generate_digits(each, count=count).batch(torch.arange(count))[0] for each in (plain, name))
    assert augmented.shape == images.shape
    area = augmented.sum((1, 2, 3)) / images.sum((1, 2, 3))  # the canvas is the same, and nothing was cut off
    low, high = 1.12**-2, 1.12**2
    assert low * 0.97 < area.min() < low * 1.1
    assert high / 1.1 < area.max() < high * 1.03
    monkeypatch.setattr(datasets, "AUG_RANGE", 0)
    still = generate_digits(name, count=count).batch(torch.arange(count))[0]
    if name == "mnist-t-aug":  # whole pixels: without augmentation it is T, at another position
        torch.testing.assert_close(still.flatten(1).sort().values, images.flatten(1).sort().values)
    else:
        torch.testing.assert_close(still.sum((1, 2, 3)), images.sum((1, 2, 3)), rtol=0.02, atol=0)


# ---- CIFAR-10 --------------------------------------------------------------------------------------


def colour_images(variant: str, count: int = 40, seed: int = 0) -> ColourImages:
    images = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8)
    return ColourImages(images, torch.arange(count) % 10, variant, seed)


@pytest.mark.parametrize("variant", CIFAR10_VARIANTS)
def test_colour_images_do_not_depend_on_the_batch(variant):
    data = colour_images(variant)
    whole, labels = data.batch(torch.arange(40), epoch=3)
    assert whole.shape == (40, 3, 32, 32)
    assert whole.is_contiguous()
    assert whole.min() > -1e-6
    assert whole.max() < 1 + 1e-6
    part, part_labels = data.batch(torch.tensor([31, 2]), epoch=3)
    assert torch.equal(part, whole[[31, 2]])
    assert torch.equal(part_labels, labels[[31, 2]])
    assert isinstance(data.first(10), ColourImages)
    assert torch.equal(data.first(10).batch(torch.arange(10), epoch=3)[0], whole[:10])
    other, _ = ColourImages(data.images, data.labels, variant, seed=1).batch(torch.arange(40), epoch=3)
    next_one, _ = data.batch(torch.arange(40), epoch=4)
    assert torch.equal(whole, other) == torch.equal(whole, next_one) == (variant == "cifar10")


def test_plain_colour_images_are_the_stored_ones():
    data = colour_images("cifar10")
    assert torch.equal((data.batch(torch.arange(40))[0] * 255).round().byte(), data.images)


@pytest.mark.parametrize("variant", [name for name in CIFAR10_VARIANTS if CIFAR10_VARIANTS[name].numbers])
def test_the_mean_colour_stays_and_fills(variant):
    """An image of the mean colour does not change, and a black one gets no lighter than that."""
    plain = torch.tensor(MEAN_COLOUR, dtype=torch.uint8).view(3, 1, 1).expand(30, 3, 32, 32)
    images, _ = ColourImages(plain, torch.zeros(30), variant).batch(torch.arange(30))
    torch.testing.assert_close(images, MEAN.expand_as(images))
    black, _ = ColourImages(torch.zeros_like(plain), torch.zeros(30), variant).batch(torch.arange(30))
    shares = (black / MEAN).amax((2, 3))
    torch.testing.assert_close(shares.max(), torch.tensor(1.0))
    torch.testing.assert_close(shares, shares[:, :1].expand_as(shares), atol=1e-4, rtol=0)


def centres(images: torch.Tensor) -> torch.Tensor:
    """Where the mass of bright spots on the mean colour is: pixels down and to the right of the centre."""
    mass = (images - MEAN).sum(1).clamp(min=1e-3)
    mass = torch.where(mass > 0.01, mass, 0)
    positions = torch.arange(32) - 15.5
    return (
        torch.stack([(mass.sum(2) * positions).sum(1), (mass.sum(1) * positions).sum(1)], 1) / mass.sum((1, 2))[:, None]
    )


def spots(count: int, row: int, column: int, variant: str) -> torch.Tensor:
    """Batches of one white spot of 2x2 on the mean colour."""
    images = torch.tensor(MEAN_COLOUR, dtype=torch.uint8).view(1, 3, 1, 1).repeat(count, 1, 32, 32)
    images[:, :, row : row + 2, column : column + 2] = 255
    return ColourImages(images, torch.zeros(count), variant).batch(torch.arange(count))[0]


def test_rotated_colour_images():
    found = centres(spots(600, 5, 15, "cifar10-r"))
    angles = torch.rad2deg(torch.atan2(-found[:, 1], -found[:, 0]))  # 0 is up, positive counter-clockwise
    assert -45.5 < angles.min() < -44
    assert 44 < angles.max() < 45.5
    assert angles.mean().abs() < 4
    assert angles.std() == pytest.approx(90 / 12**0.5, rel=0.1)
    torch.testing.assert_close(found.norm(dim=1), torch.full((600,), 10.0), atol=0.2, rtol=0)


def test_shifted_colour_images():
    found = centres(spots(600, 15, 15, "cifar10-t"))
    assert found.min() > -6.45
    assert found.max() < 6.45
    for axis in (0, 1):
        assert found[:, axis].min() < -6.2
        assert found[:, axis].max() > 6.2
        assert found[:, axis].std() == pytest.approx(12.8 / 12**0.5, rel=0.1)
    assert torch.corrcoef(found.T)[0, 1].abs() < 0.15


def test_training_images_are_flipped_half_the_time_and_cropped():
    found = centres(spots(3000, 15, 9, "cifar10-train"))
    steps = found.round().long()
    torch.testing.assert_close(found, steps.float(), atol=1e-3, rtol=0)  # whole pixels
    assert sorted(steps[:, 0].unique().tolist()) == list(range(-4, 5))
    assert sorted(steps[:, 1].unique().tolist()) == [*range(-10, -1), *range(2, 11)]
    assert (steps[:, 1] < 0).float().mean().item() == pytest.approx(0.5, abs=0.04)
    counts = torch.bincount((steps[:, 0] + 4) * 9 + (steps[:, 1].abs() - 2), minlength=81)
    assert counts.min() > 12  # 37 on average


def test_augmented_images_are_rotated_shifted_or_neither():
    """Two spots show a rotation by their direction, and a shift by fractions of pixels, which crops do not have."""
    images = torch.tensor(MEAN_COLOUR, dtype=torch.uint8).view(1, 3, 1, 1).repeat(900, 1, 32, 32)
    images[:, 0, 9:11, 15:17] = 255
    images[:, 2, 21:23, 15:17] = 255
    data = ColourImages(images, torch.zeros(900), "cifar10-train-aug").batch(torch.arange(900))[0]
    red, blue = (centres(data[:, [channel] * 3] - MEAN[channel] + MEAN) for channel in (0, 2))
    angles = torch.rad2deg(torch.atan2(*(red - blue).flip(1).T))
    angles = torch.where(angles > 90, angles - 180, torch.where(angles < -90, angles + 180, angles))
    rotated = angles.abs() > 0.7
    middle = (red + blue) / 2
    whole = (middle - middle.round()).abs().amax(1) < 0.02
    assert rotated.float().mean().item() == pytest.approx(1 / 3, abs=0.05)
    assert (whole & ~rotated).float().mean().item() == pytest.approx(1 / 3, abs=0.05)
    assert angles.abs().max() < 46
    assert angles.abs().max() > 43
    assert middle[~rotated].abs().max() > 9  # 6.4 and 4
    assert middle[rotated].abs().max() < 4.6


def test_digits_in_one_pose():
    plain = generate_digits("mnist", count=4)
    every, images = torch.arange(4), plain.images / 255
    for variant, canvas in (("mnist-r", images), ("mnist-t", F.pad(images, (7, 7, 7, 7)))):
        data = generate_digits(variant, count=4)
        rotated, labels = data.posed(degrees=90).batch(every)
        torch.testing.assert_close(rotated, torch.rot90(canvas, 1, (2, 3)), atol=1e-4, rtol=0)
        assert torch.equal(labels, data.labels)
    right, _ = data.posed(right=7).batch(every[1:])
    torch.testing.assert_close(right, F.pad(images, (14, 0, 7, 7))[1:], atol=1e-4, rtol=0)


def test_colour_images_in_one_pose():
    data = colour_images("cifar10-r", count=6)
    every, images = torch.arange(6), data.images / 255
    still, labels = data.posed().batch(every, epoch=4)
    torch.testing.assert_close(still, images, atol=1e-5, rtol=0)
    assert torch.equal(labels, data.labels)
    rotated, _ = data.posed(degrees=90).batch(every)
    torch.testing.assert_close(rotated, torch.rot90(images, 1, (2, 3)), atol=1e-4, rtol=0)
    right, _ = data.posed(right=3).batch(every[2:])
    torch.testing.assert_close(right[..., 3:], images[2:, ..., :-3], atol=1e-4, rtol=0)
    torch.testing.assert_close(right[..., :3], MEAN.expand(4, 3, 32, 3), atol=1e-4, rtol=0)
    assert len(data.posed()) == 6


def test_the_splits_of_cifar10(tmp_path, monkeypatch):
    """On stand-ins of two images a file: which go where, and that labels go with them."""
    labels = {"train": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], "test": [7, 3]}
    for part, found in labels.items():
        (tmp_path / f"{part}_lables.json").write_text(json.dumps(found))
        for start in range(0, len(found), 2):
            name = "test_batch" if part == "test" else f"data_batch_{start // 2 + 1}"
            rows = np.array(found[start : start + 2], np.uint8)[:, None, None]
            pixels = np.ascontiguousarray(np.broadcast_to(rows, (2, 1024, 3)))
            Image.fromarray(pixels).save(tmp_path / f"{name}.png")
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
