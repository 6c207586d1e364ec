"""Class folders: what is listed, which label it has, and which split it is in."""

import os

import pytest
import torch

from patchreorder.data import folders
from patchreorder.data.folders import Names, has_splits, list_images
from patchreorder.data.photos import Photos


def fill(root, *paths):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    return root


def test_names_are_a_sequence():
    texts = ["a", "", "größe.jpg", os.fsdecode(b"\xff.jpg"), "a"]
    names = Names(texts)
    assert [*names] == texts == [names[i] for i in range(5)]
    assert (len(names), names[-3], names[1:3]) == (5, "größe.jpg", ["", "größe.jpg"])
    with pytest.raises(IndexError):
        names[5]
    assert [*Names([])] == []


def test_a_folder_is_listed_in_order(tmp_path):
    fill(tmp_path, "dog/b.JPG", "cat/2.png", "cat/deep/er/1.jpeg", "Cat/1.gif", "dog/a.webp")
    fill(
        tmp_path, "dog/Thumbs.db", "dog/.hidden.jpg", "cat/notes.txt", "README", "loose.jpg", ".git/x/1.jpg", "cat/jpg"
    )
    listing = list_images(tmp_path)
    assert listing.classes == ["Cat", "cat", "dog"]
    assert [*listing.names] == ["Cat/1.gif", "cat/2.png", "cat/deep/er/1.jpeg", "dog/a.webp", "dog/b.JPG"]
    assert listing.labels.tolist() == [0, 1, 1, 2, 2]
    assert listing.labels.dtype == torch.int64
    expected = [".git", "README", "cat/jpg", "cat/notes.txt", "dog/.hidden.jpg", "dog/Thumbs.db", "loose.jpg"]
    assert (listing.ignored, listing.missing) == (sorted(expected), [])


def test_labels_of_others_come_from_the_training_classes(tmp_path):
    fill(tmp_path, "dog/1.jpg", "cat/1.jpg")
    (tmp_path / "empty").mkdir()
    listing = list_images(tmp_path, classes=["zebra", "dog", "ant", "cat", "empty"])
    assert dict(zip(listing.names, listing.labels.tolist(), strict=True)) == {"dog/1.jpg": 1, "cat/1.jpg": 3}
    assert (listing.missing, len(listing.classes)) == (["zebra", "ant", "empty"], 5)
    with pytest.raises(ValueError, match=r"holds dog, empty, not among the 2 classes of the training images"):
        list_images(tmp_path, classes=["cat", "Dog"])


def test_a_wrong_layout_says_what_is_expected(tmp_path):
    layout = r"expected one folder .*DIR/train/CLASS/\*.jpg and DIR/val/CLASS/\*.jpg"
    with pytest.raises(ValueError, match=rf"nowhere is not a folder; {layout}"):
        list_images(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=rf"holds no class folder; {layout}"):
        list_images(fill(tmp_path, "1.txt"))
    with pytest.raises(ValueError, match=rf"holds no class folder but images: move those of each class .*; {layout}"):
        list_images(fill(tmp_path, "1.jpg"))
    with pytest.raises(ValueError, match=rf"holds no image .* in its 1 folders; {layout}"):
        list_images(fill(tmp_path, "cat/1.txt"))
    with pytest.raises(ValueError, match=r"holds no image in cat: add some"):
        list_images(fill(tmp_path, "dog/1.jpg"))
    with pytest.raises(ValueError, match=r"holds train/ but no val/"):
        has_splits(fill(tmp_path, "train/cat/1.jpg"))


def test_links_are_followed_and_loops_end(tmp_path):
    fill(tmp_path / "data", "cat/1.jpg", "dog/1.jpg")
    fill(tmp_path / "more", "2.jpg")
    root = tmp_path / "data"
    (root / "cat/more").symlink_to(tmp_path / "more")
    (root / "cat/again").symlink_to(root / "cat")
    (root / "cat/dog").symlink_to(root / "dog")
    (root / "dog/cat").symlink_to(root / "cat")
    (root / "dog/gone.jpg").symlink_to(root / "nowhere")
    os.mkfifo(root / "dog/pipe.jpg")
    listing = list_images(root)
    assert {"cat/1.jpg", "cat/more/2.jpg", "dog/1.jpg"} <= {*listing.names}
    assert len(listing) == 6  # each class has all three: the links say so
    assert {"cat/again", "dog/gone.jpg", "dog/pipe.jpg"} <= {*listing.ignored}


def test_no_file_costs_a_call_of_stat(tmp_path, monkeypatch):
    fill(tmp_path, *(f"cat/{number}.jpg" for number in range(50)))
    calls = []
    monkeypatch.setattr(folders.os, "stat", lambda path, real=os.stat: calls.append(path) or real(path))
    list_images(tmp_path)
    assert len(calls) <= 2


def split(root, name: str) -> Photos:
    return Photos.open(root, name, view="Ori")


def test_splits_are_train_and_val(tmp_path):
    fill(tmp_path, "train/b/1.jpg", "train/a/1.jpg", "val/b/9.jpg", "other/c/1.jpg")
    train, val = split(tmp_path, "train"), split(tmp_path, "val")
    assert (train.classes, train.names) == (["a", "b"], ["a/1.jpg", "b/1.jpg"])
    assert (val.classes, val.names, val.labels.tolist(), val.source.missing) == (["a", "b"], ["b/9.jpg"], [1], ["a"])


def test_held_out_images_are_stable_and_of_every_class(tmp_path):
    fill(
        tmp_path, *(f"{name}/{number}.jpg" for name in "ab" for number in range(200)), *(f"c/{n}.jpg" for n in range(4))
    )
    train, val = split(tmp_path, "train"), split(tmp_path, "val")
    assert sorted(train.names + val.names) == [*list_images(tmp_path).names]
    assert 0.14 < len(val) / 404 < 0.26
    assert torch.bincount(val.labels)[2] >= 1
    assert torch.bincount(train.labels)[2] >= 2
    assert all(name[0] == "abc"[label] for name, label in zip(val.names, val.labels.tolist(), strict=True))
    fit, validation = split(tmp_path, "fit"), split(tmp_path, "validation")
    assert 0.12 < len(validation) / len(train) < 0.28  # drawn independently
    assert sorted(fit.names + validation.names) == train.names
    (tmp_path / "a/5.jpg").unlink()
    fill(tmp_path, "a/new.jpg")
    assert {*split(tmp_path, "val").names} ^ {*val.names} <= {"a/5.jpg", "a/new.jpg"}


def test_a_class_with_a_single_image_cannot_be_split(tmp_path):
    fill(tmp_path, "a/1.jpg", "a/2.jpg", "b/1.jpg")
    with pytest.raises(ValueError, match="the class b has a single image"):
        split(tmp_path, "train")


def test_a_link_to_itself_and_a_huge_file_stop_nothing(tmp_path):
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.jpg").write_bytes(b"x")
    (tmp_path / "cat" / "loop.jpg").symlink_to("loop.jpg")
    (tmp_path / "self").symlink_to("self")
    with open(tmp_path / "cat" / "huge.jpg", "wb") as file:
        file.truncate(folders.MAX_BYTES + 1)  # sparse
    listing = folders.list_images(tmp_path)
    assert list(listing.names) == ["cat/1.jpg", "cat/huge.jpg"]
    assert "cat/loop.jpg" in listing.ignored
    with pytest.raises(ValueError, match=r"cat/huge\.jpg has more than 1 GB: it is no image"):
        listing.read(1)
    assert list(folders.list_unlabelled(tmp_path).names) == ["cat/1.jpg", "cat/huge.jpg"]


def test_a_folder_that_is_deleted_during_the_listing_is_left_out(tmp_path, monkeypatch):
    for name in ("a/1.jpg", "a/b/2.jpg", "c/3.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    stat = os.stat

    def gone(path, *args, **options):
        if str(path).endswith("a/b"):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return stat(path, *args, **options)

    monkeypatch.setattr(folders.os, "stat", gone)
    listing = folders.list_images(tmp_path)
    assert list(listing.names) == ["a/1.jpg", "c/3.jpg"]
    assert listing.ignored == ["a/b"]
