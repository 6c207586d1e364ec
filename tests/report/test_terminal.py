"""Tables on the terminal."""

import io
import re

from rich.console import Console

from patchreorder.report.sheets import Sheet
from patchreorder.report.terminal import print_sheet
from patchreorder.report.text import MINUS, NONE
from tests.report_rows import facts, scores, seeds, write


def test_the_terminal_shows_the_table(folder, shown):
    printed = shown(folder)
    line = next(line for line in printed.splitlines() if line.split()[:1] == ["SI-CNN"])
    assert re.search(rf"4\.50 ± 0\.00 \(3\) +0\.90 +\+3\.60 +missing +{NONE} +{NONE}", line)
    assert "* 1.80 ± 0.00 (3)" in printed
    assert "SI-CNN on R: shorter: 5 epochs." in printed
    assert "Missing: SI-CNN on T." in printed
    assert re.search("PR-CNN against CNN +R +fewer errors", printed)


def test_few_pairs_without_rows_are_listed_and_many_are_counted(tmp_path, shown):
    rows = seeds("pr_cnn", [1], steps=10) + seeds("cnn", [2], steps=20)
    few = facts(compare=[["pr_cnn", "cnn"], ["pr_cnn", "st_cnn"]])
    assert shown(write(tmp_path / "few", rows, few)).count("not compared") == 3
    many = facts(compare=[["pr_cnn", "cnn"], ["pr_cnn", "st_cnn"], ["st_cnn", "cnn"]])
    printed = shown(write(tmp_path / "many", rows, many))
    assert "5 comparisons are left out: a row is missing." in printed
    assert "not compared" not in printed


def test_scores_on_the_terminal(tmp_path, shown):
    printed = " ".join(shown(scores(tmp_path)).split())
    for part in (
        f"3.000 (1) 3.381 {MINUS}0.381",
        "* 3.125 (1)",
        "on first has score 95 % interval",
        "higher score +0.125",
        "0 : 10 p = 0.002",
        "Cost of computing, nothing was trained",
    ):
        assert part in printed, part


def test_a_table_that_is_too_wide_is_printed_in_parts_with_whole_names():
    names = ["features.0", "features.10.a_rather_long_name"]
    heads = ["layer", *(f"number {index}" for index in range(8))]
    sheet = Sheet("Layers", heads, [[name, *(f"{index}.25 ± 0.01" for index in range(8))] for name in names])
    console = Console(file=io.StringIO(), width=60)
    print_sheet(sheet, ["a note"], console)
    printed = console.file.getvalue()
    assert printed.count("features.0") == printed.count("Layers") == 3
    assert "Layers (continued)" in printed
    assert all(f"{index}.25 ± 0.01" in printed for index in range(8))
    assert max(map(len, printed.splitlines())) <= 60
    assert printed.rstrip().endswith("a note")
    console = Console(file=io.StringIO(), width=200)
    print_sheet(sheet, [], console)
    assert console.file.getvalue().count("Layers") == 1
