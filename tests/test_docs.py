"""The documentation: its examples run, its images exist, its numbers are those of the committed results."""

import doctest
import functools
import json
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from patchreorder import recipes
from patchreorder.measuring.image_set import is_dataset
from patchreorder.models import FAMILIES
from patchreorder.report.folder import load
from patchreorder.report.tables import RecipeResults

ROOT = Path(__file__).parent.parent
DOCS, RESULTS = ROOT / "docs", ROOT / "results"
PAGES = sorted(DOCS.rglob("*.md"))
README = (ROOT / "README.md").read_text(encoding="utf-8")
# What these name must exist. The journal names what is gone, in the past tense.
CURRENT = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
CURRENT += [page for page in PAGES if page.name != "journal.md"]


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


def test_the_backbones_have_the_numbers_of_their_benchmark():
    text = (DOCS / "classifier.md").read_text(encoding="utf-8")
    facts = json.loads((RESULTS / "benchmark_backbones.json").read_text(encoding="utf-8"))
    assert facts["machine"].partition(",")[0] in text
    for row in facts["rows"]:
        cells = [f"`{row['name']}`", f"{row['top1']['value']:.1f}", f"{row['top5']['value']:.1f}"]
        cells += [f"{row['images_per_second']:.0f}", str(row["size"]), f"{row['parameters'] / 1e6:.1f}", row["licence"]]
        assert f"| {' | '.join(cells)} |" in text


def codes(page: Path) -> list[str]:
    """The inline code of a page and the lines of its shell blocks, in their order, without comments."""
    text = re.sub(r"^```python\n.*?^```\n", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found = []
    for block, inline in re.findall(r"^```(?:sh)?\n(.*?)^```|`([^`]+)`", text, re.MULTILINE | re.DOTALL):
        found += block.replace("\\\n", " ").splitlines() if block else [" ".join(inline.split())]
    return [line.partition(" #")[0] for line in found]


def values(words: list[str], option: str) -> Iterator[str]:
    """What follows an option on a command line, up to the next option."""
    for word in words[words.index(option) + 1 :] if option in words else ():
        if word.startswith("-"):
            return
        yield word


def broken_names(page: Path) -> list[str]:
    """Files, dotted names, recipes, settings, rows and columns in the code of a page that do not exist."""
    files = [
        path.as_posix() for folder in ("src", "tests", "benchmarks", "docs") for path in (ROOT / folder).rglob("*.py")
    ]
    broken, recipe = [], None
    for code in codes(page):
        for name in re.findall(r"(?<![\w./])[a-z0-9_/]+\.py\b", code):
            broken += [name] * (not any(file.endswith(f"/{name}") for file in files))
        for name in re.findall(r"(?<![\w./-])patchreorder(?:\.[A-Za-z_]\w*)+", code):
            try:
                pkgutil.resolve_name(name)
            except (ImportError, AttributeError):
                broken.append(name)
        words = code.split()
        runs = "patchreorder" in words and "run" in words
        broken += [
            code for name in [*values(words, "run")][:1] if runs and not name.isupper() | (name in recipes.NAMES)
        ]
        options = {"run", "--setting", "--rows", "--columns"} & set(words)
        if options:  # an option alone is of the last recipe
            recipe = next((word for word in words if word in recipes.NAMES), recipe)
        if recipe and options:
            known = recipes.load(recipe)
            if runs and recipe in words and "--setting" not in words and "short" not in known.settings:
                broken.append(f"{recipe} has no setting short: {code}")
            parts = {"--setting": known.settings, "--rows": {row.name for row in known.rows}}
            for option, names in (parts | {"--columns": {column.name for column in known.columns}}).items():
                broken += [f"{recipe}: {code}" for value in values(words, option) if value not in names]
    return broken


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: page.name)
def test_what_a_page_names_exists(page):
    assert not broken_names(page)


def test_names_that_do_not_exist_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "`tests/test_none.py`, `files.py`, `patchreorder.files.none`, `patchreorder.files.write_whole`\n"
        "```sh\npatchreorder run table9  # none\npatchreorder run table1 --rows cnn none --setting short\n```\n"
        "`--setting\nnone`, `--columns R`, `patchreorder run table2`\n"
    )
    expected = ["tests/test_none.py", "patchreorder.files.none", "patchreorder run table9 "]
    expected += ["table1: patchreorder run table1 --rows cnn none --setting short", "table1: --setting none"]
    expected += ["table2 has no setting short: patchreorder run table2"]
    assert broken_names(page) == expected


@pytest.mark.parametrize("page", [*CURRENT, DOCS / "journal.md"], ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page):
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text(encoding="utf-8")):
        name, _, heading = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        titles = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE) if heading else []
        assert heading in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in [*titles, ""]}, link


@functools.cache
def committed() -> dict[str, RecipeResults]:
    """The committed results, by recipe."""
    return {recipe.name: recipe for recipe in load(RESULTS)}


# README's table: the recipe and column of its numbers, and the row of each method by recipe.
GLANCE_COLUMNS = {
    "digits rotated": ("table1", "R"),
    "shifted": ("table1", "T"),
    "trained upright: rotated": ("upright", "R"),
    "trained upright: shifted": ("upright", "T"),
    "groceries rotated": ("table2_grocery", "R"),
    "groceries shifted": ("table2_grocery", "T"),
}
GLANCE_ROWS = {
    "CNN": ("cnn", "cnn", "cnn"),
    "spatial transformer": ("st_cnn", "st_cnn", "st_cnn"),
    "CNN, training images rotated and shifted too": ("", "", "cnn_aug"),
    "the paper's layer: coarse patches": ("pr_cnn", "pr_cnn", "pr_cnn"),
    "ours: every pixel, `reorder`": ("pr_cnn_fine", "pr_cnn_fine", "pr_cnn_fine"),
    "ours: `unroll` (digits), five layers `ranked` (groceries)": ("unrolled_bent", "unrolled", "five_layers_sorted"),
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
            cells.append(f"{sum(values) / len(values):.2f} ({len(values)})" if values else "\N{EN DASH}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def test_the_readmes_table_is_that_of_the_committed_rows():
    shown = README.split("<!-- at a glance: ")[1].split("-->")[1].split("<!-- end")[0].strip()
    assert shown == glance(), f"write\n{glance()}"


def test_the_readmes_numbers_of_tools_are_those_of_the_committed_rows():
    shown = " ".join(README.split("<!-- tools: ")[1].split("-->")[1].split("<!-- end")[0].split())
    (table,) = (
        table for table in committed()["classifiers"].tables if (table.setting, table.split) == ("objects", "test")
    )
    means = [f"{table.cells[row, 'any'].mean:.1f}" for row in ("fit", "plain", "plain_copies")]
    assert re.findall(r"(\d+\.\d) %", shown) == means
    assert "15 photographs of each class" in table.about
    own = json.loads((RESULTS / "benchmark_duplicates.json").read_text())["sets"]["ukbench"]
    ours = own["rows"][0]
    assert (ours["method"], ours["wrong_pairs"]) == ("patchreorder", 0)
    assert f"{round(ours['recall'] * own['copies']):,} of {own['copies']:,}, and nothing else" in shown


def test_the_readme_is_one_page():
    lines = README.splitlines()
    assert len(lines) <= 150
    assert len(README.split()) <= 900
    assert lines.index("```python") < 12, "the first code is on the first screen"


def test_the_trials_in_the_laboratorys_table_are_the_committed_ones():
    text = (DOCS / "laboratory.md").read_text(encoding="utf-8")
    (recipe,) = (recipe for recipe in load(RESULTS / "trials") if recipe.name == "table1")
    found = {
        (result.row, result.column, result.setting.partition(",lr=")[2]): result.value for result in recipe.results
    }
    for row, title in (("cnn", "CNN"), ("pr_cnn", "PR-CNN"), ("pr_cnn_fine", "PR-CNN-fine")):
        values = [found[row, column, rate] for column in "RT" for rate in ("0.035", "0.07", "0.14")]
        assert f"| {title} | " + " | ".join(f"{value:.2f}" for value in values) + " |" in text


def test_claims_name_rows_and_commands_that_exist():
    text = (DOCS / "claims.md").read_text(encoding="utf-8")
    for command in re.findall(r"`(patchreorder [^`]+)`", text):
        words = command.split()
        assert words[1] in ("run", "report", "measure")
        if words[1] == "measure":
            assert any(words[2] in family.MODELS for family in FAMILIES.values()), command
            assert is_dataset(words[words.index("--images") + 1]), command
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


def test_the_table_of_followed_advice_is_that_of_its_benchmark():
    text = (DOCS / "inserting.md").read_text(encoding="utf-8")
    rows = json.loads((RESULTS / "benchmark_advice.json").read_text())["rows"]
    assert len({row["network"] for row in rows}) == 5
    for row in rows:
        numbers = f"{row['without']:.3f} | {row['with']:.3f} | {'yes' if row['holds'] else 'no'}"
        assert f"| `{row['network']}` | {row['followed']} | {row['measured']} | {numbers} |" in text
    assert len(re.findall(r"^\| `(?:torchvision|timm):", text, re.MULTILINE)) == len(rows)


def test_the_speed_of_measure_is_that_of_its_benchmark():
    text = (DOCS / "measuring.md").read_text(encoding="utf-8")
    found = json.loads((RESULTS / "benchmark_measure.json").read_text())
    for name, digits in (("row", 0), ("photographs", 1), ("few", 1)):
        row = found[name]
        images = f"{row['images']:,} {'digits' if name == 'row' else 'photographs'}"
        assert f"| {images} | {row['measure']:,.{digits}f} | {row['bare']:,.{digits}f} | {row['ratio']:.2f} |" in text


def test_shift_consistency_is_that_of_its_benchmark():
    text = (DOCS / "measuring.md").read_text(encoding="utf-8")
    found = json.loads((RESULTS / "benchmark_shift_consistency.json").read_text())
    for name, title in (("mobilenet_v2", "MobileNetV2"), ("efficientnet_lite0", "EfficientNet-lite0")):
        line = next(line for line in text.splitlines() if line.startswith(f"| {title} |"))
        for own in found["measured"][name].values():
            assert f"| {own['value']:.1f} ({own['low']:.1f} to {own['high']:.1f}) |" in line
    for name, title in (("alexnet", "AlexNet"), ("resnet50", "ResNet-50"), ("mobilenet_v2", "MobileNetV2")):
        line = next(line for line in text.splitlines() if line.startswith(f"| {title} |"))
        assert all(f"| {value:.2f} |" in line for value in found["published"][name].values())
