"""The tasks of MNIST and CIFAR-10: what is trained on and tested on, and curves over poses."""

import dataclasses
import hashlib
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from patchreorder import recipes
from patchreorder.data import datasets, formats, sources
from patchreorder.data.datasets import MNIST_VARIANTS, Digits
from patchreorder.engine.options import Training
from patchreorder.laboratory import classification
from patchreorder.laboratory.cells import jobs
from patchreorder.laboratory.recipe import Plan, Setting
from patchreorder.laboratory.rows import Result
from patchreorder.laboratory.rows import read as read_rows
from patchreorder.laboratory.run import run
from patchreorder.laboratory.small_images import DigitTask

pytestmark = pytest.mark.usefixtures("one_thread")

TABLE1 = recipes.load("table1")


@pytest.fixture
def tiny_mnist(tmp_path, monkeypatch) -> Path:
    """A folder with 40 training digits, the last 10 of which are held out, and 12 for tests; no two alike."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    files = []
    random = np.random.default_rng(0)
    for part, count in (("train", 40), ("t10k", 12)):
        images = random.integers(0, 256, (count, 28, 28), np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        for name, content in (
            (f"{part}-images-idx3-ubyte", struct.pack(">4I", 0x0803, count, 28, 28) + images.tobytes()),
            (f"{part}-labels-idx1-ubyte", struct.pack(">2I", 0x0801, count) + labels.tobytes()),
        ):
            (folder / name).write_bytes(content)
            files.append(sources.File(name, len(content), hashlib.sha256(content).hexdigest()))
    monkeypatch.setattr(sources, "MNIST", sources.Source("mnist", tuple(files), ()))
    monkeypatch.setattr(datasets, "HELD_OUT", 10)
    return folder


class Seen(NamedTuple):
    training: Digits
    test: Digits
    row: Result


def seen(monkeypatch, out: Path, data: Path, **options) -> dict[tuple[str, str, int], Seen]:
    """What each cell was trained and tested on, by row, column and seed; and its row."""
    trained, tested = [], []
    real_train, real_predict = classification.train, classification.predict

    def train(model, data, *args, **keywords):
        trained.append(data)
        return real_train(model, data, *args, **keywords)

    def predict(model, data, **keywords):
        if isinstance(data, Digits):  # not those of the curves
            tested.append(data)
        return real_predict(model, data, **keywords)

    monkeypatch.setattr(classification, "train", train)
    monkeypatch.setattr(classification, "predict", predict)
    plan = Plan(training=Training(steps=2, batch=8), curve_images=4)
    recipe = dataclasses.replace(TABLE1, settings={"tiny": Setting(about="", plan=lambda row, column: plan)})
    outcome = run(recipe, out=out, setting="tiny", data=data, **options)
    found = read_rows(out / "table1.jsonl").results
    assert len(found) == len(outcome.measured) == len(trained) == len(tested)
    return {(r.row, r.column, r.seed): Seen(*sets, r) for *sets, r in zip(trained, tested, found, strict=True)}


@pytest.mark.parametrize("split", ["test", "validation"])
def test_each_split_trains_and_tests_on_its_own_digits(tiny_mnist, tmp_path, monkeypatch, split):
    (found,) = seen(monkeypatch, tmp_path / "out", tiny_mnist, rows=["fcn"], columns=["R"], split=split).values()
    train = torch.from_numpy(formats.read_idx(tiny_mnist / "train-images-idx3-ubyte"))[:, None]
    test = torch.from_numpy(formats.read_idx(tiny_mnist / "t10k-images-idx3-ubyte"))[:, None]
    fit, held_out = (train, test) if split == "test" else (train[:30], train[30:])
    assert torch.equal(found.training.images, fit)
    assert torch.equal(found.test.images, held_out)
    both = [image.numpy().tobytes() for images in (found.training.images, found.test.images) for image in images]
    assert len(set(both)) == len(both)  # no digit is in both
    assert torch.equal(found.test.labels, torch.arange(30, 40) % 10 if split == "validation" else torch.arange(12) % 10)
    assert (found.row.split, found.row.n) == (split, len(held_out))
    assert found.row.details["training images"] == len(fit)
    with Image.open(tmp_path / "out" / "pictures" / f"{found.row.cell.folder}.png") as picture:
        tile = np.asarray(picture)[:, :28]
    worst = found.test.batch(torch.tensor(found.row.errors[:1]))[0][0, 0]
    assert np.abs(tile - worst.numpy() * 255).max() <= 0.5


def test_test_images_are_the_same_for_all_and_training_images_are_not(tiny_mnist, tmp_path, monkeypatch):
    options = {"rows": ["fcn", "cnn"], "columns": ["R", "T"], "seeds": [0, 1]}
    found = seen(monkeypatch, tmp_path / "out", tiny_mnist, **options)
    assert len(found) == 8
    for column in "RT":
        cells = [value for (_, of, _), value in found.items() if of == column]
        first = cells[0].test.batch(torch.arange(12))
        for cell in cells:
            images, labels = cell.test.batch(torch.arange(12))
            assert torch.equal(images, first[0])
            assert torch.equal(labels, first[1])
        # Digits are rotated or shifted anew: for each epoch and each seed, and never as for the test.
        views = {
            (seed, epoch): found["cnn", column, seed].training.batch(torch.arange(12), epoch=epoch)[0]
            for seed in (0, 1)
            for epoch in (0, 1)
        }
        digits = found["cnn", column, 0].training.images
        views["as tested"] = Digits(digits, torch.zeros(40), f"mnist-{column.lower()}").batch(torch.arange(12))[0]
        for key, images in views.items():
            for other, theirs in views.items():
                same = (images == theirs).flatten(1).all(1).float().mean()
                assert same == 1 if key == other else same < 0.3
        for seed in (0, 1):  # but the same for every model
            assert torch.equal(views[seed, 1], found["fcn", column, seed].training.batch(torch.arange(12), epoch=1)[0])


def test_seeds_differ_in_weights_and_order(tiny_mnist, tmp_path, monkeypatch):
    found = seen(monkeypatch, tmp_path / "out", tiny_mnist, rows=["fcn"], columns=["R"], seeds=[0, 1])
    losses = [found["fcn", "R", seed].row.curves["training loss"] for seed in (0, 1)]
    assert losses[0] != losses[1]


def test_a_part_of_the_digits_is_their_beginning(tiny_mnist, tmp_path):
    (job,) = jobs(TABLE1, DigitTask(), out=tmp_path, setting="smoke", rows=["fcn"], columns=["T"], data=tiny_mnist)
    plan = Plan(training=Training(steps=1, batch=8), images=16, tested=5)
    task, job = DigitTask(), dataclasses.replace(job, plan=plan)
    training, test = task.training_set(job), task.test_set(job)
    assert (len(training), len(test)) == (16, 5)
    whole = task.test_set(dataclasses.replace(job, plan=Plan(training=plan.training)))
    assert torch.equal(test.batch(torch.arange(5))[0], whole.batch(torch.arange(5))[0])


@pytest.mark.parametrize("fixed", [True, False])
def test_poses_are_drawn_anew_in_every_epoch_unless_they_are_fixed(tmp_path, fixed):
    (job,) = jobs(TABLE1, DigitTask(), out=tmp_path, setting="smoke", rows=["fcn"], columns=["R"])
    job = dataclasses.replace(job, plan=dataclasses.replace(job.plan, fixed_poses=fixed))
    data, indices = DigitTask().training_set(job), torch.arange(8)
    first, second = (data.batch(indices, epoch=epoch)[0] for epoch in (0, 1))
    assert torch.equal(first, second) == fixed
    assert len(data) == 32


def test_a_run_reads_the_digits_once(tiny_mnist, tmp_path, monkeypatch):
    real, read = formats.read_idx, []
    monkeypatch.setattr(formats, "read_idx", lambda file: read.append(file) or real(file))
    seen(monkeypatch, tmp_path / "out", tiny_mnist, rows=["fcn"], seeds=[0, 1])
    assert len(read) == len(set(read)) == 4


class Sees(nn.Module):
    """Class 0 where this pixel is bright, else class 1."""

    def __init__(self, row: int, column: int) -> None:
        super().__init__()
        self.row, self.column = row, column

    def forward(self, images):
        bright = images[:, 0, self.row, self.column] > 0.5
        return torch.stack([bright, ~bright], dim=1).float()


@pytest.mark.parametrize("variant", ["mnist-r", "mnist-t"])
@pytest.mark.parametrize(
    ("pixel", "angle", "shift"),
    [((4, 13), 0, 0), ((13, 4), None, None), ((14, 4), 90, None), ((13, 23), -90, None), ((4, 16), None, 3)],
)
def test_curves_of_a_model_whose_answers_are_known(tmp_path, variant, pixel, angle, shift):
    """Half of the digits have one bright pixel above the middle and are class 0; the others are black and class 1."""
    images = torch.zeros(4, 1, 28, 28, dtype=torch.uint8)
    images[:2, 0, 4, 13] = 255
    digits = Digits(images, torch.tensor([0, 0, 1, 1]), variant)
    around = (MNIST_VARIANTS[variant].size - 28) // 2
    column = variant[-1].upper()
    (job,) = jobs(TABLE1, DigitTask(), out=tmp_path, setting="smoke", rows=["fcn"], columns=[column])
    curves = DigitTask().curves(job, Sees(pixel[0] + around, pixel[1] + around), digits)
    assert curves.keys() == {"error by angle", "error by shift"}
    assert curves["error by angle"] == [[x, 0.0 if x == angle else 50.0] for x in range(-180, 181, 15)]
    assert curves["error by shift"] == [[x, 0.0 if x == shift else 50.0] for x in range(-7, 8)]
