"""The shipped networks, tested without training."""

from pathlib import Path

import pytest

from patchreorder import recipes
from patchreorder.data.generated import generate_digits
from patchreorder.laboratory.rows import read
from patchreorder.laboratory.run import run
from patchreorder.laboratory.small_images import DigitTask
from patchreorder.models import shipped

TABLE1 = recipes.load("table1")


@pytest.fixture
def generated(monkeypatch):
    """Generated digits instead of MNIST's."""
    monkeypatch.setattr(
        DigitTask,
        "_images",
        lambda self, job, part, variant, seed, count: generate_digits(variant, count=20, seed=seed),
    )


def test_every_shipped_network_is_tested_and_compared_with_its_row(tmp_path: Path, generated, monkeypatch):
    known = shipped.row("cnn", "mnist-t")
    monkeypatch.setattr(shipped, "row", lambda name, dataset: {**known, "errors": [3, 99]})
    outcome = run(TABLE1, out=tmp_path, setting="shipped")
    rows = read(tmp_path / "table1.jsonl").results
    assert len(outcome.measured) == len(rows) == len(list(shipped.FOLDER.glob("*.safetensors")))
    for row in rows:
        assert row.n == 20
        assert set(row.details["differing"]) == set(row.errors) ^ {3, 99}
        assert row.details["committed"] == known["value"]
