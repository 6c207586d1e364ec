"""Every recipe runs in its smallest form; a cell is measured once, whoever asks, however often a run is stopped."""

import dataclasses
import errno
import hashlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from patchreorder import recipes
from patchreorder.__main__ import main
from patchreorder.data import datasets, formats, sources
from patchreorder.data.datasets import MNIST_VARIANTS, Digits
from patchreorder.data.generated import generate_digits
from patchreorder.engine import checkpoint, memory
from patchreorder.engine.distributed import World
from patchreorder.engine.options import Training
from patchreorder.engine.predict import predict
from patchreorder.engine.progress import Screen
from patchreorder.engine.train import Interrupted
from patchreorder.laboratory import cifar10 as of_pictures
from patchreorder.laboratory import classification, retrieval, rows
from patchreorder.laboratory import digits as of_digits
from patchreorder.laboratory import recipe as spec
from patchreorder.laboratory.digits import Plan
from patchreorder.laboratory.recipe import Column, Recipe, Row, Setting
from patchreorder.laboratory.rows import Result
from patchreorder.laboratory.rows import read as read_rows
from patchreorder.metrics.accuracy import mistakes
from patchreorder.models import create_model

pytestmark = pytest.mark.usefixtures("one_thread")

TABLE1 = recipes.load("table1")
SMOKE = {"setting": "smoke", "rows": ["fcn"], "columns": ["R", "T"]}  # the quickest cells
# What DESIGN.md asks of a row, and what the pairwise tests and the page need.
FIELDS = {"recipe", "row", "column", "setting", "split", "seed", "settings", "metric", "value", "n", "steps", "seconds"}
FIELDS |= {"cpu_seconds", "parameters", "commit", "versions", "machine", "finished", "errors", "answers", "curves"}


@pytest.fixture(autouse=True)
def memory_as_it_is(monkeypatch):
    monkeypatch.setattr(memory, "keep_freed_memory", lambda: None)  # the command's setting would outlast the test


class Smoke(NamedTuple):
    recipe: Recipe
    out: Path
    outcome: spec.Outcome
    rows: list[Result]


@pytest.fixture(scope="module")
def smoke(tmp_path_factory) -> dict[str, Smoke]:
    """Every recipe in its smoke setting, with no way to any network or cache."""

    def refuse(*args, **options):
        raise OSError(errno.ENETUNREACH, "a smoke run must not need the network")

    found = {}
    cache = tmp_path_factory.mktemp("cache")
    for name in recipes.NAMES:
        out = tmp_path_factory.mktemp(name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATCHREORDER_CACHE", str(cache))
            patch.setattr(socket.socket, "connect", refuse)
            patch.setattr(socket, "getaddrinfo", refuse)
            patch.setattr(sources, "fetch", refuse)
            outcome = spec.run(recipes.load(name), out=out, setting="smoke")
        found[name] = Smoke(recipes.load(name), out, outcome, read_rows(out / f"{name}.jsonl").results)
    assert list(cache.iterdir()) == []
    return found


def lines(out: Path, name: str = "table1") -> list[dict]:
    """The rows as they stand in the file, doubles too."""
    return [json.loads(line) for line in (out / f"{name}.jsonl").read_text().splitlines()]


def measured(row: Result) -> tuple:
    """What must not depend on how often a run was stopped."""
    return row.cell, row.value, row.n, row.steps, row.errors, row.answers, row.curves


def fail(*args, **options):
    raise AssertionError("this must not be called")


# ---- every recipe ----------------------------------------------------------------------------------


def test_every_file_with_a_recipe_is_registered():
    files = Path(recipes.__file__).parent.glob("*.py")
    assert {file.stem for file in files if re.search(r"^RECIPE\b", file.read_text(), re.MULTILINE)} == set(
        recipes.NAMES
    )
    assert all(recipes.load(name).name == name for name in recipes.NAMES)
    assert recipes.load("table2-cifar10").name == "table2_cifar10"


@pytest.mark.parametrize("name", recipes.NAMES)
def test_the_smoke_form_gives_one_whole_row_for_every_cell(smoke, name):
    recipe, out, outcome, rows = smoke[name]
    wanted = [cell for cell, *_ in spec.cells(recipe, setting="smoke")]
    assert outcome == spec.Outcome(wanted, [], [])
    tried = recipe.settings["smoke"].rows or [row.name for row in recipe.rows]
    meant = {row.name: row.columns or [column.name for column in recipe.columns] for row in recipe.rows}
    assert {(cell.row, cell.column) for cell in wanted} == {(row, column) for row in tried for column in meant[row]}
    assert [row.cell for row in rows] == wanted
    written = lines(out, name)
    assert len(written) == len(wanted)
    for line, row in zip(written, rows, strict=True):
        assert line.keys() >= FIELDS
        assert (row.metric, row.split, row.setting) == (recipe.metric, "test", "smoke")
        assert row.n > 0
        wrong = 100 * len(row.errors) / row.n
        scores = row.details.get("scores", [])
        shares = {share for _, share in row.curves.get("cosines", [])}
        means = {"error %": wrong, "accuracy %": 100 - wrong, "NS-score": sum(scores) / row.n}
        if recipe.metric in means:
            assert row.value == pytest.approx(means[recipe.metric])
        elif recipe.metric == "mean |cosine|":
            assert 0 <= row.value <= 1
            assert shares
            assert min(shares) >= 1 / row.n
        else:  # tests/test_figures.py knows what they must be
            ranges = {"cosine": (-1, 1), "invariance score": (0, row.n), "part of the shift": (-2, 2)}
            low, high = ranges[recipe.metric]
            assert low <= row.value <= high
        assert len(scores) == (row.n if recipe.metric == "NS-score" else 0)
        assert row.errors == sorted(set(row.errors))
        assert all(0 <= index < row.n for index in row.errors)
        assert len(row.answers) == len(row.errors)
        assert (row.steps > 0) == recipe.metric.endswith("%")  # for others nothing is trained
        assert row.versions.keys() >= {"patchreorder", "python", "torch", "numpy"}
        assert row.commit
        assert row.machine
        of_all = recipe.trains_once and row.column != recipe.columns[0].name  # those are told once
        assert row.curves.keys() == ({"training loss"} if of_all else recipe.curves.keys())
        assert all(curve and all(len(point) == 2 for point in curve) for curve in row.curves.values())
        assert row.details["resumed"] == 0


def test_trained_upright_an_aligned_network_makes_the_same_mistakes_on_shifted_digits(smoke):
    wrong = {(row.row, row.column): row.errors for row in smoke["upright"][3]}
    assert wrong["align", "T"] == wrong["align", "Ori"]
    assert wrong["cnn", "T"] != wrong["cnn", "Ori"]  # trained on upright digits for all columns


@pytest.mark.parametrize("name", recipes.NAMES)
def test_the_facts_are_whole(smoke, name):
    recipe, out, _, rows = smoke[name]
    facts = json.loads((out / f"{name}.json").read_text())
    assert facts["recipe"] == name
    for key in ("title", "about", "metric", "command"):
        assert facts[key].strip(), key
    assert facts["better"] in ("lower", "higher")
    named = {}
    for kind in ("rows", "columns"):
        named[kind] = [item["name"] for item in facts[kind]]
        assert len(set(named[kind])) == len(named[kind]) > 0
        assert all(item["title"].strip() and item["about"].strip() for item in facts[kind])
        titles = [item["title"] for item in facts[kind]]
        assert len(set(titles)) == len(titles)
    for row, cells in facts["paper"].items():
        assert row in named["rows"]
        assert set(cells) <= set(named["columns"])
        assert all(isinstance(value, float) for value in cells.values())
    for pair in facts["compare"]:
        assert len(set(pair)) == 2
        assert set(pair) <= set(named["rows"])
    assert all(about.strip() for about in facts["settings"].values())
    assert facts["settings"].keys() == recipe.settings.keys() >= {"short", "smoke"}
    assert not facts["paper"] or "paper" in facts["settings"]
    for row in rows:
        if recipe.parameters is not None and name not in ("table2", "fig_layers_imagenet"):  # narrower in smoke
            assert facts["parameters"][row.row][row.column] == row.parameters > 0
        for curve in row.curves:
            assert {"x", "y"} <= facts["curves"][curve].keys()


@pytest.mark.parametrize("name", recipes.NAMES)
def test_every_setting_has_cells_of_its_own(name):
    recipe = recipes.load(name)
    found = [cell for setting in recipe.settings for cell, *_ in spec.cells(recipe, setting=setting)]
    assert len({cell.folder for cell in found}) == len(found)


@pytest.mark.parametrize("name", recipes.NAMES)
def test_every_row_gets_the_same_budget_or_says_that_it_does_not(name):
    recipe = recipes.load(name)
    for setting in recipe.settings:
        plans = [(cell, plan) for cell, _, _, plan in spec.cells(recipe, setting=setting)]
        budgets = {(cell.column, repr(plan)) for cell, plan in plans if not plan.note}
        assert len(budgets) == len(recipe.settings[setting].columns or recipe.columns)


@pytest.mark.parametrize("name", recipes.NAMES)
def test_a_finished_cell_is_never_trained_again(smoke, name, monkeypatch):
    recipe, out, outcome, _ = smoke[name]
    before = (out / f"{name}.jsonl").read_bytes()
    monkeypatch.setattr(classification, "train", fail)
    monkeypatch.setattr(retrieval, "describe", fail)
    again = spec.run(recipe, out=out, setting="smoke")
    assert again == spec.Outcome([], outcome.measured, [])
    assert (out / f"{name}.jsonl").read_bytes() == before


@pytest.mark.parametrize("name", ["table2", "table2_grocery", "table2_cifar10", "fig_layers"])
def test_one_training_serves_all_columns(smoke, name):
    recipe, out, _, rows = smoke[name]
    measured = recipe.settings["smoke"].rows or [row.name for row in recipe.rows]
    assert len(list((out / "cells").iterdir())) == len(measured)
    for row in measured:
        own = [result for result in rows if result.row == row]
        assert len(own) == len(recipe.columns)
        assert len({(result.seconds, result.steps, str(result.curves["training loss"])) for result in own}) == 1


def test_the_right_answer_may_be_among_the_first_five(smoke):
    rows = {(row.row, row.column): row for row in smoke["table2"].rows}
    for (row, column), result in rows.items():
        if column.endswith("5"):
            first = rows[row, column.removesuffix("5")]
            assert set(result.errors) <= set(first.errors)  # of six classes
            assert result.value >= first.value
    assert any(result.value > rows[row, "Ori"].value for (row, column), result in rows.items() if column == "Ori5")


def test_a_row_may_begin_with_the_weights_of_another(smoke, tmp_path):
    """ST-CNN is fine-tuned: at a rate of next to nothing it is the CNN."""
    recipe = recipes.load("table2_cifar10")
    plan = recipe.settings["smoke"].plan
    started = dataclasses.replace(
        recipe,
        settings={
            "smoke": dataclasses.replace(
                recipe.settings["smoke"],
                plan=lambda row, column: begins(plan(row, column), "cnn" if row == "st_cnn" else None),
            )
        },
    )
    options = {"setting": "smoke", "columns": ["Ori"]}
    with pytest.raises(ValueError, match=r"ST-CNN, seed 0, begins with the weights of the row cnn: measure that first"):
        spec.run(started, out=tmp_path, rows=["st_cnn"], **options)
    spec.run(started, out=tmp_path, rows=["cnn", "st_cnn"], **options)
    (first,), (second,) = (list((tmp_path / "cells").glob(f"{row}.*/weights.safetensors")) for row in ("cnn", "st_cnn"))
    before, after = checkpoint.read(first)[0], checkpoint.read(second)[0]
    assert set(before) < set(after)
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=0, atol=1e-6)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Started(of_pictures.Plan):
    start: str | None


def begins(plan, start):
    lr = 1e-9 if start else plan.training.lr
    return Started(**{**vars(plan), "training": dataclasses.replace(plan.training, lr=lr)}, start=start)


def test_the_weights_and_the_mistakes_of_a_cell_belong_together(smoke):
    _, out, _, rows = smoke["table1"]
    row = next(row for row in rows if (row.row, row.column) == ("pr_cnn", "T"))
    tensors, state = checkpoint.read(out / "cells" / row.cell.folder / "weights.safetensors")
    assert tuple(state["cell"]) == row.cell
    model = create_model("pr_cnn", dataset="mnist-t")
    model.load_state_dict(tensors)
    test_set = generate_digits("mnist-t", count=20)
    logits, labels = predict(model, test_set)
    wrong, answers = mistakes(logits, labels)
    assert (wrong.tolist(), answers.tolist()) == (row.errors, row.answers)
    shown = row.details["mistakes"]
    assert [(m["index"], m["answer"]) for m in shown] == list(zip(row.errors, row.answers, strict=True))[:16]
    assert [m["label"] for m in shown] == labels[wrong[:16]].tolist()
    with Image.open(out / "pictures" / f"{row.cell.folder}.png") as picture:
        strip = np.asarray(picture)
    assert strip.shape == (42, 42 * len(shown))
    for place, m in enumerate(shown):
        image = test_set.batch(torch.tensor([m["index"]]))[0][0, 0]
        assert np.abs(strip[:, 42 * place : 42 * (place + 1)] - image.numpy() * 255).max() <= 0.5


# ---- which cells -----------------------------------------------------------------------------------

PLAN = {"lr": 0.5}
MADE_UP = Recipe(
    name="made_up",
    title="Made up",
    about="Nothing.",
    metric="error %",
    rows=[Row(name=name, title=name.upper(), about=name, model=name, options={"grid": 2}) for name in "abc"],
    columns=[Column(name=name, title=name, about=name, dataset=f"mnist-{name.lower()}") for name in "RT"],
    settings={
        "short": Setting(about="", plan=lambda row, column: PLAN, seeds=lambda row: (0, 1) if row == "a" else (0,)),
        "demo": Setting(about="", plan=lambda row, column: PLAN, rows=("c", "a")),
    },
    measure=fail,
    parameters=lambda row, column: 1,
    change=lambda plan, change: {**plan, **change},
)


def chosen(**options) -> list[str]:
    return [f"{c.row}{c.column}{c.seed}" for c, *_ in spec.cells(MADE_UP, **{"setting": "short", **options})]


def test_the_first_seed_of_all_comes_before_the_second_of_any():
    assert chosen() == ["aR0", "aT0", "bR0", "bT0", "cR0", "cT0", "aR1", "aT1"]
    assert chosen(seeds=[3, 2], rows=["b"]) == ["bR2", "bT2", "bR3", "bT3"]
    assert chosen(setting="demo") == ["aR0", "aT0", "cR0", "cT0"]
    assert chosen(rows=["c", "a"], columns=["T"], seeds=[0]) == ["cT0", "aT0"]


def test_a_row_may_be_meant_for_some_columns_only():
    rows = [dataclasses.replace(row, columns=("T",)) if row.name == "b" else row for row in MADE_UP.rows]
    recipe = dataclasses.replace(MADE_UP, rows=rows)
    asked = {"setting": "short", "seeds": [0]}
    assert [f"{c.row}{c.column}" for c, *_ in spec.cells(recipe, **asked)] == ["aR", "aT", "bT", "cR", "cT"]
    assert [row.get("columns") for row in recipe.facts()["rows"]] == [None, ["T"], None]
    with pytest.raises(ValueError, match=r"columns \(R\): b is meant for T only"):
        list(spec.cells(recipe, rows=["b"], columns=["R"], **asked))
    old, new = (next(spec.cells(each, rows=["b"], columns=["T"], **asked))[0] for each in (MADE_UP, recipe))
    assert old == new  # nothing that decides about a training


def test_what_is_asked_for_twice_is_measured_once():
    assert chosen(rows=["b", "b"], columns=["T", "T"], seeds=[1, 1]) == ["bT1"]


def test_a_cell_is_known_by_all_that_could_change_its_value():
    """Rows that were measured are found by this hash: it must stay what it is."""
    (cell,) = (cell for cell, *_ in spec.cells(MADE_UP, setting="short", rows=["b"], columns=["R"]))
    assert cell == ("made_up", "b", "R", "short", "test", 0, "5f39fbd0")
    others = [
        dataclasses.replace(MADE_UP, rows=[dataclasses.replace(MADE_UP.rows[1], model="x")]),
        dataclasses.replace(MADE_UP, rows=[dataclasses.replace(MADE_UP.rows[1], options={"grid": 3})]),
        dataclasses.replace(MADE_UP, columns=[dataclasses.replace(MADE_UP.columns[0], dataset="x")]),
        dataclasses.replace(MADE_UP, change=lambda plan, change: {"lr": 0.4}),
    ]
    hashes = [
        next(spec.cells(other, setting="short", rows=["b"], columns=["R"]))[0].settings for other in (MADE_UP, *others)
    ]
    assert len(set(hashes)) == len(hashes)
    renamed = dataclasses.replace(MADE_UP, rows=[dataclasses.replace(MADE_UP.rows[1], title="x", about="y")])
    assert next(spec.cells(renamed, setting="short", rows=["b"], columns=["R"]))[0] == cell


def test_a_training_keeps_its_hash():
    """A field more in Training is another hash for every cell: all that was measured would be measured again."""
    training = Training(
        steps=3,
        epochs=None,
        batch=8,
        lr=0.1,
        momentum=0.9,
        nesterov=True,
        weight_decay=0.0,
        schedule="one-cycle",
        warmup=0.2,
        decay_every=50_000,
        clip=None,
        ema=None,
        amp=False,
        scales={},
    )
    plan = Plan(training=training, images=32, tested=20, curve_images=10, generated=True, note="")
    recipe = dataclasses.replace(
        TABLE1, settings={"own": Setting(about="", plan=lambda row, column: plan)}, change=classification.changed
    )
    assert next(spec.cells(recipe, setting="own", rows=["cnn"]))[0].settings == "b484cf2e"


def test_changed_settings_are_another_cell_named_after_the_change(smoke, tmp_path):
    change = {"lr": 0.1, "steps": 2}
    outcome = spec.run(TABLE1, out=tmp_path, **SMOKE)
    changed = spec.run(TABLE1, out=tmp_path, **SMOKE, change=change)
    assert len(outcome.measured) == len(changed.measured) == 2
    rows = read_rows(tmp_path / "table1.jsonl").results
    assert [row.setting for row in rows] == ["smoke", "smoke", "smoke,lr=0.1,steps=2", "smoke,lr=0.1,steps=2"]
    assert len({row.settings for row in rows}) == 4
    assert [row.steps for row in rows] == [3, 3, 2, 2]
    assert [row.details["training"]["lr"] for row in rows] == [0.07, 0.07, 0.1, 0.1]
    assert spec.run(TABLE1, out=tmp_path, **SMOKE, change=change).measured == []


@pytest.mark.parametrize(
    "change",
    [
        {"lr": "0,1"},
        {"lr": True},
        {"lr": float("inf")},  # no row could hold it
        {"batch": 12.5},
        {"steps": "many"},
        {"nesterov": "yes"},
        {"nesterov": 1},
        {"clip": [1]},
        {"momentum": None},
        {"schedule": 3},
        {"scales": 5},
        {"scales": {"conv1": "x"}},
    ],
    ids=str,
)
def test_a_change_of_the_wrong_kind_is_named(change):
    ((name, value),) = change.items()
    with pytest.raises(ValueError, match=re.escape(f"({name}={value!r}) must be of the kind")):
        classification.changed(Plan(training=Training(steps=3)), change)


@pytest.mark.parametrize(
    "change",
    [{"lr": 1}, {"clip": None}, {"clip": 2.5}, {"amp": True}, {"scales": {"conv1": 2, "bias": 0.5}}, {}]
    + [{"schedule": "step"}, {"steps": None, "epochs": 0.5}],
    ids=str,
)
def test_a_change_of_the_right_kind_is_taken(change):
    plan = Plan(training=Training(steps=3, lr=0.2))
    assert classification.changed(plan, change) == Plan(training=dataclasses.replace(plan.training, **change))


# ---- stopped and shared ----------------------------------------------------------------------------


class Stops(Screen):
    """Ctrl-C at a step of the training whose title has this text."""

    def __init__(self, text: str, step: int = 1) -> None:
        self.text, self.step = text, step

    def training(self, title):
        def callback(progress):
            if self.text in title and progress.step == self.step:
                os.kill(os.getpid(), signal.SIGINT)

        return callback


def test_a_run_that_was_stopped_goes_on(smoke, tmp_path):
    with pytest.raises(Interrupted, match=r"stopped after step 2 of 3, saved in .*fcn\.T\.smoke"):
        spec.run(TABLE1, out=tmp_path, **SMOKE, screen=Stops("FCN, T"))
    assert [(row["row"], row["column"]) for row in lines(tmp_path)] == [("fcn", "R")]
    outcome = spec.run(TABLE1, out=tmp_path, **SMOKE)
    assert [cell.column for cell in outcome.measured] == ["T"]
    assert [cell.column for cell in outcome.there_before] == ["R"]
    rows = read_rows(tmp_path / "table1.jsonl").results
    whole = [row for row in smoke["table1"].rows if row.row == "fcn"]
    assert [measured(row) for row in rows] == [measured(row) for row in whole]
    assert [row.details["resumed"] for row in rows] == [0, 1]


def test_a_crash_after_the_training_costs_no_training(smoke, tmp_path, monkeypatch):
    """A full disk at the wrong moment: the row is lost, the weights are not."""

    def full(out, result):
        raise OSError(errno.ENOSPC, "No space left on device", "x")

    monkeypatch.setattr(rows, "append", full)
    options = SMOKE | {"columns": ["R"]}
    with pytest.raises(OSError, match="No space left"):
        spec.run(TABLE1, out=tmp_path, **options)
    monkeypatch.undo()
    steps = []
    screen = Screen()
    screen.training = lambda title: lambda progress: steps.append(progress.step)
    spec.run(TABLE1, out=tmp_path, **options, screen=screen)
    assert steps == []
    (row,) = read_rows(tmp_path / "table1.jsonl").results
    assert measured(row) == measured(smoke["table1"].rows[0])


def test_a_cell_that_another_process_is_at_is_left_to_it(tmp_path):
    (cell, *_), other = spec.cells(TABLE1, **SMOKE)
    code = (
        "import sys; from pathlib import Path; from patchreorder.files import try_lock\n"
        "assert try_lock(Path(sys.argv[1])) is not None; print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "cells" / cell.folder / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"\n"
        assert spec.run(TABLE1, out=tmp_path, **SMOKE) == spec.Outcome([other[0]], [], [cell])
        process.kill()
    assert spec.run(TABLE1, out=tmp_path, **SMOKE) == spec.Outcome([cell], [other[0]], [])
    assert len(lines(tmp_path)) == 2


def test_what_another_process_has_just_ended_is_not_measured_again(tmp_path, monkeypatch):
    done = spec.run(TABLE1, out=tmp_path, **SMOKE)
    answers = iter([False, True, False, True])  # looked at before the lock was ours, and after
    monkeypatch.setattr(spec, "_is_done", lambda out, cell: next(answers))
    monkeypatch.setattr(classification, "train", fail)
    assert spec.run(TABLE1, out=tmp_path, **SMOKE) == spec.Outcome([], done.measured, [])


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


def environment(**others: str) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "100"} | others


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
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, "-m", "patchreorder", "run", "table1", *options],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment(GLOO_SOCKET_IFNAME="lo"),
    )
    assert done.returncode == 0, done.stderr
    (row,) = lines(tmp_path)
    assert (row["row"], row["column"], row["details"]["processes"]) == ("cnn", "R", 2)
    assert row["n"] == 20
    assert done.stdout.count("1 cells measured") == 1


# ---- what is trained on and tested on --------------------------------------------------------------


@pytest.fixture
def tiny_mnist(tmp_path, monkeypatch) -> Path:
    """A folder with 40 training digits, the last 10 of which are held out, and 12 for tests; no two alike."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    files = []
    random = np.random.default_rng(0)
    for part, count in (("train", 40), ("t10k", 12)):
        images = random.integers(0, 256, (count, 28, 28), np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        for name, content in (
            (f"{part}-images-idx3-ubyte", struct.pack(">4I", 0x0803, count, 28, 28) + images.tobytes()),
            (f"{part}-labels-idx1-ubyte", struct.pack(">2I", 0x0801, count) + labels.tobytes()),
        ):
            (folder / name).write_bytes(content)
            files.append(sources.File(name, len(content), hashlib.sha256(content).hexdigest()))
    monkeypatch.setattr(sources, "MNIST", sources.Source("mnist", tuple(files), ()))
    monkeypatch.setattr(datasets, "HELD_OUT", 10)
    return folder


class Seen(NamedTuple):
    training: Digits
    test: Digits
    row: Result


def seen(monkeypatch, out: Path, data: Path, **options) -> dict[tuple[str, str, int], Seen]:
    """What each cell was trained and tested on, by row, column and seed; and its row."""
    trained, tested = [], []
    real_train, real_predict = classification.train, classification.predict

    def train(model, data, *args, **keywords):
        trained.append(data)
        return real_train(model, data, *args, **keywords)

    def predict(model, data, **keywords):
        if isinstance(data, Digits):  # not those of the curves
            tested.append(data)
        return real_predict(model, data, **keywords)

    monkeypatch.setattr(classification, "train", train)
    monkeypatch.setattr(classification, "predict", predict)
    plan = Plan(training=Training(steps=2, batch=8), curve_images=4)
    recipe = dataclasses.replace(TABLE1, settings={"tiny": Setting(about="", plan=lambda row, column: plan)})
    outcome = spec.run(recipe, out=out, setting="tiny", data=data, **options)
    rows = read_rows(out / "table1.jsonl").results
    assert len(rows) == len(outcome.measured) == len(trained) == len(tested)
    return {(r.row, r.column, r.seed): Seen(*sets, r) for *sets, r in zip(trained, tested, rows, strict=True)}


@pytest.mark.parametrize("split", ["test", "validation"])
def test_each_split_trains_and_tests_on_its_own_digits(tiny_mnist, tmp_path, monkeypatch, split):
    (found,) = seen(monkeypatch, tmp_path / "out", tiny_mnist, rows=["fcn"], columns=["R"], split=split).values()
    train = torch.from_numpy(formats.read_idx(tiny_mnist / "train-images-idx3-ubyte"))[:, None]
    test = torch.from_numpy(formats.read_idx(tiny_mnist / "t10k-images-idx3-ubyte"))[:, None]
    fit, held_out = (train, test) if split == "test" else (train[:30], train[30:])
    assert torch.equal(found.training.images, fit)
    assert torch.equal(found.test.images, held_out)
    both = [image.numpy().tobytes() for images in (found.training.images, found.test.images) for image in images]
    assert len(set(both)) == len(both)  # no digit is in both
    assert torch.equal(found.test.labels, torch.arange(30, 40) % 10 if split == "validation" else torch.arange(12) % 10)
    assert (found.row.split, found.row.n) == (split, len(held_out))
    assert found.row.details["training images"] == len(fit)
    with Image.open(tmp_path / "out" / "pictures" / f"{found.row.cell.folder}.png") as picture:
        tile = np.asarray(picture)[:, :28]
    worst = found.test.batch(torch.tensor(found.row.errors[:1]))[0][0, 0]
    assert np.abs(tile - worst.numpy() * 255).max() <= 0.5


def test_test_images_are_the_same_for_all_and_training_images_are_not(tiny_mnist, tmp_path, monkeypatch):
    options = {"rows": ["fcn", "cnn"], "columns": ["R", "T"], "seeds": [0, 1]}
    found = seen(monkeypatch, tmp_path / "out", tiny_mnist, **options)
    assert len(found) == 8
    for column in "RT":
        cells = [value for (_, of, _), value in found.items() if of == column]
        first = cells[0].test.batch(torch.arange(12))
        for cell in cells:
            images, labels = cell.test.batch(torch.arange(12))
            assert torch.equal(images, first[0])
            assert torch.equal(labels, first[1])
        # The digits turned or shifted anew: for each epoch and each seed, and never as for the test.
        views = {
            (seed, epoch): found["cnn", column, seed].training.batch(torch.arange(12), epoch=epoch)[0]
            for seed in (0, 1)
            for epoch in (0, 1)
        }
        digits = found["cnn", column, 0].training.images
        views["as tested"] = Digits(digits, torch.zeros(40), f"mnist-{column.lower()}").batch(torch.arange(12))[0]
        for key, images in views.items():
            for other, theirs in views.items():
                same = (images == theirs).flatten(1).all(1).float().mean()
                assert same == 1 if key == other else same < 0.3
        for seed in (0, 1):  # but the same for every model
            assert torch.equal(views[seed, 1], found["fcn", column, seed].training.batch(torch.arange(12), epoch=1)[0])


def test_seeds_differ_in_weights_and_order(tiny_mnist, tmp_path, monkeypatch):
    found = seen(monkeypatch, tmp_path / "out", tiny_mnist, rows=["fcn"], columns=["R"], seeds=[0, 1])
    losses = [found["fcn", "R", seed].row.curves["training loss"] for seed in (0, 1)]
    assert losses[0] != losses[1]


def test_a_part_of_the_digits_is_their_beginning(tiny_mnist, tmp_path):
    plan = Plan(training=Training(steps=1, batch=8), images=16, tested=5)
    cell, row, column, _ = next(spec.cells(TABLE1, setting="smoke", rows=["fcn"], columns=["T"]))
    job = spec.Job(cell, row, column, plan, tmp_path, tiny_mnist, World(), Screen(), False)
    training, test = of_digits._digits(job)
    assert (len(training), len(test)) == (16, 5)
    _, whole = of_digits._digits(dataclasses.replace(job, plan=Plan(training=plan.training)))
    assert torch.equal(test.batch(torch.arange(5))[0], whole.batch(torch.arange(5))[0])


# ---- curves and pictures ---------------------------------------------------------------------------


def some_digits(variant: str, count: int = 3) -> Digits:
    return Digits(torch.randint(0, 256, (count, 1, 28, 28), dtype=torch.uint8), torch.arange(count), variant)


@pytest.mark.parametrize("variant", MNIST_VARIANTS)
def test_a_posed_digit_is_in_the_middle_turned_and_shifted_as_told(variant):
    digits, size = some_digits(variant), MNIST_VARIANTS[variant].size
    indices, around = torch.tensor([2, 0]), (size - 28) // 2

    def centred(images: torch.Tensor) -> torch.Tensor:
        canvas = torch.zeros(len(images), 1, size, size)
        canvas[:, :, around : around + 28, around : around + 28] = images
        return canvas

    plain = digits.images[indices] / 255

    def posed(**pose: float) -> torch.Tensor:
        images, labels = of_digits._Posed(digits, **pose).batch(indices)
        assert labels.tolist() == [2, 0]
        return images

    assert len(of_digits._Posed(digits)) == 3
    assert torch.allclose(posed(), centred(plain), atol=1e-4)
    assert torch.allclose(posed(degrees=90), centred(torch.rot90(plain, 1, (2, 3))), atol=1e-4)  # counter-clockwise
    right = torch.zeros(2, 1, size, size)
    right[..., 7:] = centred(plain)[..., :-7]
    assert torch.allclose(posed(right=7), right, atol=1e-4)


class Sees(nn.Module):
    """Class 0 where this pixel is bright, else class 1."""

    def __init__(self, row: int, column: int) -> None:
        super().__init__()
        self.row, self.column = row, column

    def forward(self, images):
        bright = images[:, 0, self.row, self.column] > 0.5
        return torch.stack([bright, ~bright], dim=1).float()


@pytest.mark.parametrize("variant", ["mnist-r", "mnist-t"])
@pytest.mark.parametrize(
    ("pixel", "angle", "shift"),
    [((4, 13), 0, 0), ((13, 4), None, None), ((14, 4), 90, None), ((13, 23), -90, None), ((4, 16), None, 3)],
)
def test_curves_of_a_model_whose_answers_are_known(variant, pixel, angle, shift):
    """Half of the digits have one bright pixel above the middle and are class 0; the others are black and class 1."""
    images = torch.zeros(4, 1, 28, 28, dtype=torch.uint8)
    images[:2, 0, 4, 13] = 255
    digits = Digits(images, torch.tensor([0, 0, 1, 1]), variant)
    around = (MNIST_VARIANTS[variant].size - 28) // 2
    curves = of_digits._responses(Sees(pixel[0] + around, pixel[1] + around), digits, World())
    assert curves.keys() == {"error by angle", "error by shift"}
    assert curves["error by angle"] == [[x, 0.0 if x == angle else 50.0] for x in range(-180, 181, 15)]
    assert curves["error by shift"] == [[x, 0.0 if x == shift else 50.0] for x in range(-7, 8)]


@pytest.mark.parametrize("variant", ["mnist", "mnist-t"])
def test_tiles_are_the_images_in_their_order(tmp_path, variant):
    digits, size = some_digits(variant, 5), MNIST_VARIANTS[variant].size
    classification._write_tiles(tmp_path / "pictures" / "tiles.png", digits, torch.tensor([3, 0, 4]))
    with Image.open(tmp_path / "pictures" / "tiles.png") as picture:
        assert picture.format == "PNG"
        strip = np.asarray(picture)
    assert strip.dtype == np.uint8
    assert strip.shape == (size, 3 * size)
    for place, index in enumerate((3, 0, 4)):
        tile = strip[:, place * size : (place + 1) * size]
        assert np.array_equal(tile, digits.batch(torch.tensor([index]))[0][0, 0].mul(255).round().numpy())
        assert sorted(tile[tile > 0]) == sorted(digits.images[index][digits.images[index] > 0])
    assert [file.name for file in (tmp_path / "pictures").iterdir()] == ["tiles.png"]


def test_without_mistakes_there_is_no_picture(tmp_path):
    classification._write_tiles(tmp_path / "tiles.png", some_digits("mnist"), torch.tensor([], dtype=torch.long))
    assert list(tmp_path.iterdir()) == []


def test_a_training_that_leaves_the_numbers_names_its_cell(tmp_path):
    with pytest.raises(ValueError, match=r"^FCN, R, seed 0: .* not finite"):
        spec.run(TABLE1, out=tmp_path, **SMOKE, change={"lr": 1e30, "steps": 20, "nesterov": False})
    assert not (tmp_path / "table1.jsonl").exists()


# ---- the command -----------------------------------------------------------------------------------

COMMAND = ["run", "table1", "--setting", "smoke", "--rows", "fcn", "--columns", "R"]


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--rows", "nope"], r"rows \('nope'\) must be among fcn, cnn"),
        (["--rows", "cnn", "CNN"], r"rows \('CNN'\)"),
        (["--columns", "X"], r"columns \('X'\) must be among R, T"),
        (["--setting", "nope"], r"setting \('nope'\) must be one of short, paper"),
        (["--setting", "demo", "--rows", "fcn"], r"rows \('fcn'\) must be among cnn"),
        (["--seeds", "-1"], r"seed \(-1\) must be 0 or more"),
        (["--seeds", "0", "-7"], r"seed \(-7\)"),
        (["--change", "foo"], r"change \('foo'\) must be NAME=VALUE"),
        (["--change", "nope=1"], r"change \(nope\) must name a value of a training: steps, epochs, batch"),
        (["--change", "lr=fast"], r"change \(lr='fast'\) must be of the kind float"),
        (["--change", "lr=0"], r"lr \(0\) must be more than 0"),
        (["--change", "lr=0.1", "lr=0.2"], r"change \('lr=0\.2'\) names lr again"),
        (["--change", "steps=5", "epochs=1"], r"give steps \(5\) or epochs \(1\)"),
        (["--threads", "-2"], r"threads \(-2\) must be 0"),
        (["--data", "/nowhere/at/all"], r"data \(/nowhere/at/all\) must be a folder"),
        (["--data", __file__], r"data \(.*test_recipe\.py\) must be a folder"),
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


def test_help_names_every_recipe_and_setting(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    words = set(re.findall(r"\w+", capsys.readouterr().out))
    assert words >= {*recipes.NAMES, *(setting for name in recipes.NAMES for setting in recipes.load(name).settings)}


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


def test_control_c_says_how_to_go_on_and_the_same_command_ends_the_work(smoke, tmp_path, capsys):
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
    assert measured(row) == measured(smoke["table1"].rows[0])


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
    monkeypatch.setenv("FORCE_COLOR", "1")
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
