"""Digits: drawings rendered as MNIST's are, and MNIST itself."""

import json

import numpy as np
import pytest

from patchreorder.data import datasets
from patchreorder.data.generated import generate_digits
from patchreorder.playground.digits import SAMPLES, Mnist, render

from .images import from_base64


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_a_drawing_of_any_size_is_rendered_as_large_as_mnists_digits(scale):
    strokes = json.loads(SAMPLES.read_text())[4]["strokes"]
    lines = tuple(tuple(round(100 + scale * value) for value in stroke) for stroke in strokes)
    image = render(lines).pixels
    rows, columns = (np.flatnonzero(image.max(axis)) for axis in (1, 0))
    assert max(len(rows), len(columns)) in (20, 21)
    ink = image.astype(float) / image.sum()
    centre = [(ink.sum(1 - axis) * (np.arange(28) + 0.5)).sum() for axis in (0, 1)]
    assert centre == pytest.approx([14, 14], abs=0.3)


def test_a_single_point_is_a_dot():
    image = render(((500, 500),)).pixels
    assert 4 <= np.count_nonzero(image) <= 16
    assert image[14, 14] == 255


def test_absent_mnist_says_what_to_do(client, no_mnist):
    assert "--fetch" in no_mnist.reason
    answer = client.post("/api/answer", json={"digit": {"mnist": 3}})
    assert (answer.status_code, answer.json()["error"]) == (422, no_mnist.reason)
    assert client.get("/api/mnist").status_code == 422
    assert client.get("/api/about").json()["mnist"] == no_mnist.reason
    with pytest.raises(ValueError, match="does not hold the files of mnist"):
        Mnist(folder=SAMPLES.parent)  # a named folder must hold it


def test_a_choice_has_one_digit_of_each_class_and_changes_with_the_seed(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets, "mnist", lambda *args, **settings: generate_digits("mnist", count=200))
    mnist = Mnist(folder=tmp_path)
    first, second = mnist.choice(0), mnist.choice(1)
    assert [each["label"] for each in first] == list(range(10))
    assert [each["index"] for each in first] != [each["index"] for each in second]
    digit = mnist.digit(first[7]["index"])
    assert digit.label == 7
    assert np.array_equal(from_base64(first[7]["pixels"]).reshape(28, 28), digit.pixels)
