"""`patchreorder report`: the page and the figures it writes, the tables it prints."""

import os
import shutil
import subprocess
import sys

import pytest

from patchreorder.commands.report import report
from patchreorder.report import markdown, page
from patchreorder.report.folder import load
from tests.report_rows import facts, seeds, write


def test_names_of_any_length_stop_nothing(tmp_path, capsys):
    rows = [*seeds("cnn", [1], setting="x" * 900), *seeds("cnn", [2]), *seeds("pr_cnn", [3], setting="x" * 900)]
    folder = write(tmp_path / "rows", rows, facts())
    line = (folder / "table1.jsonl").read_text().splitlines()[0]
    with open(folder / "table1.jsonl", "a") as file:
        file.write(line.replace("x" * 900, "x" * 100_000) + "\n")
    report(folder)
    assert "damaged lines left out: 1 (line 4)" in capsys.readouterr().out


def test_the_page_is_the_same_anywhere_and_made_without_torch(tmp_path):
    curves = {"training loss": [[1, 0.5], [2, 0.25]]}
    folder = write(tmp_path / "rows", seeds("cnn", [1], [2], curves=curves) + seeds("pr_cnn", [3]), facts())
    elsewhere, out = shutil.copytree(folder, tmp_path / "elsewhere"), tmp_path / "x.html"
    code = (
        "import sys, pathlib\nfrom patchreorder.commands.report import report\n"
        "assert not {'torch', 'matplotlib', 'jinja2'} & set(sys.modules)\n"
        f"report(pathlib.Path({str(elsewhere)!r}), out=pathlib.Path({str(out)!r}))\n"
        "assert not {'torch', 'matplotlib.pyplot'} & set(sys.modules)"
    )
    environment = os.environ | {"PYTHONHASHSEED": "7", "COLUMNS": "100"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    assert out.read_bytes() == page.render(load(folder)).encode()
    assert f"Written to {out}" in done.stdout
    assert "Next: " in done.stdout
    assert not (elsewhere / "report.html").exists()


def test_the_command_writes_into_the_folder(tmp_path, capsys):
    folder = write(tmp_path, seeds("cnn", [1]), facts())
    report(folder)
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    assert str(folder / "report.html") in capsys.readouterr().out


def test_markdown_prints_only_the_tables(tmp_path, capsys):
    folder = write(tmp_path, seeds("cnn", [1]), facts())
    report(folder, markdown=True)
    assert capsys.readouterr().out == markdown.render(load(folder))
    assert not (folder / "report.html").exists()


def test_what_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    folder = write(tmp_path, seeds("cnn", [1]), facts())
    with pytest.raises(ImportError, match=r"pip install 'patchreorder\[report\]'"):
        report(folder)
    assert not (folder / "report.html").exists()
