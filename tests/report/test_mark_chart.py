"""Panels of marks: where they are, and beside which names."""

import pytest

from patchreorder.report.drawing import BLUE, ORANGE, Style
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


def test_intervals_and_zero_share_one_axis():
    panels = [
        MarkPanel("R", [Marks("difference", Style(BLUE), [(0, 1.0, 0.5, 2.0)])]),
        MarkPanel("T", [Marks("difference", Style(BLUE), [(0, -4.0, -5.0, -3.0)])]),
    ]
    svg = MarkChart(panels=panels, rows=["a against b"], x="points", alt="differences", zero=True).draw().svg
    first, second = lines(svg, BLUE)
    assert second[1][0] - second[0][0] == pytest.approx(2 / 1.5 * (first[1][0] - first[0][0]))
    assert "difference" not in texts(svg)  # a legend of one key says nothing


def test_included_values_are_on_the_axis():
    panel = MarkPanel("cosine", [Marks("one", Style(BLUE), [(0, 0.5)])], include=[0, 1])
    svg = MarkChart(panels=[panel], rows=["conv1"], x="", alt="layers").draw().svg
    assert {"0.0", "0.5", "1.0"} <= set(texts(svg))
