"""Panels of lines: where the lines are, and what is written around them."""

import pytest

from patchreorder.report.curves import Line
from patchreorder.report.drawing import BLUE, GREEN, GREY, ORANGE, STYLES
from patchreorder.report.line_chart import LineChart, Panel, Series
from patchreorder.report.text import MINUS
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


def test_long_lines_have_few_marks():
    svg = chart(series("one", {x: [x] for x in range(101)}, 1)).draw().svg
    assert len(marks(svg, ORANGE)) == 13


def test_titles_legend_and_words_are_written():
    drawing = chart(
        series("one", {0: [0, 1], 1: [1, 3]}, 1),
        ticks=["conv1", "conv2"],
        diagonal="the whole shift",
        title="Title",
        about="About it.",
        foot="Made by hand.",
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
        Panel(name, [series("one", {start: [0], end: [1]}, 1)], name)
        for name, start, end in (("degrees", -45, 45), ("pixels", 0, 4))
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


def ticks(svg: str) -> list[str]:
    """The texts that are numbers."""
    return [
        text for text in texts(svg) if text.replace(MINUS, "-").replace(".", "").lstrip("-").replace("e-", "").isdigit()
    ]


@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        ([0, 10], {}, ["0", "2", "4", "6", "8", "10"]),
        ([60, 80], {}, ["60", "65", "70", "75", "80"]),
        ([0.01, 100], {"log": True}, ["0.01", "0.1", "1", "10", "100"]),
        ([1e-6, 2e-6], {"log": True}, [f"1e{MINUS}06", f"2e{MINUS}06"]),
    ],
)
def test_ticks_of_y(values, options, expected):
    svg = chart(series("one", {0: [values[0]], 1: [values[1]]}, 0), ticks=["a", "b"], **options).draw().svg
    assert ticks(svg) == expected


def test_angles_have_round_ticks():
    svg = chart(series("one", {-180: [1], 180: [1]}, 0), x="angle in degrees").draw().svg
    assert ticks(svg)[:5] == [f"{MINUS}180", f"{MINUS}90", "0", "90", "180"]


@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize("values", [[3], [1e-9, 1e-9], [1e-6, 90], [0.3, 0.31], [1e90], [1e90, 2e90], [1e-90, 1e90]])
def test_any_values_can_be_drawn(log, values):
    svg = chart(series("one", {x: [y] for x, y in enumerate(values)}, 1), log=log).draw().svg
    assert len(lines(svg, ORANGE)[0]) == len(values)
    assert 1 <= len(ticks(svg)) <= 24
