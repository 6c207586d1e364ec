"""Writing shards: whole or not at all, bit for bit the same after a stop."""

import errno
import json
import os
import shutil
import tarfile

import pytest
import torch

from patchreorder.data import shard_writer
from patchreorder.data.folders import list_images
from patchreorder.data.generated import write_photos
from patchreorder.data.photos import Photos
from patchreorder.data.shard_writer import Unreadable, write
from patchreorder.data.shards import INDEX, PLAN, Shards
from patchreorder.data.webdataset import index_tars


def held(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != ".lock"}


def test_a_folder_holds_shards_index_and_classes(sharded, photos):
    assert [*held(sharded)] == [*(f"{number:05d}.tar" for number in range(6)), "classes.json", INDEX]
    assert json.loads((sharded / "classes.json").read_bytes()) == list_images(photos).classes


def test_every_image_is_stored_unchanged(sharded, photos):
    listing, found = list_images(photos), Shards(sharded)
    assert len(found) == 28
    assert [*found.names] == [*listing.names]
    assert torch.equal(found.labels, listing.labels)
    for index in range(28):
        assert found.read(index) == (photos / listing.names[index]).read_bytes()


def test_anybody_can_read_the_tars(sharded, photos):
    listing, keys = list_images(photos), []
    for path in sorted(sharded.glob("*.tar")):
        with tarfile.open(path, "r|") as tar:  # as webdataset does
            members = [(member, tar.extractfile(member).read()) for member in tar]
        for (image, content), (label, text) in zip(members[::2], members[1::2], strict=True):
            key, ending = image.name.split(".")
            assert (label.name, ending) == (f"{key}.cls", "jpg")
            assert int(text) == listing.labels[int(key)]
            assert content == listing.read(int(key))
            assert (image.mtime, image.uid, image.gid, image.mode, image.uname) == (0, 0, 0, 0o644, "")
            keys.append(int(key))
        assert len({int(listing.labels[key]) for key in keys[-len(members) // 2 :]}) > 1  # mixed
    assert sorted(keys) == [*range(28)]


def test_workers_write_the_same(sharded, photos, tmp_path):
    steps = []
    write(list_images(photos), tmp_path / "out", size=5, workers=2, progress=lambda *step: steps.append(step))
    assert held(tmp_path / "out") == held(sharded)
    assert steps[-1] == (28, 28)


class Killed(BaseException):
    pass


def test_a_stopped_writer_continues(sharded, photos, tmp_path, monkeypatch):
    out, said = tmp_path / "out", []

    def stop(done, total):
        if done == 10:
            raise Killed

    with pytest.raises(Killed):
        write(list_images(photos), out, size=5, progress=stop)
    assert {path.name for path in out.glob("*.tar")} == {"00000.tar", "00001.tar"}
    with pytest.raises(ValueError, match="is not finished: run the same"):
        Photos.open(out, "train", view="Ori")
    with pytest.raises(ValueError, match="is not finished"):
        index_tars(out)
    (out / ".00002.tar.0123abcd").write_bytes(b"left by a process that was killed")
    (out / "00003.tar").write_bytes(b"a shard that is not recorded as complete")
    written = []
    monkeypatch.setattr(shard_writer, "decode", lambda content, name: written.append(name))
    write(list_images(photos), out, size=5, say=said.append)
    assert (len(written), said) == (18, [f"10 of 28 images are in {out} already: continuing"])
    assert held(out) == held(sharded)


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_full_disk_leaves_nothing_half(photos, tmp_path, monkeypatch, broken):
    out, calls = tmp_path / "out", []

    real = getattr(os, broken)

    def fail(*arguments):
        calls.append(arguments)
        if len(calls) > 8:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, broken, fail)
        with pytest.raises(OSError, match="No space left on device"):
            write(list_images(photos), out, size=5)
    assert not [*out.glob(".*.tar.*"), *out.glob(INDEX)]
    for path in out.glob("*.tar"):
        with tarfile.open(path) as tar:
            assert len(tar.getnames()) in (6, 10)
    write(list_images(photos), out, size=5)
    assert len(Shards(out)) == 28


def test_a_finished_folder_is_left_alone(sharded_copy, photos):
    before, said = held(sharded_copy), []
    written = write(list_images(photos), sharded_copy, size=5, say=said.append)
    assert (written.images, written.shards) == (28, 6)
    assert said == [f"{sharded_copy} is finished: there is nothing to do"]
    assert held(sharded_copy) == before


def test_other_images_and_other_folders_are_refused(sharded_copy, photos, tmp_path):
    with pytest.raises(ValueError, match="was made from other images or in another way"):
        write(list_images(photos), sharded_copy, size=6)
    other = list_images(write_photos(tmp_path / "other", classes=4, images=7, size=(24, 16), seed=9))
    with pytest.raises(ValueError, match="was made from other images"):
        write(other, sharded_copy, size=5)
    (sharded_copy / INDEX).unlink()
    (sharded_copy / PLAN).write_text(json.dumps({"format": 1}))
    with pytest.raises(ValueError, match="was begun with other images or another size"):
        write(list_images(photos), sharded_copy, size=5)
    (sharded_copy / PLAN).unlink()
    with pytest.raises(ValueError, match="holds files that are not ours"):
        write(list_images(photos), sharded_copy, size=5)
    with pytest.raises(ValueError, match=r"size \(0\) must be 1 or more"):
        write(list_images(photos), tmp_path / "new", size=0)


def test_a_folder_has_one_writer_at_a_time(photos, tmp_path):
    lock = shard_writer.try_lock(tmp_path / "out/.lock")
    with pytest.raises(ValueError, match="another process is writing to"):
        write(list_images(photos), tmp_path / "out")
    os.close(lock)


def test_all_unreadable_images_are_named_at_the_end(photos, tmp_path):
    source = shutil.copytree(photos, tmp_path / "photos")
    for name in ("class-0000/0002.jpg", "class-0003/0006.jpg"):
        (source / name).write_bytes((source / name).read_bytes()[:300])
    out, listing = tmp_path / "out", list_images(source)
    with pytest.raises(Unreadable, match=r"2 of 28 .*class-0000/0002.jpg cannot.*class-0003/0006.jpg.*--skip-unread"):
        write(listing, out, size=5)
    assert not (out / INDEX).exists()
    written = write(listing, out, size=5, skip_unreadable=True)
    found = Shards(out)
    assert [name for name, _ in written.skipped] == ["class-0000/0002.jpg", "class-0003/0006.jpg"]
    assert (out / "skipped.txt").read_text().splitlines()[0].startswith("class-0000/0002.jpg\tclass-0000/0002.jpg can")
    assert len(found) == 26
    for name, label, index in zip(found.names, found.labels.tolist(), range(26), strict=True):
        assert found.classes[label] == name.split("/")[0]
        assert found.read(index) == (source / name).read_bytes()
    write(listing, tmp_path / "at once", size=5, skip_unreadable=True)
    assert held(tmp_path / "at once") == held(out)


def test_huge_deleted_and_looping_files_are_listed_and_left_out(photos, tmp_path):
    source = shutil.copytree(photos, tmp_path / "photos")
    with (source / "class-0000" / "sparse.jpg").open("wb") as file:
        file.truncate(40 << 30)
    (source / "class-0001" / "self.jpg").symlink_to("self.jpg")
    listing = list_images(source)
    (source / "class-0002" / "0003.jpg").unlink()
    assert listing.ignored == ["class-0001/self.jpg"]
    written = write(listing, tmp_path / "out", size=5, skip_unreadable=True)
    (sparse, large), (gone, missing) = sorted(written.skipped)
    assert (sparse, gone) == ("class-0000/sparse.jpg", "class-0002/0003.jpg")
    assert "has more than 1 GB: it is no image" in large
    assert "No such file" in missing
    assert len(Shards(tmp_path / "out")) == 27


def test_a_class_without_readable_images_is_an_error(photos, tmp_path):
    source = shutil.copytree(photos, tmp_path / "photos")
    for path in (source / "class-0001").iterdir():
        path.write_bytes(b"?")
    with pytest.raises(ValueError, match="no image of class-0001 can be read"):
        write(list_images(source), tmp_path / "out", skip_unreadable=True)
