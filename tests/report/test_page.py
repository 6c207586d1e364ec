"""The report: known answers, nothing mixed, nothing trusted, and a page that asks nothing of any network."""

import base64
import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from patchreorder.commands.report import report
from patchreorder.report import charts, markdown, page, tables, terminal, text, tiles
from patchreorder.report.comparison import McNemar, compare, mcnemar, paired_bootstrap
from patchreorder.report.folder import load
from patchreorder.report.tables import Curve
from patchreorder.report.text import MINUS, NONE
from tests.report_rows import example, facts, result, strip, write


def shown(folder: Path) -> str:
    """What the terminal says about a folder."""
    console = Console(file=io.StringIO(), width=200, highlight=False)
    terminal.show(load(folder), console)
    return console.file.getvalue()


def only_table(folder: Path) -> tables.Table:
    (table,) = (table for recipe in load(folder) for table in recipe.tables)
    return table


def seeds(row: str, *errors: list[int], **changes) -> list:
    """Rows of one model with seeds 0, 1, ..., each with its own errors."""
    return [result(row=row, seed=seed, errors=wrong, **changes) for seed, wrong in enumerate(errors)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A whole table of made-up rows."""
    return example(tmp_path_factory.mktemp("report") / "rows")


@pytest.fixture(scope="module")
def html(folder):
    return page.render(load(folder))


# ---- comparison ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("only_a", "only_b", "p"),
    [
        (0, 0, 1.0),
        (1, 1, 1.0),
        (3, 0, 2 / 8),
        (0, 5, 2 / 32),
        (10, 2, 2 * (1 + 12 + 66) / 4096),
        (2, 10, 2 * (1 + 12 + 66) / 4096),
    ],
)
def test_mcnemar_by_hand(only_a, only_b, p):
    both = [1000, 1001]
    found = mcnemar([*both, *range(only_a)], [*range(500, 500 + only_b), *both])
    assert found == McNemar(only_a, only_b, p)


def test_mcnemar_of_thousands_agrees_with_logarithms():
    total = 10_100
    terms = [math.lgamma(total + 1) - math.lgamma(k + 1) - math.lgamma(total - k + 1) for k in range(4901)]
    p = 2 * sum(math.exp(term - total * math.log(2)) for term in terms)
    assert mcnemar(range(4900), range(4900, total)).p == pytest.approx(p, rel=1e-6)
    assert mcnemar(range(5000), []).p == 0.0
    assert text.chance(0.0) == "p < 0.0001"


def test_bootstrap_of_one_seed_is_a_binomial():
    found = paired_bootstrap(seeds("a", [*range(10)], n=100), seeds("b", [], n=100))
    assert (found.mean, found.seeds, found.n) == (pytest.approx(10), (0,), 100)
    assert found.low == pytest.approx(5, abs=1)  # quantiles of Binomial(100, 0.1)
    assert found.high == pytest.approx(16, abs=1)
    turned = paired_bootstrap(seeds("b", [], n=100), seeds("a", [*range(10)], n=100))
    assert (turned.mean, turned.low, turned.high) == pytest.approx((-found.mean, -found.high, -found.low), abs=1)


def test_bootstrap_agrees_with_drawing_images_and_seeds_one_by_one():
    random = np.random.default_rng(3)
    wrong = random.random((2, 3, 400)) < np.array([0.15, 0.10])[:, None, None]  # model seed image
    a, b = (
        seeds(name, *(np.flatnonzero(w).tolist() for w in model), n=400)
        for name, model in zip("ab", wrong, strict=True)
    )
    found = paired_bootstrap(a, b)
    difference = wrong[0].astype(float) - wrong[1]
    drawn = [
        difference[random.integers(3, size=3)][:, random.integers(400, size=400)].mean() * 100 for _ in range(4000)
    ]
    assert found.mean == pytest.approx(100 * difference.mean())
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])), abs=0.25)


def test_bootstrap_draws_seeds_too():
    many = [*range(100)]
    found = paired_bootstrap(seeds("a", many, []), seeds("b", [], many))
    assert found.mean == pytest.approx(0)
    assert found.low < -9  # one time in four the first seed is drawn twice
    assert found.high > 9


def test_bootstrap_of_the_same_answers_is_nothing():
    found = paired_bootstrap(seeds("a", [1, 2], [3]), seeds("b", [1, 2], [3]))
    assert (found.mean, found.low, found.high) == (0, 0, 0)
    assert compare(seeds("a", [1]), seeds("b", [1])).verdict == "no difference shown"


def test_only_common_seeds_are_paired():
    a, b = seeds("a", [1], [2, 3], [4]), seeds("b", [5], [3])
    found = compare(a, b)
    assert found.difference.seeds == (0, 1)
    assert found.tests == {0: McNemar(1, 1, 1.0), 1: McNemar(1, 0, 1.0)}
    assert found.difference.mean == pytest.approx(100 * (0 + 1) / 2 / 1000)


@pytest.mark.parametrize(
    ("a", "b", "why"),
    [
        ({}, {"seed": 1}, "no seed"),
        ({}, {"n": 999}, "different numbers of images"),
        ({}, {"value": 7.0}, "were not kept"),
        ({}, {"column": "T"}, "different column"),
        ({"setting": "paper"}, {}, "different setting"),
        ({"split": "validation"}, {}, "different split"),
    ],
)
def test_what_cannot_be_paired_says_why(a, b, why):
    with pytest.raises(ValueError, match=why):
        compare([result(row="a", errors=[1], **a)], [result(row="b", errors=[2], **b)])


def test_a_rate_of_right_answers_can_be_compared_too():
    a, b = result(row="a", errors=[1, 2], value=99.8), result(row="b", errors=[1], value=99.9)
    assert compare([a], [b]).difference.mean == pytest.approx(0.1)


def test_the_verdict_needs_the_interval_and_the_test():
    few, many = seeds("a", [1]), seeds("b", [*range(60)])
    assert compare(few, many).verdict == "fewer errors"
    assert compare(many, few).verdict == "more errors"
    none, four = seeds("a", []), seeds("b", [1, 2, 3, 4])
    assert compare(none, four).difference.high < 0  # drawing again never makes the second better
    assert compare(none, four).tests == {0: McNemar(0, 4, 0.125)}
    assert compare(none, four).verdict == compare(four, none).verdict == "no difference shown"
    a, b = seeds("a", [*range(100)], []), seeds("b", [], [*range(200, 240)])  # the seeds disagree
    for found in (compare(a, b), compare(b, a)):
        assert found.together.p < 0.001
        assert found.difference.low < 0 < found.difference.high
        assert found.verdict == "no difference shown"


def test_all_seeds_together_by_hand():
    found = compare(seeds("a", [1, 2, 3], [1, 4], [5]), seeds("b", [], [2], [6, 7, 5]))
    assert found.together == McNemar(3, 2, 1.0)  # 1, 3, 4 against 6, 7; 2 is even, 5 the same
    one = compare(seeds("a", [1, 2, 3]), seeds("b", []))
    assert one.together == one.tests[0] == McNemar(3, 0, 0.25)


# ---- tables ----------------------------------------------------------------------------------------


def test_mean_spread_and_gap_by_hand(tmp_path):
    rows = seeds("cnn", [*range(10)], [*range(20)], [*range(30)]) + seeds("fcn", [*range(50)])
    table = only_table(write(tmp_path, rows, facts()))
    cnn, fcn = table.cells["cnn", "R"], table.cells["fcn", "R"]
    assert (cnn.mean, cnn.spread, cnn.gap) == pytest.approx((2.0, 1.0, 0.8))
    assert text.value(cnn) == "2.00 ± 1.00 (3)"
    assert (fcn.mean, fcn.spread) == (5.0, None)
    assert text.value(fcn) == "5.00 (1)"
    assert text.value(table.cells["cnn", "T"]) == "missing"
    assert table.cells["si_cnn", "T"].paper is None
    assert (cnn.best, fcn.best) == (True, False)


def test_cost_by_hand(tmp_path):
    rows = seeds("cnn", [1], [2], steps=100, seconds=50.0, cpu_seconds=1800.0, details={"batch": 64})
    table = only_table(write(tmp_path, rows, facts()))
    entry = table.cells["cnn", "R"]
    assert (entry.seconds, entry.cpu_seconds, entry.images_per_second) == (50.0, 3600.0, 128.0)
    assert text.costs(table) == [("CNN", "R", ["2", "208,586", "100", "50 s", "128", "1 h 00 min"])]
    assert "1 h 00 min of processor time" in text.cost_title(table)
    assert table.cells["cnn", "T"].parameters == 430000  # from the facts


def test_settings_and_splits_are_never_mixed(tmp_path):
    rows = [
        *seeds("cnn", [*range(10)], setting="smoke"),
        *seeds("cnn", [*range(20)], setting="paper"),
        *seeds("cnn", [*range(30)], split="validation"),
        *seeds("cnn", [*range(40)]),
        *seeds("cnn", [*range(60)], setting="short,lr=0.1"),
        *seeds("fcn", [*range(50)]),
    ]
    (recipe,) = load(write(tmp_path, rows, facts()))
    found = recipe.tables
    keys = [("short", "test"), ("short", "validation"), ("paper", "test"), ("short,lr=0.1", "test"), ("smoke", "test")]
    assert [
        (table.setting, table.split) for table in sorted(found, key=lambda t: keys.index((t.setting, t.split)))
    ] == keys
    assert [table.setting for table in found][:3] == ["short", "short", "paper"]
    assert [table.cells["cnn", "R"].mean for table in found] == [4.0, 3.0, 2.0, 6.0, 1.0]
    assert [table.cells["cnn", "R"].best for table in found] == [True, False, False, False, False]
    assert [table.has_paper for table in found] == [True, False, True, True, False]
    assert [len(table.rows) for table in found] == [11, 1, 11, 1, 1]  # results show what is missing, trials do not
    assert "not on the test images" in found[1].about
    assert "Changed: lr=0.1." in found[3].about
    assert found[0].command == "patchreorder run table1"
    assert found[1].command == "patchreorder run table1 --split validation"
    assert found[3].command == "patchreorder run table1 --change lr=0.1"
    assert found[4].command == "patchreorder run table1 --setting smoke"
    for table in found:
        assert {r.setting for entry in table.cells.values() for r in entry.results} == {table.setting}


def test_other_settings_behind_one_name_are_left_out(tmp_path):
    rows = [*seeds("cnn", [1], [2], [3], settings="old"), *seeds("cnn", [*range(10)], settings="new")]
    table = only_table(write(tmp_path, rows, facts()))
    assert (table.cells["cnn", "R"].mean, table.cells["cnn", "R"].left_out) == (1.0, 3)
    assert any("rows of other settings left out: 3" in remark for remark in table.remarks())


@pytest.mark.parametrize(("better", "best"), [("lower", "cnn"), ("higher", "fcn")])
def test_the_best_is_the_lowest_or_the_highest(tmp_path, better, best):
    rows = seeds("cnn", [1]) + seeds("fcn", [1, 2]) + seeds("cnn", [1], column="T")
    table = only_table(write(tmp_path, rows, facts(better=better)))
    assert [row for (row, _), entry in table.cells.items() if entry.best] == [best]  # T has nothing to compare with


def test_pairs_are_those_of_the_facts(folder):
    table = next(t for t in load(folder)[0].tables if t.split == "test")
    assert [(pair.a.name, pair.b.name, pair.column.name) for pair in table.pairs][:4] == [
        ("pr_cnn", "cnn", "R"),
        ("pr_cnn", "cnn", "T"),
        ("pr_cnn", "st_cnn", "R"),
        ("pr_cnn", "st_cnn", "T"),
    ]
    words = text.describe(table.pairs[0])
    assert f"PR-CNN against CNN on R: fewer errors. {MINUS}0." in words
    assert "seeds 0, 1, 2" in words
    assert words.endswith("(all seeds).")
    assert "over images alone" in text.describe(table.pairs[2])


def test_one_training_for_all_columns_is_paid_for_once(tmp_path):
    rows = [
        result(column=column, seed=seed, cpu_seconds=600.0)
        for column, own in (("R", (0,)), ("T", (0, 1)))
        for seed in own
    ]
    table = only_table(write(tmp_path, rows, facts(trains_once=True)))
    assert [(row, on, cells[0], cells[-1]) for row, on, cells in text.costs(table)] == [
        ("CNN", "all", "2", "20 min 00 s")
    ]
    assert "20 min 00 s of processor time" in text.cost_title(table)
    curves = {"training loss": [[1, 0.5], [2, 0.25]]}
    drawn = only_table(
        write(tmp_path / "drawn", [replace(row, curves=curves) for row in rows], facts(trains_once=True))
    )
    assert [figure.title for figure in charts.figures(drawn)] == ["Training loss"]
    apart = only_table(write(tmp_path / "apart", rows, facts()))
    assert "30 min 00 s of processor time" in text.cost_title(apart)


def test_columns_may_be_left_out_of_comparisons(tmp_path):
    columns = [facts()["columns"][0], facts()["columns"][1] | {"compared": False}]
    rows = [result(row=row, column=column) for row in ("cnn", "pr_cnn") for column in "RT"]
    table = only_table(write(tmp_path, rows, facts(columns=columns, compare=[["pr_cnn", "cnn"]])))
    assert [pair.column.name for pair in table.pairs] == ["R"]


def test_cells_that_a_row_is_not_meant_for_are_not_missing(tmp_path):
    about = facts(compare=[["pr_cnn", "cnn"]])
    about["rows"] = [row | ({"columns": ["T"]} if row["name"] == "pr_cnn" else {}) for row in about["rows"]]
    table = only_table(write(tmp_path, [result(row="pr_cnn", column="T"), result(row="cnn", column="T")], about))
    shown_as = {key: text.value(entry) for key, entry in table.cells.items()}
    assert (shown_as["pr_cnn", "R"], shown_as["cnn", "R"], shown_as["pr_cnn", "T"]) == (NONE, "missing", "0.00 (1)")
    assert [pair.column.name for pair in table.pairs] == ["T"]
    (missing,) = (text for text in table.remarks() if text.startswith("Missing"))
    assert "CNN on R" in missing
    assert "PR-CNN on R" not in missing


def test_pairs_that_lack_rows_or_budget_say_so(tmp_path):
    rows = seeds("pr_cnn", [1], steps=10) + seeds("cnn", [2], steps=20)
    about = facts(compare=[["pr_cnn", "cnn"], ["pr_cnn", "st_cnn"]])
    table = only_table(write(tmp_path, rows, about))
    said = [text.describe(pair) for pair in table.pairs]
    assert "trained for 10 and 20 steps" in said[0]
    assert said[1] == "PR-CNN against CNN on T: not compared, PR-CNN and CNN have no rows here."
    assert said[2] == "PR-CNN against ST-CNN on R: not compared, ST-CNN has no rows here."
    assert any("not all were trained for the same number of steps: 10 to 20" in text for text in table.remarks())
    printed = shown(tmp_path)
    assert printed.count("not compared") == 3
    many = facts(compare=[["pr_cnn", "cnn"], ["pr_cnn", "st_cnn"], ["st_cnn", "cnn"]])
    printed = shown(write(tmp_path / "many", rows, many))
    assert "5 comparisons are left out: a row is missing." in printed
    assert "not compared" not in printed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (text.duration(3.14), "3.1 s"),
        (text.duration(59.6), "1 min 00 s"),
        (text.duration(200), "3 min 20 s"),
        (text.duration(3599.9), "1 h 00 min"),
        (text.duration(7500), "2 h 05 min"),
        (text.signed(-0.004), "0.00"),
        (text.signed(-0.126), f"{MINUS}0.13"),
        (text.signed(0.5), "+0.50"),
        (text.signed(None), NONE),
        (text.count(208586), "208,586"),
        (text.chance(0.0385), "p = 0.038"),
        (text.chance(1.0), "p = 1"),
    ],
)
def test_numbers_as_text(text, expected):
    assert text == expected


def test_the_terminal_shows_the_table(folder):
    said = shown(folder)
    line = next(line for line in said.splitlines() if line.split()[:1] == ["SI-CNN"])
    assert re.search(rf"1\.\d\d ± 0\.\d\d \(3\) +0\.90 +\+0\.\d\d +missing +{NONE} +{NONE}", line)
    assert "* 0.97" in said
    assert "SI-CNN on R: shorter: 5 epochs." in said
    assert "Missing: SI-CNN on T." in said
    assert "PR-CNN against CNN, R" in said


def test_markdown_is_a_table(tmp_path):
    rows = seeds("cnn", [1]) + seeds("fcn", [1, 2])
    about = facts(rows=[{"name": "cnn", "title": "C|N*N"}, {"name": "fcn"}], compare=[])
    lines = markdown.render(load(write(tmp_path, rows, about))).splitlines()
    start = lines.index("| model | R | paper | gap | T | paper | gap |")
    assert lines[start + 1] == "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    assert lines[start + 2] == rf"| C\|N\*N | **0.10 (1)** | 1.20 | {MINUS}1.10 | missing | 1.30 | {NONE} |"
    assert "Made by `patchreorder run table1`." in "\n".join(lines)


# ---- what is missing or damaged --------------------------------------------------------------------


def test_without_facts_names_are_titles(tmp_path):
    folder = write(tmp_path, seeds("cnn", [1], metric="error %"))
    table = only_table(folder)
    assert (table.recipe.title, table.recipe.metric) == ("table1", "error %")
    assert "table1.json is missing: names stand for titles" in shown(folder)
    assert "table1.json is missing" in page.render(load(folder))


def test_rows_and_columns_the_facts_do_not_know_are_shown(tmp_path):
    about = facts(rows=[{"name": "fcn", "title": "FCN"}], columns="R", paper=[1], compare="x", curves=3, settings=None)
    table = only_table(write(tmp_path, [*seeds("new", [1], column="X")], about))
    assert [row.name for row in table.recipe.rows] == ["fcn", "new"]
    assert [column.name for column in table.recipe.columns] == ["X"]
    assert "new" in page.render([table.recipe])


def test_damaged_facts_are_told(tmp_path):
    folder = write(tmp_path, seeds("cnn", [1]))
    (folder / "table1.json").write_text('{"title": ')
    assert "table1.json cannot be read" in shown(folder)


def test_damaged_lines_are_told_everywhere(tmp_path):
    folder = write(tmp_path, seeds("cnn", [1], [2]), facts())
    file = folder / "table1.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0], lines[1][:50], "", "[]", lines[1]]) + "\n")
    for said in (shown(folder), markdown.render(load(folder)).replace("\\", ""), page.render(load(folder))):
        assert "damaged lines left out: 2 (line 2, 4)" in said
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
    ],
    ids=str,
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


def test_a_recipe_that_has_begun_is_shown_without_rows(tmp_path):
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


def test_several_recipes_are_shown_in_their_order(tmp_path):
    for name in ("table10", "table2"):
        rows = [result(recipe=name, errors=[1], curves={"training loss": [[1, 0.5]]})]
        write(tmp_path, rows, facts(recipe=name, title=f"The {name}"))
    recipes = load(tmp_path)
    assert [recipe.name for recipe in recipes] == ["table2", "table10"]
    html = page.render(recipes)
    assert 0 < html.index("<h2>The table2") < html.index("<h2>The table10")
    assert_well_formed(html)


# ---- charts ----------------------------------------------------------------------------------------


def test_axes_by_hand():
    axis = charts.Axis([0, 10], 100, 0)
    assert (axis.at(0), axis.at(2.5), axis.at(10)) == (100, 75, 0)
    assert [tick.label for tick in axis.ticks] == ["0", "2", "4", "6", "8", "10"]
    angles = charts.Axis([-180, 180], 0, 160, degrees=True)
    assert [tick.label for tick in angles.ticks] == [f"{MINUS}180", f"{MINUS}90", "0", "90", "180"]
    log = charts.Axis([0.01, 100], 0, 100, scale="log")
    assert log.at(1) == pytest.approx(50)
    assert [tick.label for tick in log.ticks] == ["0.01", "0.1", "1", "10", "100"]
    root = charts.Axis([0, 100], 100, 0, scale="root")
    assert root.at(25) == pytest.approx(50)
    assert [tick.label for tick in root.ticks] == ["0", "2", "10", "50", "100"]


@pytest.mark.parametrize("scale", ["", "log", "root"])
@pytest.mark.parametrize("values", [[3], [1e-9, 1e-9], [1e-6, 90], [0.3, 0.31], [1e90], [1e90, 2e90]])
def test_any_range_has_an_axis(scale, values):
    axis = charts.Axis([0, *values] if scale == "root" else values, 0, 100, scale=scale)
    assert len(axis.ticks) <= 12
    assert all(-0.1 <= tick.at <= 100.1 for tick in axis.ticks)
    assert all(math.isfinite(axis.at(value)) for value in values)


def test_the_mean_line_by_hand():
    curve = Curve("loss", "epoch", "loss", log=True)
    first = result(curves={"loss": [[1, 4.0], [2, 2.0], [3, 5e-324], ["x", 1], [4]]})
    second = result(seed=1, curves={"loss": [[2, 1.0], [1, 2.0], [3, 1.0]]})
    line = charts.mean_line([first, second, result(seed=2)], curve)
    assert line == charts.Line([1, 2], [3.0, 1.5], [2.0, 1.0], [4.0, 2.0], 2)  # log of 0 is nowhere
    assert charts.mean_line([result()], curve) is None


def test_every_model_has_a_panel_with_its_partner_dashed(folder):
    table = load(folder)[0].tables[0]
    figures = charts.figures(table)
    assert [figure.title for figure in figures] == [
        f"{name}, {column}" for name in ("Training loss", "Error by angle", "Error by shift") for column in "RT"
    ]
    loss, angle, shift = figures[0], figures[2], figures[4]
    assert (loss.scale, angle.scale, shift.scale) == ("log", "root", "")
    assert len(loss.panels) == 11
    assert shift.missing == ["FCN"]
    dashed = {panel.title: panel.other_title for panel in loss.panels if panel.other}
    assert dashed == {"PR-CNN": "CNN", "PR-CNN, pixels": "CNN", "CNN, shuffled patches": "CNN"}
    cnn = next(panel for panel in loss.panels if panel.title == "CNN")
    assert next(panel for panel in loss.panels if panel.title == "PR-CNN").other == cnn.mean
    assert cnn.mean in loss.everyone


def test_strips_and_intervals_share_a_scale():
    entries = {"a": tables.TableCell(seeds("a", [1] * 10, n=100), 3.0, None), "b": tables.TableCell([], 1.0, None)}
    found, scale = charts.strips(entries)
    assert scale == "1.00 to 10.00"
    left, right = charts.STRIP_MARGIN, charts.STRIP - charts.STRIP_MARGIN
    assert found["b"] == charts.Strip([], None, left)
    assert found["a"].seeds == [right]
    assert found["a"].paper == pytest.approx(left + (right - left) * 2 / 9, abs=0.06)


# ---- page ------------------------------------------------------------------------------------------


class Reader(HTMLParser):
    """Collects what tests ask of a page, and whether every element that opens closes."""

    EMPTY = frozenset({"meta", "img", "br", "path", "circle", "use"})

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.text = [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


def assert_well_formed(html: str) -> None:
    tags = read(html).tags
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    levels = [int(tag[1]) for tag, _ in tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    for tag, attributes in tags:
        assert tag not in ("script", "link", "iframe", "object", "embed", "base", "form")
        assert not any(name.startswith("on") for name in attributes)
        assert "src" not in attributes or attributes["src"].startswith("data:image/png;base64,")
        assert "href" not in attributes or attributes["href"] in [f"#{name}" for name in ids]
        assert tag != "img" or attributes["alt"]
        assert tag != "svg" or attributes.get("aria-label") or attributes.get("aria-hidden") == "true"
        assert tag != "th" or attributes["scope"] in ("row", "col", "colgroup")
    assert not re.search(r"https?:|//[a-z]|@import|url\(", re.sub(r"base64,[^\"]*", "", html))


def test_the_page_is_whole_and_asks_nothing_of_a_network(html):
    assert_well_formed(html)
    assert html.startswith("<!doctype html>")


def test_the_page_shows_everything(html):
    text = " ".join(" ".join(read(html).text).split())
    for part in (
        "Table 1: distorted MNIST",
        "Digits that are turned (R) or moved (T)",
        "Setting short, test images",
        "Setting short, validation images",
        "SI-CNN on R: shorter: 5 epochs.",
        "PR-CNN against CNN",
        "fewer errors",
        "Training loss, R",
        "Error by shift, T",
        "Without this curve: FCN.",
        "no pictures kept",
        "208,586",
        "0123456789ab",
        "Some CPU, 2 cores, Linux",
        "torch 2.9.0",
        "2025-01-01 to 2025-01-03",
        "Made by patchreorder run table1 --split validation .",
        "What PR-CNN is.",
    ):
        assert part in text, part
    assert re.search(r"label \d, said \d, image \d+", text)


def test_the_page_says_the_table(tmp_path):
    rows = seeds("cnn", [*range(10)], [*range(20)], [*range(30)])
    text = read(page.render(load(write(tmp_path, rows, facts(columns=[{"name": "R"}]))))).text
    cells = [part.strip() for part in text if part.strip()]
    at = cells.index("2.00 ± 1.00 (3)")
    assert (cells[at - 1], cells[at + 1], cells[at + 2]) == ("CNN", "1.20", "+0.80")


def test_nothing_in_rows_or_facts_becomes_markup(tmp_path):
    bad = "<script>alert(1)</script>\"'{{ 7 * 7 }}[red]\x1b[31m\ud800 $x$ `x`"

    def spoilt(value):
        if isinstance(value, str):
            return bad
        if isinstance(value, dict):
            return {key: spoilt(item) for key, item in value.items()}
        return [spoilt(item) for item in value] if isinstance(value, list) else value

    names = {"row": "a" + bad, "column": bad, "setting": bad, "split": bad, "settings": bad, "commit": bad}
    names |= {"machine": bad, "finished": bad, "metric": bad, "versions": {bad: bad}}
    curves = {bad: [[0, 1.0], [1, 2.0]]}
    details = {"note": bad, "batch": bad, "epochs": bad, "mistakes": [{"index": bad, "label": bad, "answer": bad}]}
    rows = [result(errors=[1], curves=curves, details=details, **names)]
    rows += [result(errors=[2], curves=curves, details=details, **(names | {"row": "b" + bad}))]
    named = {
        "rows": [{"name": "a" + bad, "title": bad, "about": bad}, {"name": "b" + bad, "title": bad, "about": bad}],
        "columns": [{"name": bad, "title": bad, "about": bad}],
        "paper": {"a" + bad: {bad: 1.0}},
        "compare": [["a" + bad, "b" + bad]],
        "settings": {bad: bad},
        "curves": {bad: {"x": bad, "y": bad}},
        "parameters": {"a" + bad: {bad: 1}},
        "recipe": "table1",
    }
    whole = facts(**named, title=bad, about=bad, metric=bad, command=bad)
    for place, about in enumerate((whole, spoilt(facts()) | {"recipe": "table1"})):
        folder = write(tmp_path / str(place), rows, about)
        html = page.render(load(folder))
        assert "<script" not in html
        assert "{{ 7 * 7 }}" in html
        assert "49[red]" not in html
        assert_well_formed(html)
        html.encode()
        written = markdown.render(load(folder))
        assert "<script" not in re.sub("`[^`\n]*`", "", written.replace("\\`", ""))  # inside `code` it is only text
        said = shown(folder)
        assert "\x1b" not in said + written + html
        assert "[red]" in said
        assert page.mistakes(only_table(folder), only_table(folder).recipe.columns[-1].name) == []


def test_tiles_are_those_of_the_picture(tmp_path):
    mistakes = [{"index": 247, "label": 4, "answer": 9}, {"index": 33, "label": 1, "answer": 7}]
    row = result(errors=[33, 247], details={"mistakes": mistakes})
    folder = write(tmp_path, [row], facts())
    strip(folder / "pictures" / f"{row.cell.folder}.png", mistakes, 28)
    (found,) = page.mistakes(only_table(folder), "R")
    assert [tile.text for tile in found.tiles] == ["label 4, said 9, image 247", "label 1, said 7, image 33"]
    whole = np.asarray(Image.open(folder / "pictures" / f"{row.cell.folder}.png"))
    for place, tile in enumerate(found.tiles):
        image = Image.open(io.BytesIO(base64.b64decode(tile.source.split(",")[1])))
        assert np.array_equal(np.asarray(image), whole[:, 28 * place : 28 * (place + 1)])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "missing"),
        (b"", "cannot be read"),
        (b"\x89PNG\r\n\x1a\n", "cannot be read"),
        ((10, tiles.LARGEST + 1), "cannot be read"),
        ((100 * tiles.LARGEST + 1, 4), "cannot be read"),
    ],
)
def test_pictures_that_cannot_be_shown_are_told(tmp_path, content, reason):
    mistakes = [{"index": 1, "label": 4, "answer": 9}]
    good, bad = (result(row=row, errors=[1], details={"mistakes": mistakes}) for row in ("cnn", "fcn"))
    folder = write(tmp_path, [good, bad], facts())
    strip(folder / "pictures" / f"{good.cell.folder}.png", mistakes, 28)
    file = folder / "pictures" / f"{bad.cell.folder}.png"
    if isinstance(content, tuple):
        Image.new("L", content).save(file)
    elif content is not None:
        file.write_bytes(content)
    found = {cell.title: cell for cell in page.mistakes(only_table(folder), "R")}
    assert len(found["CNN"].tiles) == 1
    assert reason in found["FCN"].reason
    assert reason in page.render(load(folder))


def test_a_row_does_not_lead_out_of_the_folder(tmp_path):
    mistakes = [{"index": 1, "label": 4, "answer": 9}]
    row = result(row="../secret", errors=[1], details={"mistakes": mistakes})
    folder = write(tmp_path / "rows", [row], facts())
    (folder / "pictures").mkdir()
    strip(folder / "secret.R.short.test.0.5e77a9c1.png", mistakes, 28)
    assert (folder / "pictures" / f"../{row.cell.folder.removeprefix('.._')}.png").exists()
    assert page.mistakes(only_table(folder), "R") == []


# ---- command ---------------------------------------------------------------------------------------


def test_the_command_writes_the_same_page_anywhere_and_without_torch(folder, html, tmp_path):
    elsewhere, out = shutil.copytree(folder, tmp_path / "elsewhere"), tmp_path / "x.html"
    code = (
        "import sys, pathlib\nfrom patchreorder.commands.report import report\n"
        "assert not {'torch', 'matplotlib', 'jinja2'} & set(sys.modules)\n"
        f"report(pathlib.Path({str(elsewhere)!r}), out=pathlib.Path({str(out)!r}))\n"
        "assert not {'torch', 'matplotlib'} & set(sys.modules)"
    )
    environment = os.environ | {"PYTHONHASHSEED": "7", "COLUMNS": "100"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    assert out.read_bytes() == html.encode()
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
