"""Folders of results: what is missing, damaged or foreign."""

import json

import pytest

from patchreorder.report import markdown, page
from patchreorder.report.folder import load
from tests.report_rows import facts, only_table, result, seeds, write


def test_without_facts_names_are_titles(tmp_path, shown):
    folder = write(tmp_path, seeds("cnn", [1], metric="error %"))
    table = only_table(folder)
    assert (table.recipe.title, table.recipe.metric) == ("table1", "error %")
    assert "table1.json is missing: titles and the paper" in shown(folder)
    assert "table1.json is missing" in page.render(load(folder))


def test_rows_and_columns_the_facts_do_not_know_are_shown(tmp_path, shown):
    about = facts(rows=[{"name": "fcn", "title": "FCN"}], columns="R", paper=[1], compare="x", curves=3, settings=None)
    table = only_table(write(tmp_path, [*seeds("new", [1], column="X")], about))
    assert [row.name for row in table.recipe.rows] == ["fcn", "new"]
    assert [column.name for column in table.recipe.columns] == ["X"]
    assert "new" in page.render([table.recipe])


def test_damaged_facts_are_reported(tmp_path, shown):
    folder = write(tmp_path, seeds("cnn", [1]))
    (folder / "table1.json").write_text('{"title": ')
    assert "table1.json cannot be read" in shown(folder)


def test_damaged_lines_are_reported_in_every_output(tmp_path, shown):
    folder = write(tmp_path, seeds("cnn", [1], [2]), facts())
    file = folder / "table1.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0], lines[1][:50], "", "[]", lines[1]]) + "\n")
    for output in (shown(folder), markdown.render(load(folder)).replace("\\", ""), page.render(load(folder))):
        assert "damaged lines left out: 2 (line 2, 4)" in output
    assert len(only_table(folder).cells["cnn", "R"].results) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"value": "1.0"},
        {"value": float("nan")},
        {"value": None},
        {"value": 10**400},
        {"n": 0},
        {"seed": 1.5},
        {"errors": ["x"]},
        {"curves": [1]},
        {"row": 3},
        {"steps": True},
        {"setting": "x" * 100_000},
        {"machine": "x" * 100_000},
    ],
    ids=lambda change: str(change)[:40],
)
def test_rows_of_the_wrong_kind_are_left_out(tmp_path, change):
    folder = write(tmp_path, seeds("cnn", [1]), facts())
    line = json.loads((folder / "table1.jsonl").read_text()) | {"seed": 7} | change
    with open(folder / "table1.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")
    (recipe,) = load(folder)
    assert [row.seed for row in recipe.results] == [0]
    assert recipe.problems == ["table1.jsonl: damaged lines left out: 1 (line 2)."]


def test_rows_of_another_recipe_or_metric_are_left_out(tmp_path):
    folder = write(tmp_path, [*seeds("cnn", [1]), result(seed=5, metric="seconds", value=3.0)], facts())
    with open(folder / "table1.jsonl", "a") as file:
        file.write((folder / "table1.jsonl").read_text().splitlines()[0].replace('"table1"', '"table2"') + "\n")
    (recipe,) = load(folder)
    assert [row.seed for row in recipe.results] == [0]
    assert "another recipe: 1" in recipe.problems[0]
    assert "measured seconds are left out" in recipe.problems[1]


def test_a_recipe_that_has_begun_is_shown_without_rows(tmp_path, shown):
    (tmp_path / "table1.json").write_text(json.dumps(facts()))
    (tmp_path / "benchmark.json").write_text("[1, 2]")  # not ours
    assert [recipe.name for recipe in load(tmp_path)] == ["table1"]
    assert "no rows yet: run `patchreorder run table1`" in shown(tmp_path)
    assert "no rows yet" in page.render(load(tmp_path))


def test_a_folder_without_recipes_says_what_to_do(tmp_path):
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match=r"holds no RECIPE.jsonl.*patchreorder run"):
        load(tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load(tmp_path / "nowhere")
    with pytest.raises(NotADirectoryError, match=r"other\.json"):
        load(tmp_path / "other.json")


def test_recipes_are_in_natural_order(tmp_path):
    for name in ("table10", "table2"):
        write(tmp_path, [result(recipe=name)], facts(recipe=name))
    assert [recipe.name for recipe in load(tmp_path)] == ["table2", "table10"]
