"""`patchreorder predict`."""

import re

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from patchreorder import create_model
from patchreorder.__main__ import main
from patchreorder.models import saved

CLASSES = ["apple", "key", "leaf"]


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return create_model("alexnet", dataset="imagenet", variant="torchvision", width=8, classes=3).eval()


@pytest.fixture(scope="module")
def classifier(network, tmp_path_factory):
    """A classifier that nobody trained, in a file."""
    path = tmp_path_factory.mktemp("classifier") / "classifier.safetensors"
    options = {"variant": "torchvision", "width": 8}
    saved.save(path, network, name="alexnet", options=options, classes=CLASSES)
    return path


def write_image(path, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (256, 256, 3), np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


def test_the_most_probable_classes_are_printed(network, classifier, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    files = [tmp_path / "a.png", tmp_path / "b.png"]
    pixels = np.stack([write_image(file, seed) for seed, file in enumerate(files)])
    assert main(["predict", str(classifier), *map(str, files), "--top", "2"]) == 0
    lines = [re.split(r"\s*[│┃]\s*", line)[1:-1] for line in capsys.readouterr().out.splitlines() if "%" in line]
    images = torch.from_numpy(pixels[:, 16:240, 16:240]).permute(0, 3, 1, 2) / 255  # the central 224 x 224
    with torch.inference_mode():
        best = network(images).softmax(1).topk(2)
    assert [line[0] for line in lines] == [str(files[0]), "", str(files[1]), ""]
    assert [line[1] for line in lines] == [CLASSES[index] for index in best.indices.flatten()]
    assert [float(line[2].rstrip("%")) for line in lines] == pytest.approx(
        (100 * best.values).flatten().tolist(), abs=0.06
    )


def test_other_images_are_classified_if_one_is_damaged(classifier, tmp_path, capsys):
    good, bad = tmp_path / "good.png", tmp_path / "bad.png"
    write_image(good)
    bad.write_bytes(b"no image")
    assert main(["predict", str(classifier), str(bad), str(good)]) == 2
    out, err = capsys.readouterr()
    assert all(name in out for name in CLASSES)
    assert "bad.png" in err


@pytest.mark.parametrize("kind", ["cut", "other", "missing"])
def test_a_file_that_is_no_classifier_is_named(classifier, tmp_path, capsys, kind):
    file = tmp_path / "c.safetensors"
    if kind == "cut":
        file.write_bytes(classifier.read_bytes()[:-50])
    elif kind == "other":
        save_file({"weight": torch.zeros(3)}, file)
    write_image(tmp_path / "x.png")
    assert main(["predict", str(file), str(tmp_path / "x.png")]) == 2
    assert "c.safetensors" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "reason"), [(["x.png", "--top", "0"], "top (0) must be 1 or more"), ([], "name one image or more")]
)
def test_bad_options_are_named(classifier, capsys, options, reason):
    assert main(["predict", str(classifier), *options]) == 2
    assert reason in capsys.readouterr().err
