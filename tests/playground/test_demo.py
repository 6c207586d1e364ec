"""The numbers and figures of `patchreorder demo`."""

import json
from pathlib import Path

import numpy as np
import pytest

from patchreorder.playground import demo
from patchreorder.playground.scene import Scene

COMMITTED = Path(__file__).parents[2] / "docs" / "images" / "demo.json"


@pytest.mark.parametrize("seed", [0, 1])
def test_sorted_pixels_bring_the_copies_nearer_than_the_leaf(seed):
    scene = Scene.draw(seed)
    distances, similarities = demo.compare(scene, demo.distance), demo.compare(scene, demo.similarity)
    original, _, pixels = distances.values()
    *copies, leaf = pixels
    for copy in copies:
        assert pixels[copy] < original[copy] / 2
        assert pixels[copy] < pixels[leaf]
        assert similarities[demo.PIXELS][copy] > similarities[demo.ORIGINAL][copy]


def test_files_are_the_same_every_time(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(demo, "KEYS", 1)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        demo.write(demo.measure(0), tmp_path / name)
    assert {file.name for file in (tmp_path / "a").iterdir()} == set(demo.FILES)
    for name in demo.FILES:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_the_committed_numbers_are_reproduced():
    committed = json.loads(COMMITTED.read_text(encoding="utf-8"))
    for label, distances in demo.compare(Scene.draw(committed["seed"]), demo.distance).items():
        assert distances == pytest.approx(committed["distance"][label], abs=0.004)


def test_distance_and_similarity_by_hand():
    a = np.array([[[3.0, 4.0]], [[0.0, 2.0]]])
    b = np.array([[[3.0, 0.0]], [[2.0, 2.0]]])
    assert demo.distance(a, b) == pytest.approx((4 / 5 + 2 / 2) / 2)
    assert demo.similarity(a, b) == pytest.approx((3 / 5 + 1 / np.sqrt(2)) / 2)


def test_the_explanation_counts_what_is_nearer_than_the_leaf():
    text = demo.explain(
        {
            demo.ORIGINAL: {"rotated 28°": 0.9, "shifted 15 px": 1.1, "leaf (control)": 0.8},
            demo.COARSE: {"rotated 28°": 0.9, "shifted 15 px": 1.1, "leaf (control)": 1.0},
            demo.PIXELS: {"rotated 28°": 0.2, "shifted 15 px": 0.1, "leaf (control)": 0.3},
        }
    )
    assert "at 0.90 and 1.10, neither nearer than the leaf at 0.80." in text
    assert "sorted: 0.90 and 1.10, one nearer than the leaf at 1.00." in text
    assert "sorted: 0.20 and 0.10, both nearer than the leaf at 0.30." in text
