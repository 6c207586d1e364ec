"""The results of recipes as one HTML file that loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from patchreorder import __version__
from patchreorder.files import write_whole
from patchreorder.untrusted import clean

from . import text
from .drawing import need_matplotlib
from .figures import draw_figure
from .sheets import costs_sheet, origins_sheet, pairs_sheet, values_sheet
from .table_charts import curve_charts, pairs_chart, values_chart
from .tables import RecipeResults, Table, TableCell
from .tiles import BadStrip, read_tiles, tile_uri

SHOWN = 10  # tiles of a cell: one line on a wide screen


class Tile(NamedTuple):
    source: str  # a data URI
    text: str


class Mistakes(NamedTuple):
    """Images that a model, trained with one seed, classifies wrongly, or the reason why none are shown."""

    title: str
    seed: int
    tiles: Sequence[Tile]
    reason: str = ""


def need_packages() -> None:
    """Raise an ImportError that names the extra to install, before anything is computed for a page."""
    need_matplotlib()
    try:
        import jinja2  # noqa: F401
    except ImportError as error:
        raise ImportError("the page needs jinja2: pip install 'patchreorder[report]'") from error


def write(recipes: Sequence[RecipeResults], file: Path) -> None:
    """Write the page of these recipes, whole or not at all."""
    write_whole(file, render(recipes).encode())


def render(recipes: Sequence[RecipeResults]) -> str:
    """The page of these recipes; the same rows make the same page."""
    title = recipes[0].title if len(recipes) == 1 else "Results of patchreorder"
    sections = [
        {"recipe": recipe, "tables": [_section(table) for table in recipe.tables], "origins": origins_sheet(recipe)}
        for recipe in recipes
    ]
    return rendered("page.html.j2", title=title, sections=sections)


def rendered(template: str, **values: Any) -> str:
    """A page of a template beside this file; every value is cleaned and escaped."""
    need_packages()
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        autoescape=True,  # values are untrusted
        finalize=lambda value: value if hasattr(value, "__html__") else clean(value),
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"text": text}
    return environment.get_template(template).render(version=__version__, **values)


def _section(table: Table) -> dict[str, Any]:
    return {
        "table": table,
        "figure": draw_figure(table),
        "value_sheet": values_sheet(table),
        "value_chart": values_chart(table),
        "pair_sheet": pairs_sheet(table),
        "pair_chart": pairs_chart(table),
        "curves": curve_charts(table),
        "costs": costs_sheet(table),
        "mistakes": [(column, mistakes(table, column.name)) for column in table.columns],
    }


def mistakes(table: Table, column: str) -> list[Mistakes]:
    """For each model of a column, mistakes of the first seed that saved some; [] if no model has any."""
    cells = [(row.title, table.cells[row.name, column]) for row in table.rows]
    folder = table.recipe.folder / "pictures"
    found = [_mistakes(title, cell, folder) for title, cell in cells if cell.results]
    return found if any(cell.tiles for cell in found) else []


def _mistakes(title: str, cell: TableCell, folder: Path) -> Mistakes:
    saved = [result for result in cell.results if isinstance(result.details.get("mistakes"), list)]
    if not saved:
        return Mistakes(title, cell.results[0].seed, [], "no images saved")
    result = saved[0]
    try:
        images = read_tiles(folder / f"{result.cell.folder}.png", SHOWN)
    except FileNotFoundError:
        return Mistakes(title, result.seed, [], "the file of images is missing")
    except BadStrip as error:
        return Mistakes(title, result.seed, [], str(error))
    shown = zip(images, result.details["mistakes"], strict=False)
    return Mistakes(title, result.seed, [Tile(tile_uri(image), _caption(mistake)) for image, mistake in shown])


def _caption(mistake: Any) -> str:
    values = mistake if isinstance(mistake, dict) else {}
    label, answer, index = (values.get(name, "?") for name in ("label", "answer", "index"))
    return f"label {label}, predicted {answer}, image {index}"
