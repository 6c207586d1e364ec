"""The documentation: its examples run, its images exist, its numbers are those of the committed results."""

import doctest
import functools
import json
import re
from pathlib import Path

import pytest

from patchreorder import recipes
from patchreorder.measuring.image_set import is_dataset
from patchreorder.models import FAMILIES
from patchreorder.report import markdown
from patchreorder.report.folder import load
from patchreorder.report.sheets import values_sheet
from patchreorder.report.tables import RecipeResults

ROOT = Path(__file__).parent.parent
DOCS, RESULTS = ROOT / "docs", ROOT / "results"
PAGES = sorted(DOCS.glob("*.md"))
README = (ROOT / "README.md").read_text(encoding="utf-8")


def examples(page: Path) -> list[doctest.Example]:
    return doctest.DocTestParser().get_examples(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_run(page):
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert sum(line.startswith(">>> ") for block in blocks for line in block.splitlines()) == len(examples(page))
    test = doctest.DocTestParser().get_doctest("".join(blocks), {}, page.name, str(page), 0)
    failures: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=failures.append)
    assert not failures, "".join(failures)


def test_the_operator_page_has_examples():
    assert len(examples(DOCS / "operator.md")) > 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_images_exist_and_are_small(page):
    for name in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / name).stat().st_size < 200_000, name


def test_the_numbers_of_the_operator_page_are_those_of_the_demo():
    text = " ".join((DOCS / "operator.md").read_text(encoding="utf-8").split())
    numbers = json.loads((DOCS / "images" / "demo.json").read_text(encoding="utf-8"))
    distance, nearer = numbers["distance"], numbers["copies nearer than the leaf"]
    for row in distance["as they are"]:
        assert f"| {row} | " + " | ".join(f"{column[row]:.2f}" for column in distance.values()) + " |" in text
    assert f"of {numbers['copies']} | " + " | ".join(map(str, nearer.values())) + " |" in text
    rotated, shifted = numbers["key rotated by (degrees)"], numbers["key shifted right by (pixels)"]

    def pixels(curve, by):
        return curve['grid="pixels"'][curve["by"].index(by)]

    spots = numbers["spot filters, pixels, rotated"]
    for claim in (
        f"by 8 leaves a distance of {pixels(shifted, 8):.2f}, one by 4 leaves {pixels(shifted, 4):.2f}",
        f"leaves {pixels(rotated, 90):.2f} over all filters, and {spots['90°']:.2f} over those",
        f"{spots['45°']:.2f} remains even for the filters that look the same from every side, "
        f"{pixels(rotated, 45):.2f} for all",
    ):
        assert claim in text


@functools.cache
def committed() -> dict[str, RecipeResults]:
    """The committed results, by recipe."""
    return {recipe.name: recipe for recipe in load(RESULTS)}


@pytest.mark.parametrize(
    ("name", "setting"),
    [("table1", "short"), ("table2_grocery", "short"), ("table2_cifar10", "short"), ("table3", "short")]
    + [("table3", "trained"), ("upright", "short")],
)
def test_the_readmes_table_is_that_of_the_committed_rows(name, setting):
    assert not committed()[name].problems
    (table,) = (table for table in committed()[name].tables if table.title.endswith(f"setting {setting}, test images"))
    shown = README.split(f"<!-- {name}, {setting}:")[1].split("-->")[1].split("<!-- end")[0].strip()
    written = markdown.render_sheet(values_sheet(table))
    assert shown == written, "run `patchreorder report results --markdown` and copy its first table"


# README's first table: the recipe and column of its numbers, and the row of each method by recipe.
GLANCE_COLUMNS = {
    "digits rotated": ("table1", "R"),
    "digits shifted": ("table1", "T"),
    "trained upright: rotated": ("upright", "R"),
    "trained upright: shifted": ("upright", "T"),
    "groceries rotated": ("table2_grocery", "R"),
    "groceries shifted": ("table2_grocery", "T"),
    "UK-Bench": ("table3", "mixed"),
}
GLANCE_ROWS = {
    "CNN": ("cnn", "cnn", "cnn", "alexnet_flatten"),
    "spatial transformer": ("st_cnn", "st_cnn", "st_cnn", ""),
    "global average": ("cnn_gap", "cnn_gap", "cnn_gap", "alexnet_gap"),
    "CNN, training images rotated and shifted too": ("", "", "cnn_aug", ""),
    "the paper's layer: coarse patches": ("pr_cnn", "pr_cnn", "pr_cnn", "alexnet_pr"),
    "ours: every pixel, `reorder`": ("pr_cnn_fine", "pr_cnn_fine", "pr_cnn_fine", "alexnet_pr_fine"),
    "ours: five layers sorted, `ranked`": ("", "", "five_layers_sorted", ""),
    "the same, training images rotated and shifted too": ("", "", "five_layers_sorted_aug", ""),
    "ours: `pose` at the input": ("straightened_bent_fine", "posed", "", ""),
    "ours: `unroll` at the input": ("unrolled_bent", "unrolled", "", ""),
    "ours: `ranked` averages": ("", "", "", "alexnet_ranked_averages"),
}


def glance() -> str:
    """README's first table, from the committed rows."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for recipe in committed().values():
        for result in recipe.results:
            if (result.setting, result.split) == ("short", "test"):
                found.setdefault((recipe.name, result.row, result.column), []).append(result.value)
    order = list(dict.fromkeys(recipe for recipe, _ in GLANCE_COLUMNS.values()))
    lines = ["| | " + " | ".join(GLANCE_COLUMNS) + " |", "| --- |" + " ---: |" * len(GLANCE_COLUMNS)]
    for title, names in GLANCE_ROWS.items():
        cells = [title]
        for recipe, column in GLANCE_COLUMNS.values():
            values = found.get((recipe, names[order.index(recipe)], column))
            digits = 3 if recipe == "table3" else 2
            cells.append(f"{sum(values) / len(values):.{digits}f} ({len(values)})" if values else "\N{EN DASH}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def test_the_readmes_first_table_is_that_of_the_committed_rows():
    shown = README.split("<!-- at a glance: ")[1].split("-->")[1].split("<!-- end")[0].strip()
    assert shown == glance(), f"write\n{glance()}"


def test_the_trials_in_the_laboratorys_table_are_the_committed_ones():
    text = (DOCS / "laboratory.md").read_text(encoding="utf-8")
    (recipe,) = (recipe for recipe in load(RESULTS / "trials") if recipe.name == "table1")
    found = {
        (result.row, result.column, result.setting.partition(",lr=")[2]): result.value for result in recipe.results
    }
    for row, title in (("cnn", "CNN"), ("pr_cnn", "PR-CNN"), ("pr_cnn_fine", "PR-CNN-fine")):
        values = [found[row, column, rate] for column in "RT" for rate in ("0.035", "0.07", "0.14")]
        assert f"| {title} | " + " | ".join(f"{value:.2f}" for value in values) + " |" in text


def test_the_ablations_in_the_laboratory_are_the_committed_rows():
    text = (DOCS / "laboratory.md").read_text(encoding="utf-8")
    recipe = committed()["ablations"]
    assert not recipe.problems
    found = {(result.row, result.column): f"{result.value:.2f}" for result in recipe.results}
    lines = [
        f"| {row.title} | {row.about} | "
        + " | ".join(found.get((row.name, column), "not run") for column in "RT")
        + " |"
        for row in recipe.rows
    ]
    shown = text.split("| changed | what | R | T |")[1].split("\n\n")[0].splitlines()[2:]
    assert shown == lines, "\n".join(["write", *lines])


def test_claims_name_rows_and_commands_that_exist():
    text = (DOCS / "claims.md").read_text(encoding="utf-8")
    files = re.findall(r"\]\((\.\./[^)#]+)", text)
    assert files
    for name in [*files, *(f"../{test}" for test in re.findall(r"`(tests/[\w/]+\.py)`", text))]:
        assert (DOCS / name).is_file(), name
    for command in re.findall(r"`(patchreorder [^`]+)`", text):
        words = command.split()
        assert words[1] in ("run", "report", "measure")
        if words[1] == "measure":
            assert any(words[2] in family.MODELS for family in FAMILIES.values()), command
            assert is_dataset(words[words.index("--images") + 1]), command
        if words[1] == "run":
            recipe = recipes.load(words[2])
            if "--setting" in words:
                assert words[words.index("--setting") + 1] in recipe.settings, command
            if "--rows" in words:
                assert words[words.index("--rows") + 1] in {row.name for row in recipe.rows}, command
    claims = [line for line in text.splitlines() if line.startswith("| ") and "the paper says" not in line]
    assert len(claims) > 25
    for claim in claims:
        cells = claim.strip("|").split(" | ")
        assert len(cells) == 3, claim
        assert re.match(r"\*\*(holds|fails|partly|untested)\*\*", cells[1].strip()), claim


def test_claims_link_to_rows_that_exist():
    text = (DOCS / "claims.md").read_text(encoding="utf-8")
    for name in set(re.findall(r"\[rows\]\(\.\./results/(\w+)\.jsonl\)", text)):
        assert committed()[name].results
        assert not committed()[name].problems
