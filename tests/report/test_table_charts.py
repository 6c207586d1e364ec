"""Charts of a table: what they show of it."""

from dataclasses import replace

from patchreorder.report.drawing import BLUE, ORANGE
from patchreorder.report.table_charts import curve_charts, pairs_chart, values_chart
from tests.report.svg import lines, marks, texts
from tests.report_rows import facts, only_table, result, scores, seeds, write


def test_values_of_all_seeds_their_mean_and_the_paper(tmp_path):
    rows = seeds("cnn", [*range(10)], [*range(20)]) + seeds("pr_cnn", [*range(5)])
    drawing = values_chart(only_table(write(tmp_path, rows, facts())))
    written = texts(drawing.svg)
    assert {"CNN", "PR-CNN", "R", "error %", "a seed", "mean over seeds", "paper"} <= set(written)
    assert "T" not in written  # a column without results
    assert len(marks(drawing.svg, BLUE)) == 3  # seeds
    assert values_chart(only_table(write(tmp_path / "x", [result(row="new", column="X")], facts(paper={})))) is not None


def test_differences_of_all_pairs(folder, tmp_path):
    drawing = pairs_chart(only_table(folder, split="test"))
    assert {"PR-CNN against CNN", "PR-CNN against ST-CNN", "points of error"} <= set(texts(drawing.svg))
    assert len(lines(drawing.svg, BLUE)) == 8
    assert "difference of score" in texts(pairs_chart(only_table(scores(tmp_path))).svg)
    assert pairs_chart(only_table(write(tmp_path / "one", [result()], facts()))) is None


def test_curves_of_many_models_are_drawn_in_groups(folder):
    loss, angle, shift = curve_charts(only_table(folder, split="test"))
    assert [curve.title for curve in (loss, angle, shift)] == ["Training loss", "Error by angle", "Error by shift"]
    assert (loss.log, angle.log, shift.log) == (True, False, False)
    assert shift.missing == ["FCN"]
    first, second = (texts(chart.svg) for chart in loss.charts)
    assert {"FCN", "PR-CNN", "R", "T"} <= set(first)
    assert "PR-CNN" not in second
    assert "CNN" in first  # most others are compared with it
    assert "CNN" in second
    assert [table.title for table in loss.numbers] == ["R", "T"]
    assert len(loss.numbers[0].rows) == 11
    assert len(angle.numbers[0].heads) == 1 + 13
    assert (angle.numbers[0].heads[1], angle.numbers[0].heads[-1]) == ("\N{MINUS SIGN}180", "180")


def test_curves_of_few_models_are_one_chart(tmp_path):
    curves = {"training loss": [[1, 0.5], [2, 0.25]]}
    rows = [result(row=row, column=column, curves=curves) for row in ("cnn", "pr_cnn") for column in "RT"]
    (loss,) = curve_charts(only_table(write(tmp_path, rows, facts())))
    (chart,) = loss.charts
    assert {"R", "T", "CNN", "PR-CNN"} <= set(texts(chart.svg))
    assert "training loss by epoch: CNN, PR-CNN" in chart.alt
    assert len(lines(chart.svg, ORANGE)) == 2
    assert loss.numbers[0].rows == [["CNN", "0.5", "0.25"], ["PR-CNN", "0.5", "0.25"]]


def test_one_training_for_all_columns_has_one_panel(tmp_path):
    rows = [result(column=column, curves={"training loss": [[1, 0.5]]}) for column in "RT"]
    (loss,) = curve_charts(only_table(write(tmp_path, rows, facts(trains_once=True))))
    assert not {"R", "T"} & set(texts(loss.charts[0].svg))
    assert len(loss.numbers) == 1


def test_the_curve_of_the_papers_figure_is_not_drawn_again(tmp_path):
    curves = {"training loss": [[1, 0.5]], "error by angle": [[1, 0.5]]}
    figure = {"kind": "lines", "curve": "training loss"}
    loss, angle = curve_charts(only_table(write(tmp_path, [result(curves=curves)], facts(figure=figure))))
    assert (len(loss.charts), len(angle.charts)) == (0, 1)
    assert loss.numbers[0].rows == [["CNN", "0.5"]]


def test_a_table_without_curves_has_no_charts(tmp_path):
    rows = [replace(result(), curves={"training loss": [["x", 1], [1]]})]
    assert curve_charts(only_table(write(tmp_path, rows, facts()))) == []
