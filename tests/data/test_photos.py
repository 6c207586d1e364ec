"""Photographs as batches: an image depends on (seed, epoch, index) only, from class folders as from shards."""

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
from patchreorder.data.views import VIEWS, centre_crop, resized_crop

POSES = [UPRIGHT, Pose(degrees=30), Pose(degrees=-45), Pose(down=0.1, right=-0.17)]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_photos(tmp_path_factory.mktemp("photos"), classes=3, images=8, seed=1)


def test_a_batch_shows_the_view(root):
    for view in ("R", "T", "train-aug"):
        photos = Photos.open(root, "train", view=view, seed=7, size=24, short=32)
        index = int(photos.chosen[4])
        numbers = transforms.uniform(24, VIEWS[view].numbers, seed=7, epoch=2)[index].tolist()
        with Image.open(root / photos.names[4]) as image:
            pose = VIEWS[view].pose(numbers)
            if view == "train-aug":
                crop = VIEWS[view].crop(numbers)
                expected = resized_crop(image, pose=pose, crop=crop, size=24, short=32)
            else:
                expected = centre_crop(image, pose=pose, size=24, short=32)
        got = photos.batch(torch.tensor([4]), epoch=2)[0][0]
        assert torch.equal(got, expected.permute(2, 0, 1))


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


def test_splits_divide_the_images(root):
    splits = {split: {*Photos.open(root, split, view="Ori").names} for split in ("train", "val", "fit", "validation")}
    assert splits["train"] | splits["val"] == {*list_images(root).names}
    assert splits["fit"] | splits["validation"] == splits["train"]
    assert not splits["train"] & splits["val"]
    assert not splits["fit"] & splits["validation"]
    assert min(map(len, splits.values())) >= 3


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
        folder, shard = (Photos.open(path, part, view="R", size=24, short=32) for path in (root, tmp_path / "shards"))
        assert folder.names == shard.names
        every = torch.arange(len(folder))
        assert torch.equal(folder.batch(every)[0], shard.batch(every)[0])
        assert torch.equal(folder.labels, shard.labels)
        assert sorted(shard.order(1, 2).tolist()) == every.tolist()
        orders = {tuple(shard.order(1, epoch).tolist()) for epoch in range(9)}
        assert len(orders) > 1


def test_a_bad_image_is_named_found_and_left_out(tmp_path):
    write_photos(tmp_path, classes=2, images=20)
    (tmp_path / "class-0001/0003.jpg").write_bytes(b"no image")
    content = (tmp_path / "class-0000/0007.jpg").read_bytes()
    (tmp_path / "class-0000/0007.jpg").write_bytes(content[:-200])
    listing = list_images(tmp_path)
    photos = Photos(listing, torch.arange(40), "train", size=24, short=32)
    advice = r"0007.jpg cannot be read as an image: .*: remove it; `patchreorder shard` finds all such files at once"
    with pytest.raises(BadImage, match=advice):
        photos.batch(torch.arange(10))
    steps = []
    bad = photos.find_bad(lambda done, total: steps.append((done, total)))
    assert [index for index, _ in bad] == [7, 23]
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
def test_wrong_options_are_named(root, settings, reason):
    arguments = {"part": "train", "view": "Ori", "size": 24, "short": 32} | settings
    with pytest.raises(ValueError, match=reason):
        Photos.open(root, arguments.pop("part"), **arguments)


def test_many_classes(tmp_path):
    write_photos(tmp_path, classes=300, images=2, size=(16, 12))
    photos = Photos.open(tmp_path, "val", view="Ori", size=8, short=12)
    assert (len(photos.classes), photos.labels.tolist()) == (300, [*range(300)])
    with Image.open(tmp_path / photos.names[3]) as image:
        assert (image.size, image.format) == ((16, 12), "JPEG")


def test_photographs_are_posed_before_the_crop(root):
    photos = Photos.open(root, "val", view="R", size=24, short=32)
    indices = torch.tensor([2, 0])
    for fill in (MEAN_COLOUR, (0, 0, 0)):
        images, labels = photos.posed_batches(indices, POSES, fill=fill)
        assert torch.equal(labels, photos.labels[indices])
        for pose, batch in zip(POSES, images, strict=True):
            for image, index in zip(batch, photos.chosen[indices].tolist(), strict=True):
                with Image.open(io.BytesIO(photos.source.read(index))) as whole:
                    shown = centre_crop(whole, pose=pose, size=24, short=32, fill=fill)
                assert torch.equal(image.permute(1, 2, 0), shown)


def test_a_large_photograph_is_scaled_before_it_is_posed(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    large = Image.fromarray(noise).resize((400, 300), Image.Resampling.BICUBIC)
    (tmp_path / "a").mkdir()
    large.save(tmp_path / "a" / "large.png")
    photos = Photos(list_images(tmp_path), torch.tensor([0]), "Ori", size=24, short=32, workers=2)
    for pose, batch in zip(POSES, photos.posed_batches(torch.tensor([0]), POSES)[0], strict=True):
        shown = centre_crop(large, pose=pose, size=24, short=32)
        assert (batch[0].permute(1, 2, 0).float() - shown.float()).abs().mean() < 3
