"""The search index: exact, whole after every kind of stop, read in one state only, and never wrong in silence."""

import base64
import contextlib
import io
import json
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from patchreorder.__main__ import main
from patchreorder.data import loader
from patchreorder.data.generated import write_photos
from patchreorder.search import describe, page, stores
from patchreorder.search import duplicates as duplicates_module
from patchreorder.search import index as index_module
from patchreorder.search.duplicates import groups, usual_distance
from patchreorder.search.images import POSES, Reader, listed
from patchreorder.search.index import Hit, Index, ask, update
from patchreorder.search.manifest import MANIFEST, Damaged, Maker, Manifest, read_chunk

PRINT = "f00d"


class Colours(nn.Module):
    """A descriptor for tests: colours of 4x4 places; `spoilt` makes something else of red and of blue pictures."""

    name, dimensions = "colours", 48

    def __init__(self, spoilt=False):
        super().__init__()
        self.spoilt, self.seen = spoilt, 0

    def forward(self, images):
        self.seen += len(images)
        vectors = nn.functional.adaptive_avg_pool2d(images, 4).flatten(1)
        if self.spoilt:
            red, _, blue = images.mean((2, 3)).unbind(1)
            vectors[red > 0.9], vectors[blue > 0.9] = torch.nan, 0
        return nn.functional.normalize(vectors).contiguous()


def made(folder, out, model=None, **options):
    return update(folder, out, model or Colours(), fingerprint=PRINT, **options)


def find(out, image, **options):
    """Distance and name of the hits of one picture."""
    answers, bad = ask(Index(out), Colours(), image, fingerprint=PRINT, **options)
    assert not bad
    return [(round(hit.distance, 6), hit.name) for hit in answers[0].hits]


def aged(folder):
    """Dates of long ago: a file of this very moment is always read again."""
    for number, path in enumerate(sorted(folder.rglob("*"))):
        if path.is_file():
            os.utime(path, (1_000_000_000 + number,) * 2)
    return folder


@pytest.fixture
def photos(tmp_path):
    """Twelve pictures of three kinds."""
    return aged(write_photos(tmp_path / "photos", classes=3, images=4, size=(24, 16)))


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(index_module, "CHUNK", 3)


def ours(out):
    return {path.name for path in out.iterdir()} - {".lock"}


def state(out):
    """What an index answers, whatever its files are called: the vector of every file."""
    opened = Index(out)
    return {
        file.name: opened.vectors.take(np.array([slot]))[0].tolist()
        for file, slot in zip(opened.manifest.files, opened.manifest.slots, strict=True)
        if slot >= 0
    }


def brute_force(rows, query, k):
    """The k nearest of named vectors by numpy alone, equally near ones by name."""
    distances = np.sqrt(((np.array([*rows.values()]) - query.double().numpy()) ** 2).sum(1))
    return sorted(zip(distances.tolist(), rows, strict=True))[:k]


# ---- exactness -------------------------------------------------------------------------------------


class Table(nn.Module):
    """Gives vectors of its own, one after the other."""

    name = "table"

    def __init__(self, vectors):
        super().__init__()
        self.vectors, self.dimensions, self.at = vectors, vectors.shape[1], 0

    def forward(self, images):
        self.at += len(images)
        return self.vectors[self.at - len(images) : self.at]


def noise(folder, count):
    """Small pictures, no two the same."""
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 256, (count, 6, 6, 3), dtype=np.uint8)
    for number in range(count):
        Image.fromarray(pixels[number]).save(folder / f"{number:04d}.png")
    return aged(folder)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A folder of 90 pictures and an index of it with vectors of which many are alike, or equally far from others."""
    folder = tmp_path_factory.mktemp("table")
    vectors = torch.randint(-2, 3, (90, 5), generator=torch.Generator().manual_seed(1)).float()
    vectors[vectors.abs().sum(1) == 0] = 1
    noise(folder / "in", 90)
    late = [path.rename(folder / path.name) for path in sorted((folder / "in").iterdir())[:40]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_module, "CHUNK", 32)
        for names in ([], late):  # so that the order of the vectors is not that of the names
            for path in names:
                path.rename(folder / "in" / path.name)
            update(folder / "in", folder / "out", Table(vectors[len(names) :]), fingerprint=PRINT)
    return folder


@pytest.mark.parametrize("k", [1, 4, 31, 89, 90, 1000])
def test_the_flat_search_is_that_of_numpy(table, k):
    opened = Index(table / "out")
    rows, queries = state(table / "out"), torch.cat([opened.vectors.take(np.arange(90)), torch.randn(10, 5)])
    for query, hits in zip(queries, opened.search(queries, k), strict=True):
        expected = brute_force(rows, query, k)
        assert [hit.name for hit in hits] == [name for _, name in expected]
        np.testing.assert_allclose([hit.distance for hit in hits], [distance for distance, _ in expected], rtol=1e-12)


def test_queries_are_asked_in_parts(table, monkeypatch):
    opened, queries = Index(table / "out"), torch.randn(7, 5)
    whole = opened.search(queries, 4)
    monkeypatch.setattr(stores, "TOGETHER", 200)
    assert opened.search(queries, 4) == whole


def test_rounding_does_not_decide(tmp_path):
    # Far from zero the single-precision product rounds these distances by more than they differ.
    base = torch.full((1, 4), 1000.0)
    steps = torch.randperm(30, generator=torch.Generator().manual_seed(0)) + 1
    vectors = base + steps[:, None] * 2**-12
    update(noise(tmp_path / "in", 30), tmp_path / "out", Table(vectors), fingerprint=PRINT)
    names = [f"{place:04d}.png" for place in steps.argsort().tolist()]
    for k in (1, 2, 10, 30):
        (hits,) = Index(tmp_path / "out").search(base, k)
        assert [hit.name for hit in hits] == names[:k]
        assert [hit.distance * 2**11 for hit in hits] == [*range(1, k + 1)]


@pytest.mark.parametrize(
    ("queries", "k", "reason"),
    [
        (torch.ones(1, 5), 0, r"k \(0\) must be 1 or more"),
        (torch.ones(1, 4), 4, r"queries \(1, 4\) must be \(q, 5\)"),
        (torch.ones(5), 4, r"queries \(5,\) must be"),
        (torch.full((1, 5), torch.nan), 4, "must be finite"),
        (torch.full((1, 5), torch.inf), 4, "must be finite"),
    ],
)
def test_bad_queries_are_refused(table, queries, k, reason):
    with pytest.raises(ValueError, match=reason):
        Index(table / "out").search(queries, k)


def test_no_query_has_no_answer(table):
    assert Index(table / "out").search(torch.empty(0, 5)) == []


# ---- what is in it ---------------------------------------------------------------------------------


def test_a_picture_finds_itself_and_its_kind(photos, tmp_path):
    done = made(photos, tmp_path / "out", workers=2)
    assert (done.images, done.described, done.removed, done.unreadable, done.ignored) == (12, 12, 0, [], [])
    assert find(tmp_path / "out", photos / "class-0001/0002.jpg", k=1) == [(0.0, "class-0001/0002.jpg")]
    answers, _ = ask(Index(tmp_path / "out"), Colours(), photos, fingerprint=PRINT, workers=2)
    assert [(answer.query, answer.hits[0].name) for answer in answers] == [
        (name, name) for name, _, _ in listed(photos)[0]
    ]
    assert all(len(answer.hits) == 4 for answer in answers)


def test_the_manifest_says_what_it_is_made_with(photos, tmp_path):
    made(photos, tmp_path / "out")
    values = json.loads((tmp_path / "out" / MANIFEST).read_bytes())
    assert values["maker"] == ["colours", PRINT, 48, {"size": 224, "short": 256, "view": "Ori"}]
    assert values["root"] == str(photos)
    name, size, mtime, digest, reason = values["files"][0]
    stat = (photos / name).stat()
    assert (name, size, mtime, reason) == ("class-0000/0000.jpg", stat.st_size, stat.st_mtime_ns, "")
    assert re.fullmatch("[0-9a-f]{32}", digest)


def test_nested_folders_links_and_other_files(photos, tmp_path):
    (photos / "a/b/c").mkdir(parents=True)
    shutil.copy(photos / "class-0000/0000.jpg", photos / "a/b/c/DEEP.JPG")
    (photos / "a/notes.txt").touch()
    (photos / ".hidden.jpg").touch()
    (photos / "a/back").symlink_to(photos)
    (photos / "a/nowhere.jpg").symlink_to(photos / "nothing")
    done = made(photos, photos / "index")  # an index in the folder is no part of it
    assert done.images == 13
    assert done.ignored == [".hidden.jpg", "a/notes.txt", "a/nowhere.jpg"]
    assert made(photos, photos / "index").ignored == done.ignored


def test_the_same_content_has_one_vector(photos, tmp_path):
    shutil.copy(photos / "class-0000/0000.jpg", photos / "copy.jpg")
    done = made(photos, tmp_path / "out")
    assert (done.images, done.described) == (13, 12)
    assert find(tmp_path / "out", photos / "copy.jpg", k=2) == [(0.0, "class-0000/0000.jpg"), (0.0, "copy.jpg")]


def test_other_models_weights_and_folders_are_refused(photos, tmp_path):
    out = tmp_path / "out"
    made(photos, out)
    before = state(out)
    other = Colours()
    other.name = "sounds"
    for model, fingerprint, named in ((other, PRINT, r"sounds \(weights f00d"), (Colours(), "beef", r"\(weights beef")):
        with pytest.raises(ValueError, match=rf"was made with colours \(weights f00d.*{named}.*another --out"):
            update(photos, out, model, fingerprint=fingerprint)
        with pytest.raises(ValueError, match=rf"was made with colours \(weights f00d.*cannot be asked with .*{named}"):
            ask(Index(out), model, photos, fingerprint=fingerprint)
    noise(tmp_path / "other", 2)
    with pytest.raises(ValueError, match=r"is an index of .*photos, which is still there, not of .*other"):
        made(tmp_path / "other", out)
    assert state(out) == before


def test_another_version_is_refused(photos, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("patchreorder.search.manifest.FORMAT", 2)
        made(photos, tmp_path / "out")
    with pytest.raises(ValueError, match="has format 2, expected 1"):
        Index(tmp_path / "out")
    with pytest.raises(ValueError, match="has format 2, expected 1"):
        made(photos, tmp_path / "out")


# ---- changes ---------------------------------------------------------------------------------------


def test_only_what_is_new_or_changed_is_described(photos, tmp_path, monkeypatch):
    out, model = tmp_path / "out", Colours()
    made(photos, out, model)
    assert model.seen == 12
    read = []
    monkeypatch.setattr(Reader, "_read", lambda self, name, real=Reader._read: read.append(name) or real(self, name))
    before = (out / MANIFEST).stat().st_mtime_ns
    done = made(photos, out, model)
    assert (model.seen, read, done.changed) == (12, [], False)
    assert (out / MANIFEST).stat().st_mtime_ns == before
    os.utime(photos / "class-0000/0001.jpg", (5, 5))  # touched
    (photos / "class-0000/0002.jpg").rename(photos / "moved.jpg")
    (photos / "class-0000/0003.jpg").unlink()
    shutil.copy(photos / "class-0001/0000.jpg", photos / "class-0000/0000.jpg")  # changed, to what is there
    Image.new("RGB", (9, 9), (1, 200, 3)).save(photos / "new.png")
    aged_new = (6, 6)
    os.utime(photos / "new.png", aged_new)
    done = made(photos, out, model)
    assert sorted(read) == ["class-0000/0000.jpg", "class-0000/0001.jpg", "moved.jpg", "new.png"]
    assert (model.seen, done.described, done.removed, done.images) == (13, 1, 2, 12)
    assert state(out).keys() == {name for name, _, _ in listed(photos)[0]}
    made(photos, tmp_path / "anew")
    assert state(out) == state(tmp_path / "anew")


def test_a_file_of_this_moment_is_read_again(tmp_path):
    folder, out, model = tmp_path / "in", tmp_path / "out", Colours()
    noise(folder, 2)
    path = folder / "0000.png"
    os.utime(path)
    made(folder, out, model)
    stat, size = path.stat(), path.stat().st_size
    Image.fromarray(np.full((6, 6, 3), 9, np.uint8)).save(path)
    path.write_bytes(path.read_bytes().ljust(size, b"\0")[:size])
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # same size and date, other content
    assert made(folder, out, model).described == 1


def test_removed_pictures_are_masked_then_rewritten(small_chunks, photos, tmp_path):
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
        assert all("class-0000/0000" not in name for _, name in find(out, photos / "class-0000/0003.jpg", k=99))
    assert found.rows == [3, 3, 3]
    assert ours(out) == {MANIFEST, *found.chunks}
    made(photos, tmp_path / "anew")
    assert state(out) == state(tmp_path / "anew")


def test_many_small_chunks_are_joined(tmp_path):
    folder, out = tmp_path / "in", tmp_path / "out"
    noise(tmp_path / "all", 24)
    folder.mkdir()
    for path in sorted((tmp_path / "all").iterdir()):
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


# ---- faults ----------------------------------------------------------------------------------------


def test_unreadable_pictures_are_listed_and_not_tried_again(photos, tmp_path, monkeypatch):
    out = tmp_path / "out"
    (photos / "bad.jpg").write_bytes(b"no picture")
    (photos / "cut.jpg").write_bytes((photos / "class-0000/0000.jpg").read_bytes()[:300])
    (photos / "empty.png").touch()
    aged(photos)
    done = made(photos, out)
    assert [file.name for file in done.unreadable] == ["bad.jpg", "cut.jpg", "empty.png"]
    assert "bad.jpg cannot be read as a picture" in done.unreadable[0].reason
    assert len(state(out)) == done.images == 12
    read = []
    monkeypatch.setattr(Reader, "_read", lambda self, name, real=Reader._read: read.append(name) or real(self, name))
    assert [file.name for file in made(photos, out).unreadable] == ["bad.jpg", "cut.jpg", "empty.png"]
    assert read == []
    shutil.copy(photos / "class-0000/0000.jpg", photos / "bad.jpg")
    assert [file.name for file in made(photos, out).unreadable] == ["cut.jpg", "empty.png"]
    assert read == ["bad.jpg"]


def test_what_cannot_be_opened_is_tried_again(photos, tmp_path, monkeypatch):
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
    aged(photos)
    model = Colours(spoilt=True)
    done = made(photos, tmp_path / "out", model)
    assert [file.reason for file in done.unreadable] == [
        "blue.png is left out: all its features are zero: a blank picture",
        "red.png is left out: its features are not finite numbers",
        "red2.png is left out: its features are not finite numbers",
    ]
    assert done.images == len(state(tmp_path / "out")) == 12
    seen = model.seen
    made(photos, tmp_path / "out", model)
    assert model.seen == seen
    answers, bad = ask(Index(tmp_path / "out"), model, photos / "red.png", fingerprint=PRINT)
    assert (answers, bad) == ([], ["red.png cannot be asked about: its features are not finite numbers"])
    _, bad = ask(Index(tmp_path / "out"), model, photos / "blue.png", fingerprint=PRINT, poses=True)
    assert bad == ["blue.png cannot be asked about: all its features are zero: a blank picture"]


def test_a_wrong_descriptor_is_named(photos, tmp_path):
    model = Colours()
    model.dimensions = 47
    with pytest.raises(ValueError, match=r"the descriptor colours gave \(12, 48\), expected \(12, 47\)"):
        made(photos, tmp_path / "out", model)


def test_no_pictures(photos, tmp_path):
    (tmp_path / "empty").mkdir()
    out = tmp_path / "out"
    with pytest.raises(ValueError, match="empty holds no picture"):
        made(tmp_path / "empty", out)
    with pytest.raises(ValueError, match="nothing is no folder"):
        made(tmp_path / "nothing", out)
    with pytest.raises(ValueError, match=r"out is no index: `patchreorder index DIR --out"):
        Index(out)
    assert not out.exists()
    made(photos, out)
    before = state(out)
    for path in photos.rglob("*.jpg"):
        path.unlink()
    with pytest.raises(ValueError, match="holds no picture any more, the index 12: is its disk there"):
        made(photos, out)
    assert state(out) == before


def test_an_index_without_pictures_answers_nothing(photos, tmp_path):
    for path in photos.rglob("*.jpg"):
        path.write_bytes(b"no picture")
    done = made(photos, tmp_path / "out")
    assert (done.images, len(done.unreadable)) == (0, 12)
    opened = Index(tmp_path / "out")
    assert len(opened) == 0
    assert opened.search(torch.ones(2, 48)) == [[], []]
    assert groups(opened) == []
    good = Image.new("RGB", (9, 9), (1, 2, 3))
    good.save(photos / "good.png")
    assert made(photos, tmp_path / "out").images == 1
    assert groups(Index(tmp_path / "out")) == []


def test_a_folder_with_something_else_is_refused(photos, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "precious.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds something else: name a new folder"):
        made(photos, out)
    (out / "precious.txt").rename(tmp_path / "file")
    with pytest.raises(ValueError, match=r"file\) must be a folder"):
        made(photos, tmp_path / "file")
    made(photos, out)
    (out / "precious.txt").write_text("mine")
    made(noise(photos / "more", 3).parent, out)
    assert (out / "precious.txt").read_text() == "mine"


STRANGE = [
    b"caf\xe9.png",
    b"<script>alert(1)</script>.png",
    b"two\nlines.png",
    b"\x1b[31mred.png",
    "‮gnp.exe.png".encode(),
]


@pytest.fixture
def strange(tmp_path):
    folder = noise(tmp_path / "in", len(STRANGE))
    for path, name in zip(sorted(folder.iterdir()), STRANGE, strict=True):
        if b"/" in name:  # no name of a file
            place = os.fsencode(folder) + b"/" + name.rpartition(b"/")[0]
            os.makedirs(place)
        os.rename(os.fsencode(path), os.fsencode(folder) + b"/" + name)
    return folder


def test_strange_names_are_found_and_shown_clean(strange, tmp_path, monkeypatch, capsys):
    names = sorted(map(os.fsdecode, STRANGE))
    made(strange, tmp_path / "out", workers=1)
    assert made(strange, tmp_path / "out").images == len(STRANGE)
    assert sorted(state(tmp_path / "out")) == names
    stand_in(monkeypatch)
    monkeypatch.setenv("COLUMNS", "120")
    out, html = str(tmp_path / "out"), tmp_path / "page.html"
    for command in (["search", out, str(strange), "-k", "9"], ["duplicates", out, "--threshold", "2"]):
        assert main([*command, "--html", str(html), *(["--workers", "0"] if command[0] == "search" else [])]) == 0
        said = capsys.readouterr().out
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", said)
        assert "caf .png" in said
        text = html.read_text(encoding="utf-8")
        assert "<script" not in text
        assert "\x1b" not in text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;.png" in text
        assert text.count("data:image/jpeg;base64,") >= len(STRANGE)
    for path in strange.rglob("*.png"):
        path.write_bytes(b"no picture")
    assert main(["index", str(strange), "--out", out, "--workers", "0"]) == 0
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", capsys.readouterr().out)


# ---- damage ----------------------------------------------------------------------------------------


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


DAMAGES = {
    "flipped": flip,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "emptied": lambda path: path.write_bytes(b""),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("which", ["chunk", "manifest", "graph"])
def test_damage_is_named_and_repaired(photos, tmp_path, monkeypatch, damage, which):
    out, said = tmp_path / "out", []
    if which == "graph":
        pytest.importorskip("faiss")
        monkeypatch.setattr(index_module, "LARGE", 3)
    monkeypatch.setattr(index_module, "CHUNK", 5)
    made(photos, out, batch=5)
    before, names = state(out), ours(out)
    manifest = Manifest.read(out)
    target = {"chunk": manifest.chunks[1], "manifest": MANIFEST, "graph": manifest.graph}[which]
    DAMAGES[damage](out / target)
    reason = "out is not finished" if (which, damage) == ("manifest", "gone") else rf"{target} is (damaged|gone)"
    with pytest.raises(ValueError, match=rf"{reason}.*: run .*`patchreorder index` again"):
        Index(out)
    model = Colours()
    screen = index_module.Screen()
    screen.say = said.append
    made(photos, out, model, screen=screen, batch=5)
    assert model.seen == (5 if which == "chunk" else 0)  # only what was lost
    assert state(out) == before
    assert bool(said) == ((which, damage) != ("manifest", "gone"))
    if which != "chunk":
        assert ours(out) == names
    assert not made(photos, out).changed


def test_every_byte_of_a_chunk_counts(tmp_path):
    made(noise(tmp_path / "in", 1), tmp_path / "out")
    path = next((tmp_path / "out").glob("*.safetensors"))
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(Damaged):
            Index(tmp_path / "out")
    path.write_bytes(whole)
    Index(tmp_path / "out")


def test_a_chunk_of_another_index_is_not_used(photos, tmp_path):
    made(photos, tmp_path / "other")
    (tmp_path / "out").mkdir()
    (path,) = (tmp_path / "other").glob("*.safetensors")
    shutil.copy(path, tmp_path / "out")
    model = Colours()
    update(photos, tmp_path / "out", model, fingerprint="beef")
    assert model.seen == 12
    with pytest.raises(Damaged, match="is of another index"):
        read_chunk(path, maker=Maker("colours", "beef", 48))


# ---- kills and other processes ---------------------------------------------------------------------


def work(folder, out, large, stop, freeze, told):
    """In a process of its own: update, and stand still or die by SIGKILL before a numbered change of the disk."""
    torch.set_num_threads(1)
    index_module.CHUNK, index_module.LARGE, index_module.ADDED = 3, large, 0
    steps = 0

    def counted(function):
        def call(*given, **options):
            nonlocal steps
            steps += 1
            if steps == stop and freeze:
                told.send("there")
                time.sleep(60)
            if steps == stop:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*given, **options)

        return call

    os.fsync, os.replace, Path.unlink = counted(os.fsync), counted(os.replace), counted(Path.unlink)
    index_module.build_graph = counted(index_module.build_graph)
    try:
        made(folder, out, batch=2)
    except ValueError as error:
        told.send(str(error))
    else:
        told.send(steps)


class Worker:
    """A process that does this, and what it told in the end."""

    def __init__(self, folder, out, *, large=1000, stop=0, freeze=False):
        context = loader._context()  # its server has torch already
        self.told, own = context.Pipe(duplex=False)
        self.process = context.Process(target=work, args=(folder, out, large, stop, freeze, own))
        self.process.start()
        own.close()

    def end(self):
        """Steps, or the reason for an error; None if it was killed."""
        try:
            said = self.told.recv()
        except EOFError:
            said = None
        self.process.join()
        assert self.process.exitcode == (-signal.SIGKILL if said is None else 0)
        return said


@contextlib.contextmanager
def frozen(folder, out, **options):
    """The process stands still at a step until this ends, then is killed."""
    worker = Worker(folder, out, freeze=True, **options)
    try:
        assert worker.told.recv() == "there"
        yield
    finally:
        worker.process.kill()
        worker.process.join()


def change(photos):
    """Four pictures are new, one has changed, five are gone: chunks are written anew."""
    noise(photos / "new", 4)
    for number in range(4):
        (photos / f"class-0000/000{number}.jpg").unlink()
    (photos / "class-0001/0000.jpg").unlink()
    shutil.copy2(photos / "class-0002/0003.jpg", photos / "class-0001/0001.jpg")


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("large", [1000, 5])
def test_killed_at_any_step_it_goes_on(photos, tmp_path, large, every):
    """kill -9, in turn, before single changes of the disk, in a first build and in an update that rewrites chunks."""
    if large == 5:
        pytest.importorskip("faiss")
    first, second = tmp_path / "first", tmp_path / "second"
    steps = Worker(photos, first, large=large).end()
    before = state(first)
    unchanged = shutil.copytree(photos, tmp_path / "unchanged")
    change(photos)
    shutil.copytree(first, second)
    more = Worker(photos, second, large=large).end()
    after = state(second)
    assert before != after
    assert min(steps, more) > 11
    for total, begun in ((steps, None), (more, first)):
        for stop in range(1, total + 1) if every else (2, total // 2, total - 1):
            out = tmp_path / f"{total}-{begun is None}-{stop}"
            if begun:
                shutil.copytree(begun, out)
            folder, expected = (photos, after) if begun else (rooted(unchanged, tmp_path / "again"), before)
            assert Worker(folder, out, large=large, stop=stop).end() is None
            if begun:
                assert state(out) in (before, after)
            elif not (out / MANIFEST).exists():
                with pytest.raises(ValueError, match=r"is not finished|is no index"):
                    Index(out)
            assert isinstance(Worker(folder, out, large=large).end(), int)
            assert state(out) == expected
            found = Manifest.read(out)
            assert ours(out) == {MANIFEST, *found.chunks, *([found.graph] if found.graph else [])}


def rooted(folder, place):
    """The folder by another name, once."""
    return place if place.exists() else folder.rename(place)


def test_a_killed_build_does_not_describe_again_what_is_in_chunks(photos, tmp_path):
    out = tmp_path / "out"
    assert Worker(photos, out, stop=5).end() is None
    kept = sum(len(read_chunk(path).digests) for path in out.glob("[0-9a-f]*.safetensors"))
    assert kept >= 4
    model = Colours()
    assert made(photos, out, model).images == 12
    assert model.seen == 12 - kept


def test_a_second_process_is_told_that_another_is_at_it(photos, tmp_path):
    out = tmp_path / "out"
    with frozen(photos, out, stop=4):
        began = time.monotonic()
        with pytest.raises(ValueError, match=r"another process is writing .*out: wait until it is done"):
            made(photos, out)
        assert time.monotonic() - began < 5
    assert made(photos, out).images == 12  # a lock dies with its process


def test_several_processes_at_once_leave_a_whole_index(photos, tmp_path):
    out = tmp_path / "out"
    told = [worker.end() for worker in [Worker(photos, out) for _ in range(4)]]
    assert any(isinstance(said, int) for said in told)
    assert all(isinstance(said, int) or "another process is writing" in said for said in told)
    assert len(state(out)) == 12


@pytest.mark.parametrize("stop", [4, -4, -1])
def test_a_search_during_an_update_sees_one_state(photos, tmp_path, stop):
    first, second = tmp_path / "first", tmp_path / "second"
    Worker(photos, first).end()
    before, opened = state(first), Index(first)
    change(photos)
    shutil.copytree(first, second)
    steps = Worker(photos, second).end()
    after = state(second)
    with frozen(photos, first, stop=stop if stop > 0 else steps + stop):
        assert state(first) == (before if stop > 0 else after)
    made(photos, first)
    assert state(first) == after
    hits = opened.search(torch.ones(1, 48), 99)[0]
    assert {hit.name for hit in hits} == before.keys()  # its files are gone, what it read is not


def test_a_search_while_updates_go_on(photos, tmp_path):
    """Real readers against a real writer: every state that is seen is one that was committed."""
    out = tmp_path / "out"
    made(photos, out)
    before = state(out)
    change(photos)
    worker = Worker(photos, out)
    seen = [state(out)]
    while worker.process.is_alive():
        seen.append(state(out))
    assert isinstance(worker.end(), int)
    after = state(out)
    assert seen[0] == before
    assert all(found in (before, after) for found in seen)


def test_a_reader_that_comes_too_late_for_a_file_reads_the_new_state(small_chunks, photos, tmp_path, monkeypatch):
    out = tmp_path / "out"
    made(photos, out)
    real, calls = index_module.read_vectors, []

    def late(path, **options):
        if not calls:
            calls.append(path)
            change(photos)
            made(photos, out)  # removes what is about to be read
        return real(path, **options)

    monkeypatch.setattr(index_module, "read_vectors", late)
    opened = Index(out)
    assert not calls[0].exists()
    assert len(opened) == len(listed(photos)[0])


# ---- poses -----------------------------------------------------------------------------------------


def test_poses_find_what_is_turned(tmp_path):
    folder = noise(tmp_path / "in", 6)
    for path in folder.iterdir():
        Image.open(path).resize((64, 64), Image.Resampling.NEAREST).save(path)
    aged(folder)
    made(folder, tmp_path / "out")
    Image.open(folder / "0003.png").transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png")
    assert find(tmp_path / "out", tmp_path / "turned.png")[0][0] > 0.1
    (answer,), _ = ask(Index(tmp_path / "out"), Colours(), tmp_path / "turned.png", fingerprint=PRINT, poses=True)
    assert answer.hits[0].distance < 0.01
    assert answer.hits[0][1:] == ("0003.png", "turned by 270°")
    assert len({hit.name for hit in answer.hits}) == 4
    assert answer.hits == sorted(answer.hits, key=lambda hit: hit.distance)
    (itself,), _ = ask(Index(tmp_path / "out"), Colours(), folder / "0001.png", fingerprint=PRINT, poses=True, k=99)
    assert itself.hits[0] == Hit(pytest.approx(0, abs=1e-6), "0001.png", "")
    assert len(itself.hits) == 6
    assert len(set(POSES)) == 12


# ---- duplicates ------------------------------------------------------------------------------------


def components(rows, threshold):
    """Groups by repeated joining, for comparison."""
    sets = [{name} for name in rows]
    for a in rows:
        for b in rows:
            if a < b and np.linalg.norm(np.array(rows[a]) - rows[b]) <= threshold:
                one, other = (next(s for s in sets if name in s) for name in (a, b))
                if one is not other:
                    sets.remove(other)
                    one |= other
    return sorted((sorted(found) for found in sets if len(found) > 1), key=lambda names: (-len(names), names[0]))


@pytest.mark.parametrize("threshold", [0.0, 1.0, 1.5, 2.0])
def test_groups_are_connected_pairs(table, threshold):
    found = groups(Index(table / "out"), threshold=threshold)
    assert [[member.name for member in group] for group in found] == components(state(table / "out"), threshold)
    rows = state(table / "out")
    for group in found:
        for distance, name in group:
            others = [np.linalg.norm(np.array(rows[name]) - rows[other.name]) for other in group if other.name != name]
            assert distance == pytest.approx(min(others))


def test_groups_of_a_graph_are_nearly_those(table, monkeypatch):
    pytest.importorskip("faiss")
    opened = Index(table / "out")
    path = table / "graph.faiss"
    stores.build_graph(path, opened.vectors.blocks, more=lambda more: None)
    expected = groups(opened, threshold=1.0)
    opened.store = stores.Graph(path, opened.vectors, len(opened.vectors.blocks))
    monkeypatch.setattr(duplicates_module, "NEIGHBOURS", 89)
    assert groups(opened, threshold=1.0) == expected


def test_copies_are_a_group_and_masked_ones_are_not(photos, tmp_path):
    shutil.copy2(photos / "class-0000/0000.jpg", photos / "copy.jpg")
    made(photos, tmp_path / "out")
    (group,) = groups(Index(tmp_path / "out"), threshold=0)
    assert group == [(0.0, "class-0000/0000.jpg"), (0.0, "copy.jpg")]
    (photos / "copy.jpg").unlink()
    (photos / "class-0000/0000.jpg").unlink()
    made(photos, tmp_path / "out")
    assert Manifest.read(tmp_path / "out").rows == [12]  # its vector is still there
    assert groups(Index(tmp_path / "out"), threshold=0) == []
    everything = groups(Index(tmp_path / "out"), threshold=9)
    assert len(everything[0]) == 11


def test_the_usual_threshold_is_relative(photos, tmp_path):
    made(photos, tmp_path / "out")
    opened = Index(tmp_path / "out")
    rows = np.array([*state(tmp_path / "out").values()])
    every = np.linalg.norm(rows[:, None] - rows, axis=2)[np.triu_indices(12, 1)]
    assert np.quantile(every, 0.4) < usual_distance(opened) < np.quantile(every, 0.6)
    limit = duplicates_module.RELATIVE * usual_distance(opened)
    assert groups(opened) == groups(opened, threshold=limit)
    for bad in (-1.0, float("nan")):
        with pytest.raises(ValueError, match=r"threshold \(.*\) must be a distance"):
            groups(opened, threshold=bad)


# ---- FAISS -----------------------------------------------------------------------------------------


@pytest.fixture
def graphs(monkeypatch):
    pytest.importorskip("faiss")
    monkeypatch.setattr(index_module, "LARGE", 20)
    monkeypatch.setattr(index_module, "ADDED", 8)
    monkeypatch.setattr(index_module, "CHUNK", 16)


def clustered(count, seed=0):
    random = torch.Generator().manual_seed(seed)
    centres = torch.randn(20, 24, generator=random)
    points = centres[torch.arange(count) % 20] + 0.5 * torch.randn(count, 24, generator=random)
    return nn.functional.normalize(points)


def test_a_graph_grows_is_masked_and_made_anew(graphs, tmp_path, monkeypatch):
    folder, out, every = tmp_path / "in", tmp_path / "out", noise(tmp_path / "all", 120)
    folder.mkdir()
    model = Table(clustered(200))
    names = sorted(path.name for path in every.iterdir())
    built = []
    real = stores.build_graph
    monkeypatch.setattr(
        index_module, "build_graph", lambda *given, **options: built.append(options["skip"]) or real(*given, **options)
    )

    def add(end):
        for name in names[:end]:
            if not (folder / name).exists() and name not in removed:
                shutil.copy2(every / name, folder)
        update(folder, out, model, fingerprint=PRINT)
        found = Manifest.read(out)
        opened, rows, queries = Index(out), state(out), clustered(20, seed=1)
        for k in (4, 60):
            for query, hits in zip(queries, opened.search(queries, k), strict=True):
                assert [hit.name for hit in hits] == [name for _, name in brute_force(rows, query, k)]
        assert ours(out) == {MANIFEST, *found.chunks, *([found.graph] if found.graph else [])}
        return found

    removed: set[str] = set()
    assert add(20).graph is None
    first = add(60)
    assert first.graphed == len(first.chunks)
    assert isinstance(Index(out).store, stores.Graph)
    beside = add(66)  # few: compared one by one
    assert (beside.graph, beside.graphed) == (first.graph, first.graphed)
    grown = add(90)
    assert grown.graph != first.graph
    assert built == [0, first.graphed]
    removed.update(names[:20])
    for name in removed:
        (folder / name).unlink()
    masked = add(90)
    assert (masked.graph, masked.graphed) == (grown.graph, grown.graphed)
    assert not Index(out).alive.all()
    removed.update(names[20:30])
    for name in names[20:30]:
        (folder / name).unlink()
    anew = add(90)
    assert sum(anew.rows) == 60
    assert built == [0, first.graphed, 0]
    for name in names[30:80]:
        removed.add(name)
        (folder / name).unlink()
    assert add(90).graph is None


def test_without_faiss_a_large_folder_is_refused_before_the_work(graphs, tmp_path, monkeypatch):
    folder, model = noise(tmp_path / "in", 21), Colours()
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ImportError, match=r"needs faiss: pip install 'patchreorder\[search\]'"):
        made(folder, tmp_path / "out", model)
    assert model.seen == 0
    (folder / "0000.png").unlink()
    made(folder, tmp_path / "out", model)
    assert len(Index(tmp_path / "out")) == 20


# ---- Qdrant ----------------------------------------------------------------------------------------


@pytest.fixture
def qdrant(tmp_path):
    pytest.importorskip("qdrant_client")
    return f"qdrant://{tmp_path / 'qdrant'}"


def points(url, out):
    manifest = Manifest.read(out)
    with contextlib.closing(stores.Qdrant(url, identity=manifest.identity, dimensions=48)) as store:
        return store.count()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_qdrant_store_answers_the_same(photos, tmp_path, qdrant, monkeypatch):
    near, far = tmp_path / "near", tmp_path / "far"
    made(photos, near)
    made(photos, far, store=qdrant)
    for round_ in range(2):
        opened = Index(far)
        assert isinstance(opened.store, stores.Remote)
        queries = torch.rand(5, 48)
        assert opened.search(queries, 5) == Index(near).search(queries, 5)
        assert opened.search(queries, 99) == Index(near).search(queries, 99)
        opened.store.store.close()
        if not round_:
            change(photos)
            made(photos, near)
            assert made(photos, far).changed  # the store is as before
            assert points(qdrant, far) == len(set(map(str, state_of(far))))
    sent = []
    monkeypatch.setattr(stores.Qdrant, "put", lambda self, digests, vectors: sent.extend(digests))
    assert not made(photos, far).changed
    assert sent == []


def state_of(out):
    """Digests of the pictures, without a store."""
    return [file.digest for file in Manifest.read(out).files if not file.reason]


def test_two_indexes_in_one_collection_do_not_meet(photos, tmp_path, qdrant):
    one, other = tmp_path / "one", tmp_path / "other"
    made(photos, one, store=qdrant)
    made(noise(tmp_path / "in", 3), other, store=qdrant)
    assert (points(qdrant, one), points(qdrant, other)) == (12, 3)
    (tmp_path / "in/0000.png").unlink()
    made(tmp_path / "in", other)
    assert (points(qdrant, one), points(qdrant, other)) == (12, 2)
    opened = Index(other)
    assert {hit.name for hit in opened.search(torch.rand(1, 48), 9)[0]} == {"0001.png", "0002.png"}
    opened.store.store.close()


def test_points_that_the_index_does_not_know_are_left_out(photos, tmp_path, qdrant):
    out = tmp_path / "out"
    made(photos, out, store=qdrant)
    manifest = Manifest.read(out)
    with contextlib.closing(stores.Qdrant(qdrant, identity=manifest.identity, dimensions=48)) as store:
        store.put([f"{number:032x}" for number in range(100)], torch.ones(100, 48) / 48**0.5)  # an update begins
    opened = Index(out)
    assert len(opened.search(torch.ones(1, 48), 4)[0]) == 4
    opened.store.store.close()
    made(photos, out)
    assert points(qdrant, out) == 12


def test_lost_points_are_noticed_and_sent_again(photos, tmp_path, qdrant):
    out = tmp_path / "out"
    made(photos, out, store=qdrant)
    manifest = Manifest.read(out)
    with contextlib.closing(stores.Qdrant(qdrant, identity=manifest.identity, dimensions=48)) as store:
        store.keep_only({manifest.files[0].digest})
    opened = Index(out)
    with pytest.raises(OSError, match=r"lacks vectors of this index: run `patchreorder index` again"):
        opened.search(torch.ones(1, 48), 4)
    opened.store.store.close()
    made(photos, out)
    assert points(qdrant, out) == 12
    made(photos, out, store="local")
    assert isinstance(Index(out).store, stores.Vectors)


@pytest.mark.parametrize("url", ["qdrant://", "qdrant://host", "http://host/x", "faiss://x/y"])
def test_a_bad_store_is_named(photos, tmp_path, url):
    with pytest.raises(ValueError, match=r"store \(.*\) must be qdrant://HOST\[:PORT\]/COLLECTION"):
        made(photos, tmp_path / "out", store=url)


def test_a_server_that_does_not_answer_is_named(photos, tmp_path):
    pytest.importorskip("qdrant_client")
    model = Colours()
    with pytest.raises(OSError, match=r"the store qdrant://localhost:9/x failed .*is it running"):
        made(photos, tmp_path / "out", model, store="qdrant://localhost:9/x")
    assert model.seen == 0  # it said so before the work


# ---- the page --------------------------------------------------------------------------------------


def test_the_page_is_one_file_with_small_upright_pictures(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (400, 200), (200, 0, 0)).save(tmp_path / "a.jpg", exif=exif)
    (tmp_path / "b.jpg").write_bytes(b"no picture")
    tiles = [page.Tile(tmp_path / "a.jpg", "a&<b>.jpg", ["0.123"]), page.Tile(tmp_path / "gone.jpg", "gone.jpg")]
    text = page.render(
        [page.Row("<i>", tiles, page.Tile(tmp_path / "b.jpg", "b.jpg", ["asked"]))], title="<b>", about=["<u>"]
    )
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in text
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"<(b|i|u)>|<script|https?://|javascript:", text)
    assert text.count("cannot be shown") == 2
    (source,) = re.findall(r'<img src="data:image/jpeg;base64,([^"]+)"', text)
    image = Image.open(io.BytesIO(base64.b64decode(source)))
    assert (image.format, image.size) == ("JPEG", (80, 160))
    assert "a&amp;&lt;b&gt;.jpg" in text


# ---- the commands ----------------------------------------------------------------------------------


def stand_in(monkeypatch, model=None):
    monkeypatch.setattr(describe, "open_descriptor", lambda name, *, weights=None, say=None: model or Colours())
    monkeypatch.setattr(describe, "fingerprint", lambda model: PRINT)


def test_the_commands(photos, tmp_path, monkeypatch, capsys):
    stand_in(monkeypatch)
    monkeypatch.setenv("COLUMNS", "120")
    (photos / "notes.txt").touch()
    (photos / "bad.jpg").write_bytes(b"")
    out = str(tmp_path / "out")
    assert main(["index", str(photos), "--out", out, "--workers", "0"]) == 0
    said = capsys.readouterr().out
    assert "1 pictures are left out until they change: bad.jpg cannot be read as a picture: it is empty" in said
    assert "1 files are no pictures: notes.txt" in said
    assert f"Index: {out}, 12 pictures (12 described now, 0 removed)." in said
    assert f"Next: `patchreorder search {out} IMAGE`" in said
    assert main(["index", str(photos), "--out", out, "--workers", "0"]) == 0
    assert "(nothing has changed)" in capsys.readouterr().out

    page_file = tmp_path / "page.html"
    image = str(photos / "class-0001/0000.jpg")
    assert main(["search", out, image, "-k", "2", "--poses", "--html", str(page_file), "--workers", "0"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"│ 1 +│ 0.000 +│ class-0001/0000.jpg +│ upright", said)
    assert len(re.findall(r"│ \d +│ \d\.\d{3} ", said)) == 2
    assert f"Page: {page_file}" in said
    assert "Next: open it" in said
    assert page_file.read_text().count("<img ") == 3
    assert main(["search", out, str(photos), "--workers", "0"]) == 0
    said = capsys.readouterr().out
    assert len(re.findall(r"│ \d +│ \d\.\d{3} ", said)) == 48
    assert "bad.jpg cannot be read" in said
    assert "Next: the same with `--html FILE`" in said

    assert main(["duplicates", out, "--threshold", "2", "--html", str(page_file)]) == 0
    said = capsys.readouterr().out
    assert "1 groups with 12 of 12 pictures are nearer than 2.000 (as asked)" in said
    assert page_file.read_text().count("<img ") == 12
    assert main(["duplicates", out]) == 0
    assert "of the usual distance here" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["search", "out", "nothing.jpg"], "nothing.jpg is no picture and no folder"),
        (["search", "out", "photos/bad.jpg"], "bad.jpg cannot be read as a picture: it is empty"),
        (["search", "out", "photos/class-0000/0000.jpg", "-k", "0"], "k (0) must be 1 or more"),
        (["search", "nowhere", "photos/bad.jpg"], "nowhere is no index"),
        (["search", "out", "empty"], "empty holds no picture to ask about"),
        (["duplicates", "out", "--threshold", "-1"], "threshold (-1.0) must be a distance"),
        (["duplicates", "nowhere"], "nowhere is no index"),
        (["index", "nowhere", "--out", "x"], "nowhere is no folder"),
        (["index", "empty", "--out", "x"], "empty holds no picture"),
        (["index", "photos", "--out", "x", "--workers", "-1"], "workers (-1) must be 0"),
    ],
)
def test_commands_name_what_is_wrong(photos, tmp_path, monkeypatch, capsys, command, reason):
    stand_in(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (photos / "bad.jpg").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    made(photos, tmp_path / "out")
    assert main(command) == 2
    said = capsys.readouterr()
    assert reason in said.err
    assert said.out == ""


def test_another_descriptor_is_refused_by_the_command(photos, tmp_path, monkeypatch, capsys):
    other = Colours()
    other.name = "sounds"
    stand_in(monkeypatch, other)
    made(photos, tmp_path / "out")
    assert main(["search", str(tmp_path / "out"), str(photos), "--model", "sounds"]) == 2
    said = capsys.readouterr().err
    assert "was made with colours (weights f00d" in said
    assert "cannot be asked with sounds" in said


def test_the_real_descriptor_works(photos, tmp_path):
    from patchreorder.search.descriptors import create_descriptor

    model = describe.ready(create_descriptor("alexnet/gap"))
    done = update(photos, tmp_path / "out", model, fingerprint=describe.fingerprint(model))
    assert (done.images, done.unreadable) == (12, [])
    answers, _ = ask(
        Index(tmp_path / "out"), model, photos / "class-0000/0001.jpg", fingerprint=describe.fingerprint(model)
    )
    assert answers[0].hits[0].name == "class-0000/0001.jpg"
    assert answers[0].hits[0].distance < 1e-3  # another batch rounds otherwise
