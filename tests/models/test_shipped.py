"""The trained weights that come with the package: they make the errors of their committed rows."""

from dataclasses import asdict
from pathlib import Path

import pytest

from patchreorder.data import datasets, sources
from patchreorder.engine.predict import predict
from patchreorder.laboratory.rows import read as read_rows
from patchreorder.metrics.accuracy import mistakes
from patchreorder.models import count_parameters, create_model, shipped

SETS = ("mnist-r", "mnist-t")
SHIPPED = [(name, dataset) for name in ("cnn", "pr_cnn", "st_cnn") for dataset in SETS] + [("unrolled_cnn", "mnist-r")]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def test_digits():
    try:
        sources.fetch(sources.MNIST)
    except OSError as error:
        pytest.skip(f"MNIST cannot be fetched here: {error}")
    return {dataset: datasets.mnist(dataset, split="test").first(2000) for dataset in SETS}


@pytest.mark.parametrize(("name", "dataset"), SHIPPED)
def test_shipped_weights_make_the_mistakes_of_their_row(name, dataset, test_digits):
    row = shipped.row(name, dataset)
    wrong, _ = mistakes(*predict(create_model(name, dataset=dataset, pretrained=True), test_digits[dataset]))
    wanted = {index for index in row["errors"] if index < 2000}
    assert len(wanted ^ set(wrong.tolist())) <= 2
    assert len(wanted) > 4  # else a network that is never tested would pass


@pytest.mark.parametrize(("name", "dataset"), SHIPPED)
def test_rows_of_shipped_weights_are_committed_results(name, dataset):
    row = shipped.row(name, dataset)
    assert row in [asdict(result) for result in read_rows(ROOT / "results" / "table1.jsonl").results]
    assert (row["recipe"], row["setting"], row["split"]) == ("table1", "short", "test")
    assert row["parameters"] == count_parameters(create_model(name, dataset=dataset))


def test_shipped_weights_are_small():
    assert sum(file.stat().st_size for file in shipped.FOLDER.iterdir()) < 8_000_000
    assert len(list(shipped.FOLDER.glob("*.safetensors"))) == len(SHIPPED)


def test_a_row_that_is_not_shipped_is_named():
    with pytest.raises(ValueError, match="no row of fcn for mnist is shipped"):
        shipped.row("fcn", "mnist")
