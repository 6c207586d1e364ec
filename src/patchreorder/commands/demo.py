"""`patchreorder demo`: the operator at work on a drawn key, its rotated and shifted copies, and a leaf."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from patchreorder.report.drawing import need_matplotlib

from .console import open_console
from .values import Folder


def demo(*, out: Folder = Path("runs/demo"), seed: int = 0) -> None:
    """Sort the feature maps of a drawn key, rotated and shifted: figures and numbers, no data needed.

    Examples:
        patchreorder demo
        patchreorder demo --seed 1 --out runs/another-key

    Args:
        out: folder for the figures and numbers.
        seed: chooses the key, its rotation and its shift.
    """
    if seed < 0:
        raise ValueError(f"seed ({seed}) must be 0 or more")
    need_matplotlib()
    out.mkdir(parents=True, exist_ok=True)
    console = open_console()
    with console.status("drawing, filtering, sorting"):
        from patchreorder.playground import demo as figures

        found = figures.measure(seed)
        figures.write(found, out)
    table = Table("maps of", title="Distance to the maps of the key (and cosine similarity)", title_justify="left")
    for label in figures.SETTINGS:
        table.add_column(label, justify="right")
    for name in found.distances[figures.ORIGINAL]:
        cells = (
            f"{found.distances[label][name]:.2f} ({found.similarities[label][name]:.2f})" for label in figures.SETTINGS
        )
        table.add_row(name, *cells)
    table.add_section()
    nearer = (f"{count} of {2 * figures.KEYS}" for count in found.nearer.values())
    table.add_row(f"copies nearer than\nthe leaf, {figures.KEYS} other keys", *nearer)
    console.print(table)
    console.print(f"\n{figures.explain(found.distances)}", markup=False, soft_wrap=not console.is_terminal)
    console.print(
        f"\nWritten to {out}: {', '.join(figures.FILES)}\n"
        f"Next: `patchreorder demo --seed {seed + 1}` for another key; docs/operator.md explains the operator.",
        markup=False,
        soft_wrap=True,
    )
