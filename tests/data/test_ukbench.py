"""UK-Bench's folder: groups by number, views, and files that do not belong to it."""

import pytest
import torch

from patchreorder.data.generated import write_photos, write_ukbench
from patchreorder.data.images import BadImage
from patchreorder.data.ukbench import UKBench


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_ukbench(tmp_path_factory.mktemp("ukbench"), groups=3)


def test_a_group_is_four_numbers_in_a_row(folder):
    data = UKBench.open(folder)
    assert len(data) == 12
    assert data.groups.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert data.names[5] == "ukbench00005.jpg"
    assert data.remarks() == []
    images, groups = data.batch(torch.tensor([7, 0]))
    assert images.shape == (2, 3, 224, 224)
    assert groups.tolist() == [1, 0]


def test_gaps_and_other_files_are_reported(folder, tmp_path):
    for file in folder.iterdir():
        if file.stem not in ("ukbench00005", "ukbench00006"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    for name in ("notes.txt", "ukbench1.jpg", "ukbench00012.png", "ukbench00004.JPG", "<b>.jpg"):
        (tmp_path / name).write_text("x")
    (tmp_path / "full").mkdir()
    with open(bytes(tmp_path) + b"/\xff.jpg", "w"):
        pass
    data, whole = UKBench.open(tmp_path), UKBench.open(folder)
    assert data.incomplete == ("group 1 lacks ukbench00005.jpg, ukbench00006.jpg",)
    assert data.groups.tolist() == [0] * 4 + [2] * 4
    first, second = data.remarks()
    assert first == "left out: group 1 lacks ukbench00005.jpg, ukbench00006.jpg"
    assert second.startswith("not of UK-Bench, left out: 7 files (<b>.jpg, full, notes.txt, ")
    assert "\\xff.jpg" in data.foreign
    assert torch.equal(data.batch(torch.arange(4, 8))[0], whole.batch(torch.arange(8, 12))[0])


def test_a_folder_without_a_group_says_what_is_expected(tmp_path):
    expected = r"expected files ukbenchNNNNN\.jpg, .*four of each object"
    with pytest.raises(ValueError, match=rf"holds no such file; {expected}"):
        UKBench.open(tmp_path)
    (tmp_path / "ukbench00003.jpg").write_text("x")
    with pytest.raises(ValueError, match=rf"holds 1 such files but no complete group; {expected}"):
        UKBench.open(tmp_path)
    with pytest.raises(ValueError, match=rf"none is not a folder; {expected}"):
        UKBench.open(tmp_path / "none")
    with pytest.raises(ValueError, match=r"view \('RT'\) must be one of Ori, R, T, mixed"):
        UKBench.open(write_ukbench(tmp_path, groups=1), view="RT")


def test_in_a_mixed_group_one_is_rotated_and_one_shifted(folder):
    """The same images as in the other views, in any batch."""
    data = UKBench.open(folder)
    every = torch.arange(12)
    views = {view: data.with_view(view).batch(every)[0] for view in ("Ori", "R", "T", "mixed")}
    wanted = torch.stack([views[("Ori", "R", "T", "Ori")[index % 4]][index] for index in range(12)])
    assert torch.equal(views["mixed"], wanted)
    assert not any(torch.equal(views["Ori"][index], views[view][index]) for view in "RT" for index in range(12))
    some = torch.tensor([9, 2, 0])
    assert torch.equal(data.with_view("mixed").batch(some)[0], wanted[some])
    assert data.with_view("mixed").batch(some)[1].tolist() == [2, 0, 0]
    assert torch.equal(data.first(2).with_view("R").batch(torch.arange(8))[0], views["R"][:8])
    with pytest.raises(ValueError, match=r"groups \(4\) must be from 1 to 3"):
        data.first(4)


def test_an_image_that_cannot_be_read_is_named(folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes()[: 900 if "00002" in file.name else None])
    with pytest.raises(BadImage, match=r"ukbench00002\.jpg cannot be read as"):
        UKBench.open(tmp_path, view="mixed").batch(torch.arange(4))


def test_galleries_of_class_folders_have_four_images_of_each_class(tmp_path):
    for split in ("train", "val"):
        write_photos(tmp_path / split, classes=2, images=9)
    for file in sorted((tmp_path / "train" / "class-0001").iterdir())[6:]:
        file.unlink()
    first, second = UKBench.galleries(tmp_path, most=4)
    assert first.names == [f"class-000{label}/000{number}.jpg" for label in (0, 1) for number in range(4)]
    assert first.groups.tolist() == [0] * 4 + [1] * 4
    assert second.names == [f"class-0000/000{number}.jpg" for number in range(4, 8)]
    assert len(UKBench.galleries(tmp_path, most=1)) == 1
    for file in tmp_path.glob("train/*/000[0-4].jpg"):
        file.unlink()
    (tmp_path / "train" / "class-0000" / "0008.jpg").unlink()
    with pytest.raises(ValueError, match="has no class with 4 training images"):
        UKBench.galleries(tmp_path, most=1)
