"""Folds of photographs that look unlike: known series stay together, and every image is in one fold."""

import numpy as np
import pytest
import torch
from PIL import Image

from patchreorder import recipes
from patchreorder.data.photos import Photos
from patchreorder.data.series import cluster, colour_histogram, folds
from patchreorder.engine.distributed import World
from patchreorder.engine.progress import Screen
from patchreorder.laboratory import photographs
from patchreorder.laboratory import recipe as spec
from patchreorder.laboratory.recipe import Means
from patchreorder.models import alexnet

SERIES = (0, 0, 1, 2, 1, 0, 2, 2, 1, 0, 1, 2)  # of image 0, 1, ...


@pytest.fixture
def root(tmp_path):
    """Two classes of three series each, in mixed order; images of a series differ by little."""
    noise = np.random.default_rng(0)
    for part in ("train", "val"):
        for label in ("apple", "milk"):
            (tmp_path / part / label).mkdir(parents=True)
            for number in range(12):
                light = np.full((48, 64, 3), 40 + 80 * SERIES[number]) + noise.integers(0, 9, (48, 64, 3))
                Image.fromarray(light.astype(np.uint8)).save(tmp_path / part / label / f"{number:02d}.png")
    return tmp_path


def test_colour_histogram_known_answer():
    image = Image.fromarray(np.array([[[255, 0, 0]] * 3 + [[0, 0, 64]]] * 4, dtype=np.uint8))
    counted = colour_histogram(image)
    assert counted[3 * 16] ** 2 == pytest.approx(0.75)
    assert counted[1] ** 2 == pytest.approx(0.25)
    assert (counted**2).sum() == pytest.approx(1)


def test_series_stay_together(root):
    images = Photos.open(root, "train", view="Ori")
    part = folds(images)
    series = torch.tensor([SERIES[int(name[-6:-4])] for name in images.names])
    for label in (0, 1):
        own = images.labels == label
        assert sorted(part[own].bincount().tolist()) == [4, 4, 4]
        assert all(len(part[own & (series == each)].unique()) == 1 for each in range(3))


@pytest.mark.parametrize("size", [0, 1, 2, 3, 10, 31])
@pytest.mark.parametrize("count", [2, 3])
def test_folds_are_about_equally_large(size, count):
    points = np.random.default_rng(size).random((size, 4))
    part = cluster(points, count=count)
    assert part.shape == (size,)
    assert set(part.tolist()) <= set(range(count))
    assert np.bincount(part, minlength=count).max(initial=0) <= 2 * -(-size // count)
    if size >= count:
        assert len(set(part.tolist())) == count


def test_one_fold_is_an_error():
    with pytest.raises(ValueError, match=r"count \(1\) must be 2 or more"):
        folds(None, count=1)


def test_each_seed_holds_out_another_part_and_what_is_kept_serves_all(root, tmp_path):
    recipe = recipes.load("table2_grocery")
    which = {"setting": "smoke", "rows": ["cnn"], "columns": ["Ori"], "split": "series", "seeds": [0, 1, 2]}
    jobs = spec.jobs(
        recipe,
        out=tmp_path / "out",
        data=root,
        world=World(),
        screen=Screen(),
        tensorboard=False,
        means=Means(),
        which=which,
    )
    held_out = []
    for job in jobs:
        fit, tested = photographs.training_photos(job), photographs.test_photos(job)
        assert not set(fit.names) & set(tested.names)
        assert fit.source.root == tested.source.root == root / "train"
        held_out += tested.names
        kept = photographs.Features.of(job, tested, copies=1)
        front = alexnet.split(photographs.network(job))[0].eval()
        with torch.inference_mode():
            for index in range(len(tested)):
                images, label = tested.batch(torch.tensor([index]))
                torch.testing.assert_close(kept.values[0, index], front(images / 255)[0], rtol=1e-4, atol=1e-4)
                assert kept.labels[index] == label
    assert len(held_out) == len(set(held_out)) > 0
    assert len(list((tmp_path / "out" / "features").iterdir())) == 3  # generated weights differ by seed; parts do not


def test_a_recipe_without_series_says_so():
    with pytest.raises(ValueError, match=r"split \('series'\) must be test or validation for table1"):
        list(spec.cells(recipes.load("table1"), split="series"))
