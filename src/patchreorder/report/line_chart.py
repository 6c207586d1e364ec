"""Panels of lines over x."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .curves import Line
from .drawing import GREY, INK, LETTER, MARGIN, WIDTH, Drawing, Style, add_axes, finish, frame, save
from .text import MINUS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ACROSS = 3  # panels side by side
TALL = 2.15  # height of the axes, in inches
MARKS = 13  # about as many marks on a line
DOTTED: dict[str, Any] = {"color": INK, "linestyle": ":", "linewidth": 1}


class Series(NamedTuple):
    """One line, and perhaps a level to compare it with."""

    title: str
    line: Line
    style: Style
    level: float | None = None

    @property
    def has_band(self) -> bool:
        return list(self.line.low) != list(self.line.high)


class Panel(NamedTuple):
    """Lines on one pair of axes."""

    title: str
    series: Sequence[Series]
    x: str = ""  # the title of its x axis, if panels have different ones


@dataclass(frozen=True, kw_only=True)
class LineChart:
    """Panels of lines.

    Args:
        panels: at least one.
        x, y: titles of the axes.
        alt: the chart in words.
        ticks: names for 0, 1, ... along x.
        log: whether y is logarithmic.
        shared: whether all panels have the same y axis.
        include: values that the y axes must show.
        diagonal: what the line y = x is; "" draws none.
        band: what the bands show.
        level: what the levels are.
        title, about, foot: text above and below the panels.
    """

    panels: Sequence[Panel]
    x: str
    y: str
    alt: str
    ticks: Sequence[str] = ()
    log: bool = False
    shared: bool = True
    include: Sequence[float] = ()
    diagonal: str = ""
    band: str = "smallest to largest seed"
    level: str = ""
    title: str = ""
    about: str = ""
    foot: str = ""

    @property
    def series(self) -> list[Series]:
        return [one for panel in self.panels for one in panel.series]

    def draw(self) -> Drawing:
        """The chart as SVG."""
        with self._figure() as figure:
            return finish(figure, self.alt)

    def save(self, files: Sequence[Path]) -> None:
        """Write the chart to .svg and .png files."""
        with self._figure() as figure:
            save(figure, files, self.alt)

    @contextmanager
    def _figure(self) -> Iterator[Figure]:
        across = min(ACROSS, len(self.panels))
        wide = (WIDTH - 2 * MARGIN) / across
        slanted = max(map(len, self.ticks), default=0) * LETTER > (wide - 0.75) / max(1, len(self.ticks))
        step = TALL + (1.1 if slanted else 0.8)
        body, words = step * math.ceil(len(self.panels) / across), {"about": self.about, "foot": self.foot}
        with frame(body, self._keys(), title=self.title, **words) as (figure, top):
            first: Any = {}
            for index, panel in enumerate(self.panels):
                left, upper = MARGIN + wide * (index % across), top + step * (index // across)
                axes = add_axes(figure, left + 0.6, upper + 0.3, wide - 0.75, TALL, **first)
                if self.shared:
                    first["sharey"] = axes
                if not panel.x:
                    first["sharex"] = axes
                axes.set_title(panel.title)
                axes.set_xlabel(panel.x or self.x)
                axes.set_ylabel("" if index % across else self.y)
                axes.grid(axis="y")
                for one in panel.series:
                    _draw(axes, one)
                if self.diagonal:
                    axes.axline((0, 0), slope=1, **DOTTED)
                self._set_ticks(axes, panel.x or self.x, slanted)
                self._set_y(axes, self.series if self.shared else panel.series, x=panel.series[0].line.x[0])
            yield figure

    def _keys(self) -> dict[str, dict[str, Any]]:
        """The legend: a key for each line, and for what else is drawn."""
        keys = {one.title: one.style.line() | one.style.mark() for one in self.series}
        if any(one.has_band for one in self.series):
            keys[f"band: {self.band}"] = {"color": GREY, "alpha": 0.3, "linewidth": 7}
        return keys | {what: DOTTED for what in (self.diagonal, self.level) if what}

    def _set_ticks(self, axes: Axes, title: str, slanted: bool) -> None:
        if self.ticks:
            how: dict[str, Any] = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if slanted else {}
            axes.set_xlim(-0.5, len(self.ticks) - 0.5)
            axes.set_xticks(range(len(self.ticks)), self.ticks, **how)
        elif "degrees" in title:
            axes.locator_params(axis="x", nbins=6, steps=[1, 1.5, 3, 4.5, 9, 10])

    def _set_y(self, axes: Axes, series: Sequence[Series], *, x: float) -> None:
        from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

        values = [*self.include, *(y for one in series for y in (*one.line.low, *one.line.high))]
        axes.update_datalim([(x, y) for y in values])
        if self.log:
            axes.set_yscale("log")
            decades = math.log10(max(values) / min(values))
            axes.yaxis.set_major_locator(LogLocator(subs=(1,) if decades > 2 else (1, 2, 5)))
            axes.yaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}".replace("-", MINUS)))
        axes.autoscale_view()
        if not self.log and 0 <= min(values) < 0.5 * max(values):
            axes.set_ylim(bottom=0)


def _draw(axes: Axes, one: Series) -> None:
    if one.has_band:
        axes.fill_between(one.line.x, one.line.low, one.line.high, color=one.style.colour, alpha=0.18, linewidth=0)
    style = one.style.line() | one.style.mark()
    # Without clipping, the axes do not cut marks in half.
    axes.plot(one.line.x, one.line.mean, clip_on=False, markevery=math.ceil(len(one.line.x) / MARKS), **style)
    if one.level is not None:
        axes.axhline(one.level, color=one.style.colour, linewidth=1, linestyle=":")
