"""Networks that tables trained are found again."""

import pytest
import torch

from patchreorder.engine import checkpoint
from patchreorder.laboratory.trained import load_trained
from patchreorder.models import create_model


def test_networks_of_all_tables_are_found_again(tmp_path):
    for recipe, network, column, name, model in (
        ("table2_cifar10", "pr_cnn_fine", "all", "cifar_pr_fine", create_model("cifar_pr_fine")),
        ("table1", "pr_cnn_fine", "T", "pr_cnn_fine", create_model("pr_cnn_fine", dataset="mnist-t")),
    ):
        cell = [recipe, network, column, "short", "test", 0, "abcdef01"]
        file = tmp_path / recipe / "cells" / ".".join(map(str, cell[1:])) / "weights.safetensors"
        checkpoint.write(file, model.state_dict(), {"cell": cell, "model": name, "options": {}})
        found = load_trained(tmp_path / recipe, network, table=recipe, column=column)
        assert str(found) == str(model)
        assert all(torch.equal(value, model.state_dict()[key]) for key, value in found.state_dict().items())
    with pytest.raises(
        ValueError, match=r"run table1 --setting short --rows cnn --columns R --seeds 3 --out .*trains it"
    ):
        load_trained(tmp_path, "cnn", table="table1", column="R", seed=3)
    with pytest.raises(ValueError, match=r"run table2 --setting paper --rows cnn --seeds 0"):
        load_trained(tmp_path, "cnn", table="table2", setting="paper")
    checkpoint.write(file, {}, {"cell": ["ablations", *cell[1:]]})
    with pytest.raises(ValueError, match=r"is of ablations, .* name the folder of table1"):
        load_trained(tmp_path / "table1", "pr_cnn_fine", table="table1", column="T")
