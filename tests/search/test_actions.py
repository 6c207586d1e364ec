"""Copies moved away or linked: only said without being asked to, logged, taken back, and never the last copy."""

import os
import shutil

import pytest

from patchreorder.search.actions import LOGS, act, undo
from patchreorder.search.duplicates import find_duplicates
from patchreorder.search.index import Index
from patchreorder.search.keeping import KeepRule

from .photographs import photograph
from .samples import aged, made

pytest.importorskip("cv2")
RULE = KeepRule("pixels,quality,name")


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "photos"
    (root / "b").mkdir(parents=True)
    photograph(0).save(root / "own.jpg", quality=95)
    photograph(0).resize((160, 120)).save(root / "b/small.jpg")
    shutil.copy(root / "own.jpg", root / "b/same.jpg")
    photograph(1).save(root / "other.jpg")
    aged(root)
    made(root, tmp_path / "index")
    return root


def run(folder, *, rule=None, **options):
    index, rule = Index(folder.parent / "index"), rule or RULE
    return list(act(index, find_duplicates(index, keep=rule), rule=rule, **options))


def content(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_nothing_is_done_without_being_asked_to(folder, tmp_path):
    before = content(folder)
    lines = run(folder, move_to=tmp_path / "away")
    assert [line.partition(":")[0] for line in lines[:-1]] == ["would be moved"] * 2
    assert "nothing was changed" in lines[-1]
    assert content(folder) == before
    assert not (tmp_path / "away").exists()
    assert not (tmp_path / "index" / LOGS).exists()


def test_move_and_undo(folder, tmp_path):
    before, stat = content(folder), (folder / "b/same.jpg").stat()
    away = tmp_path / "away"
    (away / "b").mkdir(parents=True)
    (away / "b/same.jpg").write_text("mine")
    run(folder, move_to=away, really=True)
    assert content(folder).keys() == {"own.jpg", "other.jpg"}
    assert content(away) == {
        "b/same.jpg": b"mine",
        "b/same.1.jpg": before["b/same.jpg"],
        "b/small.jpg": before["b/small.jpg"],
    }
    assert len(list(undo(tmp_path / "index"))) == 2
    assert content(folder) == before
    assert (folder / "b/same.jpg").stat().st_mtime_ns == stat.st_mtime_ns
    assert content(away) == {"b/same.jpg": b"mine"}
    with pytest.raises(ValueError, match="nothing to undo"):
        list(undo(tmp_path / "index"))


def test_a_move_to_another_disk(folder, tmp_path, monkeypatch):
    def link(*args, **options):
        raise OSError(18, "Invalid cross-device link")

    before = content(folder)
    monkeypatch.setattr(os, "link", link)
    run(folder, move_to=tmp_path / "away", really=True)
    assert content(folder).keys() == {"own.jpg", "other.jpg"}
    list(undo(tmp_path / "index"))
    assert content(folder) == before


def test_link_and_undo(folder, tmp_path):
    before = content(folder)
    lines = run(folder, really=True)
    assert "1 copies have other bytes" in lines[-2]
    assert (folder / "b/same.jpg").samefile(folder / "own.jpg")
    assert not (folder / "b/small.jpg").samefile(folder / "own.jpg")
    assert content(folder) == before
    list(undo(tmp_path / "index"))
    assert not (folder / "b/same.jpg").samefile(folder / "own.jpg")
    assert content(folder) == before


def test_the_last_copy_stays(folder, tmp_path):
    index = Index(tmp_path / "index")
    found = find_duplicates(index, keep=RULE)
    (folder / "own.jpg").unlink()  # the file to keep, after it was found
    lines = list(act(index, found, rule=RULE, move_to=tmp_path / "away", really=True))
    assert [line.partition(":")[0] for line in lines[:-1]] == ["left alone"] * 2
    assert content(folder).keys() == {"b/same.jpg", "b/small.jpg", "other.jpg"}


def test_a_file_that_changed_stays(folder, tmp_path):
    index = Index(tmp_path / "index")
    found = find_duplicates(index, keep=RULE)
    (folder / "b/same.jpg").write_bytes(b"something new")
    lines = list(act(index, found, rule=RULE, move_to=tmp_path / "away", really=True))
    assert any("same.jpg: it has changed" in line for line in lines)
    assert (folder / "b/same.jpg").read_bytes() == b"something new"


def test_a_reference_folder_and_links_are_never_touched(folder, tmp_path):
    (folder / "link.jpg").symlink_to(folder / "own.jpg")
    made(folder, tmp_path / "index")
    lines = run(folder, rule=KeepRule(RULE.text, (folder / "b",)), move_to=tmp_path / "away", really=True)
    assert {"b/same.jpg", "b/small.jpg"} <= content(folder).keys()
    assert any("link.jpg: it is a link" in line for line in lines)
    assert (tmp_path / "away/own.jpg").exists()


def test_what_cannot_be_taken_back_stays_in_the_log(folder, tmp_path):
    run(folder, move_to=tmp_path / "away", really=True)
    (folder / "b/same.jpg").write_bytes(b"new")
    lines = list(undo(tmp_path / "index"))
    assert sum("another file is there now" in line for line in lines) == 1
    assert (folder / "b/same.jpg").read_bytes() == b"new"
    (folder / "b/same.jpg").unlink()
    list(undo(tmp_path / "index"))
    assert (folder / "b/same.jpg").exists()
