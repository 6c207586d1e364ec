"""The commands index, search and duplicates: what they print, what they refuse, and names of files that are hostile."""

import json
import os
import re

import pytest

from patchreorder.__main__ import main
from patchreorder.data.generated import write_photos
from patchreorder.search import descriptors
from tests.search.photographs import photograph
from tests.search.samples import Colours, aged, made, noise, state

UNPRINTABLE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]")


@pytest.fixture
def model(monkeypatch):
    """The descriptor that every name opens."""
    model = Colours()
    monkeypatch.setattr(descriptors, "open_descriptor", lambda name, *, weights=None, say=None: model)
    monkeypatch.setenv("COLUMNS", "120")
    return model


@pytest.fixture
def photos(tmp_path):
    folder = aged(write_photos(tmp_path / "photos", classes=3, images=4, size=(24, 16)))
    (folder / "bad.jpg").write_bytes(b"")
    return folder


def test_index(model, photos, tmp_path, capsys):
    (photos / "notes.txt").touch()
    out = str(tmp_path / "out")
    assert main(["index", str(photos), "--out", out, "--workers", "0"]) == 0
    printed = capsys.readouterr().out
    assert "1 images are left out until they change: bad.jpg cannot be read as" in printed
    assert "1 files are not images: notes.txt" in printed
    assert f"Index: {out}, 12 images (12 described now, 0 removed)." in printed
    assert f"Next: `patchreorder search {out} IMAGE`" in printed
    assert main(["index", str(photos), "--out", out, "--workers", "0"]) == 0
    assert "(nothing has changed)" in capsys.readouterr().out


def test_search(model, photos, tmp_path, capsys):
    out, page = str(tmp_path / "out"), tmp_path / "page.html"
    made(photos, tmp_path / "out")
    image = str(photos / "class-0001/0000.jpg")
    assert main(["search", out, image, "-k", "2", "--poses", "--html", str(page), "--workers", "0"]) == 0
    printed = capsys.readouterr()
    rows = [line.split("\t") for line in printed.out.splitlines()]
    assert rows[0] == ["1", "0.000", "class-0001/0000.jpg", "identical", "upright"]
    assert [len(row) for row in rows] == [5, 5]
    assert f"Page: {page}" in printed.err
    assert "Next: open it" in printed.err
    assert page.read_text().count("<img ") == 3
    assert main(["search", out, str(photos), "--workers", "0"]) == 0
    printed = capsys.readouterr()
    rows = [line.split("\t") for line in printed.out.splitlines()]
    assert [(len(row), row[1]) for row in rows] == [(5, rank) for rank in "1234"] * 12
    assert "bad.jpg cannot be read" in printed.err
    assert "Next: `--html FILE`" in printed.err


def test_search_for_a_part_says_what_it_is_to_each_hit(model, tmp_path, capsys):
    pytest.importorskip("cv2")
    folder = tmp_path / "in"
    folder.mkdir()
    for seed in range(3):
        photograph(seed).save(folder / f"{seed}.png")
    photograph(1).rotate(-90, expand=True).save(tmp_path / "query.png")
    made(folder, tmp_path / "out")
    command = ["search", str(tmp_path / "out"), "-k", "3", "--json", "--workers", "0"]
    assert main([*command, str(tmp_path / "query.png")]) == 0
    hits = {hit["path"]: hit["relation"] for hit in json.loads(capsys.readouterr().out)[0]["hits"]}
    assert hits[str(folder / "1.png")] == "rotated by 270 degrees clockwise"
    assert hits[str(folder / "0.png")] == "similar only"
    assert main([*command, str(folder / "2.png")]) == 0
    assert json.loads(capsys.readouterr().out)[0]["hits"][0]["relation"] == "identical"
    assert main([*command, str(folder / "2.png"), "--crop", "40,30,200,160"]) == 0
    hits = {hit["path"]: hit["relation"] for hit in json.loads(capsys.readouterr().out)[0]["hits"]}
    assert hits[str(folder / "2.png")] == "shows more, 2.4 times the area"
    assert main([*command, str(folder / "2.png"), "--crop", "300,0,200,10"]) == 2
    assert "crop (300,0,200,10) must lie in the image, 320x240" in capsys.readouterr().err
    assert main([*command, str(folder / "2.png"), "--crop", "a"]) == 2
    assert "crop (a) must be left,top,width,height" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["search", "out", "nothing.jpg"], "nothing.jpg is not an image and not a folder"),
        (["search", "out", "photos/bad.jpg"], "bad.jpg cannot be read as"),
        (["search", "out", "photos/class-0000/0000.jpg", "-k", "0"], "k (0) must be 1 or more"),
        (["search", "nowhere", "photos/bad.jpg"], "nowhere is not an index"),
        (["search", "out", "empty"], "empty holds no image to search for"),
        (["duplicates", "out", "--keep", "best"], "keep (best) must be some of pixels"),
        (["duplicates", "out", "--csv", "--json"], "--csv and --json are two forms"),
        (["duplicates", "out", "--yes"], "--yes says to do what --move-to DIR or --link would do"),
        (["duplicates", "out", "--reference", "nowhere"], "reference (nowhere) must be a folder"),
        (["duplicates", "out", "--undo"], "nothing to undo"),
        (["duplicates", "nowhere"], "nowhere is not an index"),
        (["index", "nowhere", "--out", "x"], "nowhere is not a folder"),
        (["index", "empty", "--out", "x"], "empty and its subfolders hold no images"),
        (["index", "photos", "--out", "x", "--workers", "-1"], "workers (-1) must be 0"),
    ],
)
def test_errors_say_what_is_wrong(model, photos, tmp_path, monkeypatch, capsys, command, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    made(photos, tmp_path / "out")
    assert main(command) == 2
    printed = capsys.readouterr()
    assert reason in printed.err
    assert printed.out == ""


def test_another_descriptor_is_refused(model, photos, tmp_path, capsys):
    made(photos, tmp_path / "out")
    model.name = "sounds"
    assert main(["search", str(tmp_path / "out"), str(photos), "--model", "sounds"]) == 2
    printed = capsys.readouterr().err
    assert "was made with colours (weights " in printed
    assert "cannot be searched with sounds" in printed


HOSTILE = [
    b"caf\xe9.png",
    b"<script>alert(1)</script>.png",
    b"two\nlines.png",
    b"\x1b[31mred.png",
    "‮gnp.exe.png".encode(),
]


@pytest.fixture
def hostile(tmp_path):
    folder = noise(tmp_path / "in", len(HOSTILE))
    for path, name in zip(sorted(folder.iterdir()), HOSTILE, strict=True):
        if b"/" in name:
            os.makedirs(os.fsencode(folder) + b"/" + name.rpartition(b"/")[0])
        os.rename(os.fsencode(path), os.fsencode(folder) + b"/" + name)
    return folder


def test_hostile_names_are_found_and_shown_clean(model, hostile, tmp_path, capsys):
    out, page = str(tmp_path / "out"), tmp_path / "page.html"
    made(hostile, tmp_path / "out", workers=1)
    assert made(hostile, tmp_path / "out").images == len(HOSTILE)
    assert sorted(state(tmp_path / "out")) == sorted(map(os.fsdecode, HOSTILE))
    for command in (["search", out, str(hostile), "-k", "9", "--workers", "0"],):
        assert main([*command, "--html", str(page)]) == 0
        printed = capsys.readouterr()
        assert not UNPRINTABLE.search(printed.out.replace("\t", ""))
        assert not UNPRINTABLE.search(printed.err)
        rows = [line.split("\t") for line in printed.out.splitlines()]
        shown = {json.loads(row[0]) if row[0].startswith('"') else row[0] for row in rows}
        assert shown == set(map(os.fsdecode, HOSTILE))
        assert {len(row) for row in rows} == {5}
        text = page.read_text(encoding="utf-8")
        assert "<script" not in text
        assert "\x1b" not in text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;.png" in text
        assert text.count("data:image/jpeg;base64,") >= len(HOSTILE)
    for path in hostile.rglob("*.png"):
        path.write_bytes(b"not an image")
    assert main(["index", str(hostile), "--out", out, "--workers", "0"]) == 0
    assert not UNPRINTABLE.search(capsys.readouterr().out)


def test_an_index_needs_a_folder(tmp_path, capsys):
    assert main(["index", "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == "patchreorder: name a folder of images, or several\n"


def test_a_terminal_gets_a_table(model, hostile, tmp_path, capsys, monkeypatch):
    made(hostile, tmp_path / "out", workers=1)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["search", str(tmp_path / "out"), str(hostile / "\x1b[31mred.png"), "--workers", "0"]) == 0
    printed = capsys.readouterr().out
    assert "rank" in printed
    assert "[31mred.png" in printed
    assert "\x1b[31m" not in printed
