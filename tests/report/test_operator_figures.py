"""Figures of the operator: files of the right kind, the same every time."""

import numpy as np

from patchreorder.report.operator_figures import InputMaps, draw_before_after, draw_levels
from tests.report.svg import texts


def test_inputs_are_drawn_beside_their_maps(tmp_path):
    inputs = [InputMaps("key", np.ones((8, 8)), [np.eye(4)] * 2, ["", "0.50"])]
    draw_before_after([tmp_path / "a.svg"], inputs, ["image", "a map", "sorted"], [(), (4, 2)], "A caption.")
    svg = (tmp_path / "a.svg").read_text()
    assert {"key", "image", "a map", "sorted", "0.50", "A caption."} <= set(texts(svg))
    assert svg.count("<image ") == 3


def test_levels_show_numbers_and_energies(tmp_path):
    maps, energies, order = [np.arange(16).reshape(4, 4)] * 3, np.array([[100, 200], [300, 400]]), np.arange(4)
    draw_levels([tmp_path / "a.svg"], maps, energies, order)
    written = texts((tmp_path / "a.svg").read_text())
    assert all(written.count(str(number)) == 3 for number in range(16))
    assert all(written.count(str(energy)) == 2 for energy in (100, 200, 300, 400))
