"""What holds for every recipe: a test file of a recipe imports these tests and has its name as NAME."""

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from patchreorder.laboratory import classification, retrieval
from patchreorder.laboratory.cells import Job, jobs
from patchreorder.laboratory.recipe import Recipe
from patchreorder.laboratory.rows import Result
from patchreorder.laboratory.run import Outcome, run

__all__ = [
    "test_a_finished_cell_is_never_trained_again",
    "test_committed_rows_are_cells_of_the_recipe",
    "test_every_row_gets_the_same_budget_or_a_note",
    "test_every_setting_has_cells_of_its_own",
    "test_smoke_gives_one_whole_row_for_every_cell",
    "test_the_facts_are_whole",
]

# What DESIGN.md asks of a row, and what the paired tests and the page need.
FIELDS = {"recipe", "row", "column", "setting", "split", "seed", "settings", "metric", "value", "n", "steps", "seconds"}
FIELDS |= {"cpu_seconds", "parameters", "commit", "versions", "machine", "finished", "errors", "answers", "curves"}
OF_PHOTOGRAPHS = ("table2_grocery", "table2_tiny", "table3", "classifiers", "imagenet_today")
RESULTS = Path(__file__).parents[2] / "results"


class Smoke(NamedTuple):
    recipe: Recipe
    out: Path
    outcome: Outcome
    rows: list[Result]


def all_jobs(recipe: Recipe, setting: str, **which) -> list[Job]:
    task = (recipe.settings[setting].task or recipe.task)()
    return list(jobs(recipe, task, out=Path("out"), setting=setting, **which))


def test_smoke_gives_one_whole_row_for_every_cell(smoke):
    recipe, out, outcome, rows = smoke
    wanted = [job.cell for job in all_jobs(recipe, "smoke")]
    assert [job.cell for job in outcome.measured] == wanted
    assert outcome.there_before == outcome.elsewhere == []
    tried = recipe.settings["smoke"].rows or [row.name for row in recipe.rows]
    columns = recipe.settings["smoke"].columns or [column.name for column in recipe.columns]
    meant = {row.name: [name for name in row.columns or columns if name in columns] for row in recipe.rows}
    assert {(cell.row, cell.column) for cell in wanted} == {(row, column) for row in tried for column in meant[row]}
    assert [row.cell for row in rows] == wanted
    written = [json.loads(line) for line in (out / f"{recipe.name}.jsonl").read_text().splitlines()]
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
        else:  # the tests of the laboratory's tasks know what they must be
            ranges = {"cosine": (-1, 1), "invariance score": (0, row.n), "part of the shift": (-2, 2)}
            ranges |= {"part of the rotation": (-2, 2)}
            low, high = (ranges | {"right %": (0, 100)})[recipe.metric]
            assert low <= row.value <= high
        scored = recipe.metric == "NS-score" or (recipe.name, row.column) == ("classifiers", "any")
        assert len(scores) == (row.n if scored else 0)
        assert row.errors == sorted(set(row.errors))
        assert all(0 <= index < row.n for index in row.errors)
        assert len(row.answers) == len(row.errors)
        assert (row.steps > 0) == (recipe.metric in ("error %", "accuracy %"))  # for others nothing is trained
        assert row.versions.keys() >= {"patchreorder", "python", "torch", "numpy"}
        assert row.commit
        assert row.machine
        shared = recipe.trains_once and recipe.curves and row.column != recipe.columns[0].name
        assert row.curves.keys() == ({"training loss"} if shared else recipe.curves.keys() - {"error by step"})
        assert all(curve and all(len(point) == 2 for point in curve) for curve in row.curves.values())
        assert row.details["resumed"] == 0
    if recipe.trains_once:
        assert len(list((out / "cells").iterdir())) == len(tried)
        for row in tried:
            own = [result for result in rows if result.row == row]
            assert len({(result.seconds, result.steps, str(result.curves.get("training loss"))) for result in own}) == 1


def test_the_facts_are_whole(smoke):
    recipe, out, _, rows = smoke
    facts = json.loads((out / f"{recipe.name}.json").read_text())
    assert facts["recipe"] == recipe.name
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
    assert len(set(map(tuple, facts["compare"]))) == len(facts["compare"])
    assert all(about.strip() for about in facts["settings"].values())
    assert facts["settings"].keys() == recipe.settings.keys() >= {"smoke"}
    assert not facts["paper"] or "paper" in facts["settings"]
    for row in rows:
        if facts["parameters"][row.row] and recipe.name != "table2":  # narrower in smoke
            assert facts["parameters"][row.row][row.column] == row.parameters > 0
        for curve in row.curves:
            assert {"x", "y"} <= facts["curves"][curve].keys()


def test_every_setting_has_cells_of_its_own(recipe):
    found = [job.cell for setting in recipe.settings for job in all_jobs(recipe, setting)]
    assert len({cell.folder for cell in found}) == len(found)


def test_every_row_gets_the_same_budget_or_a_note(recipe):
    for name, setting in recipe.settings.items():
        budgets = {(job.cell.column, repr(job.plan)) for job in all_jobs(recipe, name) if not job.plan.note}
        assert len(budgets) == len(setting.columns or recipe.columns)


def test_a_finished_cell_is_never_trained_again(smoke, monkeypatch):
    def fail(*args, **options):
        raise AssertionError("this must not be called")

    before = (smoke.out / f"{smoke.recipe.name}.jsonl").read_bytes()
    monkeypatch.setattr(classification, "train", fail)
    monkeypatch.setattr(retrieval, "describe", fail)
    again = run(smoke.recipe, out=smoke.out, setting="smoke")
    assert again.measured == []
    assert [job.cell for job in again.there_before] == [job.cell for job in smoke.outcome.measured]
    assert (smoke.out / f"{smoke.recipe.name}.jsonl").read_bytes() == before


def test_committed_rows_are_cells_of_the_recipe(recipe):
    """The hash of every row in results/ is computed again, but for rows of photographs, which are not here."""
    file = RESULTS / f"{recipe.name}.jsonl"
    for line in file.read_text().splitlines() if file.is_file() else ():
        row = json.loads(line)
        setting, *changes = row["setting"].split(",")
        which = {"rows": [row["row"]], "columns": [row["column"]], "seeds": [row["seed"]], "split": row["split"]}
        change = {name: json.loads(value) for name, _, value in (change.partition("=") for change in changes)}
        (job,) = all_jobs(recipe, setting, **which, change=change)
        assert job.cell[:-1] == tuple(row[field] for field in job.cell._fields[:-1])
        photographs = row["setting"] == "photographs" or (recipe.name, setting) == ("fig_rotation", "short")
        if not photographs and recipe.name not in OF_PHOTOGRAPHS:
            assert job.cell.settings == row["settings"], row["row"]
