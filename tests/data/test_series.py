"""Folds of photographs that look unlike: known series stay together, and every image is in one fold."""

import numpy as np
import pytest
import torch
from PIL import Image

from patchreorder.data.photos import Photos
from patchreorder.data.series import cluster, colour_histogram, folds

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
