"""Panels of marks along x, beside the names of rows."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .drawing import FAINT, INK, LETTER, MARGIN, WIDTH, Drawing, Style, add_axes, finish, frame

NARROWEST = 1.15  # width of a panel, in inches
WRAP = 60  # letters of a row's name in a line
TITLE_LETTER, TITLE_LINE = 0.088, 0.17  # inches of a title's letter, and between its lines


class Marks(NamedTuple):
    """Values that look alike: (row, value), or (row, value, low, high) with an interval."""

    title: str
    style: Style
    values: Sequence[tuple[float, ...]]


class MarkPanel(NamedTuple):
    """Marks on one x axis."""

    title: str
    marks: Sequence[Marks]
    include: Sequence[float] = ()  # values that the axis must show


@dataclass(frozen=True, kw_only=True)
class MarkChart:
    """Panels of marks.

    Args:
        panels: at least one, with at least one value each.
        rows: names, from the top.
        x: title of the x axes.
        alt: the chart in words.
        zero: whether to draw a line at 0.
    """

    panels: Sequence[MarkPanel]
    rows: Sequence[str]
    x: str
    alt: str
    zero: bool = False

    def draw(self) -> Drawing:
        names = [textwrap.fill(row, WRAP, break_on_hyphens=False) for row in self.rows]
        letters = max(len(line) for name in names for line in (name or " ").splitlines())
        gutter = MARGIN + 0.15 + LETTER * letters
        across = min(len(self.panels), int((WIDTH - gutter) / NARROWEST))
        wide = (WIDTH - gutter - MARGIN) / across
        tall = (0.31 if any("\n" in name for name in names) else 0.2) * len(names)
        titles = [textwrap.fill(panel.title, int(wide / TITLE_LETTER), break_long_words=False) for panel in self.panels]
        head = TITLE_LINE * max(title.count("\n") for title in titles)
        keys = {marks.title: {"linestyle": "none"} | marks.style.mark() for p in self.panels for marks in p.marks}
        body = (tall + head + 0.9) * math.ceil(len(self.panels) / across)
        with frame(body, keys if len(keys) > 1 else {}) as (figure, top):
            for index, panel in enumerate(self.panels):
                left = gutter + wide * (index % across)
                upper = top + 0.3 + head + (tall + head + 0.9) * (index // across)
                axes = add_axes(figure, left, upper, min(3.5, wide - 0.3), tall)
                if self.zero:
                    axes.axvline(0, color=FAINT, linewidth=0.9, linestyle="--")
                axes.set_title(titles[index])
                axes.set_xlabel(self.x)
                axes.margins(x=0.06)
                axes.locator_params(axis="x", nbins=4)
                axes.set_ylim(len(names) - 0.5, -0.5)
                axes.set_yticks(range(len(names)), [""] * len(names) if index % across else names, color=INK)
                axes.tick_params(axis="y", length=0)
                axes.spines["left"].set_visible(False)
                axes.grid(axis="y")
                for marks in panel.marks:
                    for row, _, *interval in marks.values:
                        axes.plot(interval, [row] * len(interval), color=marks.style.colour, linewidth=1.5)
                    at = [value for _, value, *_ in marks.values], [row for row, *_ in marks.values]
                    axes.plot(*at, linestyle="none", **marks.style.mark())
                axes.update_datalim([(x, 0) for x in panel.include])
                axes.autoscale_view(scaley=False)
            return finish(figure, self.alt)
