"""Runs: a cell is measured once, whoever asks, however often a run is stopped."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from patchreorder import recipes
from patchreorder.engine.progress import Screen
from patchreorder.engine.train import Interrupted
from patchreorder.laboratory import classification, rows
from patchreorder.laboratory import run as running
from patchreorder.laboratory.cells import Job, jobs
from patchreorder.laboratory.rows import Cell, Result
from patchreorder.laboratory.rows import read as read_rows
from patchreorder.laboratory.run import run
from tests.processes import environment, run_within, torchrun

pytestmark = pytest.mark.usefixtures("one_thread")

TABLE1 = recipes.load("table1")
SMOKE = {"setting": "smoke", "rows": ["fcn"], "columns": ["R", "T"]}  # the quickest cells


def lines(out: Path) -> list[dict]:
    """The rows as they stand in the file, doubles too."""
    return [json.loads(line) for line in (out / "table1.jsonl").read_text().splitlines()]


def measured(row: Result) -> tuple:
    """What must not depend on how often a run was stopped."""
    return row.cell, row.value, row.n, row.steps, row.errors, row.answers, row.curves


def fail(*args, **options):
    raise AssertionError("this must not be called")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, one_thread) -> list[Result]:
    out = tmp_path_factory.mktemp("undisturbed")
    run(TABLE1, out=out, **SMOKE)
    return read_rows(out / "table1.jsonl").results


def test_a_changed_plan_is_another_cell_named_after_the_change(tmp_path):
    change = {"lr": 0.1, "steps": 2}
    outcome = run(TABLE1, out=tmp_path, **SMOKE)
    changed = run(TABLE1, out=tmp_path, **SMOKE, change=change)
    assert len(outcome.measured) == len(changed.measured) == 2
    found = read_rows(tmp_path / "table1.jsonl").results
    assert [row.setting for row in found] == ["smoke", "smoke", "smoke,lr=0.1,steps=2", "smoke,lr=0.1,steps=2"]
    assert len({row.settings for row in found}) == 4
    assert [row.steps for row in found] == [3, 3, 2, 2]
    assert [row.details["training"]["lr"] for row in found] == [0.07, 0.07, 0.1, 0.1]
    assert run(TABLE1, out=tmp_path, **SMOKE, change=change).measured == []


class Stops(Screen):
    """Ctrl-C at a step of the training whose title has this text."""

    def __init__(self, text: str, step: int = 1) -> None:
        self.text, self.step = text, step

    def training(self, title):
        def callback(progress):
            if self.text in title and progress.step == self.step:
                os.kill(os.getpid(), signal.SIGINT)

        return callback


def test_a_stopped_run_resumes(undisturbed, tmp_path):
    with pytest.raises(Interrupted, match=r"stopped after step 2 of 3, saved in .*fcn\.T\.smoke"):
        run(TABLE1, out=tmp_path, **SMOKE, screen=Stops("FCN, T"))
    assert [(row["row"], row["column"]) for row in lines(tmp_path)] == [("fcn", "R")]
    outcome = run(TABLE1, out=tmp_path, **SMOKE)
    assert [job.cell.column for job in outcome.measured] == ["T"]
    assert [job.cell.column for job in outcome.there_before] == ["R"]
    found = read_rows(tmp_path / "table1.jsonl").results
    assert [measured(row) for row in found] == [measured(row) for row in undisturbed]
    assert [row.details["resumed"] for row in found] == [0, 1]


def test_a_crash_after_the_training_costs_no_training(undisturbed, tmp_path, monkeypatch):
    """A full disk at the wrong moment: the row is lost, the weights are not."""

    def full(out, result):
        raise OSError(errno.ENOSPC, "No space left on device", "x")

    monkeypatch.setattr(rows, "append", full)
    options = SMOKE | {"columns": ["R"]}
    with pytest.raises(OSError, match="No space left"):
        run(TABLE1, out=tmp_path, **options)
    monkeypatch.undo()
    steps = []
    screen = Screen()
    screen.training = lambda title: lambda progress: steps.append(progress.step)
    run(TABLE1, out=tmp_path, **options, screen=screen)
    assert steps == []
    (row,) = read_rows(tmp_path / "table1.jsonl").results
    assert measured(row) == measured(undisturbed[0])


def cells(found: list[Job]) -> list[Cell]:
    return [job.cell for job in found]


def test_a_cell_that_another_process_measures_is_left_to_it(tmp_path):
    first, second = jobs(TABLE1, TABLE1.task(), out=tmp_path, **SMOKE)
    code = (
        "import sys; from pathlib import Path; from patchreorder.files import try_lock\n"
        "assert try_lock(Path(sys.argv[1])) is not None; print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(first.folder / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"\n"
        outcome = run(TABLE1, out=tmp_path, **SMOKE)
        assert (cells(outcome.measured), cells(outcome.elsewhere)) == ([second.cell], [first.cell])
        process.kill()
    outcome = run(TABLE1, out=tmp_path, **SMOKE)
    assert (cells(outcome.measured), cells(outcome.there_before)) == ([first.cell], [second.cell])
    assert len(lines(tmp_path)) == 2


def test_what_another_process_has_just_ended_is_not_measured_again(tmp_path, monkeypatch):
    done = run(TABLE1, out=tmp_path, **SMOKE)
    answers = iter([False, True, False, True])  # looked at before the lock was ours, and after
    monkeypatch.setattr(running, "_is_done", lambda out, cell: next(answers))
    monkeypatch.setattr(classification, "train", fail)
    again = run(TABLE1, out=tmp_path, **SMOKE)
    assert (again.measured, cells(again.there_before)) == ([], cells(done.measured))


SHARES = """
import sys, time
from pathlib import Path
from patchreorder.__main__ import main
from patchreorder.recipes import table1
out, me = Path(sys.argv[1]), sys.argv[2]
(out / f"ready{me}").touch()
while len(list(out.glob("ready*"))) < 2:
    time.sleep(0.01)
options = ["--setting", "smoke", "--rows", "fcn", "--seeds", *map(str, range(8))]
sys.exit(main(["run", "table1", *options, "--out", str(out)]))
"""


def test_two_processes_share_the_cells(tmp_path):
    start = [sys.executable, "-c", SHARES, str(tmp_path)]
    both = [
        subprocess.Popen([*start, name], stdout=subprocess.PIPE, text=True, env=environment()) for name in ("a", "b")
    ]
    said = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    cells = [(row["column"], row["seed"]) for row in lines(tmp_path)]
    assert len(cells) == 16
    assert set(cells) == {(column, seed) for column in "RT" for seed in range(8)}
    assert sum(int(re.search(r"(\d+) cells measured", text)[1]) for text in said) == 16


@pytest.mark.slow
def test_processes_of_torchrun_write_one_row(tmp_path):
    options = ["--setting", "smoke", "--rows", "cnn", "--columns", "R", "--out", str(tmp_path)]
    command = torchrun("-m", "patchreorder", "run", "table1", *options)
    said = run_within(command, env=environment(GLOO_SOCKET_IFNAME="lo"))
    (row,) = lines(tmp_path)
    assert (row["row"], row["column"], row["details"]["processes"]) == ("cnn", "R", 2)
    assert row["n"] == 20
    assert said.count("1 cells measured") == 1
