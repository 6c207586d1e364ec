"""Folders of images and data sets by name, as they are measured."""

import pytest
import torch

from patchreorder.data import folders
from patchreorder.data.generated import generate_digits
from patchreorder.data.images import MEAN, MEAN_COLOUR
from patchreorder.data.poses import UPRIGHT, Pose, apply_pose
from patchreorder.measuring import image_set
from tests.measurable import Dots


def test_folders_with_and_without_labels(class_folders):
    found = image_set.open_folder(class_folders, side=32)
    assert (len(found), found.classes) == (12, ["<b>cat", "dog & co"])
    images, labels = found.data.batch(torch.arange(12))
    assert (images.shape, labels.tolist()) == ((12, 3, 32, 32), [0] * 6 + [1] * 6)
    for other in (
        image_set.open_folder(class_folders, side=32, labels=False),
        image_set.open_folder(class_folders / "dog & co", side=32),
    ):
        assert other.classes == []
        assert (other.data.batch(torch.arange(len(other)))[1] == -1).all()
    assert len(other) == 6
    some = image_set.open_folder(class_folders, side=32, count=4)
    assert some.data.batch(torch.arange(4))[1].tolist() == [0, 0, 1, 1]


def test_a_grey_folder(class_folders):
    grey = image_set.open_folder(class_folders, side=32, channels=1)
    images = grey.data.batch(torch.tensor([0]))[0]
    assert images.shape == (1, 1, 32, 32)
    torch.testing.assert_close(images[0, 0, 0, 0], torch.tensor(90 / 255))


def test_folders_that_cannot_be_measured(class_folders, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty holds no .*jpg, "):
        image_set.open_folder(tmp_path / "empty")
    with pytest.raises(ValueError, match=r"images \(.*none\) must be a folder of images, or one of mnist, "):
        image_set.open_folder(tmp_path / "none")
    with pytest.raises(ValueError, match=r"holds <b>cat, dog & co, not among the 2 classes"):
        image_set.open_folder(class_folders, classes=["cat", "dog"])
    with pytest.raises(ValueError, match=r"channels \(4\) must be 1 \(grey\) or 3"):
        image_set.open_folder(class_folders, channels=4)


def test_unreadable_images_are_left_out(class_folders, tmp_path):
    (class_folders / "dog & co" / "broken.png").write_bytes(b"no image")
    found = image_set.open_folder(class_folders, side=32)
    assert len(found) == 12
    assert not any(name.endswith("broken.png") for name in found.names)
    (reason,) = found.bad
    assert "broken.png cannot be read" in reason
    with pytest.raises(ValueError, match=r"broken\.png cannot be read .*\(1 such files in all\): .*leave out --strict"):
        image_set.open_folder(class_folders, side=32, strict=True)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "one.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"none of 1 images can be read; the first: one\.png"):
        image_set.open_folder(tmp_path / "bad")


def test_huge_deleted_and_looping_files_are_listed_and_left_out(class_folders, monkeypatch):
    place = class_folders / "dog & co"
    with (place / "sparse.png").open("wb") as file:
        file.truncate(40 << 30)
    (place / "self.png").symlink_to("self.png")
    (place / ".hidden").touch()
    (place / "gone.png").write_bytes(b"")
    list_images = folders.list_images

    def then_deleted(*args, **options):
        found = list_images(*args, **options)
        (place / "gone.png").unlink()
        return found

    monkeypatch.setattr(folders, "list_images", then_deleted)
    found = image_set.open_folder(class_folders, side=32)
    assert len(found) == 12
    gone, sparse = sorted(found.bad)
    assert "No such file" in gone
    assert "sparse.png has more than 1 GB: it is no image" in sparse
    assert found.ignored == ["dog & co/self.png"]


def test_photographs_are_posed_before_the_crop_and_other_images_after(class_folders):
    pose, index = Pose(right=0.2), torch.tensor([0])
    photos = image_set.open_folder(class_folders, side=32)
    (shifted,), labels = image_set.posed_batches(photos.data, index, [pose], fill=photos.fill)
    # The photograph is 40 pixels wide: 8 pixels are uncovered, of which the crop of the centre shows 4.
    mean = torch.tensor(MEAN_COLOUR) / 255
    torch.testing.assert_close(shifted[0, :, 0, :5], torch.stack([*[mean] * 4, torch.full((3,), 90 / 255)], 1))
    assert labels.tolist() == [0]
    grey = image_set.open_folder(class_folders, side=32, channels=1)
    (shifted,), _ = image_set.posed_batches(grey.data, index, [pose], fill=grey.fill)
    torch.testing.assert_close(shifted[0, 0, 0, :5], torch.tensor([0, 0, 0, 0, 90 / 255]))
    dots = Dots()
    (upright, shifted), labels = image_set.posed_batches(dots, index, [UPRIGHT, pose], fill=[0.5])
    assert torch.equal(upright, dots.images[index])
    torch.testing.assert_close(shifted, apply_pose(upright, pose, fill=[0.5]))
    assert torch.equal(labels, dots.labels[index])


def test_a_padded_canvas_loses_nothing(class_folders):
    photos = image_set.open_folder(class_folders, side=32)
    poses = [UPRIGHT, Pose(right=0.2)]
    (upright, shifted), _ = image_set.posed_batches(photos.data, torch.tensor([0]), poses, side=0.5)
    plain = photos.data.batch(torch.tensor([0]))[0].float() / 255
    torch.testing.assert_close(upright[0, :, 8:24, 8:24].mean((1, 2)), plain[0].mean((1, 2)), atol=0.02, rtol=0)
    torch.testing.assert_close(upright[0, :, 0, 0], torch.tensor(MEAN))
    torch.testing.assert_close(shifted, apply_pose(upright, poses[1], fill=MEAN))
    dots = Dots()
    (upright, shifted), _ = image_set.posed_batches(dots, torch.tensor([0]), poses, side=0.6)
    torch.testing.assert_close(upright.sum(), shifted.sum())


def test_photographs_for_another_network(class_folders):
    photos = image_set.open_folder(class_folders, side=32)
    for channels, side in ((3, 24), (1, 16)):
        other = photos.for_network(channels=channels, side=side, crop=1.25)
        assert other.data.batch(torch.tensor([0]))[0].shape == (1, channels, side, side)
        assert other.names == photos.names
    assert other.for_network(channels=3, side=32, crop=1.0).data.batch(torch.tensor([0]))[0].shape == (1, 3, 32, 32)


def test_data_sets_by_name(monkeypatch):
    monkeypatch.setattr(image_set.datasets, "mnist", lambda name, **options: generate_digits(name, count=20))
    found = image_set.open_dataset("mnist-t", count=5)
    assert (len(found), found.fill, found.names[4]) == (5, None, "image 4")
    assert found.data.batch(torch.tensor([0]))[0].shape == (1, 1, 42, 42)
    assert image_set.is_dataset("cifar10")
    assert not image_set.is_dataset("cifar10-train")
