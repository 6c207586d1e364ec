"""Shards: whole or not at all, the same bit for bit however they were made, and never a wrong picture or label."""

import contextlib
import errno
import io
import json
import multiprocessing
import os
import pickle
import shutil
import tarfile

import pytest
import torch

from patchreorder.__main__ import main
from patchreorder.data import shards
from patchreorder.data.folders import list_images
from patchreorder.data.generated import write_photos
from patchreorder.data.photos import Photos
from patchreorder.data.shards import INDEX, PLAN, WINDOW, Shards, Unreadable, index_foreign, write


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_photos(tmp_path_factory.mktemp("photos"), classes=4, images=7, size=(24, 16))


@pytest.fixture(scope="module")
def made(root, tmp_path_factory):
    """Six shards of five pictures, the last of three; do not change them."""
    return write(list_images(root), tmp_path_factory.mktemp("made") / "out", size=5).folder


@pytest.fixture
def copy(made, tmp_path):
    return shutil.copytree(made, tmp_path / "copy")


def held(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != ".lock"}


# ---- what is written -------------------------------------------------------------------------------


def test_a_folder_holds_shards_index_and_classes(made, root):
    assert [*held(made)] == [*(f"{number:05d}.tar" for number in range(6)), "classes.json", INDEX]
    assert json.loads((made / "classes.json").read_bytes()) == list_images(root).classes


def test_every_picture_is_there_as_it_was(made, root):
    listing, found = list_images(root), Shards(made)
    assert len(found) == 28
    assert [*found.names] == [*listing.names]
    assert torch.equal(found.labels, listing.labels)
    for index in range(28):
        assert found.read(index) == (root / listing.names[index]).read_bytes()


def test_anybody_can_read_the_tars(made, root):
    listing, keys = list_images(root), []
    for path in sorted(made.glob("*.tar")):
        with tarfile.open(path, "r|") as tar:  # as webdataset does
            members = [(member, tar.extractfile(member).read()) for member in tar]
        for (picture, content), (label, text) in zip(members[::2], members[1::2], strict=True):
            key, ending = picture.name.split(".")
            assert (label.name, ending) == (f"{key}.cls", "jpg")
            assert int(text) == listing.labels[int(key)]
            assert content == listing.read(int(key))
            assert (picture.mtime, picture.uid, picture.gid, picture.mode, picture.uname) == (0, 0, 0, 0o644, "")
            keys.append(int(key))
        assert len({int(listing.labels[key]) for key in keys[-len(members) // 2 :]}) > 1  # mixed
    assert sorted(keys) == [*range(28)]


def test_workers_write_the_same(made, root, tmp_path):
    steps = []
    write(list_images(root), tmp_path / "out", size=5, workers=2, progress=lambda *step: steps.append(step))
    assert held(tmp_path / "out") == held(made)
    assert steps[-1] == (28, 28)


class Killed(BaseException):
    pass


def test_a_stopped_writer_goes_on(made, root, tmp_path, monkeypatch):
    out, said = tmp_path / "out", []

    def stop(done, total):
        if done == 10:
            raise Killed

    with pytest.raises(Killed):
        write(list_images(root), out, size=5, progress=stop)
    assert {path.name for path in out.glob("*.tar")} == {"00000.tar", "00001.tar"}
    with pytest.raises(ValueError, match="is not finished: run the same"):
        Photos.open(out, "train", view="Ori")
    with pytest.raises(ValueError, match="is not finished"):
        index_foreign(out)
    (out / ".00002.tar.part").write_bytes(b"left by a process that was killed")
    (out / "00003.tar").write_bytes(b"there, but nobody noted that it is whole")
    written = []
    monkeypatch.setattr(shards, "decode", lambda content, name, real=shards.decode: written.append(name))
    write(list_images(root), out, size=5, say=said.append)
    assert (len(written), said) == (18, [f"10 of 28 pictures are in {out} already: going on"])
    assert held(out) == held(made)


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_full_disk_leaves_nothing_half(root, tmp_path, monkeypatch, broken):
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
            write(list_images(root), out, size=5)
    assert not [*out.glob("*part"), *out.glob(INDEX)]
    for path in out.glob("*.tar"):
        with tarfile.open(path) as tar:
            assert len(tar.getnames()) in (6, 10)
    write(list_images(root), out, size=5)
    assert len(Shards(out)) == 28


def test_a_finished_folder_is_left_alone(copy, root):
    before, said = held(copy), []
    written = write(list_images(root), copy, size=5, say=said.append)
    assert (written.there_before, written.images, written.shards) == (True, 28, 6)
    assert said == [f"{copy} is finished: there is nothing to do"]
    assert held(copy) == before


def test_other_pictures_and_foreign_folders_are_refused(copy, root, tmp_path):
    with pytest.raises(ValueError, match="was made from other pictures or in another way"):
        write(list_images(root), copy, size=6)
    other = list_images(write_photos(tmp_path / "other", classes=4, images=7, size=(24, 16), seed=9))
    with pytest.raises(ValueError, match="was made from other pictures"):
        write(other, copy, size=5)
    (copy / INDEX).unlink()
    (copy / PLAN).write_text(json.dumps({"format": 1}))
    with pytest.raises(ValueError, match="was begun with other pictures or another size"):
        write(list_images(root), copy, size=5)
    (copy / PLAN).unlink()
    with pytest.raises(ValueError, match="holds files that are not ours"):
        write(list_images(root), copy, size=5)
    with pytest.raises(ValueError, match=r"size \(0\) must be 1 or more"):
        write(list_images(root), tmp_path / "new", size=0)


def test_two_writers_do_not_meet(root, tmp_path):
    lock = shards.try_lock(tmp_path / "out/.lock")
    with pytest.raises(ValueError, match="another process is writing to"):
        write(list_images(root), tmp_path / "out")
    os.close(lock)


def test_all_unreadable_pictures_are_named_at_the_end(root, tmp_path):
    source = shutil.copytree(root, tmp_path / "photos")
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


def test_a_class_does_not_vanish(root, tmp_path):
    source = shutil.copytree(root, tmp_path / "photos")
    for path in (source / "class-0001").iterdir():
        path.write_bytes(b"?")
    with pytest.raises(ValueError, match="no picture of class-0001 can be read"):
        write(list_images(source), tmp_path / "out", skip_unreadable=True)


# ---- what is read ----------------------------------------------------------------------------------


def test_a_missing_or_cut_shard_is_named(copy):
    content = (copy / "00002.tar").read_bytes()
    (copy / "00002.tar").write_bytes(content[:-512])
    advice = r"remove the folder, then run `patchreorder shard` again"
    with pytest.raises(ValueError, match=rf"00002.tar has \d+ bytes, expected {len(content)}: {advice}"):
        Shards(copy)
    (copy / "00002.tar").unlink()
    with pytest.raises(ValueError, match=rf"00002.tar is missing: {advice}"):
        Shards(copy)


def test_a_replaced_shard_is_noticed_at_the_picture(copy):
    found = Shards(copy)
    index = int((found.shard == 1).nonzero()[0])
    path = copy / found.files[1]
    begin = int(found.offset[index]) - 512
    content = bytearray(path.read_bytes())
    for place, change in ((begin + 3, b"9"), (begin + 130, b"7"), (begin, bytes(512))):
        damaged = content.copy()
        damaged[place : place + len(change)] = change
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"00001.tar does not hold {found.members[index]} where the index says"):
            Shards(copy).read(index)
    path.write_bytes(content[: begin + 600])  # cut while it is open
    with pytest.raises(ValueError, match="does not hold"):
        found.read(index)


@pytest.mark.parametrize("place", [20, -40, -2000])
def test_a_damaged_index_is_refused(copy, place):
    content = bytearray((copy / INDEX).read_bytes())
    content[place] ^= 1
    (copy / INDEX).write_bytes(content)
    with pytest.raises(ValueError, match=r"index.safetensors is no index of ours or is damaged .*: remove it"):
        Shards(copy)


def test_an_order_is_a_permutation_of_windows(tmp_path, root):
    found = Shards(write(list_images(root), tmp_path / "out", size=1).folder)  # 28 shards
    order = found.order(seed=3, epoch=1)
    assert sorted(order.tolist()) == [*range(28)]
    assert torch.equal(order, found.order(seed=3, epoch=1))
    for other in ({"seed": 3, "epoch": 2}, {"seed": 4, "epoch": 1}):
        assert not torch.equal(order, found.order(**other))
    wide = Shards(write(list_images(root), tmp_path / "wide", size=2).folder)  # 14 shards, two windows
    first = wide.order(seed=0, epoch=0)[: 2 * WINDOW]
    assert len(wide.shard[first].unique()) == WINDOW
    assert (wide.shard[first[::2]] != wide.shard[first[1::2]]).any()  # mixed, not one after the other
    assert {*wide.shard[first].tolist()} != {*wide.shard[wide.order(seed=0, epoch=1)[: 2 * WINDOW]].tolist()}


def read_all(found, end) -> None:
    end.send([found.read(index) for index in range(len(found))])


def test_other_processes_can_read(made):
    found = Shards(made)
    expected = [found.read(index) for index in range(28)]
    assert [pickle.loads(pickle.dumps(found)).read(index) for index in range(28)] == expected
    end, other = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=read_all, args=(found, other))
    child.start()
    assert end.recv() == expected
    child.join()
    assert found.read(3) == expected[3]


def test_few_files_are_open_at_a_time(made, monkeypatch):
    monkeypatch.setattr(shards, "OPEN_FILES", 2)
    found = Shards(made)
    before = len(os.listdir("/proc/self/fd"))
    contents = [found.read(index) for index in range(28)]
    assert len(os.listdir("/proc/self/fd")) - before <= 2
    assert [found.read(index) for index in range(28)] == contents
    del found
    assert len(os.listdir("/proc/self/fd")) == before


# ---- other people's shards -------------------------------------------------------------------------


def foreign(path, *members, form=tarfile.GNU_FORMAT) -> None:
    with tarfile.open(path, "w", format=form) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def test_foreign_shards_get_an_index(root, tmp_path):
    picture = (root / "class-0000/0000.jpg").read_bytes()
    long = "deep/" * 40 + "key"
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        pairs = [("../a.jpg", b"1" + picture), ("../a.cls", b"2\n"), ("b.v2.JPG", b"?"), ("b.json", b"{}")]
        foreign(tmp_path / "x.tar", *pairs, (f"{long}.cls", b"0"), (f"{long}.png", b"2" + picture), form=form)
        foreign(tmp_path / "y.tar", ("dir/a.cls", b"1"), ("dir/a.JPEG", b"3" + picture), ("._a.jpg", b"mac"), form=form)
        with pytest.raises(ValueError, match=r"holds tars without an index: `patchreorder shard"):
            Photos.open(tmp_path, "train", view="Ori")
        index_foreign(tmp_path)
        found = Shards(tmp_path)
        assert (found.classes, found.labels.tolist()) == (["0", "1", "2"], [2, 0, 1])
        assert [found.read(index)[:1] for index in range(3)] == [b"1", b"2", b"3"]
        assert found.names[2] == "y.tar/dir/a.JPEG"
        (tmp_path / INDEX).unlink()
    assert not (tmp_path.parent / "a.jpg").exists()


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([("a.jpg", b"1")], r"x.tar holds no label \(.cls\) for a"),
        ([("a.cls", b"1")], r"x.tar holds no picture for a"),
        ([("a.jpg", b"1"), ("a.cls", b"cat")], r"x.tar holds 'cat' in a.cls, which must be a class number"),
        ([("a.jpg", b"1"), ("a.cls", b"-1")], r"holds '-1' in a.cls"),
        ([("a.jpg", b"1"), ("a.png", b"1"), ("a.cls", b"1")], r"x.tar holds a twice"),
        ([("a.txt", b"1")], r"holds no picture .* in its 1 tars"),
    ],
)
def test_wrong_foreign_shards_are_refused(tmp_path, members, reason):
    foreign(tmp_path / "x.tar", *members)
    with pytest.raises(ValueError, match=reason):
        index_foreign(tmp_path)
    assert not (tmp_path / INDEX).exists()


def test_cut_foreign_shards_are_refused(tmp_path):
    foreign(tmp_path / "x.tar", *((f"{n}.{end}", b"11") for n in range(3) for end in ("jpg", "cls")))
    whole = (tmp_path / "x.tar").read_bytes()
    ends = 6 * 1024  # of the last member
    for cut in (0, 100, 1024 + 512, 2048, 4096, ends - 600, ends):
        (tmp_path / "x.tar").write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=r"x.tar is .*cut.* get it again"):
            index_foreign(tmp_path)
    (tmp_path / "x.tar").write_bytes(whole[:2048] + b"x" * 512 + whole[2560:])
    with pytest.raises(ValueError, match=r"x.tar is .*damaged.* get it again"):
        index_foreign(tmp_path)


# ---- the command -----------------------------------------------------------------------------------


def test_the_command_writes_train_and_val(tmp_path, capsys):
    write_photos(tmp_path / "photos/train", classes=3, images=3, size=(24, 16))
    write_photos(tmp_path / "photos/val", classes=2, images=2, size=(24, 16), seed=1)
    (tmp_path / "photos/val/class-0000").rename(tmp_path / "photos/val/class-0002")
    (tmp_path / "photos/val/class-0001/Thumbs.db").touch()
    command = ["shard", str(tmp_path / "photos"), str(tmp_path / "out"), "--workers", "0", "--size", "4"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert f"Next: `patchreorder run table2 --data {tmp_path / 'out'}`" in said
    assert "1 files are no pictures and are left out: class-0001/Thumbs.db" in said
    assert "1 classes have no picture: class-0000" in said
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


def test_the_command_indexes_foreign_shards(copy, capsys):
    (copy / INDEX).unlink()
    with contextlib.suppress(FileNotFoundError):
        (copy / ".lock").unlink()
    assert main(["shard", str(copy), str(copy)]) == 0
    assert "Index: " in capsys.readouterr().out
    assert len(Shards(copy)) == 28
