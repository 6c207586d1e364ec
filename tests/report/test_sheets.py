"""Tables as text: values, comparisons, costs, origins."""

from patchreorder.report.folder import load
from patchreorder.report.sheets import costs_sheet, origins_sheet, pairs_sheet, values_sheet
from patchreorder.report.text import MINUS, NONE
from tests.report_rows import facts, only_table, result, scores, seeds, write


def test_values_by_hand(tmp_path):
    rows = seeds("cnn", [*range(10)], [*range(20)], [*range(30)]) + seeds(
        "fcn", [*range(50)], details={"note": "short"}
    )
    sheet = values_sheet(only_table(write(tmp_path, rows, facts(paper={"cnn": {"R": 1.2}}))))
    assert sheet.heads == ["model", "R", "paper", "gap", "T"]
    assert sheet.rows[0] == ["FCN", "5.00 (1)", NONE, NONE, "missing"]
    assert sheet.rows[1] == ["CNN", "2.00 ± 1.00 (3)", "1.20", "+0.80", "missing"]
    assert sheet.best == [(1, 1)]
    assert sheet.noted == [(0, 1)]


def test_comparisons_by_hand(tmp_path):
    rows = seeds("pr_cnn", [1], steps=10) + seeds("cnn", [2, 3], steps=20)
    sheet = pairs_sheet(only_table(write(tmp_path, rows, facts(compare=[["pr_cnn", "cnn"], ["pr_cnn", "st_cnn"]]))))
    (row,) = sheet.rows  # ST-CNN has no rows
    assert row[:4] == ["PR-CNN against CNN", "R", "no difference shown; trained for 10 and 20 steps", f"{MINUS}0.10"]
    assert row[5:] == ["1 : 2", "p = 1"]
    sheet = pairs_sheet(only_table(scores(tmp_path / "scores")))
    assert sheet.heads[2:4] == ["first has", "score"]
    assert sheet.rows[0][2:4] == ["higher score", "+0.125"]


def test_costs_by_hand(tmp_path):
    rows = seeds("cnn", [1], [2], steps=100, seconds=50.0, cpu_seconds=1800.0, details={"batch": 64})
    sheet = costs_sheet(only_table(write(tmp_path, rows, facts())))
    assert sheet.rows == [["CNN", "R", "2", "208,586", "100", "50 s", "128", "1 h 00 min"]]
    assert sheet.title.startswith("Cost of training: 1 h 00 min of processor time")


def test_one_training_for_all_columns_is_paid_for_once(tmp_path):
    seeds_of = {"R": (0,), "T": (0, 1)}
    rows = [result(column=c, seed=seed, cpu_seconds=600.0) for c, own in seeds_of.items() for seed in own]
    once = costs_sheet(only_table(write(tmp_path / "once", rows, facts(trains_once=True))))
    assert [(row[:3], row[-1]) for row in once.rows] == [(["CNN", "all", "2"], "20 min 00 s")]
    assert "20 min 00 s of processor time" in once.title
    apart = costs_sheet(only_table(write(tmp_path / "apart", rows, facts())))
    assert "30 min 00 s of processor time" in apart.title


def test_origins_are_counted(tmp_path):
    rows = [result(seed=seed, finished=f"2025-01-0{3 - seed}T03:04:05+00:00") for seed in (0, 1)]
    rows.append(result(seed=2, commit="abc", finished=""))
    (recipe,) = load(write(tmp_path, rows, facts()))
    machine, versions = "Some CPU, 2 cores, Linux", "patchreorder 0.1.0, python 3.11.2, torch 2.9.0"
    assert origins_sheet(recipe).rows == [
        ["0123456789ab", machine, versions, "2025-01-02 to 2025-01-03", "2"],
        ["abc", machine, versions, "", "1"],
    ]
