"""Tiny-ImageNet: its folders, the file of decoded photographs, and the variants of training."""

import numpy as np
import pytest
import torch
from PIL import Image

from patchreorder.data.images import MEAN_COLOUR, BadImage
from patchreorder.data.tiny_imagenet import SIDE, TinyImageNet, TinyImages
from patchreorder.data.transforms import uniform

CLASSES = ("n01", "n02")


def write(folder, *, images=10, side=SIDE):
    """Two classes of noise; the validation images are listed in another order than that of the classes."""
    random = np.random.default_rng(0)

    def save(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (side, side, 3), dtype=np.uint8)).save(file, "JPEG", quality=95)

    for name in CLASSES:
        for number in range(images):
            save(folder / "train" / name / "images" / f"{name}_{number}.JPEG")
        (folder / "train" / name / f"{name}_boxes.txt").write_text("")
    for number in range(3):
        save(folder / "val" / "images" / f"val_{number}.JPEG")
    lines = [f"val_{number}.JPEG\t{CLASSES[1 - number % 2]}\t0\t0\t63\t63" for number in range(3)]
    (folder / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    (folder / "words.txt").write_text("n01\tgoldfish, Carassius auratus\nn09\tnone\n")
    return folder


def pixels(file):
    return torch.from_numpy(np.array(Image.open(file).convert("RGB"))).permute(2, 0, 1)


def test_images_and_labels_are_those_of_the_files(tmp_path):
    files = TinyImageNet(write(tmp_path))
    train, test = (files.load("tiny", split=split) for split in ("train", "test"))
    assert train.labels.tolist() == [0] * 10 + [1] * 10
    assert test.labels.tolist() == [1, 0, 1]
    assert torch.equal(train.images[11], pixels(tmp_path / "train/n02/images/n02_1.JPEG"))
    assert torch.equal(test.images[2], pixels(tmp_path / "val/images/val_2.JPEG"))
    assert files.titles == ["goldfish", "n02"]


def test_a_tenth_of_each_class_is_for_validation(tmp_path):
    files = TinyImageNet(write(tmp_path))
    fit, held = (files.load("tiny", split=split) for split in ("fit", "validation"))
    assert fit.labels.tolist() == [0] * 9 + [1] * 9
    assert held.labels.tolist() == [0, 1]
    assert torch.equal(held.images[1], pixels(tmp_path / "train/n02/images/n02_9.JPEG"))
    assert fit.images.is_contiguous(memory_format=torch.channels_last)


def test_photographs_are_decoded_once(tmp_path):
    folder, kept = write(tmp_path / "data"), tmp_path / "kept"
    first = TinyImageNet(folder, kept=kept).load("tiny", split="train").images.clone()
    (folder / "train/n01/images/n01_0.JPEG").write_bytes(b"no image")
    said = []
    again = TinyImageNet(folder, kept=kept, say=said.append).load("tiny", split="train")
    assert torch.equal(first, again.images)
    assert not said
    again.images.zero_()  # a private map: the file keeps its bytes
    assert torch.equal(TinyImageNet(folder, kept=kept).load("tiny", split="train").images, first)
    (file,) = kept.iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(BadImage, match="n01_0"):
        TinyImageNet(folder, kept=kept).load("tiny", split="train")


def test_other_layouts_are_refused(tmp_path):
    with pytest.raises(ValueError, match="not Tiny-ImageNet: expected train/CLASS/images"):
        TinyImageNet(tmp_path)
    folder = write(tmp_path / "large", side=65)
    with pytest.raises(BadImage, match=r"n01_0\.JPEG has 65x65 pixels, not 64x64"):
        TinyImageNet(folder).load("tiny", split="train")
    (folder / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn03\t0\n")
    with pytest.raises(ValueError, match=r"line 1, must be a file and a class of train/: 'val_0\.JPEG"):
        TinyImageNet(folder).load("tiny", split="test")
    (folder / "val" / "val_annotations.txt").write_text("../val_0.JPEG\tn01\t0\n")
    with pytest.raises(ValueError, match="line 1"):
        TinyImageNet(folder).load("tiny", split="test")


@pytest.fixture
def noise():
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (40, SIDE, SIDE, 3), dtype=torch.uint8, generator=generator)
    return TinyImages(images.permute(0, 3, 1, 2), torch.arange(40), "tiny-train", seed=3)


def test_a_training_image_is_flipped_and_shifted_on_the_mean_colour(noise):
    """Every pixel is read from where the random numbers say; `take` knows nothing of slices."""
    indices = torch.tensor([5, 0, 39])
    shown, labels = noise.batch(indices, epoch=2)
    assert labels.tolist() == [5, 0, 39]
    assert shown.is_contiguous(memory_format=torch.channels_last)
    numbers = uniform(40, 3, seed=3, epoch=2)
    for own, index in zip(shown, indices.tolist(), strict=True):
        flip, down, right = numbers[index].tolist()
        check(own, noise.images[index], flip < 0.5, int(down * 9) - 4, int(right * 9) - 4)


def check(shown, image, flip, down, right):
    for y in range(0, SIDE, 3):
        for x in range(SIDE):
            row, column = y - down, x - right
            wanted = MEAN_COLOUR
            if 0 <= row < SIDE and 0 <= column < SIDE:
                wanted = tuple(image[:, row, SIDE - 1 - column if flip else column].tolist())
            assert tuple(shown[:, y, x].tolist()) == wanted, (y, x)


def test_augmentation_rotates_a_third_and_shifts_a_third(noise):
    data = TinyImages(noise.images, noise.labels, "tiny-train-aug", seed=3)
    before = data.images.clone()
    shown = data.batch(torch.arange(40))[0]
    assert torch.equal(data.images, before)
    numbers = uniform(40, 7, seed=3, epoch=0)
    kinds = []
    for index in range(40):
        choice, _, down, right, flip, near_down, near_right = numbers[index].tolist()
        far = (round((down - 0.5) * 25.6), round((right - 0.5) * 25.6)) if choice >= 2 / 3 else (0, 0)
        near = int(near_down * 9) - 4 + far[0], int(near_right * 9) - 4 + far[1]
        kinds.append("R" if choice < 1 / 3 else "T" if choice >= 2 / 3 else "")
        if kinds[-1] != "R":
            check(shown[index], data.images[index], flip < 0.5, *near)
    assert set(kinds) == {"R", "T", ""}
    # A rotated image: as R shows it, but for rounding, flips and the near shift.
    (index, *_) = [index for index, kind in enumerate(kinds) if kind == "R"]
    _, angle, _, _, flip, near_down, near_right = numbers[index].tolist()
    turned = TinyImages(data.images, data.labels, "tiny", seed=0).posed(degrees=angle * 90 - 45)
    wanted = (turned.batch(torch.tensor([index]))[0][0].clamp(0, 1) * 255).round().byte()
    check(shown[index], wanted, flip < 0.5, int(near_down * 9) - 4, int(near_right * 9) - 4)


def test_the_same_test_images_for_every_model(noise):
    data = TinyImages(noise.images, noise.labels, "tiny-t")
    apart = torch.cat([data.batch(torch.tensor([index]))[0] for index in (3, 1)])
    torch.testing.assert_close(data.batch(torch.tensor([3, 1]))[0], apart)
    shift = (uniform(40, 2, seed=0, epoch=0)[3] - 0.5) * 25.6
    down, right = shift.round().int().tolist()
    flat = TinyImages(torch.full_like(noise.images, 255), noise.labels, "tiny-t").batch(torch.tensor([3]))[0][0]
    covered = (flat[0] > 0.99).sum().item()
    assert abs(covered - (SIDE - abs(down)) * (SIDE - abs(right))) <= 2 * SIDE
    assert flat[0].min().item() == pytest.approx(MEAN_COLOUR[0] / 255, abs=1e-6)
