"""`patchreorder demo`."""

import json
import re
import sys

import pytest

from patchreorder.__main__ import main
from patchreorder.playground import demo


def test_the_demo_writes_its_files_and_prints_their_numbers(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(demo, "KEYS", 1)
    assert main(["demo", "--out", str(tmp_path / "demo"), "--seed", "1"]) == 0
    printed = capsys.readouterr().out
    assert f"Written to {tmp_path / 'demo'}: {', '.join(demo.FILES)}" in printed
    assert "Next: `patchreorder demo --seed 2` for another key" in printed  # not the one that was just drawn
    for name in demo.FILES:
        start = (tmp_path / "demo" / name).read_bytes()[:5]
        assert start.startswith({"png": b"\x89PNG", "svg": b"<?xml", "json": b"{"}[name.partition(".")[2]]), name
    numbers = json.loads((tmp_path / "demo" / "demo.json").read_text(encoding="utf-8"))
    assert numbers["seed"] == 1
    for name in numbers["distance"][demo.ORIGINAL]:
        (line,) = (line for line in printed.splitlines() if line.startswith(f"{name}  "))
        assert re.findall(r"\d\S+ \(\S+\)", line) == [
            f"{numbers['distance'][label][name]:.2f} ({numbers['similarity'][label][name]:.2f})"
            for label in demo.SETTINGS
        ]


def test_a_missing_extra_is_named(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["demo", "--out", str(tmp_path / "demo")]) == 2
    assert "pip install 'patchreorder[report]'" in capsys.readouterr().err
    assert not (tmp_path / "demo").exists()


def test_a_negative_seed_is_an_error(capsys, tmp_path):
    assert main(["demo", "--out", str(tmp_path / "demo"), "--seed", "-1"]) == 2
    assert capsys.readouterr().err == "patchreorder: seed (-1) must be 0 or more\n"
    assert not (tmp_path / "demo").exists()


def test_a_file_in_the_way_is_named(capsys, tmp_path):
    (tmp_path / "demo").write_text("")
    assert main(["demo", "--out", str(tmp_path / "demo")]) == 2
    assert capsys.readouterr().err == f"patchreorder: {tmp_path / 'demo'}: File exists\n"
