"""Views by known answers: what is shown depends on (seed, epoch, place) only and is what the plain definition gives."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from patchreorder.data import transforms
from patchreorder.data.folders import list_images
from patchreorder.data.generated import write_photos
from patchreorder.data.images import MEAN_COLOUR, BadImage
from patchreorder.data.photos import Photos
from patchreorder.data.poses import UPRIGHT, Pose
from patchreorder.data.shard_writer import write
from patchreorder.data.views import VIEWS, Crop, centre_crop, resized_crop

POSES = [Pose(degrees=30), Pose(degrees=-45), Pose(down=0.1, right=-0.17)]


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def smooth(height: int, width: int) -> Image.Image:
    return Image.fromarray(noise(9, 12)).resize((width, height), Image.Resampling.BICUBIC)


def on_mean(array: np.ndarray) -> np.ndarray:
    return np.full_like(array, MEAN_COLOUR)


def shown(array: np.ndarray, **pose: float) -> np.ndarray:
    """A square picture at its own size: nothing but the pose is done to it."""
    side = len(array)
    return centre_crop(Image.fromarray(array), pose=Pose(**pose), size=side, short=side).numpy()


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_photos(tmp_path_factory.mktemp("photos"), classes=3, images=8, seed=1)


# ---- poses -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", [8, 9])
@pytest.mark.parametrize("quarters", [0, 1, 2, 3, -1])
def test_a_quarter_turn_is_rot90(quarters, side):
    x = noise(side, side)
    assert np.array_equal(shown(x, degrees=90 * quarters), np.rot90(x, quarters))


@pytest.mark.parametrize(("down", "right"), [(3, 0), (0, -2), (-1, 4), (20, 0)])
def test_a_shift_by_whole_pixels_is_slicing(down, right):
    x, expected = noise(10, 10), on_mean(noise(10, 10))
    for row in range(10):
        for column in range(10):
            if 0 <= row - down < 10 and 0 <= column - right < 10:
                expected[row, column] = x[row - down, column - right]
    assert np.array_equal(shown(x, down=down / 10, right=right / 10), expected)


def test_a_turn_comes_before_a_shift():
    x, expected = noise(8, 8), on_mean(noise(8, 8))
    expected[2:, :7] = np.rot90(x)[:6, 1:]
    assert np.array_equal(shown(x, degrees=90, down=0.25, right=-0.125), expected)


def test_positive_turns_are_counter_clockwise_by_degrees():
    x = np.zeros((101, 101, 3), np.uint8)
    x[50, 60:] = 255  # a line from the centre to the right
    bright = shown(x, degrees=30)[..., 0]
    bright[bright == MEAN_COLOUR[0]] = 0  # the corners
    row, column = np.argwhere(bright > 100).mean(0)
    assert np.degrees(np.arctan2(50 - row, column - 50)) == pytest.approx(30, abs=1)


def test_half_a_pixel_is_the_mean_of_two():
    x = noise(10, 10)
    got = shown(x, right=0.05)[:, 1:-1].astype(int)
    assert np.abs(got - (x[:, :-2].astype(int) + x[:, 1:-1]) / 2).max() <= 1


def test_uncovered_places_have_the_mean_colour():
    got = shown(noise(40, 40), degrees=45)
    assert all(got[row, column].tolist() == [*MEAN_COLOUR] for row in (0, -1) for column in (0, -1))


# ---- crops -----------------------------------------------------------------------------------------


def plainly(image: Image.Image, pose: Pose, size: int, short: int) -> np.ndarray:
    """The definition: transform the whole, scale the whole, crop. By Pillow's own rotate."""
    width, height = image.size
    if pose.degrees:
        image = image.rotate(pose.degrees, Image.Resampling.BILINEAR, fillcolor=MEAN_COLOUR)
    if pose.down or pose.right:
        shift = (1, 0, -pose.right * width, 0, 1, -pose.down * height)
        image = image.transform(
            image.size, Image.Transform.AFFINE, shift, Image.Resampling.BILINEAR, fillcolor=MEAN_COLOUR
        )
    scale = short / min(width, height)
    image = image.resize((round(width * scale), round(height * scale)), Image.Resampling.BILINEAR)
    left, top = (image.width - size) // 2, (image.height - size) // 2
    return np.asarray(image.crop((left, top, left + size, top + size))).astype(int)


@pytest.mark.parametrize("pose", [UPRIGHT, *POSES])
@pytest.mark.parametrize("size", [(500, 375), (300, 431), (90, 61), (256, 256), (300, 3000)])
def test_only_what_the_crop_sees_is_what_the_whole_gives(size, pose):
    image = Image.fromarray(noise(*size[::-1]))
    got = centre_crop(image, pose=pose, size=112, short=128).numpy().astype(int)
    assert np.abs(got - plainly(image, pose, 112, 128)).max() <= 1


def test_the_centre_is_exact_without_scaling():
    x = noise(64, 91)
    got = centre_crop(Image.fromarray(x), pose=UPRIGHT, size=48, short=64).numpy()
    assert np.array_equal(got, x[8:56, 21:69])


def test_crops_and_flips_are_exact_without_scaling():
    x = noise(64, 91)
    for down, right, top, left in ((0, 0, 0, 0), (0.999, 0.999, 16, 43), (0.5, 0.5, 8, 22)):
        for flip in (False, True):
            crop = Crop(down, right, flip)
            got = resized_crop(Image.fromarray(x), pose=UPRIGHT, crop=crop, size=48, short=64).numpy()
            expected = x[top : top + 48, left : left + 48]
            assert np.array_equal(got, expected[:, ::-1] if flip else expected)


@pytest.mark.parametrize("pose", [UPRIGHT, *POSES])
def test_a_scaled_crop_is_pillows(pose):
    """Of the whole posed picture, and by Pillow's filter instead of torch's."""
    image = smooth(150, 200)
    got = resized_crop(image, pose=pose, crop=Crop(0.5, 0.25, False), size=56, short=75).numpy().astype(int)
    canvas = image.rotate(pose.degrees, Image.Resampling.BILINEAR, fillcolor=MEAN_COLOUR)
    shift = (1, 0, -pose.right * 200, 0, 1, -pose.down * 150)
    canvas = canvas.transform(
        (200, 150), Image.Transform.AFFINE, shift, Image.Resampling.BILINEAR, fillcolor=MEAN_COLOUR
    )
    expected = np.asarray(canvas.crop((22, 19, 134, 131)).resize((56, 56), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(got - expected).max() <= 2


@pytest.mark.parametrize("size", [(1, 1), (1, 3000), (3000, 1), (2, 7)])
def test_thin_pictures_are_shown(size):
    image = Image.new("RGB", size, (9, 99, 199))
    assert (centre_crop(image, pose=UPRIGHT, size=24, short=32) == torch.tensor([9, 99, 199])).all()
    assert centre_crop(image, pose=Pose(20, 0.1, 0), size=24, short=32).shape == (24, 24, 3)
    cropped = resized_crop(image, pose=UPRIGHT, crop=Crop(0.9, 0.9, True), size=24, short=32)
    assert (cropped == torch.tensor([9, 99, 199])).all()


# ---- numbers ---------------------------------------------------------------------------------------


def test_numbers_mean_what_the_paper_says():
    draws = transforms.uniform(3000, 6, seed=0, epoch=0).tolist()
    turns = [VIEWS["R"].pose(numbers) for numbers in draws]
    assert {(pose.down, pose.right) for pose in turns} == {(0, 0)}
    assert -45 <= min(turns).degrees < -44.5
    assert 44.5 < max(turns).degrees < 45
    shifts = np.array([VIEWS["T"].pose(numbers) for numbers in draws])
    assert not shifts[:, 0].any()
    assert np.abs(shifts[:, 1:].min(0) + 0.2).max() < 1e-3
    assert np.abs(shifts[:, 1:].max(0) - 0.2).max() < 1e-3
    assert abs(np.corrcoef(shifts[:, 1:].T)[0, 1]) < 0.05
    mixed = [VIEWS["train-aug"].pose(numbers) for numbers in draws]
    turned = sum(pose.degrees != 0 for pose in mixed) / 3000
    shifted = sum(pose.down != 0 for pose in mixed) / 3000
    assert turned == pytest.approx(1 / 3, abs=0.03)
    assert shifted == pytest.approx(1 / 3, abs=0.03)
    assert sum(pose == UPRIGHT for pose in mixed) / 3000 == pytest.approx(1 - turned - shifted)
    crops = np.array([VIEWS["train"].crop(numbers) for numbers in draws])
    assert crops[:, 2].mean() == pytest.approx(0.5, abs=0.03)
    assert abs(crops[:, :2] - 0.5).max() > 0.49
    assert VIEWS["Ori"].pose([]) == UPRIGHT


def test_a_view_shows_its_numbers(root):
    for view in ("R", "T", "train-aug"):
        photos = Photos.open(root, "train", view=view, seed=7, size=24, short=32)
        place = int(photos.chosen[4])
        numbers = transforms.uniform(24, VIEWS[view].numbers, seed=7, epoch=2)[place].tolist()
        with Image.open(root / photos.names[4]) as image:
            pose = VIEWS[view].pose(numbers)
            if view == "train-aug":
                crop = VIEWS[view].crop(numbers)
                expected = resized_crop(image, pose=pose, crop=crop, size=24, short=32)
            else:
                expected = centre_crop(image, pose=pose, size=24, short=32)
        got = photos.batch(torch.tensor([4]), epoch=2)[0][0]
        assert torch.equal(got, expected.permute(2, 0, 1))


# ---- data sets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", VIEWS)
def test_images_do_not_depend_on_the_batch(root, view):
    photos = Photos.open(root, "train", view=view, seed=3, size=24, short=32)
    whole, labels = photos.batch(torch.arange(len(photos)), epoch=1)
    assert (whole.shape, whole.dtype) == ((len(photos), 3, 24, 24), torch.uint8)
    assert whole.is_contiguous(memory_format=torch.channels_last)
    again = Photos.open(root, "train", view=view, seed=3, size=24, short=32)
    part, part_labels = again.batch(torch.tensor([9, 2]), epoch=1)
    assert torch.equal(part, whole[[9, 2]])
    assert torch.equal(part_labels, labels[[9, 2]])
    assert torch.equal(again.first(4).batch(torch.arange(4), epoch=1)[0], whole[:4])
    assert torch.equal(again.without([0, 5]).batch(torch.arange(4), epoch=1)[0], whole[1:5])
    assert len(again.without([0, 5])) == len(photos) - 2
    assert [photos.names[i].split("/")[0] for i in range(len(photos))] == [photos.classes[i] for i in labels]
    random = VIEWS[view].numbers > 0
    assert torch.equal(photos.batch(torch.arange(4), epoch=0)[0], whole[:4]) is not random
    assert torch.equal(photos.with_view(view, seed=4).batch(torch.arange(4), epoch=1)[0], whole[:4]) is not random


def test_parts_divide_the_pictures(root):
    parts = {part: {*Photos.open(root, part, view="Ori").names} for part in ("train", "val", "fit", "validation")}
    assert parts["train"] | parts["val"] == {*list_images(root).names}
    assert parts["fit"] | parts["validation"] == parts["train"]
    assert not parts["train"] & parts["val"]
    assert not parts["fit"] & parts["validation"]
    assert min(map(len, parts.values())) >= 3


def test_val_has_the_labels_of_train(tmp_path):
    write_photos(tmp_path / "train", classes=3, images=2)
    write_photos(tmp_path / "val", classes=2, images=2)
    (tmp_path / "val/class-0000").rename(tmp_path / "val/class-0002")
    photos = Photos.open(tmp_path, "val", view="Ori", size=24, short=32)
    assert (photos.labels.tolist(), len(photos.classes)) == ([1, 1, 2, 2], 3)
    assert photos.order(0, 0) is None


def test_shards_show_what_folders_show(root, tmp_path):
    write(list_images(root), tmp_path / "shards", size=5)
    for part in ("train", "val", "validation"):
        folder, shard = (Photos.open(place, part, view="R", size=24, short=32) for place in (root, tmp_path / "shards"))
        assert folder.names == shard.names
        every = torch.arange(len(folder))
        assert torch.equal(folder.batch(every)[0], shard.batch(every)[0])
        assert torch.equal(folder.labels, shard.labels)
        assert sorted(shard.order(1, 2).tolist()) == every.tolist()
        orders = {tuple(shard.order(1, epoch).tolist()) for epoch in range(9)}
        assert len(orders) > 1


def test_a_bad_picture_is_named_found_and_left_out(tmp_path):
    write_photos(tmp_path, classes=2, images=20)
    (tmp_path / "class-0001/0003.jpg").write_bytes(b"no picture")
    content = (tmp_path / "class-0000/0007.jpg").read_bytes()
    (tmp_path / "class-0000/0007.jpg").write_bytes(content[:-200])
    listing = list_images(tmp_path)
    photos = Photos(listing, torch.arange(40), "train", size=24, short=32)
    advice = r"0007.jpg cannot be read as an image: .*: remove it; `patchreorder shard` finds all such files at once"
    with pytest.raises(BadImage, match=advice):
        photos.batch(torch.arange(10))
    said, steps = [], []
    bad = photos.find_bad(said.append, progress=lambda done, total: steps.append((done, total)))
    assert [index for index, _ in bad] == [7, 23]
    assert said == [reason for _, reason in bad]
    assert all(name in reason for name, (_, reason) in zip(("class-0000/0007", "class-0001/0003"), bad, strict=True))
    assert steps == [(32, 40), (40, 40)]
    images, _ = photos.without(index for index, _ in bad).batch(torch.arange(38))
    assert torch.equal(images[7], photos.batch(torch.tensor([8]))[0][0])


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"view": "X"}, r"view \('X'\) must be one of train, train-aug"),
        ({"size": 33}, r"size \(33\) must be from 1 to short \(32\)"),
        ({"workers": -1}, r"workers \(-1\) must be 0"),
        ({"part": "test"}, r"split \('test'\) must be one of train, val, fit, validation"),
    ],
)
def test_wrong_settings_are_named(root, settings, reason):
    arguments = {"part": "train", "view": "Ori", "size": 24, "short": 32} | settings
    with pytest.raises(ValueError, match=reason):
        Photos.open(root, arguments.pop("part"), **arguments)


def test_a_thousand_classes(tmp_path):
    write_photos(tmp_path, classes=1000, images=2, size=(16, 12))
    photos = Photos.open(tmp_path, "val", view="Ori", size=8, short=12)
    assert (len(photos.classes), photos.labels.tolist()) == (1000, [*range(1000)])
    with Image.open(tmp_path / photos.names[3]) as image:
        assert (image.size, image.format) == ((16, 12), "JPEG")


def test_generated_classes_differ_more_than_their_pictures(tmp_path):
    write_photos(tmp_path / "a", classes=6, images=1, seed=0)
    write_photos(tmp_path / "b", classes=6, images=1, seed=0)
    assert (tmp_path / "a/class-0003/0000.jpg").read_bytes() == (tmp_path / "b/class-0003/0000.jpg").read_bytes()
    colours = {Image.open(io.BytesIO(path.read_bytes())).quantize(2).tobytes() for path in tmp_path.rglob("a/*/*.jpg")}
    assert len(colours) == 6


def test_photographs_are_posed_before_the_crop(root):
    photos = Photos.open(root, "val", view="R", size=24, short=32)
    indices = torch.tensor([2, 0])
    for fill in (MEAN_COLOUR, (0, 0, 0)):
        images, labels = photos.posed_batches(indices, [UPRIGHT, *POSES], fill=fill)
        assert torch.equal(labels, photos.labels[indices])
        for pose, batch in zip([UPRIGHT, *POSES], images, strict=True):
            for image, index in zip(batch, photos.chosen[indices].tolist(), strict=True):
                with Image.open(io.BytesIO(photos.source.read(index))) as whole:
                    shown = centre_crop(whole, pose=pose, size=24, short=32, fill=fill)
                assert torch.equal(image.permute(1, 2, 0), shown)


def test_a_large_photograph_is_scaled_before_it_is_posed(tmp_path):
    (tmp_path / "a").mkdir()
    smooth(300, 400).save(tmp_path / "a" / "large.png")
    photos = Photos(list_images(tmp_path), torch.tensor([0]), "Ori", size=24, short=32, workers=2)
    poses = [UPRIGHT, *POSES]
    for pose, batch in zip(poses, photos.posed_batches(torch.tensor([0]), poses)[0], strict=True):
        shown = centre_crop(smooth(300, 400), pose=pose, size=24, short=32)
        assert (batch[0].permute(1, 2, 0).float() - shown.float()).abs().mean() < 3
