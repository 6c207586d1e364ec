"""The numbers of `patchreorder measure` as files."""

import csv
import io
import json

from patchreorder.report import measured, measured_files
from tests.report.measured_document import document


def test_the_json_file_has_a_row_for_every_measurement(tmp_path):
    found = document(second=True)
    measured_files.write(found, tmp_path / "measure.json")
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


def test_csv_has_a_line_for_every_measurement():
    found = document(second=True)
    text = measured_files.as_csv(found)
    assert "\r" not in text
    first, *rows = csv.reader(io.StringIO(text))
    assert first == ["model", "measure", "layer", "transform", "pose", "value", "low", "high", "n"]
    assert len(rows) == len(found.measurements)
    assert rows[0] == ["one", "error", "", "", "as it is", "10.0", "", "", "10"]
