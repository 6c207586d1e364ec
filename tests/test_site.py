"""The site: it builds without a warning, loads nothing from elsewhere, and its numbers are those of results/."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs")
ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))

import directives


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return folder


def pages(site: Path) -> dict[str, str]:
    return {page.relative_to(site).as_posix(): page.read_text(encoding="utf-8") for page in site.rglob("*.html")}


def test_every_page_is_there_and_filled(site):
    found = pages(site)
    assert {"index.html", "classifier.html", "results/table1.html", "reference/api.html", "journal.html"} <= set(found)
    for name, text in found.items():
        assert "{{" not in text, name
    cell = directives.find("table1", "short").cells["pr_cnn", "R"]
    assert (
        f'<td style="text-align: right;">{cell.mean:.2f} ± {cell.spread:.2f} (3)</td>' in found["results/table1.html"]
    )
    for name in ("fit", "duplicates", "measure"):
        assert f"usage: patchreorder {name} " in found["reference/commands.html"]
    for name in ("return_order", "undo_reorder", "PatchReorder", "insert_after", "load_classifier"):
        assert name in found["reference/api.html"]


def test_nothing_is_loaded_from_elsewhere(site):
    loads = re.compile(
        r"""<(?:script|img|iframe|source|video|audio|embed)[^>]*\ssrc=["']?(?:https?:)?//[^"'\s>]+"""
        r"""|<link[^>]*rel=["']?(?:stylesheet|preconnect|preload|icon|manifest|dns-prefetch)[^>]*href=["']?(?:https?:)?//[^"'\s>]+"""
    )
    for name, text in pages(site).items():
        assert not loads.findall(text), name
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert not re.findall(r"@import|url\([\"']?(?:https?:)?//[^)]*", text), sheet.name


def test_results_are_copied_where_links_lead(site):
    links = {link for text in pages(site).values() for link in re.findall(r"\"(?:\.\./)*(data/[\w.]+)\"", text)}
    assert {
        "data/table1.jsonl",
        "data/upright.svg",
        "data/benchmark_operator.intel_xeon_processor_2.80ghz.json",
    } <= links
    for link in links:
        assert (site / link).is_file(), link


def test_directives():
    assert re.fullmatch(r"\d\.\d\d", directives.value("table1", "short", "pr_cnn", "R"))
    said = directives.gap("table1", "short", "st_cnn", "cnn", "R")
    assert re.fullmatch(r"0\.\d\d points fewer errors \(0\.\d\d to 0\.\d\d\)", said)
    assert "no difference shown (" in directives.gap("table1", "short", "pr_cnn", "cnn", "R")
    assert directives.paper("table2", "cnn", "R") == "36.6"
    rates = directives.rates("table2_grocery", "wide")
    right = directives.find("table2_grocery", "wide").cells["cnn", "T"].results[0].value
    assert re.search(rf"\| CNN \|.*\| {right:.1f} \(\d\d\.\d to \d\d\.\d\) \|", rates)
    joined = directives.speed("duplicates")
    assert re.search(r"\| ukbench \| `phash` \| 500 \| 2,500 \| 0\.\d{3} \| 0\.\d{4} \|", joined)
    assert re.search(r"\| one view at 224 \|( \d+ \|)+ 1\.00 \| 1\.00 \|", directives.speed("pose_descriptors"))
    text = directives.fill('x {{ figure("upright.svg", "Errors") }} y', data="../data/")
    assert text == "x ![Errors](../data/upright.svg) y"


def test_processors_of_one_maker_are_told_apart():
    heads = directives.speed("operator").splitlines()[0].split("|")[3:-1]
    assert len(directives.OPERATOR_FILES) >= 3
    assert len(set(heads)) == len(heads) == len(directives.BESIDE) * len(directives.OPERATOR_FILES)


@pytest.mark.parametrize(
    "asked",
    ['value("table1", "short", "none", "R")', 'value("table1", "short", "unrolled_cnn", "T")', 'figure("no.svg", "")']
    + [
        'nonsense("x")',
        'rates("table1", "short")',
        'paper("table2", "cnn", "none")',
        'table("table1", "long")',
        'speed("light")',
        "value(1)",
    ],
)
def test_what_there_is_not_is_an_error(asked):
    with pytest.raises(ValueError, match=re.escape(asked)):
        directives.fill(f"{{{{ {asked} }}}}", data="")


def test_a_paragraph_of_results_has_at_most_three_numbers():
    for page in sorted((ROOT / "docs" / "results").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        for paragraph in re.split(r"\n\s*\n", text):
            if not paragraph.startswith(("|", "{{", "#")):
                generated = re.findall(r"\{\{ (?:value|gap)", paragraph)
                assert len(generated) <= 3, f"{page.name}: {paragraph}"
                typed = re.sub(r"\{\{.*?\}\}|`[^`]*`|\(.*?\)", "", paragraph, flags=re.DOTALL)
                assert not re.search(r"\d\.\d", typed), f"{page.name} has a typed number: {paragraph}"
