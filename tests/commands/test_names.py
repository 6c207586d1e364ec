"""Folders, files and classes named with escape sequences, which a terminal would obey: no command prints them.

The tests of `search` and `duplicates` have such names of their own.
"""

import json
import os
import shutil
import struct

import pytest

from patchreorder.__main__ import main
from tests.classifier.photographs import small_backbone, write_photographs

__all__ = ["small_backbone"]

ESCAPE = "\x1b]0;owned\x07\x1b[2Jred\x9b31m\u202e"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Class folders, one of them with such a name, a bad image in it, and a file that is no image."""
    monkeypatch.chdir(tmp_path)
    write_photographs(tmp_path / "data", count=6)
    own = (tmp_path / "data" / "red").rename(tmp_path / "data" / ESCAPE)
    (own / f"{ESCAPE}.png").write_bytes(b"no image")
    (own / f"{ESCAPE}.db").write_bytes(b"no image")
    return tmp_path / "data"


def check(capsys, *args: str, status: int = 0) -> str:
    """Run a command; its output must have no control characters. Return it."""
    assert main(list(args)) == status
    printed = "".join(capsys.readouterr())
    assert printed
    assert not set(printed) & set("\x1b\x07\x9b\u202e"), printed
    return printed


def test_fit_and_predict(folder, small_backbone, capsys):
    pytest.importorskip("jinja2")
    assert "]0;owned" in check(capsys, "fit", "--data", "data", "--out", "out", "--workers", "0")
    classifier = "out/classifier.safetensors"
    assert "]0;owned" in check(capsys, "predict", classifier, f"data/{ESCAPE}", "--workers", "0", status=2)
    check(capsys, "predict", classifier, f"data/{ESCAPE}/00.png", "--json")
    assert "]0;owned" in check(capsys, "predict", f"data/{ESCAPE}.safetensors", f"data/{ESCAPE}/00.png", status=2)


def test_predict_with_hostile_classes(folder, small_backbone, capsys):
    """A classifier that somebody else has made."""
    pytest.importorskip("jinja2")
    check(capsys, "fit", "--data", "data", "--out", "out", "--workers", "0")
    content = (folder.parent / "out" / "classifier.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    facts = json.loads(header["__metadata__"]["classifier"])
    facts["classes"] = [f"{ESCAPE}{name}" for name in facts["classes"]]
    header["__metadata__"]["classifier"] = json.dumps(facts)
    text = json.dumps(header).encode()
    hostile = folder.parent / "hostile.safetensors"
    hostile.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])
    assert "]0;owned" in check(capsys, "predict", str(hostile), "data/blue/00.png")
    check(capsys, "predict", str(hostile), "data/blue/00.png", "--csv")


def test_measure_and_shard(folder, module, capsys):
    pytest.importorskip("jinja2")
    shutil.rmtree("data/blue")  # the network has two outputs
    options = ["--size", "32", "--axes", "x", "--workers", "0", "--out", "out"]
    assert "]0;owned" in check(capsys, "measure", f"{module}:build", "--images", "data", *options)
    os.rename("data", ESCAPE)
    assert "]0;owned" in check(capsys, "shard", ESCAPE, "shards", "--workers", "0", status=2)
    os.unlink(f"{ESCAPE}/{ESCAPE}/{ESCAPE}.png")
    assert "]0;owned" in check(capsys, "shard", ESCAPE, "others", "--workers", "0")
