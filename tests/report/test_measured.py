"""The summary of `patchreorder measure`, the comparison of two networks, and what is printed and written."""

import io
import json

import pytest
from rich.console import Console

from patchreorder.report import measured
from tests.report.measured_document import document


def test_the_summary_says_what_is_lost_and_where():
    assert measured.summary(document()) == [
        "one is wrong about 10.0 % of 10 images as they are.",
        "one loses 40.0 points when shifted by 20 %; most of the change in its features appears after layer "
        "features.10 (cosine 0.80 in features.3, 0.30 there).",
    ]
    assert measured.summary(document(labelled=False)) == [
        "one changes its prediction for 50.0 % of the images when shifted by 20 %; most of the change in its features "
        "appears after layer features.10 (cosine 0.80 in features.3, 0.30 there)."
    ]


def test_two_networks_are_compared_image_by_image():
    unposed, shifted = measured.pairs(document(second=True))
    assert (unposed.test.only_a, unposed.test.only_b, unposed.verdict) == (0, 0, "no difference shown")
    # The first is wrong twice about images 1 to 4, the second once about images 1 to 9.
    assert (shifted.test.only_a, shifted.test.only_b) == (4, 5)
    assert shifted.first == pytest.approx((10 + 50 + 50) / 3)
    assert len(measured.summary(document(second=True))) == 6


def test_the_json_file_has_a_row_for_every_measurement(tmp_path):
    found = document(second=True)
    measured.write(found, tmp_path / "measure.json")
    values = json.loads((tmp_path / "measure.json").read_text())
    assert len(values["rows"]) == len(found.measurements)
    assert values["rows"][0] == {
        "model": "one",
        "measure": "error",
        "value": 10.0,
        "layer": "",
        "transform": "",
        "pose": "as it is",
        "low": None,
        "high": None,
        "n": 10,
        "indices": [0],
    }
    assert values["summary"] == measured.summary(found)
    assert values["pairs"][1]["test"]["only_b"] == 5
    assert "unstable" not in values


def test_tables_on_the_terminal():
    text = io.StringIO()
    measured.show(document(second=True), Console(file=text, width=200))
    lines = text.getvalue().splitlines()
    assert any("wrong predictions, %" in line and "one" in line and "<i>[/two]" in line for line in lines)
    (shifted,) = (line for line in lines if "shifted by 20 %" in line and "50.0" in line and "when" not in line)
    assert shifted.count("50.0") == 1
    assert sum("features.10" in line and "0.30" in line and "cosine" not in line for line in lines) == 2
