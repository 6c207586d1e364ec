"""Tasks of photographs: which images are trained and tested on, and the features of frozen convolutions."""

import torch

from patchreorder import recipes
from patchreorder.data.generated import write_photos
from patchreorder.laboratory.cells import jobs
from patchreorder.laboratory.photographs import FrozenPhotographTask
from patchreorder.models import alexnet


def test_each_seed_of_the_split_series_holds_out_another_fold(tmp_path):
    """The folds share the features of all training images."""
    for part in ("train", "val"):
        write_photos(tmp_path / part, classes=2, images=12)
    task, held_out = FrozenPhotographTask(), []
    which = {"setting": "smoke", "rows": ["cnn"], "columns": ["Ori"], "split": "series", "seeds": [0, 1, 2]}
    for job in jobs(recipes.load("table2_grocery"), task, out=tmp_path / "out", data=tmp_path, **which):
        fit, tested = task.training_photos(job), task.test_photos(job)
        assert not set(fit.names) & set(tested.names)
        assert fit.source.root == tested.source.root == tmp_path / "train"
        held_out += tested.names
        features = task.test_set(job)
        front = alexnet.split(task.network(job))[0].eval()
        images, labels = tested.batch(torch.arange(len(tested)))
        with torch.inference_mode():
            torch.testing.assert_close(features.values[0], front(images / 255), rtol=1e-4, atol=1e-4)
        assert torch.equal(features.labels, labels)
    assert len(held_out) == len(set(held_out)) > 0
    assert len(list((tmp_path / "out" / "features").iterdir())) == 3  # random weights differ by seed, not by fold
