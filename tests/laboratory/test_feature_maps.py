"""The task of the figure of feature maps."""

import io

import numpy as np
import torch
from PIL import Image

from patchreorder import recipes
from patchreorder.laboratory.feature_maps import COLOURS, _tiles
from patchreorder.laboratory.rows import read as read_rows
from patchreorder.laboratory.run import run


def test_the_picture_of_maps_shows_the_strongest_of_both(tmp_path):
    run(recipes.load("fig_featuremaps"), out=tmp_path, setting="smoke", rows=["pr_after"], columns=["shifted"])
    (row,) = read_rows(tmp_path / "fig_featuremaps.jsonl").results
    with Image.open(tmp_path / "pictures" / f"{row.cell.folder}.png") as images:
        assert images.size == (64, 32)
    with Image.open(tmp_path / "pictures" / f"{row.cell.folder}.maps.png") as maps:
        assert maps.size == (12 * 8, 8)
    assert 0 < row.value <= 1
    shown = torch.zeros(2, 9, 3, 3)
    shown[0, 4], shown[1, 4] = 1.0, 0.5
    strip = np.asarray(Image.open(io.BytesIO(_tiles(shown))))
    assert strip.shape == (3, 36, 3)
    assert tuple(strip[0, 0]) == COLOURS[-1]
    assert tuple(strip[0, 3]) == COLOURS[0]  # all other maps are empty
    assert tuple(strip[0, 18]) not in (COLOURS[0], COLOURS[-1])
