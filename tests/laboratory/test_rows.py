"""Rows on the disk: none is lost, none is half, none is read that would fail its reader; and where rows come from."""

import dataclasses
import datetime
import errno
import json
import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import patchreorder
from patchreorder.laboratory import provenance
from patchreorder.laboratory.rows import Cell, Result, append, read


def result(**changes) -> Result:
    values = {
        "recipe": "table1",
        "row": "cnn",
        "column": "R",
        "setting": "short",
        "split": "test",
        "seed": 0,
        "settings": "5e77a9c1",
        "metric": "error %",
        "value": 1.25,
        "n": 400,
        "steps": 10,
        "seconds": 1.5,
        "cpu_seconds": 3,
        "parameters": 7,
        "commit": "0123456789ab",
        "versions": {"python": "3.11"},
        "machine": "a machine",
        "finished": "2025-01-02T03:04:05+00:00",
    }
    return Result(**values | changes)


FULL = {
    "errors": [3, 5],
    "answers": [1, 0],
    "curves": {"training loss": [[1.0, 0.25]]},
    "details": {"note": "naïve, \n and \u2028", "options": {"grid": 2}},
}


OPENING = """
import json, os, resource, signal, sys, time
from dataclasses import replace
from pathlib import Path
from patchreorder.laboratory.rows import Result, append
row, folder = Result(**json.loads(sys.argv[1])), Path(sys.argv[2])
"""


def python(code: str, folder: Path, *args: object) -> subprocess.Popen[bytes]:
    """Code in a process of its own, which finds `row`, `folder` and `sys.argv[3:]`."""
    row = json.dumps(dataclasses.asdict(result()))
    command = [sys.executable, "-c", OPENING + code, row, str(folder), *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes]) -> str:
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 0
    return said.decode()


# ---- rows ------------------------------------------------------------------------------------------


def test_rows_come_back_as_they_were(tmp_path):
    rows = [result(**FULL), result(seed=1), result(row="fcn", value=0)]
    for row in rows:
        append(tmp_path / "new" / "folder", row)
    assert read(tmp_path / "new" / "folder" / "table1.jsonl") == (rows, [])


def test_the_last_row_of_a_cell_counts_and_comes_last(tmp_path):
    for row in (result(value=1), result(seed=1), result(value=2)):
        append(tmp_path, row)
    assert [(row.seed, row.value) for row in read(tmp_path / "table1.jsonl").results] == [(1, 1.25), (0, 2)]


@pytest.mark.parametrize("field", Cell._fields)
def test_cells_that_differ_in_anything_are_apart(tmp_path, field):
    other = 1 if field == "seed" else "other"
    rows = [result(), result(**{field: other})]
    (tmp_path / "rows").write_text("\n".join(json.dumps(dataclasses.asdict(row)) for row in rows))
    assert read(tmp_path / "rows").results == rows
    assert rows[0].cell.folder != rows[1].cell.folder or field == "recipe"


def test_a_cut_last_line_costs_that_line_only(tmp_path):
    append(tmp_path, result())
    append(tmp_path, result(seed=1))
    file = tmp_path / "table1.jsonl"
    file.write_bytes(file.read_bytes()[:-30])
    append(tmp_path, result(seed=2))
    append(tmp_path, result(seed=3))
    rows = read(file)
    assert [row.seed for row in rows.results] == [0, 2, 3]
    assert rows.damaged == [2]
    assert file.read_bytes().endswith(b"\n")


def test_foreign_lines_are_skipped_and_numbered(tmp_path):
    append(tmp_path, result())
    file = tmp_path / "table1.jsonl"
    lines = [b"", b"[]", b"7", b'"text"', b"null", b"{}", b"\xff\xfe\x00", b"\x00" * 9, b"[" * 100_000, b"<html>", b" "]
    with file.open("ab") as stream:
        stream.write(b"\n".join(lines) + b"\n")
    append(tmp_path, result(seed=1))
    rows = read(file)
    assert [row.seed for row in rows.results] == [0, 1]
    assert rows.damaged == [number for number, line in enumerate(lines, 2) if line.strip()]


WRONG = [
    *((name, 3) for name in ("recipe", "row", "column", "setting", "split", "settings", "metric", "commit")),
    *((name, None) for name in ("machine", "finished", "value", "n", "versions", "curves", "details", "answers")),
    *((name, value) for name in ("seed", "n", "steps", "parameters") for value in (1.0, -1, True, "1", [1], 2**63)),
    *((name, value) for name in ("value", "seconds", "cpu_seconds") for value in ("1", True, [1.0], 10**400, -1e100)),
    *(("value", value) for value in (math.nan, math.inf, -math.inf)),
    *((name, value) for name in ("errors", "answers") for value in ("12", 3, {"1": 2}, [1.0], ["1"], [-1], [[1]])),
    *((name, value) for name in ("versions", "curves", "details") for value in ([], "x", 3)),
    ("n", 0),
]


@pytest.mark.parametrize(("name", "value"), WRONG, ids=lambda value: str(value)[:12])
def test_a_field_of_the_wrong_kind_is_damage(tmp_path, name, value):
    append(tmp_path, result())
    file = tmp_path / "table1.jsonl"
    before = file.read_bytes()
    with pytest.raises(ValueError, match="wrong kind"):
        append(tmp_path, result(**{"seed": 1, name: value}))
    assert file.read_bytes() == before
    with file.open("a") as stream:
        stream.write(json.dumps(dataclasses.asdict(result()) | {"seed": 1, name: value}) + "\n")
    rows = read(file)
    assert (rows.results, rows.damaged) == ([result()], [2])


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Result)])
def test_a_row_without_a_field_is_damage_unless_it_may_be_left_out(tmp_path, name):
    values = dataclasses.asdict(result())
    values.pop(name)
    (tmp_path / "rows").write_text(json.dumps(values))
    may = name in ("errors", "answers", "curves", "details")
    assert read(tmp_path / "rows") == (([result()], []) if may else ([], [1]))


def test_fields_of_a_newer_version_are_ignored(tmp_path):
    line = dataclasses.asdict(result()) | {"invented": {"later": [1]}}
    (tmp_path / "rows").write_text(json.dumps(line))
    assert read(tmp_path / "rows") == ([result()], [])


@pytest.mark.parametrize(
    "changes",
    [{"value": math.nan}, {"curves": {"x": [[0.0, math.inf]]}}, {"details": {"a": {"b": [math.nan]}}}],
    ids=str,
)
def test_what_is_no_number_is_never_written(tmp_path, changes):
    with pytest.raises(ValueError, match=r"wrong kind|not JSON compliant"):
        append(tmp_path, result(**changes))
    assert list(tmp_path.iterdir()) == []


APPENDS = """
writer = sys.argv[3]
(folder / f"ready{writer}").touch()
while len(list(folder.glob("ready*"))) < 5:
    time.sleep(0.002)
for seed in range(12):
    append(folder, replace(row, row=writer, seed=seed, errors=list(range(4000 * (seed % 3)))))
"""


def test_processes_that_append_at_once_lose_nothing(tmp_path):
    (tmp_path / "table1.jsonl").write_bytes(b'{"recipe": "cut')
    for process in [python(APPENDS, tmp_path, writer) for writer in range(5)]:
        finish(process)
    rows = read(tmp_path / "table1.jsonl")
    assert sorted((row.row, row.seed, len(row.errors)) for row in rows.results) == sorted(
        (str(writer), seed, 4000 * (seed % 3)) for writer in range(5) for seed in range(12)
    )
    assert rows.damaged == [1]
    assert len((tmp_path / "table1.jsonl").read_bytes().splitlines()) == 1 + 5 * 12


@pytest.mark.parametrize("start", [b"", b"a line\n", b"a cut line"])
def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, monkeypatch, start):
    file = tmp_path / "table1.jsonl"
    file.write_bytes(start)

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        append(tmp_path, result())
    assert caught.value.filename == str(file)
    assert file.read_bytes() == start
    monkeypatch.undo()
    append(tmp_path, result())
    assert read(file).results == [result()]


LIMITED = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
size = (folder / "table1.jsonl").stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, resource.RLIM_INFINITY))
try:
    append(folder, replace(row, seed=1, errors=list(range(int(sys.argv[3])))))
except OSError as error:
    print(error.filename, (folder / "table1.jsonl").stat().st_size - size)
"""


@pytest.mark.parametrize("errors", [0, 10_000])  # less than a buffer, and more
def test_a_row_that_only_fits_in_part_is_taken_back(tmp_path, errors):
    append(tmp_path, result())
    before = (tmp_path / "table1.jsonl").read_bytes()
    said = finish(python(LIMITED, tmp_path, errors))
    assert said.split() == [str(tmp_path / "table1.jsonl"), "0"]
    assert (tmp_path / "table1.jsonl").read_bytes() == before


def test_where_there_are_no_locks_work_goes_on(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def refuse(handle, how):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    append(tmp_path, result())
    assert read(tmp_path / "table1.jsonl").results == [result()]


# ---- names of cells, and where a row comes from ----------------------------------------------------


def test_the_folder_of_a_cell_keeps_its_name():
    cell = result(setting="short,lr=0.1", split="validation", seed=3).cell
    assert cell.folder == "cnn.R.short,lr=0.1.validation.3.5e77a9c1"  # its checkpoint is found by it


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with the package in it; call it with git's arguments."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    # Without the variables that git sets for hooks: a test must never reach the repository it is run from.
    settings = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    settings |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    top = tmp_path / "checkout"
    package = top / "src" / "patchreorder"
    (package / "laboratory").mkdir(parents=True)
    (package / "laboratory" / "provenance.py").write_text("# first\n")
    (top / "README").write_text("read me\n")
    (top / ".gitignore").write_text("*.so\n")

    def git(*args: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(top), *args]
        return subprocess.run(command, env=settings, capture_output=True, text=True, check=True, timeout=60).stdout

    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    monkeypatch.setattr(provenance, "__file__", str(package / "laboratory" / "provenance.py"))
    monkeypatch.setattr(provenance, "commit", provenance.commit.__wrapped__)  # asks anew every time
    return top, git


def test_the_commit_is_that_of_the_checkout(checkout):
    top, git = checkout
    first = git("rev-parse", "HEAD")[:12]
    assert provenance.commit() == first
    (top / "README").write_text("not the code\n")
    (top / "src" / "patchreorder" / "_kernel.so").write_text("built, not written")
    assert provenance.commit() == first
    (top / "src" / "patchreorder" / "laboratory" / "provenance.py").write_text("# changed\n")
    assert provenance.commit() == first + "+"
    git("add", "src")
    assert provenance.commit() == first + "+"
    git("commit", "-m", "second")
    assert provenance.commit() == git("rev-parse", "HEAD")[:12] != first


def test_a_new_file_is_a_change(checkout):
    top, git = checkout
    (top / "src" / "patchreorder" / "engine").mkdir()
    (top / "src" / "patchreorder" / "engine" / "train.py").write_text("# not added\n")
    git("config", "status.showUntrackedFiles", "no")
    assert provenance.commit() == git("rev-parse", "HEAD")[:12] + "+"


def test_the_repository_of_a_hook_is_not_ours(checkout, monkeypatch, tmp_path):
    _, git = checkout
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere.git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "elsewhere.git" / "index"))
    assert provenance.commit() == git("rev-parse", "HEAD")[:12]


def test_asking_does_not_touch_the_index(checkout):
    top, _ = checkout
    index = top / ".git" / "index"
    source = top / "src" / "patchreorder" / "laboratory" / "provenance.py"
    os.utime(source, (1, 1))  # git status would note this in the index
    before = index.read_bytes()
    provenance.commit()
    assert index.read_bytes() == before


@pytest.mark.parametrize("place", ["site-packages/patchreorder", "src/other/patchreorder", "../outside/patchreorder"])
def test_outside_a_checkout_of_ours_the_version_stands_for_it(checkout, monkeypatch, place):
    top, _ = checkout
    (top / place).mkdir(parents=True)
    monkeypatch.setattr(provenance, "__file__", str(top / place / "laboratory" / "provenance.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(top.parent))
    assert provenance.commit() == patchreorder.__version__


def test_without_git_the_version_stands_for_the_commit(checkout, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.commit() == patchreorder.__version__


def test_the_commit_is_that_of_the_code_that_was_loaded():
    """Who trains for hours in a checkout that moves on must not sign with tomorrow's commit."""
    provenance.commit.cache_clear()
    first = provenance.commit()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provenance, "__file__", "/nowhere/laboratory/provenance.py")
        assert provenance.provenance()["commit"] == first


def test_provenance(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", type(sys)("torch"))
    sys.modules["torch"].__version__ = "9.9"
    monkeypatch.delitem(sys.modules, "numpy", raising=False)
    found = provenance.provenance()
    assert found["versions"].keys() == {"patchreorder", "python", "torch"}
    assert found["versions"]["torch"] == "9.9"
    assert f"{os.cpu_count()} cores" in found["machine"]
    finished = datetime.datetime.fromisoformat(found["finished"])
    assert finished.utcoffset() == datetime.timedelta(0)
    assert abs(finished.timestamp() - time.time()) < 60
    assert Result(**dataclasses.asdict(result()) | found)


def test_rows_are_read_without_torch(tmp_path):
    assert finish(python("print('torch' in sys.modules)", tmp_path)) == "False\n"


def test_the_name_of_a_cells_files_leads_nowhere_else():
    cell = Cell("table1", "../../cnn", "R\\", "short,scales={'a/b': 1}", "test", 0, "0123abcd")
    assert cell.folder == ".._.._cnn.R_.short,scales=__a_b__ 1_.test.0.0123abcd".replace(" ", "_")
    assert Path(cell.folder).name == cell.folder


@pytest.mark.parametrize("letter", ["x", "\N{SNOWMAN}", "\u00e9"])
def test_the_name_of_a_cells_files_is_never_too_long(tmp_path, letter):
    cells = [Cell("table1", "cnn", "R", f"short,{letter * count}", "test", 0, "0123abcd") for count in (400, 401)]
    for cell in cells:
        (tmp_path / f"{cell.folder}.maps.png").touch()
    assert cells[0].folder != cells[1].folder
