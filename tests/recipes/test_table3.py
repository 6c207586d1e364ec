"""The recipe table3: its smoke setting, its facts, its committed rows, its comparisons."""

from patchreorder import recipes
from patchreorder.files import digest
from patchreorder.laboratory.cells import jobs
from patchreorder.laboratory.retrieval import RetrievalTask
from patchreorder.laboratory.rows import read
from patchreorder.search.descriptors import DESCRIPTORS, backbone_of
from tests.recipes.every import *  # noqa: F403
from tests.recipes.every import RESULTS

NAME = "table3"
TABLE3 = recipes.load(NAME)


def test_every_descriptor_is_a_row_and_is_compared_with_the_global_average():
    rows = {row.name: row for row in TABLE3.rows}
    named = {row.model for row in TABLE3.rows if "layer" not in row.options and not {":", "@"} & {*row.model}}
    assert named == {
        name
        for name in DESCRIPTORS
        if backbone_of(name) in ("alexnet", "efficientnet_lite0") and not name.endswith("/symmetric")
    }
    for name in TABLE3.settings["short"].rows:
        network = backbone_of(rows[name].model).partition("_")[0]
        assert (name, f"{network}_gap") in TABLE3.compare or name.endswith("_gap")
    assert {name for each in ("short", "trained") for name in TABLE3.settings[each].rows} == set(rows)


def test_the_papers_rows_are_there():
    """Table 3 of the paper: five networks, two layers; fc7 is better for all but PR-CNN."""
    assert len(TABLE3.paper) == 10
    assert set(TABLE3.paper) <= set(TABLE3.settings["trained"].rows)
    score = {name: of["Ori"] for name, of in TABLE3.paper.items()}
    assert {name[:-4] for name in score if score[name[:-1] + "6"] > score[name[:-1] + "7"]} == {"pr_cnn"}
    for name in TABLE3.settings["trained"].rows:
        network, layer = name[:-4], name[-3:]
        assert (f"{network}_fc6", f"{network}_fc7") in TABLE3.compare
        assert network == "cnn" or (name, f"cnn_{layer}") in TABLE3.compare


def test_committed_rows_are_of_the_images_by_their_names():
    """The groups that the test rows were measured on: 500 where nothing is trained, else 250."""

    class Named(RetrievalTask):
        def identify(self, data, plan, split):
            return digest([f"ukbench{number:05}.jpg" for number in range(self.images)])

    found = set()
    for setting in TABLE3.settings:
        task = Named()
        task.images = 2000 if setting == "short" else 1000
        found |= {job.cell for job in jobs(TABLE3, task, out=RESULTS, setting=setting)}
    committed = [row for row in read(RESULTS / "table3.jsonl").results if row.split == "test"]
    assert len(committed) > 300
    assert {row.n for row in committed if row.setting == "short"} == {2000}
    assert all(row.cell in found for row in committed)
