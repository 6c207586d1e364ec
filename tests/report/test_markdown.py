"""Tables as Markdown."""

from patchreorder.report import markdown
from patchreorder.report.folder import load
from patchreorder.report.text import MINUS, NONE
from tests.report_rows import facts, result, scores, seeds, write


def test_markdown_is_a_table(tmp_path):
    rows = seeds("cnn", [1]) + seeds("fcn", [1, 2])
    about = facts(rows=[{"name": "cnn", "title": "C|N*N"}, {"name": "fcn"}], compare=[])
    lines = markdown.render(load(write(tmp_path, rows, about))).splitlines()
    start = lines.index("| model | R | paper | gap | T | paper | gap |")
    assert lines[start + 1] == "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    assert lines[start + 2] == rf"| C\|N\*N | **0.10 (1)** | 1.20 | {MINUS}1.10 | missing | 1.30 | {NONE} |"
    assert "Made by `patchreorder run table1`." in "\n".join(lines)


def test_scores_as_markdown(tmp_path):
    written = markdown.render(load(scores(tmp_path)))
    assert "higher score. +0.125 in score (95 % interval, drawing groups of 4 images again, +0." in written
    assert "Lower for PR-CNN : for CNN: 0 : 10, p = 0.002 (seed 0)." in written
    assert "| model | R | paper | gap | T |" in written  # no columns of the paper where it has no values
    assert "3.381" in written
    assert "3.381" not in markdown.render(load(scores(tmp_path / "unlike", unlike_paper=["short"])))


def test_errors_as_markdown(tmp_path):
    rows = [result(errors=[1, 2]), result(row="pr_cnn", errors=[2])]
    assert f"{MINUS}0.10 points of error" in markdown.render(load(write(tmp_path, rows, facts())))
