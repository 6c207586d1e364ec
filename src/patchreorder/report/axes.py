"""Scales and ticks of matplotlib axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .text import MINUS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis


def ends(values: Sequence[float]) -> tuple[float, float]:
    """The smallest and the largest value, moved apart if they are equal."""
    low, high = min(values), max(values)
    room = (abs(low) / 2 or 0.5) if low == high else 0
    return low - room, high + room


def set_y(axes: Axes, values: Sequence[float], scale: str) -> None:
    """Show all values on a "linear", "log" or "root" scale; the last is of square roots, from 0."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    low, high = ends(values)
    if scale == "log":
        decades = math.log10(max(values) / min(values))
        room = 10 ** (0.02 + 0.05 * decades)
        axes.set_yscale("log")
        axes.set_ylim(min(values) / room, max(values) * room)
        axes.yaxis.set_major_locator(LogLocator(subs=(1,) if decades > 2 else (1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: power(value)))
        return
    if scale == "root":
        axes.set_yscale("function", functions=(lambda y: abs(y) ** 0.5, lambda y: y**2))
    from_zero = scale == "root" or 0 <= min(values) < 0.5 * max(values)
    room = 0.05 * (high - low)
    axes.set_ylim(0 if from_zero else low - room, high + room)
    set_ticks(axes.yaxis)
    if scale == "root":
        axes.yaxis.set_major_locator(FixedLocator(root_ticks(high)))


def set_ticks(axis: Axis, *, most: int = 6, degrees: bool = False) -> None:
    """Put ticks at round values, or at round angles."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(most, steps=[1, 1.5, 3, 4.5, 9, 10] if degrees else [1, 2, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}".replace("-", MINUS)))


def root_ticks(high: float) -> list[float]:
    """0 and round values up to the highest that do not touch on a scale of square roots.

    >>> root_ticks(100)
    [0.0, 2.0, 10.0, 20.0, 50.0, 100.0]
    """
    exponent = math.floor(math.log10(high))
    ticks = [0.0]
    for value in (lead * 10.0**power for power in range(exponent - 3, exponent + 1) for lead in (1, 2, 5)):
        if value <= high and math.sqrt(value) - math.sqrt(ticks[-1]) >= math.sqrt(high) / 8:
            ticks.append(value)
    return ticks


def power(value: float) -> str:
    """A number from 0.001 to 1000 as it is, others as a power of ten.

    >>> power(0.01), power(1e-5), power(2e6)
    ('0.01', '10⁻⁵', '2·10⁶')
    """
    if 0.000999 <= value < 10_000:
        return f"{value:g}"
    lead, _, exponent = f"{value:.0e}".partition("e")
    raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{raised}" if lead == "1" else f"{lead}·10{raised}"
