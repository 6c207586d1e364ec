"""The page: complete, well-formed, escaped, and without anything to load."""

import re
import sys

import pytest

from patchreorder.report import markdown, page
from patchreorder.report.folder import load
from tests.report.html import assert_well_formed, read
from tests.report_rows import facts, only_table, result, scores, seeds, strip, write


@pytest.fixture(scope="module")
def html(folder):
    return page.render(load(folder))


def test_the_page_is_well_formed_and_loads_nothing(html):
    assert_well_formed(html)
    assert html.startswith("<!doctype html>")


def test_the_page_shows_everything(html):
    text = " ".join(" ".join(read(html).text).split())
    for part in (
        "Table 1: distorted MNIST",
        "Rotated (R) or shifted (T) digits",
        "Setting short, test images",
        "Setting short, validation images",
        "SI-CNN on R: shorter: 5 epochs.",
        "PR-CNN against CNN",
        "fewer errors",
        "Training loss : training loss by epoch, on a logarithmic scale.",
        "Error by shift in numbers",
        "Without this curve: FCN.",
        "no images saved",
        "208,586",
        "0123456789ab",
        "Some CPU, 2 cores, Linux",
        "torch 2.9.0",
        "2025-01-01 to 2025-01-03",
        "Made by patchreorder run table1 --split validation .",
        "What PR-CNN is.",
    ):
        assert part in text, part
    assert re.search(r"label \d, predicted \d, image \d+", text)


def test_the_page_says_the_table(tmp_path):
    rows = seeds("cnn", [*range(10)], [*range(20)], [*range(30)])
    text = read(page.render(load(write(tmp_path, rows, facts(columns=[{"name": "R"}]))))).text
    cells = [part.strip() for part in text if part.strip()]
    at = cells.index("2.00 ± 1.00 (3)")
    assert (cells[at - 1], cells[at + 1], cells[at + 2]) == ("CNN", "1.20", "+0.80")


def test_nothing_in_rows_or_facts_becomes_markup(tmp_path, shown):
    bad = "<script>alert(1)</script>\"'{{ 7 * 7 }}[red]\x1b[31m\ud800 $x$ `x`"

    def spoilt(value):
        if isinstance(value, str):
            return bad
        if isinstance(value, dict):
            return {key: spoilt(item) for key, item in value.items()}
        return [spoilt(item) for item in value] if isinstance(value, list) else value

    names = {"row": "a" + bad, "column": bad, "setting": bad, "split": bad, "settings": bad, "commit": bad}
    names |= {"machine": bad, "finished": bad, "metric": bad, "versions": {bad: bad}}
    curves = {bad: [[0, 1.0], [1, 2.0]]}
    details = {"note": bad, "batch": bad, "epochs": bad, "mistakes": [{"index": bad, "label": bad, "answer": bad}]}
    rows = [result(errors=[1], curves=curves, details=details, **names)]
    rows += [result(errors=[2], curves=curves, details=details, **(names | {"row": "b" + bad}))]
    named = {
        "rows": [{"name": "a" + bad, "title": bad, "about": bad}, {"name": "b" + bad, "title": bad, "about": bad}],
        "columns": [{"name": bad, "title": bad, "about": bad}],
        "paper": {"a" + bad: {bad: 1.0}},
        "compare": [["a" + bad, "b" + bad]],
        "settings": {bad: bad},
        "curves": {bad: {"x": bad, "y": bad}},
        "parameters": {"a" + bad: {bad: 1}},
        "recipe": "table1",
    }
    whole = facts(**named, title=bad, about=bad, metric=bad, command=bad)
    for number, about in enumerate((whole, spoilt(facts()) | {"recipe": "table1"})):
        folder = write(tmp_path / str(number), rows, about)
        html = page.render(load(folder))
        assert "<script" not in html
        assert "{{ 7 * 7 }}" in html
        assert "49[red]" not in html
        assert_well_formed(html)
        html.encode()
        written = markdown.render(load(folder))
        assert "<script" not in re.sub("`[^`\n]*`", "", written.replace("\\`", ""))  # inside `code` it is only text
        printed = shown(folder)
        assert "\x1b" not in printed + written + html
        assert "[red]" in printed
        assert page.mistakes(only_table(folder), only_table(folder).recipe.columns[-1].name) == []


def test_mistakes_are_shown_with_their_images(tmp_path):
    mistakes = [{"index": 247, "label": 4, "answer": 9}, {"index": 33, "label": 1, "answer": 7}]
    row = result(errors=[33, 247], details={"mistakes": mistakes})
    folder = write(tmp_path, [row], facts())
    strip(folder / "pictures" / f"{row.cell.folder}.png", mistakes, 28)
    (found,) = page.mistakes(only_table(folder), "R")
    assert [tile.text for tile in found.tiles] == ["label 4, predicted 9, image 247", "label 1, predicted 7, image 33"]
    assert found.tiles[0].source != found.tiles[1].source


@pytest.mark.parametrize(("content", "reason"), [(None, "is missing"), (b"\x89PNG\r\n\x1a\n", "cannot be read")])
def test_images_that_cannot_be_shown_have_a_reason(tmp_path, content, reason):
    mistakes = [{"index": 1, "label": 4, "answer": 9}]
    good, bad = (result(row=row, errors=[1], details={"mistakes": mistakes}) for row in ("cnn", "fcn"))
    folder = write(tmp_path, [good, bad], facts())
    strip(folder / "pictures" / f"{good.cell.folder}.png", mistakes, 28)
    if content is not None:
        (folder / "pictures" / f"{bad.cell.folder}.png").write_bytes(content)
    found = {cell.title: cell for cell in page.mistakes(only_table(folder), "R")}
    assert len(found["CNN"].tiles) == 1
    assert reason in found["FCN"].reason
    assert reason in page.render(load(folder))


def test_a_row_cannot_name_a_file_outside_of_the_folder(tmp_path):
    mistakes = [{"index": 1, "label": 4, "answer": 9}]
    row = result(row="../secret", errors=[1], details={"mistakes": mistakes})
    folder = write(tmp_path / "rows", [row], facts())
    (folder / "pictures").mkdir()
    strip(folder / "secret.R.short.test.0.5e77a9c1.png", mistakes, 28)
    assert (folder / "pictures" / f"../{row.cell.folder.removeprefix('.._')}.png").exists()
    assert page.mistakes(only_table(folder), "R") == []


def test_several_recipes_are_shown_in_their_order(tmp_path):
    for name in ("table10", "table2"):
        write(tmp_path, [result(recipe=name, errors=[1])], facts(recipe=name, title=f"The {name}"))
    html = page.render(load(tmp_path))
    assert 0 < html.index("<h2>The table2") < html.index("<h2>The table10")
    assert_well_formed(html)


def test_scores_are_explained_as_scores_and_errors_as_errors(tmp_path):
    rows = [result(errors=[1, 2]), result(row="pr_cnn", errors=[2])]
    folders = scores(tmp_path / "scores"), write(tmp_path / "errors", rows, facts())
    of_scores, of_errors = (" ".join(" ".join(read(page.render(load(folder))).text).split()) for folder in folders)
    assert "positive means that the first has the higher score" in of_scores
    assert "lower for 1st : 2nd" in of_scores
    assert "+0.125" in of_scores
    assert "McNemar" not in of_scores
    assert "negative means that the first makes fewer errors" in of_errors
    assert "wrong only by 1st : 2nd" in of_errors


def test_what_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"the page needs jinja2: pip install 'patchreorder\[report\]'"):
        page.need_packages()
