"""The summary of `patchreorder measure`, the comparison of two networks, and what is printed and written."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from patchreorder.measuring.measurement import Measurement
from patchreorder.report import measured
from tests.report.measured_document import document


def test_the_summary_says_what_is_lost_and_where():
    assert measured.summary(document()) == [
        "Only 10 images: differences of several points are chance.",
        "one is wrong about 10.0 % of 10 images as they are.",
        "one loses 40.0 points when shifted by 20 %; most of the change in its features appears after layer "
        "features.10 (cosine 0.80 in features.3, 0.30 there).",
    ]
    assert measured.summary(document(labelled=False))[1:] == [
        "one changes its prediction for 50.0 % of the images when shifted by 20 %; most of the change in its features "
        "appears after layer features.10 (cosine 0.80 in features.3, 0.30 there)."
    ]


def test_two_networks_are_compared_image_by_image():
    unposed, shifted = measured.pairs(document(second=True))
    assert (unposed.test.only_a, unposed.test.only_b, unposed.verdict) == (0, 0, "no difference shown")
    # The first is wrong twice about images 1 to 4, the second once about images 1 to 9.
    assert (shifted.test.only_a, shifted.test.only_b) == (4, 5)
    assert shifted.first == pytest.approx(50)  # without the image as it is, as in the table of rates
    assert len(measured.summary(document(second=True))) == 7


def test_a_network_that_tells_nothing_apart_is_not_better():
    """Without labels fewer changes are no merit by themselves."""
    found = document(labelled=False, second=True)
    few = [replace(one, indices=[]) if one.model == "one" else one for one in found.measurements]
    found = replace(found, measurements=few)
    (shifted,) = measured.pairs(found)
    assert (shifted.test.only_b, shifted.verdict) == (10, "one changes less")
    same = Measurement(model="one", measure="commonest answer", value=100.0, pose="as it is", n=10)
    (shifted,) = measured.pairs(replace(found, measurements=[*few, same]))
    assert shifted.verdict == "no comparison, as one hardly tells images apart"
    said = measured.summary(replace(found, measurements=[*few, same]))
    assert any("% of the images when shifted by 20 %, but nearly all get one answer" in text for text in said)


def test_the_worst_pose_of_each_image_is_said_with_its_interval():
    found = document()
    facts = {"model": "one", "transform": "translate", "n": 10}
    details = {"poses": 2, "hardest": "x 0.2"}
    more = [
        Measurement(measure="mean error", value=50.0, low=20.0, high=80.0, details=details, **facts),
        Measurement(measure="worst error", value=60.0, low=30.0, high=85.0, **facts),
    ]
    found = replace(found, measurements=[*found.measurements, *more])
    assert measured.summary(found)[-1] == (
        "one is wrong about 60.0 % (30.0 to 85.0) of the images in at least one of 2 poses (translate); the hardest "
        "for all is shifted 20 % right, with 50.0 %."
    )
    none = [replace(one, value=0.0, low=0.0) if one.measure == "worst error" else one for one in found.measurements]
    assert measured.summary(replace(found, measurements=none))[-1].endswith("in at least one of 2 poses (translate).")
    rows = dict(measured.rates_sheet(found).rows)
    assert rows["translate: mean of 2 poses"] == "50.0 (20.0 to 80.0)"
    assert rows["translate: worst of 2"] == "60.0 (30.0 to 85.0)"


def test_layer_names_are_never_cut():
    name = "features.a_long_name_of_a_block.with_another_name_in_it.conv"
    found = document()
    renamed = [replace(one, layer=name) if one.layer == "last" else one for one in found.measurements]
    text = io.StringIO()
    measured.show(replace(found, measurements=renamed), Console(file=text, width=80))
    assert any(line.strip().startswith(f"{name} ") for line in text.getvalue().splitlines())


def test_tables_on_the_terminal():
    text = io.StringIO()
    measured.show(document(second=True), Console(file=text, width=200))
    lines = text.getvalue().splitlines()
    assert any("wrong predictions, %" in line and "one" in line and "<i>[/two]" in line for line in lines)
    (shifted,) = (line for line in lines if "shifted by 20 %" in line and "50.0" in line and "when" not in line)
    assert shifted.count("50.0") == 1
    assert sum("features.10" in line and "0.30" in line and "cosine" not in line for line in lines) == 2


def collapsed(share: float, different: float, labels: list[int]) -> measured.Document:
    found = document()
    more = [
        Measurement(model="one", measure="commonest answer", value=share, pose="as it is", n=200),
        Measurement(model="one", measure="different", value=different, layer="features.10", n=200),
    ]
    return replace(found, n=200, measurements=[*found.measurements, *more], labels=labels)


def test_a_network_that_tells_nothing_apart_is_said_first():
    mixed = [index % 4 for index in range(200)]
    first, second, *_ = measured.summary(collapsed(97.0, 1.0, mixed))
    assert first.startswith("one gives one answer to 97.0 % of the images")
    assert second.startswith("one has the same features for all images in features.10")
    dead = collapsed(50.0, 0.3, mixed)
    zero = [replace(one, value=None, n=0) if one.measure == "different" else one for one in dead.measurements]
    (only,) = measured.warnings(replace(dead, measurements=zero))
    assert only.startswith("one has the same features for all images in features.10")
    assert measured.warnings(collapsed(50.0, 0.3, mixed)) == []
    assert measured.warnings(collapsed(97.0, 0.3, [0] * 190 + [1] * 10)) == []  # so are the labels


def test_shrunk_images_are_said_first():
    (only,) = measured.warnings(replace(document(), n=200, side=0.707))
    assert only.startswith("All images are shrunk to 71 % of their canvas, also those as they are")


def test_layers_are_compared_with_different_images():
    found = {one.title: one.values["one"] for one in measured.layer_measures(collapsed(50.0, 0.65, []))}
    assert found["cosine, different images"] == {"features.10": 0.65}
    assert found["pose / identity, shifted by 20 %"] == {"features.10": 2.0}  # (1 - 0.3) / (1 - 0.65)
    found = {one.title: one.values["one"] for one in measured.layer_measures(collapsed(50.0, 1.0, []))}
    assert found["pose / identity, shifted by 20 %"] == {"features.10": 1.0}
