"""The task of Figure 2: the weights of the layers that are named, of the network that was trained."""

import math
import re

import pytest
import torch

from patchreorder import recipes
from patchreorder.laboratory.cells import Resources
from patchreorder.laboratory.rows import read as read_rows
from patchreorder.laboratory.run import run
from patchreorder.metrics.redundancy import neuron_similarity, position_similarity
from patchreorder.models import create_model
from tests.laboratory.trained_networks import write_training

FIGURE = recipes.load("fig_redundancy")


@pytest.mark.parametrize("setting", ["mnist_r", "mnist_t"])
def test_redundancy_of_the_shipped_networks(tmp_path, setting):
    run(recipes.load("fig_redundancy"), out=tmp_path, setting=setting, rows=["cnn", "st_cnn"])
    rows = {(row.row, row.column): row for row in read_rows(tmp_path / "fig_redundancy.jsonl").results}
    assert len(rows) == 4
    for network in ("cnn", "st_cnn"):
        model = create_model(network, dataset=setting.replace("_", "-"), pretrained=True)
        weight = model.state_dict()["classifier.weight" if network == "cnn" else "cnn.classifier.weight"]
        places = weight.shape[1] // 64
        assert rows[network, "fc6_places"].value == position_similarity(weight, maps=64).mean_magnitude
        assert rows[network, "fc6_places"].n == 10 * math.comb(places, 2)
        assert rows[network, "fc6"].value == neuron_similarity(weight).mean_magnitude
        assert rows[network, "fc6"].details["chance"] == pytest.approx((2 / (math.pi * len(weight[0]))) ** 0.5)
        assert re.fullmatch("[0-9a-f]{8}", rows[network, "fc6"].details["weights"])
    fingerprints = {row.details["weights"] for row in rows.values()}
    assert len(fingerprints) == 2


def test_cells_are_of_the_layers_that_are_named(tmp_path):
    model = write_training(tmp_path / "run", "pr_cnn", seed=1)
    torch.save(model.state_dict(), tmp_path / "conv.pt")
    resources = Resources(trained=tmp_path / "run", weights=tmp_path / "conv.pt")
    run(FIGURE, out=tmp_path, rows=["pr_cnn"], seeds=[1], resources=resources)
    rows = {row.column: row for row in read_rows(tmp_path / "fig_redundancy.jsonl").results}
    fc6, fc7 = model.state_dict()["classifier.1.weight"], model.state_dict()["classifier.4.weight"]
    for column, wanted in {
        "fc6_places": position_similarity(fc6, maps=256),
        "fc6": neuron_similarity(fc6),
        "fc7": neuron_similarity(fc7),
    }.items():
        row = rows[column]
        assert (row.value, row.n) == (wanted.mean_magnitude, wanted.pairs)
        curve = row.curves["cosines"]
        assert sum(y for _, y in curve) == pytest.approx(1)
        assert sum(x * y for x, y in curve) == pytest.approx(wanted.mean, abs=0.01)
        assert all(y > 0 for _, y in curve)  # of nothing there is no logarithm
    assert rows["fc6_places"].n == 12 * 36 * 35 // 2


def test_chance_is_of_random_weights(tmp_path):
    torch.save(write_training(tmp_path / "run", "cnn", width=200).state_dict(), tmp_path / "conv.pt")
    resources = Resources(trained=tmp_path / "run", weights=tmp_path / "conv.pt")
    run(FIGURE, out=tmp_path, setting="chance", resources=resources)
    values = {row.column: row.value for row in read_rows(tmp_path / "fig_redundancy.jsonl").results}
    for column, numbers in (("fc6_places", 256), ("fc6", 9216), ("fc7", 200)):
        assert values[column] == pytest.approx((2 / (torch.pi * numbers)) ** 0.5, rel=0.05)


def test_what_is_missing_is_asked_for(tmp_path):
    with pytest.raises(ValueError, match=r"CNN needs --trained DIR, the output folder of `patchreorder run table2"):
        run(FIGURE, out=tmp_path)
    with pytest.raises(ValueError, match=r"change \(lr=1\) must name one of: nothing can be changed here"):
        run(FIGURE, out=tmp_path, change={"lr": 1})
    run(FIGURE, out=tmp_path, setting="smoke", rows=["cnn"])
    assert len(read_rows(tmp_path / "fig_redundancy.jsonl").results) == 3
