"""How everything is drawn: matplotlib figures in one style, as SVG or PNG.

An SVG has light colours and a style sheet that replaces them on dark screens. Its text stays text. The same data make
the same file, whatever the user's matplotlib settings are. matplotlib is imported when a figure is drawn.
"""

from __future__ import annotations

import base64
import io
import math
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from patchreorder.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAPER = PAGE, INK, FAINT, RULE = "#ffffff", "#22222b", "#5f5f6b", "#dcdce2"
LINES = "#8a8a94", "#e07a1f", "#3b4cc0", "#1b9e77", "#a03c8c", "#4aa5d8", "#b3261e", "#6b5310", "#0e0e12", "#12606a"
GREY, ORANGE, BLUE, GREEN, _, _, _, _, BLACK, _ = LINES
DARK_PAPER = "#17181c", "#e6e6ea", "#a3a3b0", "#34353d"
DARK_LINES = (
    "#9a9aa6",
    "#ff9d4d",
    "#93a8ff",
    "#3fc79c",
    "#dd8bcf",
    "#6fbfeb",
    "#ff8078",
    "#c9a94a",
    "#f2f2f5",
    "#5fc9d6",
)
DARK = dict(zip(PAPER + LINES, DARK_PAPER + DARK_LINES, strict=True))
DARK_SHEET = "@media (prefers-color-scheme: dark) {{ {} }}".format(
    " ".join(
        f'[style*="{what}: {light}"] {{ {what}: {dark} !important }}'
        for light, dark in DARK.items()
        for what in ("fill", "stroke")
    )
)
WIDTH, MARGIN = 9.4, 0.15  # of a framed figure, in inches
LETTER = 0.07  # inches that a letter of the usual size needs at most
RC: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana"],  # the first comes with matplotlib, the second is as wide
    "font.size": 9,
    "text.color": INK,
    "text.parse_math": False,  # a dollar sign in a title is a dollar sign
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.xmargin": 0,
    "axes.formatter.useoffset": False,
    "grid.color": RULE,
    "grid.linewidth": 0.8,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "patchreorder",
}


class Style(NamedTuple):
    """How a line and its marks look."""

    colour: str
    dash: Any = "-"
    marker: str = "o"
    hollow: bool = False

    def mark(self) -> dict[str, Any]:
        """Options of a plotted mark."""
        fill, edge, width = ("none", self.colour, 1.5) if self.hollow else (self.colour, PAGE, 0.6)
        look = {"markerfacecolor": fill, "markeredgecolor": edge, "markeredgewidth": width}
        return {"marker": self.marker, "markersize": 11 if self.marker == "|" else 5.5, **look}

    def line(self) -> dict[str, Any]:
        """Options of a plotted line."""
        return {"color": self.colour, "linestyle": self.dash, "linewidth": 1.5}


# Distinct for any colour vision, and by dashes and marks alone.
DASHES = (
    "-",
    (0, (5, 2)),
    (0, (1.5, 1.5)),
    "-",
    (0, (6, 2, 1.5, 2)),
    (0, (3.5, 1.5)),
    "-",
    (0, (5, 2)),
    "-",
    (0, (8, 2)),
)
STYLES = tuple(map(Style, LINES, DASHES, "osD^vPX<h>"))


class Drawing(NamedTuple):
    """A finished figure and the text that stands for it where it cannot be seen."""

    svg: str
    alt: str

    @property
    def uri(self) -> str:
        """For the `src` of an <img>, in which an SVG can neither run nor load anything."""
        return "data:image/svg+xml;base64," + base64.b64encode(self.svg.encode()).decode()


def need_matplotlib() -> None:
    """Raise an ImportError that names the extra to install."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'patchreorder[report]'") from error


@contextmanager
def canvas(width: float, height: float) -> Iterator[Figure]:
    """An empty figure of this size in inches; draw and finish it inside the `with`."""
    need_matplotlib()
    import matplotlib.style
    from matplotlib.figure import Figure

    with matplotlib.style.context(["default", RC]), warnings.catch_warnings():
        # The viewer's fonts have the letters that matplotlib's lack.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield Figure(figsize=(width, height), dpi=160, facecolor=PAGE)


def finish(figure: Figure, alt: str) -> Drawing:
    """The figure as SVG."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Title": alt})
    svg = file.getvalue().replace("<svg ", '<svg role="img" ', 1)
    return Drawing(svg.replace("<defs>", f"<defs>\n  <style>{DARK_SHEET}</style>", 1), alt)


def save(figure: Figure, files: Sequence[Path], alt: str) -> None:
    """Write the figure to .svg and .png files, each whole or not at all."""
    for file in files:
        if file.suffix == ".svg":
            write_whole(file, finish(figure, alt).svg.encode())
        else:
            content = io.BytesIO()
            figure.savefig(content, format="png", metadata={"Software": None})
            write_whole(file, content.getvalue())


def add_axes(figure: Figure, left: float, top: float, width: float, height: float, **options: Any) -> Axes:
    """Axes at a position in inches from the top left corner."""
    wide, tall = figure.get_size_inches()
    return figure.add_axes((left / wide, 1 - (top + height) / tall, width / wide, height / tall), **options)


def add_text(figure: Figure, left: float, top: float, content: str, **style: Any) -> None:
    """Text below a position in inches from the top left corner."""
    wide, tall = figure.get_size_inches()
    figure.text(left / wide, 1 - top / tall, content, va="top", **style)


@contextmanager
def frame(
    body: float, keys: Mapping[str, Mapping[str, Any]], *, title: str = "", about: str = "", foot: str = ""
) -> Iterator[tuple[Figure, float]]:
    """A figure with text and a legend around an empty body, and the position of the body from the top.

    Args:
        body: its height in inches.
        keys: the legend: options of a plotted line by text.
        title, about: the text above the legend.
        foot: the text below the body.
    """
    titles, abouts, foots = textwrap.wrap(title, 74), textwrap.wrap(about, 128), textwrap.wrap(foot, 138)
    longest = max(map(len, keys), default=0)
    columns = max(1, min(len(keys), int((WIDTH - 2 * MARGIN) / (0.62 + LETTER * longest))))
    legend = 0.12 + 0.2 * math.ceil(len(keys) / columns) if keys else 0
    head = 0.28 * len(titles) + 0.175 * len(abouts) + (0.25 if title or about else 0.06)
    end = head + legend + body
    with canvas(WIDTH, end + 0.165 * len(foots) + 0.1) as figure:
        from matplotlib.lines import Line2D

        add_text(figure, MARGIN, 0.14, "\n".join(titles), fontsize=14, fontweight="bold")
        add_text(figure, MARGIN, 0.16 + 0.28 * len(titles), "\n".join(abouts), color=FAINT, linespacing=1.35)
        add_text(figure, MARGIN, end, "\n".join(foots), color=FAINT, fontsize=8.2, linespacing=1.35)
        if keys:
            wide, tall = figure.get_size_inches()
            by_row = [key for column in range(columns) for key in list(keys)[column::columns]]
            figure.legend(
                [Line2D([], [], **keys[key]) for key in by_row],
                by_row,
                loc="upper left",
                bbox_to_anchor=(MARGIN / wide, 1 - head / tall),
                ncols=columns,
                borderpad=0.2,
                borderaxespad=0,
                handlelength=3,
                columnspacing=1.5,
            )
        yield figure, head + legend
