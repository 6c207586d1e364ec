"""Tables of rows: known numbers, settings and splits apart, what is missing."""

import pytest

from patchreorder.report import text
from patchreorder.report.folder import load
from patchreorder.report.text import NONE
from tests.report_rows import facts, only_table, result, scores, seeds, write


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
        assert {r.setting for cell in table.cells.values() for r in cell.results} == {table.setting}


def test_other_settings_behind_one_name_are_left_out(tmp_path):
    rows = [*seeds("cnn", [1], [2], [3], settings="old"), *seeds("cnn", [*range(10)], settings="new")]
    table = only_table(write(tmp_path, rows, facts()))
    assert (table.cells["cnn", "R"].mean, table.cells["cnn", "R"].left_out) == (1.0, 3)
    assert any("rows of other settings left out: 3" in remark for remark in table.remarks())


@pytest.mark.parametrize(("better", "best"), [("lower", "cnn"), ("higher", "fcn")])
def test_the_best_is_the_lowest_or_the_highest(tmp_path, better, best):
    rows = seeds("cnn", [1]) + seeds("fcn", [1, 2]) + seeds("cnn", [1], column="T")
    table = only_table(write(tmp_path, rows, facts(better=better)))
    assert [row for (row, _), cell in table.cells.items() if cell.best] == [best]  # T has nothing to compare with


def test_pairs_are_those_of_the_facts(folder):
    table = only_table(folder, split="test")
    assert [(pair.a.name, pair.b.name, pair.column.name) for pair in table.pairs][:4] == [
        ("pr_cnn", "cnn", "R"),
        ("pr_cnn", "cnn", "T"),
        ("pr_cnn", "st_cnn", "R"),
        ("pr_cnn", "st_cnn", "T"),
    ]


def test_columns_may_be_left_out_of_comparisons(tmp_path):
    columns = [facts()["columns"][0], facts()["columns"][1] | {"compared": False}]
    rows = [result(row=row, column=column) for row in ("cnn", "pr_cnn") for column in "RT"]
    table = only_table(write(tmp_path, rows, facts(columns=columns, compare=[["pr_cnn", "cnn"]])))
    assert [pair.column.name for pair in table.pairs] == ["R"]


def test_cells_that_a_row_does_not_have_are_not_missing(tmp_path):
    about = facts(compare=[["pr_cnn", "cnn"]])
    about["rows"] = [row | ({"columns": ["T"]} if row["name"] == "pr_cnn" else {}) for row in about["rows"]]
    table = only_table(write(tmp_path, [result(row="pr_cnn", column="T"), result(row="cnn", column="T")], about))
    shown_as = {key: text.value(cell) for key, cell in table.cells.items()}
    assert (shown_as["pr_cnn", "R"], shown_as["cnn", "R"], shown_as["pr_cnn", "T"]) == (NONE, "missing", "0.00 (1)")
    assert [pair.column.name for pair in table.pairs] == ["T"]
    (missing,) = (text for text in table.remarks() if text.startswith("Missing"))
    assert "CNN on R" in missing
    assert "PR-CNN on R" not in missing


def test_a_command_names_what_its_setting_needs(tmp_path):
    rows = [result(setting="wide", errors=[1])]
    (recipe,) = load(
        write(tmp_path, rows, facts(settings={"short": "x", "wide": "y"}, needs={"wide": "--trained DIR"}))
    )
    assert recipe.tables[0].command == "patchreorder run table1 --setting wide --trained DIR"


def test_columns_that_a_setting_has_not_are_not_missing(tmp_path):
    (recipe,) = load(write(tmp_path, [result(errors=[1])], facts(columns_of={"short": ["R"]})))
    (table,) = recipe.tables
    assert [column.name for column in table.columns] == ["R"]
    assert "on T" not in " ".join(table.remarks())


def test_speed_by_hand(tmp_path):
    rows = seeds("cnn", [1], [2], steps=100, seconds=50.0, cpu_seconds=1800.0, details={"batch": 64})
    cell = only_table(write(tmp_path, rows, facts())).cells["cnn", "R"]
    assert (cell.seconds, cell.cpu_seconds, cell.images_per_second) == (50.0, 3600.0, 128.0)


def test_parameters_of_cells_without_rows_are_those_of_the_facts(tmp_path):
    assert only_table(write(tmp_path, [result()], facts())).cells["cnn", "T"].parameters == 430000


def test_unequal_training_is_a_remark(tmp_path):
    rows = seeds("pr_cnn", [1], steps=10) + seeds("cnn", [2], steps=20)
    remarks = only_table(write(tmp_path, rows, facts())).remarks()
    assert any("not all were trained for the same number of steps: 10 to 20" in remark for remark in remarks)


def test_rows_of_the_setting_are_shown_and_missing_ones_named(tmp_path):
    table = only_table(scores(tmp_path))
    assert [row.name for row in table.rows] == ["cnn", "pr_cnn", "si_cnn"]
    assert [text for text in table.remarks() if text.startswith("Missing")] == [
        "Missing: SI-CNN; CNN on T; PR-CNN on T."
    ]
