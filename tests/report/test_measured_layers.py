"""Columns of the layers: intervals, what knows nothing, and the modules that are shown."""

import dataclasses

from patchreorder.measuring.measurement import Measurement
from patchreorder.report import measured_files, measured_layers, measured_page

from .measured_document import document


def with_rows(*rows):
    return dataclasses.replace(document(), measurements=[Measurement(model="one", **row) for row in rows])


def found(*rows):
    return {one.title: one for one in measured_layers.layer_measures(with_rows(*rows))}


def test_cells_show_half_of_the_interval():
    similar = {"measure": "similarity", "layer": "a", "low": 0.6, "high": 0.8, "value": 0.7}
    rows = [similar | {"pose": pose} for pose in ("x -0.2", "x 0.2")]
    rows.append({"measure": "different", "layer": "a", "value": 0.5, "low": 0.4, "high": 0.6})
    measures = found(*rows)
    assert measures["cosine, shifted by 20 %"].cell("one", "a") == "0.70 ±0.10"
    assert measures["cosine, different images"].cell("one", "a") == "0.50 ±0.10"
    assert measures["pose / identity, shifted by 20 %"].cell("one", "a") == "0.60 ±0.23"  # hypot(0.1, 0.6 * 0.1) / 0.5


def test_an_unknown_interval_is_not_invented():
    measures = found({"measure": "invariance", "layer": "a", "transform": "translate", "value": 3.0})
    assert measures["invariance score, translate"].cell("one", "a") == "3.0"


def test_maps_and_derivatives_are_columns():
    rows = [
        {"measure": measure, "layer": "a", "pose": "x 0.2", "value": value, "low": value, "high": value}
        for measure, value in (("equivariance", 0.1), ("unmoved maps", 0.8))
    ]
    rows.append({"measure": "derivative", "layer": "a", "transform": "shift", "value": 0.4})
    measures = found(*rows)
    assert measures["maps, pose undone, shifted by 20 %"].cell("one", "a") == "0.10 ±0.00"
    assert measures["maps as they are, shifted by 20 %"].values["one"] == {"a": 0.8}
    assert measures["Lie derivative, shift"].cell("one", "a") == "0.40"


def test_the_worst_modules_come_first_and_are_no_layers():
    rows = [
        {
            "measure": "module derivative",
            "layer": f"m{i}",
            "transform": "shift",
            "value": i / 20,
            "details": {"kind": "Conv2d"},
        }
        for i in range(12)
    ]
    made = with_rows(*rows)
    sheet = measured_layers.modules_sheet(made, "one")
    assert [row[0] for row in sheet.rows] == [f"m{i}" for i in range(11, 1, -1)]
    assert sheet.rows[0] == ["m11", "Conv2d", "0.55"]
    assert made.layers("one") == []
    assert measured_files.as_csv(made).count("module derivative") == 12
    assert "m11" in _page(made)


def _page(made):
    whole = document()
    return measured_page.render(dataclasses.replace(made, measurements=[*whole.measurements, *made.measurements]))
