"""Making and updating an index: what is read again, what is refused, images that cannot be used."""

import os
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from patchreorder.search.descriptors import fingerprint
from patchreorder.search.duplicates import find_duplicates
from patchreorder.search.images import scan
from patchreorder.search.index import Index
from patchreorder.search.manifest import MANIFEST, Manifest
from patchreorder.search.query import search_images

from .samples import Colours, aged, files, made, nearest, noise, state


def test_a_first_update(photos, tmp_path):
    done = made(photos, tmp_path / "out", workers=2)
    assert (done.images, done.described, done.removed, done.unreadable, done.ignored) == (12, 12, 0, [], [])
    assert state(tmp_path / "out").keys() == {name for name, _, _ in scan(photos)[0]}


def test_an_index_inside_the_folder_is_not_part_of_it(photos):
    (photos / "notes.txt").touch()
    assert made(photos, photos / "index").ignored == ["notes.txt"]
    assert made(photos, photos / "index").ignored == ["notes.txt"]


# ---- changes ---------------------------------------------------------------------------------------


def test_only_new_and_changed_images_are_described(photos, tmp_path, reads):
    out, model = tmp_path / "out", Colours()
    made(photos, out, model)
    assert model.seen == len(reads) == 12
    reads.clear()
    before = (out / MANIFEST).stat().st_mtime_ns
    done = made(photos, out, model)
    assert (model.seen, reads, done.changed) == (12, [], False)
    assert (out / MANIFEST).stat().st_mtime_ns == before
    os.utime(photos / "class-0000/0001.jpg", (5, 5))  # another time, the same content
    (photos / "class-0000/0002.jpg").rename(photos / "moved.jpg")
    (photos / "class-0000/0003.jpg").unlink()
    shutil.copy(photos / "class-0001/0000.jpg", photos / "class-0000/0000.jpg")  # a content that has a vector
    Image.new("RGB", (9, 9), (1, 200, 3)).save(photos / "new.png")
    os.utime(photos / "new.png", (6, 6))
    done = made(photos, out, model)
    assert sorted(reads) == ["class-0000/0000.jpg", "class-0000/0001.jpg", "moved.jpg", "new.png"]
    assert (model.seen, done.described, done.removed, done.images) == (13, 1, 2, 12)
    assert state(out).keys() == {name for name, _, _ in scan(photos)[0]}
    made(photos, tmp_path / "again")
    assert state(out) == state(tmp_path / "again")


def test_a_file_of_the_last_seconds_is_read_again(tmp_path):
    folder, out, model = noise(tmp_path / "in", 2), tmp_path / "out", Colours()
    path = folder / "0000.png"
    os.utime(path)
    made(folder, out, model)
    stat = path.stat()
    Image.fromarray(np.full((6, 6, 3), 9, np.uint8)).save(path)
    path.write_bytes(path.read_bytes().ljust(stat.st_size, b"\0")[: stat.st_size])
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # same size and time, other content
    assert made(folder, out, model).described == 1


def test_removed_images_are_masked_then_their_vectors_removed(small_chunks, photos, tmp_path):
    out = tmp_path / "out"
    made(photos, out)
    chunks = Manifest.read(out).chunks
    assert len(chunks) == 1  # one batch
    for number, rewritten in ((0, False), (1, False), (2, True)):
        (photos / f"class-0000/000{number}.jpg").unlink()
        made(photos, out)
        found = Manifest.read(out)
        assert (found.chunks != chunks) == rewritten
        assert len(state(out)) == 11 - number
        assert all("class-0000/0000" not in name for _, name in nearest(out, photos / "class-0000/0003.jpg", k=99))
    assert found.rows == [3, 3, 3]
    assert files(out) == {MANIFEST, *found.chunks}
    made(photos, tmp_path / "again")
    assert state(out) == state(tmp_path / "again")


def test_many_small_chunks_are_joined(tmp_path):
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for path in sorted(noise(tmp_path / "all", 24).iterdir()):
        shutil.copy2(path, folder)
        made(folder, out)
    assert 1 <= len(Manifest.read(out).chunks) < 18
    assert len(state(out)) == 24


def test_a_moved_folder_keeps_its_vectors(photos, tmp_path):
    model = Colours()
    made(photos, tmp_path / "out", model)
    photos = photos.rename(tmp_path / "elsewhere")
    done = made(photos, tmp_path / "out", model)
    assert (model.seen, done.images) == (12, 12)
    assert Index(tmp_path / "out").root == photos


# ---- refused ---------------------------------------------------------------------------------------


def test_other_models_weights_and_folders_are_refused(photos, tmp_path):
    out = tmp_path / "out"
    made(photos, out)
    before = state(out)
    weights, others = fingerprint(Colours()), fingerprint(Colours(weight=2.0))
    renamed = Colours()
    renamed.name = "sounds"
    for model, named in ((renamed, rf"sounds \(weights {weights}"), (Colours(weight=2.0), rf"\(weights {others}")):
        with pytest.raises(ValueError, match=rf"was made with colours \(weights {weights}.*{named}.*another --out"):
            made(photos, out, model)
        with pytest.raises(ValueError, match=rf"was made with colours .*cannot be searched with .*{named}"):
            search_images(Index(out), model, photos)
    noise(tmp_path / "other", 2)
    with pytest.raises(ValueError, match=r"is an index of .*photos, which still exists, not of .*other"):
        made(tmp_path / "other", out)
    assert state(out) == before


def test_a_folder_without_images_is_refused(photos, tmp_path):
    (tmp_path / "empty").mkdir()
    out = tmp_path / "out"
    with pytest.raises(ValueError, match="empty and its subfolders hold no images"):
        made(tmp_path / "empty", out)
    with pytest.raises(ValueError, match="nothing is not a folder"):
        made(tmp_path / "nothing", out)
    with pytest.raises(ValueError, match=r"out is not an index: `patchreorder index DIR --out"):
        Index(out)
    assert not out.exists()
    made(photos, out)
    before = state(out)
    for path in photos.rglob("*.jpg"):
        path.unlink()
    with pytest.raises(ValueError, match="holds no images any more, the index 12: is its disk mounted"):
        made(photos, out)
    assert state(out) == before


def test_a_folder_with_other_files_is_no_place_for_an_index(photos, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "precious.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds other files: name a new folder"):
        made(photos, out)
    (out / "precious.txt").rename(tmp_path / "file")
    with pytest.raises(ValueError, match=r"file\) must be a folder"):
        made(photos, tmp_path / "file")
    made(photos, out)
    (out / "precious.txt").write_text("mine")
    made(noise(photos / "more", 3).parent, out)
    assert (out / "precious.txt").read_text() == "mine"


# ---- images that cannot be used --------------------------------------------------------------------


def test_unreadable_images_are_listed_and_not_read_again(photos, tmp_path, reads):
    out = tmp_path / "out"
    (photos / "bad.jpg").write_bytes(b"not an image")
    (photos / "cut.jpg").write_bytes((photos / "class-0000/0000.jpg").read_bytes()[:300])
    (photos / "empty.png").touch()
    aged(photos)
    done = made(photos, out)
    assert [file.name for file in done.unreadable] == ["bad.jpg", "cut.jpg", "empty.png"]
    assert "bad.jpg cannot be read as" in done.unreadable[0].reason
    assert len(state(out)) == done.images == 12
    reads.clear()
    assert [file.name for file in made(photos, out).unreadable] == ["bad.jpg", "cut.jpg", "empty.png"]
    assert reads == []
    shutil.copy(photos / "class-0000/0000.jpg", photos / "bad.jpg")
    assert [file.name for file in made(photos, out).unreadable] == ["cut.jpg", "empty.png"]
    assert reads == ["bad.jpg"]


def test_a_huge_file_and_a_link_to_itself_stop_nothing(photos, tmp_path):
    with open(photos / "huge.jpg", "wb") as file:
        file.truncate(40 << 30)  # sparse
    (photos / "loop.jpg").symlink_to("loop.jpg")
    done = made(aged(photos), tmp_path / "out")
    assert (done.images, [file.name for file in done.unreadable], done.ignored) == (12, ["huge.jpg"], ["loop.jpg"])
    assert not made(photos, tmp_path / "out").changed


def test_a_file_that_cannot_be_opened_is_tried_again(photos, tmp_path, monkeypatch):
    real = open

    def refuse(path, *arguments, **options):
        if str(path).endswith("0001.jpg"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", refuse)
        done = made(photos, tmp_path / "out")
    assert [file.reason for file in done.unreadable] == [
        f"class-000{number}/0001.jpg cannot be opened: Permission denied" for number in range(3)
    ]
    assert made(photos, tmp_path / "out").images == 12


def test_nan_and_zero_features_are_left_out_and_named(photos, tmp_path):
    for name, colour in (("red.png", (255, 0, 0)), ("blue.png", (0, 0, 255))):
        Image.new("RGB", (9, 9), colour).save(photos / name)
    shutil.copy(photos / "red.png", photos / "red2.png")
    model = Colours(spoilt=True)
    done = made(aged(photos), tmp_path / "out", model)
    assert [file.reason for file in done.unreadable] == [
        "blue.png is left out: all its features are zero: a blank image",
        "red.png is left out: its features are not finite",
        "red2.png is left out: its features are not finite",
    ]
    assert done.images == len(state(tmp_path / "out")) == 12
    seen = model.seen
    made(photos, tmp_path / "out", model)
    assert model.seen == seen


def test_a_descriptor_of_another_length_is_named(photos, tmp_path):
    model = Colours()
    model.dimensions = 47
    with pytest.raises(ValueError, match=r"the descriptor colours gave \(12, 48\), expected \(12, 47\)"):
        made(photos, tmp_path / "out", model)


def test_an_index_of_unreadable_images_has_no_results(photos, tmp_path):
    for path in photos.rglob("*.jpg"):
        path.write_bytes(b"not an image")
    done = made(photos, tmp_path / "out")
    assert (done.images, len(done.unreadable)) == (0, 12)
    opened = Index(tmp_path / "out")
    assert len(opened) == 0
    assert opened.search(torch.ones(2, 48)) == [[], []]
    assert find_duplicates(opened).groups == []
    Image.new("RGB", (9, 9), (1, 2, 3)).save(photos / "good.png")
    assert made(photos, tmp_path / "out").images == 1
    assert find_duplicates(Index(tmp_path / "out")).groups == []
