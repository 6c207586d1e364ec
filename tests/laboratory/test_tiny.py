"""The task of Tiny-ImageNet: trained from its folders, the photographs decoded once, in parts for validation."""

import pytest

from patchreorder import recipes
from patchreorder.laboratory.cells import jobs
from patchreorder.laboratory.rows import read
from patchreorder.laboratory.run import run
from patchreorder.laboratory.small_images import TinyTask
from tests.data.test_tiny_imagenet import write

pytestmark = pytest.mark.usefixtures("one_thread")

RECIPE = recipes.load("table2_tiny")


def test_a_row_is_trained_from_the_folders_and_decodes_them_once(tmp_path):
    data, out = write(tmp_path / "data"), tmp_path / "out"
    change = {"epochs": 1, "batch": 4, "lr": 0.001, "options": {"dropout": 0.5}}
    options = {
        "out": out,
        "data": data,
        "rows": ["pr_cnn"],
        "columns": ["Ori", "R", "Ori5"],
        "seeds": [0],
        "change": change,
    }
    outcome = run(RECIPE, **options)
    assert len(outcome.measured) == 3
    rows = {row.column: row for row in read(out / "table2_tiny.jsonl").results}
    assert rows["Ori"].setting.startswith("short,batch=4,epochs=1,lr=0.001,options=")
    assert rows["Ori"].n == 3
    assert rows["Ori"].steps == 5  # of 20 training images
    assert set(rows["Ori"].errors) >= set(rows["Ori5"].errors)
    assert rows["Ori"].curves.keys() == {"training loss", "error by angle", "error by shift"}
    assert rows["Ori5"].curves.keys() == {"training loss"}
    assert {found["label"] for found in rows["Ori"].details["mistakes"]} <= {"goldfish", "n02"}
    assert rows["Ori"].details["training"]["amp"] is True
    assert len(list((out / "decoded").iterdir())) == 2
    held = run(RECIPE, **options | {"split": "validation", "columns": ["Ori"]})
    assert len(held.measured) == 1
    row = next(row for row in read(out / "table2_tiny.jsonl").results if row.split == "validation")
    assert (row.n, row.steps) == (2, 4)  # of 18 training images
    assert len(list((out / "decoded").iterdir())) == 2


def test_dropout_and_images_decide_about_a_cell(tmp_path):
    data = write(tmp_path / "data")
    more = write(tmp_path / "more", images=11)
    found = set()
    for folder, change in ((data, {}), (data, {"options": {"dropout": 0.5}}), (more, {})):
        (job,) = jobs(
            RECIPE, TinyTask(), out=tmp_path, rows=["cnn"], columns=["Ori"], seeds=[0], data=folder, change=change
        )
        found.add(job.cell.settings)
        dropout = TinyTask().model(job).get_submodule("drop6").p
        assert dropout == change.get("options", {}).get("dropout", 0.0)
    assert len(found) == 3


def test_the_folder_must_be_named(tmp_path):
    with pytest.raises(ValueError, match="table2_tiny needs --data DIR, the folder tiny-imagenet-200"):
        run(RECIPE, out=tmp_path, rows=["cnn"], columns=["Ori"], seeds=[0])
