"""Everything about the recipes of a folder as one HTML file that asks nothing of any network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from patchreorder import __version__
from patchreorder.files import write_whole
from patchreorder.laboratory.rows import Result

from . import charts, figures, text
from .tables import RecipeResults, Table, TableCell
from .tiles import tiles

SHOWN = 10  # tiles of a cell: one line on a wide screen


class Tile(NamedTuple):
    source: str  # a data URI
    text: str


class Mistakes(NamedTuple):
    """Images that one model, trained with one seed, gets wrong, or why there are none to see."""

    title: str
    seed: int
    tiles: Sequence[Tile]
    reason: str = ""


class Origin(NamedTuple):
    """Where rows were made, and how many."""

    commit: str
    versions: str
    machine: str
    dates: str
    rows: int


def need_jinja() -> None:
    """Raise an ImportError that says what to install, before anything is read."""
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
        {"recipe": recipe, "tables": [_section(table) for table in recipe.tables], "origins": origins(recipe)}
        for recipe in recipes
    ]
    return rendered("page.html.j2", title=title, sections=sections)


def rendered(template: str, **values: Any) -> str:
    """A page of a template beside this file; every text in the values is escaped."""
    need_jinja()
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        autoescape=True,  # rows are other people's text
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"text": text, "charts": charts}
    return environment.get_template(template).render(version=__version__, **values)


def _section(table: Table) -> dict[str, Any]:
    columns = table.columns
    entries = {column.name: {row.name: table.cell(row, column) for row in table.rows} for column in columns}
    return {
        "table": table,
        "strips": {column: charts.strips(cells) for column, cells in entries.items()},
        "intervals": charts.intervals(table),
        "drawings": figures.drawings(table),
        "figures": charts.figures(table),
        "mistakes": [(column, mistakes(table, column.name)) for column in columns],
    }


def origins(recipe: RecipeResults) -> list[Origin]:
    """The distinct places that the rows come from, in the order of the rows."""
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for result in recipe.results:
        versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
        groups.setdefault((result.commit, versions, result.machine), []).append(result)
    found = []
    for (commit, versions, machine), rows in groups.items():
        days = sorted({row.finished[:10] for row in rows if row.finished})
        dates = " to ".join(dict.fromkeys([days[0], days[-1]])) if days else ""
        found.append(Origin(commit, versions, machine, dates, len(rows)))
    return found


def mistakes(table: Table, column: str) -> list[Mistakes]:
    """For each model of a column the mistakes of its first seed that kept some; [] if no model has any."""
    found = []
    for row in table.rows:
        entry = table.cells[row.name, column]
        if entry.results:
            found.append(_mistakes(row.title, entry, table.recipe.folder / "pictures"))
    return found if any(cell.tiles for cell in found) else []


def _mistakes(title: str, entry: TableCell, folder: Path) -> Mistakes:
    kept = [result for result in entry.results if isinstance(result.details.get("mistakes"), list)]
    if not kept:
        return Mistakes(title, entry.results[0].seed, [], "no pictures kept")
    result = kept[0]
    told = [_told(mistake) for mistake in result.details["mistakes"]]
    try:
        images = tiles(folder / f"{result.cell.folder}.png", SHOWN)
    except FileNotFoundError:
        return Mistakes(title, result.seed, [], "the picture is missing")
    except (OSError, ValueError, SyntaxError, Warning) as error:  # Pillow raises all of these for bad files
        return Mistakes(title, result.seed, [], f"the picture cannot be read ({type(error).__name__})")
    return Mistakes(title, result.seed, [Tile(*pair) for pair in zip(images, told, strict=False)])


def _told(mistake: Any) -> str:
    values = mistake if isinstance(mistake, dict) else {}
    label, answer, index = (values.get(name, "?") for name in ("label", "answer", "index"))
    return f"label {label}, said {answer}, image {index}"
