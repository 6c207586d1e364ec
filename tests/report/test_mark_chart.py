"""Panels of marks: where they are, and beside which names."""

import pytest

from patchreorder.report.drawing import BLUE, FAINT, ORANGE, Style
from patchreorder.report.mark_chart import MarkChart, MarkPanel, Marks
from tests.report.svg import lines, marks, texts


def test_marks_are_beside_their_rows():
    panel = MarkPanel(
        "R", [Marks("seed", Style(BLUE), [(0, 1.0), (0, 2.0), (2, 3.0)]), Marks("x", Style(ORANGE), [(1, 2.0)])]
    )
    svg = MarkChart(panels=[panel], rows=["FCN", "CNN", "PR-CNN"], x="error %", alt="values").draw().svg
    assert {"FCN", "CNN", "PR-CNN", "R", "error %", "seed", "x"} <= set(texts(svg))
    one, two, three = marks(svg, BLUE)
    (other,) = marks(svg, ORANGE)
    assert one[1] == two[1] < other[1] < three[1]
    assert one[0] < two[0] == pytest.approx(other[0])
    assert three[0] - two[0] == pytest.approx(two[0] - one[0])


def test_intervals_are_drawn_beside_zero():
    panel = MarkPanel("R", [Marks("difference", Style(BLUE), [(0, 1.0, 0.5, 2.0)])])
    svg = MarkChart(panels=[panel], rows=["a against b"], x="points", alt="differences", zero=True).draw().svg
    (interval,), (mark,), (zero, _) = lines(svg, BLUE), marks(svg, BLUE), lines(svg, FAINT)
    assert [x for x, _ in interval] == pytest.approx(
        [zero[0][0] + (mark[0] - zero[0][0]) * end for end in (0.5, 2.0)], abs=1e-3
    )
    assert "difference" not in texts(svg)  # a legend of one key says nothing


def test_included_values_are_on_the_axis():
    panel = MarkPanel("cosine", [Marks("one", Style(BLUE), [(0, 0.5)])], include=[0, 1])
    svg = MarkChart(panels=[panel], rows=["conv1"], x="", alt="layers").draw().svg
    assert {"0.0", "0.5", "1.0"} <= set(texts(svg))


def test_long_titles_of_narrow_panels_are_broken():
    long = MarkPanel("pose / identity, flipped vertically", [Marks("one", Style(BLUE), [(0, 0.5)])])
    svg = MarkChart(panels=[long] * 6, rows=["conv1"], x="", alt="layers").draw().svg
    assert long.title not in texts(svg)
    assert "vertically" in texts(svg)
    assert long.title in texts(MarkChart(panels=[long], rows=["conv1"], x="", alt="layers").draw().svg)
