"""`patchreorder report`: the tables and comparisons of a folder of results, and one page with everything."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from patchreorder.report import figures, page, terminal
from patchreorder.report.folder import load
from patchreorder.report.markdown import render as render_markdown

from .console import open_console
from .values import File


def report(
    folder: Annotated[Path, Positional, arg(metavar="FOLDER")],
    *,
    out: File | None = None,
    markdown: bool = False,
    quiet: bool = False,
) -> None:
    """Print the tables of a folder of results and write them, with curves and mistakes, as one HTML page.

    Examples:
        patchreorder report runs/table1
        patchreorder report results --markdown > tables.md

    Args:
        folder: where RECIPE.jsonl is, such as runs/table1 or results.
        out: file for the page instead of report.html in the folder.
        markdown: print the tables as Markdown, for a README, and write no page.
        quiet: print no tables.
    """
    if markdown:
        print(render_markdown(load(folder)), end="")
        return
    page.need_packages()
    recipes = load(folder)
    console = open_console()
    if not quiet:
        terminal.show(recipes, console)
    file = out or folder / "report.html"
    with console.status("drawing the page"):
        page.write(recipes, file)
        drawn = figures.write(recipes, file.parent)
    console.print(
        f"Written to {file}: one file with everything in it.\n"
        + (f"Figures beside it: {', '.join(figure.name for figure in drawn)}.\n" if drawn else "")
        + f"Next: open it in a browser; `patchreorder report {folder} --markdown` prints the tables for a README.",
        markup=False,
        soft_wrap=True,
    )
