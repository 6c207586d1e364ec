"""The command duplicates: its formats, its page, hostile names."""

import csv
import io
import json
import os
import shutil
from pathlib import Path

import pytest

from patchreorder.__main__ import main
from tests.search.photographs import CHANGES, photograph
from tests.search.samples import aged, made

pytest.importorskip("cv2")


@pytest.fixture
def index(tmp_path):
    root = tmp_path / "photos"
    root.mkdir()
    for seed in range(3):
        photograph(seed).save(root / f"{seed}.jpg", quality=95)
    CHANGES["mirrored"](photograph(0)).save(root / "mirrored, comma.jpg")
    shutil.copy(root / "1.jpg", os.fsencode(root) + b"/two\nlines<b>\x1b[31m\xe9.jpg")
    aged(root)
    made(root, tmp_path / "index")
    return str(tmp_path / "index")


def run(capsys, *args):
    assert main(["duplicates", *args, "--workers", "0"]) == 0
    return capsys.readouterr()


def test_csv(index, tmp_path, capsysbinary):
    printed = run(capsysbinary, index, "--csv").out.decode()
    rows = list(csv.DictReader(io.StringIO(printed)))
    assert printed.startswith("group,path,relation,keep,")
    assert [(row["group"], row["relation"], row["keep"]) for row in rows] == [
        ("1", "kept", "yes"),
        ("1", "mirrored", "no"),
        ("2", "kept", "yes"),
        ("2", "identical", "no"),
    ]
    assert rows[1]["path"] == str(tmp_path / "photos/mirrored, comma.jpg")
    assert rows[1]["of"] == str(tmp_path / "photos/0.jpg")
    assert (rows[0]["width"], rows[0]["height"]) == ("320", "240")
    assert json.loads(rows[3]["path"]) == str(tmp_path / "photos/two\nlines<b>\x1b[31m\udce9.jpg")
    assert len(printed.splitlines()) == 5
    assert "\x1b" not in printed
    assert rows[0]["modified"].startswith("2001-09-09T")


def test_json(index, capsys):
    document = json.loads(run(capsys, index, "--json", "--similar").out)
    assert [[file["relation"] for file in group["files"]] for group in document["groups"]] == [
        ["kept", "mirrored"],
        ["kept", "identical"],
    ]
    assert {pair["relation"] for pair in document["similar"]} == {"similar only"}
    assert all(Path(pair[side]).is_file() for pair in document["similar"] for side in ("first", "second"))
    assert "similar" not in json.loads(run(capsys, index, "--json").out)


def test_piped_text_has_one_record_a_line(index, capsys):
    lines = run(capsys, index).out.splitlines()
    assert [line.split("\t")[:3] for line in lines] == [
        ["1", "keep", "kept: it is encoded with the best quality"],
        ["1", "copy", "mirrored"],
        ["2", "keep", "kept: it is the oldest file"],
        ["2", "copy", "identical"],
    ]
    assert "\x1b" not in "".join(lines)
    assert json.loads(lines[3].split("\t")[3]) == "two\nlines<b>\x1b[31m\udce9.jpg"


def test_page(index, tmp_path, capsys):
    pytest.importorskip("jinja2")
    page = tmp_path / "page.html"
    run(capsys, index, "--html", str(page), "--similar")
    text = page.read_text(encoding="utf-8")
    assert text.count("<img ") == 4 + 2 * 2
    assert "two lines&lt;b&gt;" in text
    assert "<b>" not in text
    assert "\x1b" not in text
    assert (tmp_path / "photos/0.jpg").as_uri() in text


def test_without_opencv_the_command_says_what_to_install(index, capsys, monkeypatch):
    from patchreorder.search import local_features

    monkeypatch.setitem(__import__("sys").modules, "cv2", None)
    local_features.need_opencv.cache_clear()
    assert main(["duplicates", index]) == 2
    assert "pip install 'patchreorder[duplicates]'" in capsys.readouterr().err
