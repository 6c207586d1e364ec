"""Transforms by known answers, and data sets whose images depend on (seed, epoch, index) and on nothing else."""

import math

import numpy as np
import pytest
import torch

from patchreorder.data import datasets, sources, transforms
from patchreorder.data.datasets import CANVAS, VARIANTS, Digits


def full(value: float, count: int = 2) -> torch.Tensor:
    return torch.full((count,), float(value))


def turned_by_hand(image: np.ndarray, degrees: float) -> np.ndarray:
    """Each pixel looked up where it came from, by loops: another algebra than the sampling grid's."""
    side = len(image)
    middle, angle = (side - 1) / 2, math.radians(degrees)
    result = np.zeros_like(image)
    for row in range(side):
        for column in range(side):
            x, y = column - middle, middle - row  # y upwards, so that counter-clockwise is positive
            from_x = math.cos(angle) * x + math.sin(angle) * y
            from_y = -math.sin(angle) * x + math.cos(angle) * y
            at_row, at_column = middle - from_y, from_x + middle
            for r in (math.floor(at_row), math.floor(at_row) + 1):
                for c in (math.floor(at_column), math.floor(at_column) + 1):
                    if 0 <= r < side and 0 <= c < side:
                        weight = (1 - abs(at_row - r)) * (1 - abs(at_column - c))
                        result[row, column] += weight * image[r, c]
    return result


@pytest.mark.parametrize("quarters", [0, 1, 2, 3, -1])
def test_a_quarter_turn_is_rot90(quarters):
    x = torch.rand(2, 3, 7, 7)
    turned = transforms.rotate(x, degrees=full(90 * quarters))
    assert torch.allclose(turned, torch.rot90(x, quarters, (2, 3)), atol=1e-5)


@pytest.mark.parametrize("degrees", [17.0, -63.0, 45.0])
def test_any_turn_is_that_of_the_loops(degrees):
    x = torch.rand(1, 1, 9, 9, dtype=torch.float64)
    by_hand = turned_by_hand(x[0, 0].numpy(), degrees)
    assert np.allclose(transforms.rotate(x, degrees=full(degrees, 1))[0, 0], by_hand, atol=1e-9)


def test_every_image_has_its_own_angle():
    x = torch.rand(2, 1, 5, 5)
    turned = transforms.rotate(x, degrees=torch.tensor([90.0, -90.0]))
    assert torch.allclose(turned[0], torch.rot90(x[0], 1, (1, 2)), atol=1e-5)
    assert torch.allclose(turned[1], torch.rot90(x[1], -1, (1, 2)), atol=1e-5)


def test_turned_corners_are_black():
    corners = transforms.rotate(torch.ones(1, 1, 20, 20), degrees=full(45, 1))[0, 0, [0, 0, -1, -1], [0, -1, 0, -1]]
    assert corners.tolist() == [0, 0, 0, 0]


def test_a_warp_by_whole_pixels_is_slicing():
    x = torch.rand(2, 1, 28, 28)
    shift = torch.tensor([[3.0, -2.0], [-7.0, 7.0]])  # down, right
    moved = transforms.warp(x, degrees=full(0), scale=full(1), shift=shift, size=(42, 42))
    for image, (down, right), got in zip(x, shift.int().tolist(), moved, strict=True):
        expected = torch.zeros(1, 42, 42)
        expected[:, 7 + down : 35 + down, 7 + right : 35 + right] = image
        assert torch.allclose(got, expected, atol=1e-5)


def test_a_warp_turns_before_it_shifts():
    x = torch.rand(1, 1, 5, 7)
    moved = transforms.warp(x, degrees=full(90, 1), scale=full(1, 1), shift=torch.tensor([[1.0, 2.0]]), size=(11, 11))
    expected = torch.zeros(1, 1, 11, 11)
    expected[..., 3:10, 5:10] = torch.rot90(x, 1, (2, 3))
    assert torch.allclose(moved, expected, atol=1e-5)


def test_scale_is_a_multiple_of_the_size():
    x = torch.zeros(1, 1, 28, 28)
    x[..., 9:19, 9:19] = 1
    areas = [
        transforms.warp(x, degrees=full(0, 1), scale=full(s, 1), shift=torch.zeros(1, 2), size=(42, 42)).sum()
        for s in (0.5, 1, 2)
    ]
    assert [area.item() for area in areas] == pytest.approx([25, 100, 400], rel=0.02)


def test_place_is_slicing():
    x = torch.rand(3, 2, 4, 5)
    corner = torch.tensor([[0, 0], [3, 1], [6, 5]])
    placed = transforms.place(x, corner=corner, size=(10, 10))
    for image, (row, column), got in zip(x, corner.tolist(), placed, strict=True):
        assert torch.equal(got[:, row : row + 4, column : column + 5], image)
        assert got.sum() == pytest.approx(image.sum().item(), rel=1e-5)


@pytest.mark.parametrize("corner", [[-1, 0], [7, 0], [0, 6]])
def test_place_refuses_what_sticks_out(corner):
    with pytest.raises(ValueError, match=r"corner .* must be from 0 to \[6, 5\]"):
        transforms.place(torch.rand(1, 1, 4, 5), corner=torch.tensor([corner]), size=(10, 10))


def test_numbers_are_a_function_of_seed_epoch_and_index():
    first = transforms.uniform(50, 3, seed=1, epoch=2)
    assert first.shape == (50, 3)
    assert 0 <= first.min() < first.max() < 1
    assert torch.equal(first, transforms.uniform(90, 3, seed=1, epoch=2)[:50])
    for other in ({"seed": 2, "epoch": 2}, {"seed": 1, "epoch": 3}, {"seed": 2, "epoch": 1}):
        assert not (first == transforms.uniform(50, 3, **other)).any()


# ---- data sets -------------------------------------------------------------------------------------


def digits(variant: str, seed: int = 0) -> Digits:
    generator = torch.Generator().manual_seed(5)
    images = torch.randint(1, 256, (40, 1, 28, 28), generator=generator, dtype=torch.uint8)
    return Digits(images, torch.arange(40) % 10, variant, seed)


@pytest.mark.parametrize("variant", VARIANTS)
def test_images_do_not_depend_on_the_batch(variant):
    whole, labels = digits(variant).batch(torch.arange(40), epoch=3)
    size = VARIANTS[variant].size
    assert whole.shape == (40, 1, size, size)
    assert whole.min() >= 0
    assert whole.max() <= 1 + 1e-6
    part, part_labels = digits(variant).batch(torch.tensor([31, 2]), epoch=3)
    assert torch.equal(part, whole[[31, 2]])
    assert torch.equal(part_labels, labels[[31, 2]])
    assert torch.equal(digits(variant).first(10).batch(torch.arange(10), epoch=3)[0], whole[:10])


@pytest.mark.parametrize("variant", [name for name in VARIANTS if VARIANTS[name].numbers])
def test_epochs_and_seeds_differ(variant):
    every = torch.arange(40)
    first, _ = digits(variant).batch(every, epoch=0)
    data = digits(variant)
    again, other = data.batch(every, epoch=0)[0], data.batch(every, epoch=1)[0]
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, digits(variant, seed=1).batch(every, epoch=0)[0])


def test_plain_digits_are_what_they_were():
    data = digits("mnist")
    assert torch.equal(data.batch(torch.arange(40))[0] * 255, data.images.float())


def test_shifted_digits_cover_every_place():
    data = Digits(torch.full((8000, 1, 28, 28), 255, dtype=torch.uint8), torch.zeros(8000).long(), "mnist-t")
    images, _ = data.batch(torch.arange(8000))
    rows, columns = images[:, 0].amax(2).argmax(1), images[:, 0].amax(1).argmax(1)
    counts = torch.bincount(rows * 15 + columns, minlength=225)
    assert len(counts) == 225  # 15 x 15 places of 28 on 42
    assert counts.min() > 10  # 35.6 on average
    assert images.sum((1, 2, 3)).unique().tolist() == [28 * 28]


def test_turned_digits_cover_half_a_circle_and_no_more():
    """A line from the centre upwards points where it was turned to."""
    image = torch.zeros(1, 28, 28, dtype=torch.uint8)
    image[0, :12, 13:15] = 255
    data = Digits(image.expand(2000, 1, 28, 28), torch.zeros(2000).long(), "mnist-r")
    images, _ = data.batch(torch.arange(2000))
    places = torch.arange(28) - 13.5
    x = (images[:, 0] * places).sum((1, 2))
    y = (images[:, 0] * -places[:, None]).sum((1, 2))
    angles = torch.rad2deg(torch.atan2(-x, y))  # 0 is up, positive counter-clockwise
    expected = transforms.uniform(2000, 1, seed=0, epoch=0)[:, 0] * 180 - 90
    assert torch.allclose(angles.double(), expected, atol=1.5)
    assert expected.min() < -85 < 85 < expected.max()


def test_all_three_stay_in_their_ranges():
    image = torch.zeros(1, 28, 28, dtype=torch.uint8)
    image[0, 9:19, 9:19] = 255
    data = Digits(image.expand(1000, 1, 28, 28), torch.zeros(1000).long(), "mnist-rts")
    images, _ = data.batch(torch.arange(1000))
    mass = images[:, 0].sum((1, 2))
    side = mass.sqrt() / 10
    assert 0.69 < side.min() < 0.72
    assert 1.17 < side.max() < 1.21
    places = torch.arange(CANVAS) - (CANVAS - 1) / 2
    for axis in (1, 2):
        centre = (images[:, 0].sum(3 - axis) * places).sum(1) / mass
        assert -7.1 < centre.min() < -6.8
        assert 6.8 < centre.max() < 7.1


def test_a_wrong_variant_or_split_is_named():
    with pytest.raises(ValueError, match=r"variant \('mnist-x'\) must be one of mnist, mnist-r"):
        digits("mnist-x")
    with pytest.raises(ValueError, match=r"split \('dev'\) must be train, test, fit or validation"):
        datasets.mnist("mnist", split="dev")


def test_fit_and_validation_divide_the_training_digits(monkeypatch):
    """On stand-ins for the four files: which digits go where, and that labels go with them."""
    pixels = {"train": np.arange(60_000, dtype=np.int64) % 251, "t10k": np.arange(10_000, dtype=np.int64) % 241}

    def read(name: str) -> np.ndarray:
        part, kind = name.split("-")[:2]
        if kind == "labels":
            return (pixels[part] % 10).astype(np.uint8)
        return np.broadcast_to(pixels[part].astype(np.uint8)[:, None, None], (len(pixels[part]), 28, 28)).copy()

    monkeypatch.setattr(sources, "fetch", lambda source, **_: {file.name: file.name for file in source.files})
    monkeypatch.setattr(sources, "read_idx", read)
    splits = {name: datasets.mnist("mnist", split=name) for name in ("train", "test", "fit", "validation")}
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


def test_generated_digits_can_be_told_apart():
    data = datasets.generated("mnist", count=30)
    images, labels = data.batch(torch.arange(30))
    assert labels.bincount().tolist() == [3] * 10
    shapes = (images > 0).flatten(1).float()
    same = (shapes @ shapes.T) / shapes.sum(1)
    alike = labels[:, None] == labels
    assert same[alike].min() == 1
    assert same[~alike].min() < 0.9


def test_centred_digits_lie_in_the_middle_of_the_canvas_of_t():
    plain, centred = (datasets.generated(name, count=6).batch(torch.arange(6))[0] for name in ("mnist", "mnist-c"))
    assert torch.equal(centred[..., 7:35, 7:35], plain)
    assert centred.count_nonzero() == plain.count_nonzero()  # nothing else is on it
    turned, both = (datasets.generated(name, count=6).batch(torch.arange(6))[0] for name in ("mnist-r", "mnist-cr"))
    assert torch.equal(both[..., 7:35, 7:35], turned)


@pytest.mark.parametrize(("name", "plain"), [("mnist-r-aug", "mnist-r"), ("mnist-t-aug", "mnist-t")])
def test_augmented_digits_are_those_of_the_column_swayed_by_little(name, plain, monkeypatch):
    count = 200
    images, swayed = (datasets.generated(each, count=count).batch(torch.arange(count))[0] for each in (plain, name))
    assert swayed.shape == images.shape
    area = swayed.sum((1, 2, 3)) / images.sum((1, 2, 3))  # the canvas is the same, and nothing was cut off
    low, high = 1.12**-2, 1.12**2
    assert low * 0.97 < area.min() < low * 1.1
    assert high / 1.1 < area.max() < high * 1.03
    monkeypatch.setattr(datasets, "SWAY", 0)
    still = datasets.generated(name, count=count).batch(torch.arange(count))[0]
    if name == "mnist-t-aug":  # whole pixels: without swaying it is T with other numbers of the same digit
        torch.testing.assert_close(still.flatten(1).sort().values, images.flatten(1).sort().values)
    else:
        torch.testing.assert_close(still.sum((1, 2, 3)), images.sum((1, 2, 3)), rtol=0.02, atol=0)
