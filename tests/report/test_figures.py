"""The paper's figures: what is drawn, well-formed and escaped."""

from xml.etree import ElementTree

import pytest

from patchreorder import recipes
from patchreorder.report import page
from patchreorder.report.drawing import GREY, ORANGE, STYLES
from patchreorder.report.figures import draw_figure
from patchreorder.report.figures import write as write_figures
from patchreorder.report.folder import load
from tests.report.svg import SVG, lines, texts
from tests.report.test_drawing import HOSTILE
from tests.report_rows import facts, only_table, result, write


def lines_of(folder, **how):
    """A made-up figure of a curve, and its tables."""
    rows = [
        result(
            row=row,
            column=column,
            errors=[1],
            curves={"error by angle": [[x, x + offset] for x in range(3)]},
            details={"layers": ["a", "b", "c"], "stride": 2},
        )
        for offset, row in enumerate(("cnn", "pr_cnn"))
        for column in "RT"
    ]
    about = facts(figure={"kind": "lines", "curve": "error by angle", "n": "images"} | how)
    (recipe,) = load(write(folder, rows, about))
    return recipe.tables[0]


def test_a_figure_says_what_it_shows(tmp_path):
    drawing = draw_figure(lines_of(tmp_path, labels="layers", x="end of layer"))
    written = texts(drawing.svg)
    for part in ("Table 1: distorted MNIST", "R (1,000 images)", "T (1,000 images)", "a", "b", "c", "end of layer"):
        assert part in written, part
    assert {"error %", "CNN (stride 2)", "PR-CNN (stride 2)"} <= set(written)
    made = "Made by: patchreorder run table1. 4 rows, seed 0, commit 0123456789ab"
    assert any(part.startswith(made) for part in written)
    assert drawing.alt == "Table 1: distorted MNIST, setting short: the numbers are in the table"


def test_styles_follow_the_rows_of_the_recipe(tmp_path):
    svg = draw_figure(lines_of(tmp_path)).svg
    drawn = [len(lines(svg, style.colour)) for style in STYLES[:4]]
    assert drawn == [0, 2, 2, 0]  # FCN, the first row, has no results


def test_every_recipe_has_a_style_for_each_line():
    for name in recipes.NAMES:
        recipe = recipes.load(name)
        if recipe.figure.get("kind") == "lines":
            drawn = recipe.columns if recipe.figure.get("panels") == "rows" else recipe.rows
            assert len(drawn) <= len(STYLES), name


def test_panels_may_be_of_rows(tmp_path):
    written = texts(draw_figure(lines_of(tmp_path, panels="rows", diagonal=True)).svg)
    assert {"CNN (1,000 images)", "PR-CNN (1,000 images)", "R (stride 2)", "the whole shift"} <= set(written)


def test_places_are_drawn_against_no_reordering(tmp_path):
    rows = [result(row=row, value=value, n=50) for row, value in (("cnn", 5.0), ("fcn", 7.0), ("pr_cnn", 3.0))]
    figure = {"kind": "places", "places": ["conv1", "conv2"], "lines": {"4x4": ["fcn", "pr_cnn"]}, "level": "cnn"}
    svg = draw_figure(only_table(write(tmp_path, rows, facts(figure=figure)))).svg
    assert {"conv1", "conv2", "4x4", "no reordering", "R (50)"} <= set(texts(svg))
    (level,), (line,) = lines(svg, GREY), lines(svg, ORANGE)
    assert level[0][1] == level[1][1]
    assert line[0][1] < level[0][1] < line[1][1]  # 7 is above 5, 3 below
    assert line[1][1] - level[0][1] == pytest.approx(level[0][1] - line[0][1], abs=1e-3)


def test_counts_are_drawn_in_their_order(tmp_path):
    cells = (("R500", 5.0), ("R2000", 3.0), ("R500", 7.0))
    rows = [result(column=column, seed=i, value=value, n=50) for i, (column, value) in enumerate(cells)]
    about = facts(figure={"kind": "counts", "panels": {"R": "rotated", "T": "shifted"}, "x": "digits"})
    about["columns"] = [{"name": name, "title": name, "about": "."} for name in ("R2000", "R500", "T500")]
    written = texts(svg := draw_figure(only_table(write(tmp_path, rows, about))).svg)
    assert {"rotated (50)", "500", "2,000", "digits", "CNN"} <= set(written)
    assert "shifted (50)" not in written
    first, second = next(points for points in lines(svg, ORANGE) if len(points) == 2)
    assert first[0] < second[0]
    assert first[1] < second[1]  # 6 is above 3


def test_hostile_texts_stay_texts(tmp_path):
    details = {"layers": [HOSTILE, "b"], "stride": HOSTILE}
    row = result(curves={"error by angle": [[0, 1], [1, 2]]}, details=details, commit=HOSTILE, errors=[1])
    about = facts(title=HOSTILE, about=HOSTILE + "\x00\x1b", command=HOSTILE, metric="error %")
    about["curves"] = {"error by angle": {"x": HOSTILE, "y": HOSTILE}}
    about["rows"] = [{"name": "cnn", "title": HOSTILE, "about": HOSTILE}]
    about["figure"] = {"kind": "lines", "curve": "error by angle", "labels": "layers", "n": HOSTILE, "x": HOSTILE}
    table = only_table(write(tmp_path, [row], about))
    root = ElementTree.fromstring(draw_figure(table).svg)
    assert not {"script", "b"} & {element.tag.removeprefix(SVG) for element in root.iter()}
    assert not any(name.startswith("on") for element in root.iter() for name in element.attrib)
    assert "<script>alert" not in page.render([table.recipe])


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "table1.svg"),
        ({"setting": "cifar10"}, "table1.cifar10.svg"),
        ({"setting": "short,lr=0.1/../x"}, "table1.short-lr=0-1----x.svg"),
        ({"setting": "wide", "split": "validation"}, "table1.wide.validation.svg"),
    ],
)
def test_files_are_named_after_recipe_setting_and_split(tmp_path, changes, name):
    row = result(curves={"error by angle": [[0, 1], [1, 2]]}, **changes)
    folder = write(tmp_path / "rows", [row], facts(figure={"kind": "lines", "curve": "error by angle"}))
    (tmp_path / "out").mkdir()
    assert write_figures(load(folder), tmp_path / "out") == [tmp_path / "out" / name]
    assert (tmp_path / "out" / name).read_text() == draw_figure(only_table(folder)).svg


@pytest.mark.parametrize(
    "figure",
    [None, [], {"kind": "pie"}, {"kind": "lines"}, {"kind": "lines", "curve": "none"}, {"kind": "lines", "curve": 3}]
    + [{"kind": "places"}, {"kind": "places", "places": ["a"], "lines": [1]}, {"kind": "places", "places": [3]}]
    + [{"kind": "places", "places": ["a"], "lines": {"x": "cnn", "y": [7, {}]}}, {"kind": "maps"}, {"kind": ["maps"]}]
    + [{"kind": "counts"}, {"kind": "counts", "panels": ["R"]}, {"kind": "counts", "panels": {"R": 3}}],
)
def test_facts_that_describe_no_figure_draw_none(tmp_path, figure):
    row = result(errors=[1], curves={"error by angle": [[0, 1]]})
    (recipe,) = load(write(tmp_path, [row], facts(figure=figure)))
    assert draw_figure(recipe.tables[0]) is None
