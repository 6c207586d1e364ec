"""Figure 2: the weights of the layers that are named, of the network that was trained."""

import pytest
import torch

from patchreorder import recipes
from patchreorder.laboratory import recipe as spec
from patchreorder.laboratory.recipe import Means
from patchreorder.laboratory.rows import read as read_rows
from patchreorder.metrics.redundancy import neuron_similarity, position_similarity
from tests.recipes.test_table3 import trained

FIGURE = recipes.load("fig_redundancy")


def test_cells_are_of_the_layers_that_are_named(tmp_path):
    model = trained(tmp_path / "run", "pr_cnn", seed=1)
    torch.save(model.state_dict(), tmp_path / "conv.pt")
    means = Means(trained=tmp_path / "run", weights=tmp_path / "conv.pt")
    spec.run(FIGURE, out=tmp_path, rows=["pr_cnn"], seeds=[1], means=means)
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
    torch.save(trained(tmp_path / "run", "cnn", width=200).state_dict(), tmp_path / "conv.pt")
    means = Means(trained=tmp_path / "run", weights=tmp_path / "conv.pt")
    spec.run(FIGURE, out=tmp_path, setting="chance", means=means)
    values = {row.column: row.value for row in read_rows(tmp_path / "fig_redundancy.jsonl").results}
    for column, numbers in (("fc6_places", 256), ("fc6", 9216), ("fc7", 200)):
        assert values[column] == pytest.approx((2 / (torch.pi * numbers)) ** 0.5, rel=0.05)


def test_what_is_missing_is_asked_for(tmp_path):
    with pytest.raises(ValueError, match=r"CNN needs --trained DIR, the output folder of `patchreorder run table2"):
        spec.run(FIGURE, out=tmp_path)
    with pytest.raises(ValueError, match=r"change \(lr\) is for trainings: nothing is trained here"):
        spec.run(FIGURE, out=tmp_path, change={"lr": 1})
    spec.run(FIGURE, out=tmp_path, setting="smoke", rows=["cnn"])
    assert len(read_rows(tmp_path / "fig_redundancy.jsonl").results) == 3
