"""The command `shard`."""

import shutil

import torch

from patchreorder.__main__ import main
from patchreorder.data.folders import list_images
from patchreorder.data.generated import write_photos
from patchreorder.data.photos import Photos
from patchreorder.data.shard_writer import write
from patchreorder.data.shards import INDEX, Shards


def test_train_and_val_are_written(tmp_path, capsys):
    write_photos(tmp_path / "photos/train", classes=3, images=3, size=(24, 16))
    write_photos(tmp_path / "photos/val", classes=2, images=2, size=(24, 16), seed=1)
    (tmp_path / "photos/val/class-0000").rename(tmp_path / "photos/val/class-0002")
    (tmp_path / "photos/val/class-0001/Thumbs.db").touch()
    command = ["shard", str(tmp_path / "photos"), str(tmp_path / "out"), "--workers", "0", "--size", "4"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert f"Next: `patchreorder run table2 --data {tmp_path / 'out'}`" in said
    assert "1 files are no images and are left out: class-0001/Thumbs.db" in said
    assert "1 classes have no image: class-0000" in said
    photos = Photos.open(tmp_path / "out", "val", view="Ori", size=8, short=12)
    assert photos.labels.tolist() == [1, 1, 2, 2]
    assert photos.batch(torch.arange(4))[0].shape == (4, 3, 8, 8)
    assert main(command) == 0
    assert capsys.readouterr().out.count("is finished: there is nothing to do") == 2
    (tmp_path / "photos/val/class-0001/0000.jpg").write_bytes(b"")
    (tmp_path / "photos/train/class-0001/0001.jpg").write_bytes(b"")
    shutil.rmtree(tmp_path / "out")
    assert main(command) == 2
    error = capsys.readouterr().err
    assert "class-0001/0000.jpg cannot be read" in error
    assert "class-0001/0001.jpg cannot be read" in error
    assert main(["shard", str(tmp_path / "photos"), str(tmp_path / "photos/out"), "--workers", "0"]) == 2
    assert "must not be in" in capsys.readouterr().err


def test_tars_without_an_index_get_one(tmp_path, capsys):
    photos = write_photos(tmp_path / "photos", classes=4, images=7, size=(24, 16))
    copy = write(list_images(photos), tmp_path / "shards", size=5).folder
    (copy / INDEX).unlink()
    assert main(["shard", str(copy), str(copy)]) == 0
    assert "Index: " in capsys.readouterr().out
    assert len(Shards(copy)) == 28
