"""Panels of lines: where the lines are, and what is written around them."""

import pytest

from patchreorder.report.curves import Line
from patchreorder.report.drawing import BLUE, GREEN, GREY, ORANGE, STYLES, Words
from patchreorder.report.line_chart import LineChart, Panel, Series
from tests.report.svg import lines, marks, texts


def series(title: str, values: dict[float, list[float]], style: int, level: float | None = None) -> Series:
    return Series(title, Line.of(values), STYLES[style], level)


def chart(*own: Series, **options) -> LineChart:
    return LineChart(**{"panels": [Panel("panel", own)], "x": "epoch", "y": "error %", "alt": "a chart"} | options)


def test_points_are_where_their_numbers_are():
    one = series("one", {0: [0], 1: [1], 2: [2]}, 1)
    two = series("two", {0: [1], 1: [2], 2: [3]}, 2)
    svg = chart(one, two).draw().svg
    (first,), (second,) = lines(svg, ORANGE), lines(svg, BLUE)
    assert [x for x, _ in first] == [x for x, _ in second]
    assert first[0][1] > first[1][1] > first[2][1]
    assert (first[1][1], first[2][1]) == pytest.approx((second[0][1], second[1][1]), abs=1e-3)
    assert set(first) <= {(round(x, 6), round(y, 6)) for x, y in marks(svg, ORANGE)}


def test_many_points_have_no_marks():
    svg = chart(series("one", {x: [x] for x in range(41)}, 1)).draw().svg
    assert marks(svg, ORANGE) == []


def test_titles_legend_and_words_are_written():
    drawing = chart(
        series("one", {0: [0, 1], 1: [1, 3]}, 1),
        ticks=["conv1", "conv2"],
        diagonal="the whole shift",
        words=Words("Title", "About it.", "Made by hand."),
    ).draw()
    written = texts(drawing.svg)
    for part in ("panel", "epoch", "error %", "conv1", "conv2", "one", "band: smallest to largest seed"):
        assert part in written, part
    assert {"the whole shift", "Title", "About it.", "Made by hand."} <= set(written)
    assert drawing.alt == "a chart"
    assert "band: smallest to largest seed" not in texts(chart(series("one", {0: [0], 1: [1]}, 1)).draw().svg)


def test_panels_share_the_axis_of_y_or_have_their_own():
    panels = [Panel("a", [series("one", {0: [0], 1: [1]}, 1)]), Panel("b", [series("one", {0: [0], 1: [100]}, 1)])]
    for shared in (True, False):
        svg = chart(panels=panels, shared=shared).draw().svg
        small, large = ([y for _, y in line] for line in lines(svg, ORANGE))
        assert (small[1] == pytest.approx(large[1])) is not shared


def test_panels_may_have_their_own_axis_of_x():
    panels = [
        Panel(name, [series("one", {0: [0], end: [1]}, 1)], name) for name, end in (("degrees", 90), ("pixels", 4))
    ]
    svg = chart(panels=panels).draw().svg
    ends = [line[1][0] - line[0][0] for line in lines(svg, ORANGE)]
    assert ends[0] == pytest.approx(ends[1])
    assert {"degrees", "pixels"} <= set(texts(svg))


def test_levels_are_drawn_in_the_colour_of_their_line():
    svg = chart(series("one", {0: [0], 1: [8]}, 3, 4.0), level="the leaf").draw().svg
    rising, level = lines(svg, GREEN)
    assert level[0][1] == level[1][1] == pytest.approx((rising[0][1] + rising[1][1]) / 2)
    assert "the leaf" in texts(svg)


def test_included_values_are_on_the_axis():
    tight, wide = (chart(series("one", {0: [1], 1: [2]}, 0), include=more).draw().svg for more in ([], [100]))
    assert "100" not in texts(tight)
    assert "100" in texts(wide)
    assert lines(tight, GREY) != lines(wide, GREY)
