"""The recipe fig_featuremaps: its smoke setting, its facts, its committed rows, its figure."""

import re

from patchreorder import recipes
from patchreorder.laboratory.run import run
from patchreorder.report import figures
from patchreorder.report.folder import load
from tests.recipes.every import *  # noqa: F403

NAME = "fig_featuremaps"


def test_tiles_of_maps_that_cannot_be_read_are_left_out(tmp_path):
    run(recipes.load(NAME), out=tmp_path, setting="smoke", rows=["pr_before", "pr_after"])
    (recipe,) = load(tmp_path)
    (table,) = recipe.tables
    svg = figures.draw_figure(table).svg
    assert len(re.findall(r'<image xlink:href="data:image/png;base64,', svg)) == 2 * (2 + 2 * 2)
    assert svg.count("mean of 10 images") == 4
    for file in (tmp_path / "pictures").glob("pr_after*.maps.png"):
        file.write_bytes(b"\x89PNG\r\n\x1a\n")
    assert figures.draw_figure(table).svg.count("mean of 10 images") == 2
    for file in (tmp_path / "pictures").glob("*"):
        file.unlink()
    assert figures.draw_figure(table) is None
