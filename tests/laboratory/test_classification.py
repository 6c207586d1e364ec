"""The task of classifiers: trained networks, their errors, and pictures of them."""

import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image

from patchreorder import recipes
from patchreorder.data.datasets import MNIST_VARIANTS, Digits
from patchreorder.data.generated import generate_digits
from patchreorder.engine import checkpoint
from patchreorder.engine.options import Training
from patchreorder.engine.predict import predict
from patchreorder.laboratory import classification
from patchreorder.laboratory.rows import read as read_rows
from patchreorder.laboratory.run import run
from patchreorder.metrics.accuracy import mistakes
from patchreorder.models import create_model

pytestmark = pytest.mark.usefixtures("one_thread")

TABLE1 = recipes.load("table1")


def test_a_row_may_begin_with_the_weights_of_another(tmp_path):
    """ST-CNN is fine-tuned: at a rate of next to nothing it is the CNN."""
    recipe = recipes.load("table2_cifar10")
    smoke = recipe.settings["smoke"]

    def plan(row, column):
        usual = smoke.plan(row, column)
        tiny = dataclasses.replace(usual.training, lr=1e-9)
        return usual if row == "cnn" else dataclasses.replace(usual, training=tiny, start="cnn")

    started = dataclasses.replace(recipe, settings={"smoke": dataclasses.replace(smoke, plan=plan)})
    options = {"setting": "smoke", "columns": ["Ori"]}
    with pytest.raises(
        ValueError, match=r"ST-CNN, seed 0, begins with the weights of the row cnn: measure that row first"
    ):
        run(started, out=tmp_path, rows=["st_cnn"], **options)
    run(started, out=tmp_path, rows=["cnn", "st_cnn"], **options)
    (first,), (second,) = (list((tmp_path / "cells").glob(f"{row}.*/weights.safetensors")) for row in ("cnn", "st_cnn"))
    before, after = checkpoint.read(first)[0], checkpoint.read(second)[0]
    assert set(before) < set(after)
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=0, atol=1e-6)


def test_the_weights_and_the_mistakes_of_a_cell_belong_together(tmp_path):
    run(TABLE1, out=tmp_path, setting="smoke", rows=["pr_cnn"], columns=["T"])
    (row,) = read_rows(tmp_path / "table1.jsonl").results
    tensors, state = checkpoint.read(tmp_path / "cells" / row.cell.folder / "weights.safetensors")
    assert tuple(state["cell"]) == row.cell
    assert (state["model"], state["options"]) == ("pr_cnn", {})
    model = create_model("pr_cnn", dataset="mnist-t")
    model.load_state_dict(tensors)
    test_set = generate_digits("mnist-t", count=20)
    logits, labels = predict(model, test_set)
    wrong, answers = mistakes(logits, labels)
    assert (wrong.tolist(), answers.tolist()) == (row.errors, row.answers)
    shown = row.details["mistakes"]
    assert [(m["index"], m["answer"]) for m in shown] == list(zip(row.errors, row.answers, strict=True))[:16]
    assert [m["label"] for m in shown] == labels[wrong[:16]].tolist()
    with Image.open(tmp_path / "pictures" / f"{row.cell.folder}.png") as picture:
        strip = np.asarray(picture)
    assert strip.shape == (42, 42 * len(shown))
    for place, m in enumerate(shown):
        image = test_set.batch(torch.tensor([m["index"]]))[0][0, 0]
        assert np.abs(strip[:, 42 * place : 42 * (place + 1)] - image.numpy() * 255).max() <= 0.5


def test_a_network_is_tested_in_the_middle_of_its_training_and_trained_as_without(tmp_path):
    smoke = TABLE1.settings["smoke"]

    def row(out: str, steps: int, tested_at: tuple[int, ...]):
        training = Training(steps=steps, batch=8, schedule="step")
        plan = dataclasses.replace(smoke.plan("cnn", "R"), training=training, tested_at=tested_at)
        setting = dataclasses.replace(smoke, plan=lambda row, column: plan)
        recipe = dataclasses.replace(TABLE1, settings={"smoke": setting})
        run(recipe, out=tmp_path / out, setting="smoke", rows=["cnn"], columns=["R"])
        return read_rows(tmp_path / out / "table1.jsonl").results[0]

    whole, without, begun = row("whole", 30, (10, 20, 30)), row("without", 30, ()), row("begun", 10, ())
    assert whole.errors == without.errors
    assert "error by step" not in without.curves
    curve = dict(whole.curves["error by step"])
    assert list(curve) == [10, 20, 30]
    assert (curve[10], curve[30]) == (begun.value, whole.value)


def some_digits(variant: str, count: int = 3) -> Digits:
    return Digits(torch.randint(0, 256, (count, 1, 28, 28), dtype=torch.uint8), torch.arange(count), variant)


@pytest.mark.parametrize("variant", ["mnist", "mnist-t"])
def test_tiles_are_the_images_in_their_order(tmp_path, variant):
    digits, size = some_digits(variant, 5), MNIST_VARIANTS[variant].size
    classification._write_tiles(tmp_path / "pictures" / "tiles.png", digits, torch.tensor([3, 0, 4]))
    with Image.open(tmp_path / "pictures" / "tiles.png") as picture:
        assert picture.format == "PNG"
        strip = np.asarray(picture)
    assert strip.dtype == np.uint8
    assert strip.shape == (size, 3 * size)
    for place, index in enumerate((3, 0, 4)):
        tile = strip[:, place * size : (place + 1) * size]
        assert np.array_equal(tile, digits.batch(torch.tensor([index]))[0][0, 0].mul(255).round().numpy())
        assert sorted(tile[tile > 0]) == sorted(digits.images[index][digits.images[index] > 0])
    assert [file.name for file in (tmp_path / "pictures").iterdir()] == ["tiles.png"]


def test_without_mistakes_there_is_no_picture(tmp_path):
    classification._write_tiles(tmp_path / "tiles.png", some_digits("mnist"), torch.tensor([], dtype=torch.long))
    assert list(tmp_path.iterdir()) == []


def test_a_loss_that_is_not_finite_names_its_cell(tmp_path):
    with pytest.raises(ValueError, match=r"^FCN, R, seed 0: .* not finite"):
        run(TABLE1, out=tmp_path, setting="smoke", rows=["fcn"], change={"lr": 1e30, "steps": 20, "nesterov": False})
    assert not (tmp_path / "table1.jsonl").exists()
