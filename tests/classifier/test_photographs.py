"""The photographs of a folder and their poses."""

import pytest
import torch

from patchreorder.classifier.photographs import SamePoses, first_of_each, held_out, open_photographs
from patchreorder.data.folders import list_images
from patchreorder.data.shard_writer import write
from tests.classifier.photographs import write_photographs


def test_a_single_copy_is_mirrored_half_the_time():
    """Fine-tuning draws one pose of a photograph for each epoch."""
    drawn = [SamePoses(flips=True).draw(1, (0, epoch))[0].flip for epoch in range(400)]
    assert 160 < sum(drawn) < 240


def test_copies_are_mirrored_at_random_and_only_if_asked():
    flips = {tuple(pose.flip for pose in SamePoses(flips=True).draw(4, (0, index))) for index in range(200)}
    assert len(flips) == 16
    assert not any(pose.flip for index in range(50) for pose in SamePoses().draw(4, (0, index)))


def test_flips_change_nothing_else():
    plain, mirrored = (SamePoses(flips=flips).draw(4, (3, 1)) for flips in (False, True))
    assert [pose._replace(flip=False) for pose in mirrored] == plain


def shards_of(folder, *, classes):
    write_photographs(folder / "loose", classes=classes, count=3)
    write(list_images(folder / "loose"), folder / "shards")
    return folder / "shards"


def test_test_photographs_in_shards_have_the_classes_of_the_training(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    shards_of(tmp_path / "a", classes=("red", "green")).rename(data / "train")
    shards_of(tmp_path / "b", classes=("red", "blue")).rename(data / "val")
    with pytest.raises(ValueError, match=r"val has other classes than the training images: make both again"):
        open_photographs(data)
    (data / "val").rename(data / "other")
    shards_of(tmp_path / "c", classes=("green",)).rename(data / "val")
    training, testing = open_photographs(data)
    assert training.classes == testing.classes == ["green", "red"]
    assert testing.labels.tolist() == [0, 0, 0]


def test_a_folder_is_always_divided_in_the_same_way():
    names, labels = [f"a/{number}" for number in range(40)], torch.zeros(40, dtype=torch.int64)
    drawn = held_out(names, labels, fraction=0.2)
    assert len(drawn) == 8
    other = held_out(names[::-1], labels, fraction=0.2)
    assert {names[::-1][index] for index in other} == {names[index] for index in drawn}


def test_the_first_of_each_class_are_the_same_however_many_are_taken(tmp_path):
    training, _ = open_photographs(write_photographs(tmp_path, count=10))
    few, more = (first_of_each(training, count) for count in (2, 5))
    assert set(few.names) < set(more.names) < set(training.names)
    assert torch.bincount(few.labels).tolist() == [2] * len(training.classes)
    assert few.names == [name for name in training.names if name in few.names]
    assert [few.path(index).name for index in range(len(few))] == [name.split("/")[-1] for name in few.names]
