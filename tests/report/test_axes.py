"""Scales and ticks."""

import pytest

from patchreorder.report import axes
from patchreorder.report.drawing import canvas
from patchreorder.report.text import MINUS


def ticks(axis) -> list[str]:
    """The labels of the ticks that are seen."""
    low, high = sorted(axis.get_view_interval())
    room = 1e-9 * (high - low)
    found = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=True)
    return [label.get_text() for at, label in found if low - room <= at <= high + room]


@pytest.mark.parametrize(
    ("values", "scale", "expected"),
    [
        ([0, 10], "linear", ["0", "2", "4", "6", "8", "10"]),
        ([-0.2, 0.1], "linear", [f"{MINUS}0.2", f"{MINUS}0.1", "0", "0.1"]),
        ([0.01, 100], "log", ["0.01", "0.1", "1", "10", "100"]),
        ([1e-6, 1e-5], "log", ["10⁻⁶", "2·10⁻⁶", "5·10⁻⁶", "10⁻⁵"]),
        ([0, 100], "root", ["0", "2", "10", "20", "50", "100"]),
    ],
)
def test_ticks_by_hand(values, scale, expected):
    with canvas(3, 3) as figure:
        plot = figure.subplots()
        axes.set_y(plot, values, scale)
        figure.draw_without_rendering()
        assert ticks(plot.yaxis) == expected


def test_angles_have_round_ticks():
    with canvas(3, 3) as figure:
        plot = figure.subplots()
        plot.set_xlim(-180, 180)
        axes.set_ticks(plot.xaxis, degrees=True)
        figure.draw_without_rendering()
        assert ticks(plot.xaxis) == [f"{MINUS}180", f"{MINUS}90", "0", "90", "180"]


@pytest.mark.parametrize("scale", ["linear", "log", "root"])
@pytest.mark.parametrize("values", [[3], [1e-9, 1e-9], [1e-6, 90], [0.3, 0.31], [1e90], [1e90, 2e90], [1e-90, 1e90]])
def test_any_range_has_an_axis(scale, values):
    with canvas(3, 3) as figure:
        plot = figure.subplots()
        axes.set_y(plot, values, scale)
        figure.draw_without_rendering()
        low, high = plot.get_ylim()
        assert low <= min(values)
        assert high >= max(values)
        assert len(ticks(plot.yaxis)) <= 12


def test_an_axis_begins_at_zero_unless_the_values_are_far_from_it():
    with canvas(3, 3) as figure:
        plot = figure.subplots()
        for values, low in (([40, 100], 0), ([60, 100], 58), ([-1, 9], -1.5)):
            axes.set_y(plot, values, "linear")
            assert plot.get_ylim()[0] == pytest.approx(low)
