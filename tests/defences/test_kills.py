"""`run`, `index` and `fit` are killed at random, again and again; in the end all is as if nothing had happened."""

import json
import re
import shutil

import pytest
from safetensors.torch import load_file

from patchreorder.laboratory.rows import read as read_rows
from patchreorder.search.manifest import Manifest, left_over
from tests.classifier.photographs import write_photographs
from tests.defences.chance import SECONDS, cases
from tests.defences.killed import finish, kill
from tests.search.samples import noise, state

SHARE = SECONDS * 1.3  # seconds of each test: their cases are slow
MOST_KILLS = 4  # of one case
TEMPORARY = re.compile(r"\..*\.[0-9a-f]{8}")


def disturb(chance, command: list[str], out, undisturbed: tuple[int, float]) -> None:
    """Kill a command several times, then let it end."""
    for _ in range(chance.randint(1, MOST_KILLS)):
        print("killed", kill(chance, *undisturbed, *command))
    finish(*command)
    left = [path for path in out.rglob("*") if TEMPORARY.fullmatch(path.name)]
    assert not left, f"temporary files are left: {left}"


def bits(path):
    return {name: tensor.numpy().tobytes() for name, tensor in load_file(path).items()}


def measured(out):
    """Everything that a run has found, but for times."""
    rows = read_rows(out / "table1.jsonl")
    assert not rows.damaged
    weights = {path.parent.name: bits(path) for path in out.glob("cells/*/weights.safetensors")}
    return [
        (row.cell, row.value, row.n, row.steps, row.errors, row.answers, row.curves) for row in rows.results
    ], weights


def test_killed_runs_measure_the_same(tmp_path):
    options = ["--setting", "smoke", "--rows", "fcn", "--columns", "R", "T", "--save-every", "0", "--threads", "1"]
    undisturbed = finish("run", "table1", *options, "--out", str(tmp_path / "whole"))
    expected = measured(tmp_path / "whole")
    assert len(expected[0]) == len(expected[1]) == 2
    for number, chance in enumerate(cases("run", seconds=SHARE)):
        out = tmp_path / f"killed{number}"
        disturb(chance, ["run", "table1", *options, "--out", str(out)], out, undisturbed)
        assert measured(out) == expected


def test_killed_updates_leave_the_same_index(tmp_path):
    """A new index, and one whose images have changed."""
    images = noise(tmp_path / "images", 110)

    def command(name: str) -> list[str]:
        return ["index", str(images), "--out", str(tmp_path / name), "--workers", "0"]

    made = finish(*command("whole"))
    shutil.copytree(tmp_path / "whole", tmp_path / "first")
    first = state(tmp_path / "whole")
    for number in range(0, 110, 3):
        (images / f"{number:04d}.png").rename(tmp_path / f"{number:04d}.png")
    noise(images / "new", 30)
    updated = finish(*command("whole"))
    second = state(tmp_path / "whole")
    assert (len(first), len(second)) == (110, 103)
    for number, chance in enumerate(cases("index", seconds=SHARE)):
        out = tmp_path / f"killed{number}"
        if chance.random() < 0.5:
            shutil.copytree(tmp_path / "first", out)
        disturb(chance, command(out.name), out, updated if out.exists() else made)
        assert state(out) == second
        assert not left_over(out, Manifest.read(out))


def test_killed_fits_make_the_same_classifier(tmp_path):
    pytest.importorskip("jinja2")
    data = write_photographs(tmp_path / "data", count=6)
    options = ["--data", str(data), "--workers", "0", "--threads", "1"]
    undisturbed = finish("fit", *options, "--out", str(tmp_path / "whole"))
    expected = fitted(tmp_path / "whole")
    for number, chance in enumerate(cases("fit", seconds=SHARE)):
        out = tmp_path / f"killed{number}"
        disturb(chance, ["fit", *options, "--out", str(out)], out, undisturbed)
        assert fitted(out) == expected


def fitted(out):
    """The tensors of a classifier and its report, but for its cost."""
    report = json.loads((out / "report.json").read_text())
    return bits(out / "classifier.safetensors"), {name: report[name] for name in report.keys() - {"cost"}}
