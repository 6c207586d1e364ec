"""The command `patchreorder run`."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from patchreorder import recipes
from patchreorder.__main__ import main
from patchreorder.engine import memory
from patchreorder.engine.train import Interrupted
from patchreorder.laboratory import classification
from patchreorder.laboratory.rows import read as read_rows
from tests.processes import environment

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def memory_as_it_is(monkeypatch):
    monkeypatch.setattr(memory, "keep_freed_memory", lambda: None)  # the command's setting would outlast the test


def fail(*args, **options):
    raise AssertionError("this must not be called")


def lines(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "table1.jsonl").read_text().splitlines()]


COMMAND = ["run", "table1", "--setting", "smoke", "--rows", "fcn", "--columns", "R"]


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--rows", "nope"], r"rows \('nope'\) must be among fcn, cnn"),
        (["--rows", "cnn", "CNN"], r"rows \('CNN'\)"),
        (["--columns", "X"], r"columns \('X'\) must be among R, T"),
        (["--setting", "nope"], r"setting \('nope'\) must be one of short, "),
        (["--setting", "shipped", "--rows", "fcn"], r"rows \('fcn'\) must be among cnn"),
        (["--seeds", "-1"], r"seed \(-1\) must be 0 or more"),
        (["--seeds", "0", "-7"], r"seed \(-7\)"),
        (["--change", "foo"], r"change \('foo'\) must be NAME=VALUE"),
        (["--change", "nope=1"], r"change \(nope=1\) must name one of: images, tested, amp, batch"),
        (["--change", "lr=fast"], r"change \(lr='fast'\) must be of the type float"),
        (["--change", "lr=0"], r"lr \(0\) must be more than 0"),
        (["--change", "lr=0.1", "lr=0.2"], r"change \('lr=0\.2'\) names lr again"),
        (["--change", "steps=5", "epochs=1"], r"give steps \(5\) or epochs \(1\)"),
        (["--threads", "-2"], r"threads \(-2\) must be 0"),
        (["--data", "/nowhere/at/all"], r"data \(/nowhere/at/all\) must be a folder"),
        (["--data", __file__], r"data \(.*test_run\.py\) must be a folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_bad_argument_is_one_line_before_anything_is_done(tmp_path, capsys, monkeypatch, args, named):
    monkeypatch.setattr(classification, "train", fail)
    assert main(["run", "table1", "--out", str(tmp_path / "out"), *args]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert re.fullmatch(rf"patchreorder: {named}[^\n]*\n", said.err)
    assert not (tmp_path / "out").exists()


def test_help_lists_the_settings_of_every_recipe(capsys):
    assert main(["run", "--help"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for name, about in recipes.NAMES.items():
        settings = tuple(recipes.load(name).settings)
        assert recipes.SETTINGS[name] == settings
        assert f"{name} {about}. Settings: {', '.join(settings)}" in printed


def test_help_of_a_recipe_explains_its_settings_rows_and_columns(capsys):
    assert main(["run", "table2-grocery", "--help"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    recipe = recipes.load("table2_grocery")
    assert "settings of table2_grocery: short " in printed
    for part in (*recipe.rows, *recipe.columns):
        assert f"{part.name} {part.about}" in printed


def test_an_unknown_recipe_is_one_line_without_waiting_for_torch(tmp_path):
    code = (
        "import sys; from patchreorder.__main__ import main; code = main(['run', 'table9']); "
        "sys.exit(9 if 'torch' in sys.modules else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment(), timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "patchreorder: recipe ('table9') must be one of " + ", ".join(recipes.NAMES) + "\n"
    assert list(tmp_path.iterdir()) == []


def test_an_output_folder_that_is_a_file_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(classification, "train", fail)
    (tmp_path / "out").write_text("")
    assert main([*COMMAND, "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr() == ("", f"patchreorder: {tmp_path / 'out'}: File exists\n")


def test_the_command_says_what_it_did_and_what_is_next(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(COMMAND) == 0
    said = capsys.readouterr().out
    assert re.search(r"^FCN, R, seed 0: \d+\.\d\d error %", said)
    assert "1 cells measured, 0 were there. Rows: runs/table1/table1.jsonl\n" in said
    assert "patchreorder report runs/table1" in said
    assert main(COMMAND) == 0
    assert "0 cells measured, 1 were there." in capsys.readouterr().out
    assert len(lines(tmp_path / "runs" / "table1")) == 1


STOPPED = """
import os, signal, sys
from patchreorder.__main__ import main
from patchreorder.engine import progress

def training(self, title):
    return lambda progress: os.kill(os.getpid(), signal.SIGINT) if progress.step == 1 else None

progress.Terminal.training = training
sys.exit(main(sys.argv[1:]))
"""


def test_control_c_says_how_to_go_on_and_the_same_command_ends_the_work(tmp_path, capsys):
    command = [*COMMAND, "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", STOPPED, *command], capture_output=True, text=True, env=environment(), timeout=120
    )
    assert (done.returncode, done.stderr) == (130, "")
    said = r"stopped after step 2 of 3, saved in .*checkpoint\.safetensors; the same command goes on from there\n"
    assert re.fullmatch(said, done.stdout)
    assert not (tmp_path / "table1.jsonl").exists()
    assert main(command) == 0
    assert "1 cells measured, 0 were there" in capsys.readouterr().out
    (row,) = read_rows(tmp_path / "table1.jsonl").results
    assert row.details["resumed"] == 1


def test_control_c_after_the_training_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    def stop(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(classification, "predict", stop)
    assert main([*COMMAND, "--out", str(tmp_path)]) == 130
    assert capsys.readouterr() == ("stopped; the same command goes on from there\n", "")
    monkeypatch.undo()
    monkeypatch.setattr(memory, "keep_freed_memory", lambda: None)
    assert main([*COMMAND, "--out", str(tmp_path)]) == 0


@pytest.mark.parametrize("end", ["finished", "stopped", "failed", "resumed at its end"])
def test_however_a_run_ends_the_terminal_has_its_cursor_again(tmp_path, capsys, monkeypatch, end):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    real = classification.train

    def train(*args, callback, **options):
        def tell(progress):
            callback(progress)
            if progress.step == 2 and end == "stopped":
                raise Interrupted("stopped here")
            if progress.step == 2 and end == "failed":
                raise ValueError("it failed")

        return real(*args, callback=tell, **options)

    monkeypatch.setattr(classification, "train", train)
    if end == "resumed at its end":
        assert main([*COMMAND, "--out", str(tmp_path)]) == 0
        (tmp_path / "table1.jsonl").unlink()
        capsys.readouterr()
    status = {"stopped": 130, "failed": 2}.get(end, 0)
    assert main([*COMMAND, "--out", str(tmp_path)]) == status
    hidden, shown = "\x1b[?25l", "\x1b[?25h"
    said = capsys.readouterr().out
    assert hidden in said
    assert shown in said[said.rindex(hidden) :]
    if end == "stopped":
        assert said.rstrip().endswith("stopped here; the same command goes on from there")
