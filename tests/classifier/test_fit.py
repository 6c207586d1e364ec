"""`patchreorder fit`: from class folders to a classifier, a comparison and an answer."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import patchreorder
from patchreorder.__main__ import main
from patchreorder.classifier import fit
from patchreorder.data import photos
from patchreorder.data.generated import write_photos
from patchreorder.data.photos import Photos
from patchreorder.engine import memory
from patchreorder.engine.predict import predict
from patchreorder.laboratory.features import own_trunk
from patchreorder.laboratory.recipe import Row
from patchreorder.metrics.accuracy import mistakes
from patchreorder.models import create_model

CLASSES = 3


@pytest.fixture(autouse=True)
def _as_if_new(monkeypatch):
    """One thread, and none of the command's memory settings."""
    monkeypatch.setattr(memory, "keep_freed_memory", lambda: None)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    """Convolutions nobody trained, named like torchvision's."""
    torch.manual_seed(0)
    model = create_model("alexnet", variant="torchvision", width=1, classes=1)
    file = tmp_path_factory.mktemp("weights") / "alexnet.safetensors"
    save_file({name: value for name, value in model.state_dict().items() if name.startswith("features")}, file)
    return file


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("parts")
    write_photos(root / "train", classes=CLASSES, images=4, seed=0)
    write_photos(root / "val", classes=CLASSES, images=2, seed=1)
    return root


def arguments(data: Path, weights: Path, out: Path, **options: object) -> list[str]:
    values = {"width": 8, "epochs": 3, "seeds": 2, "workers": 0, "lr": 0.01} | options
    given = [text for name, value in values.items() for text in (f"--{name}", str(value))]
    return ["fit", "--data", str(data), "--weights", str(weights), "--out", str(out), *given]


@pytest.fixture(scope="module")
def fitted(data, weights, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("fit") / "out"
    assert main(arguments(data, weights, out)) == 0
    return out


def rows(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "fit.jsonl").read_text().splitlines()]


def test_both_networks_are_measured_on_all_three(fitted):
    found = rows(fitted)
    assert {(row["row"], row["column"], row["seed"]) for row in found} == {
        (row, column, seed) for row in ("plain", "reordered") for column in ("Ori", "R", "T") for seed in (0, 1)
    }
    assert all(row["n"] == 2 * CLASSES and row["metric"] == "accuracy %" for row in found)
    page = (fitted / "report.html").read_text()
    assert "AlexNet, reordered" in page
    assert {row["parameters"] for row in found} == {
        sum(p.numel() for p in create_model("alexnet", variant="torchvision", width=8, classes=CLASSES).parameters())
    }


def test_the_classifier_answers_as_it_was_measured(fitted, data):
    """Whole, on images, it makes the mistakes that were counted on kept features."""
    model, classes = patchreorder.load_classifier(fitted / "classifier.safetensors")
    assert classes == [f"class-{label:04d}" for label in range(CLASSES)]
    assert sum(isinstance(module, patchreorder.RankedPool) for module in model.modules()) == 5
    for view in ("Ori", "R", "T"):
        wrong, answers = mistakes(*predict(model, Photos.open(data, "val", view=view)))
        (row,) = (r for r in rows(fitted) if (r["row"], r["column"], r["seed"]) == ("reordered", view, 0))
        assert (wrong.tolist(), answers.tolist()) == (row["errors"], row["answers"])


def test_a_second_run_measures_nothing_again(fitted, data, weights, capsys, monkeypatch):
    before = (fitted / "fit.jsonl").read_bytes()
    monkeypatch.setattr(Photos, "batch", lambda *args, **options: pytest.fail("an image was decoded"))
    assert main(arguments(data, weights, fitted)) == 0
    assert (fitted / "fit.jsonl").read_bytes() == before
    assert "patchreorder predict" in capsys.readouterr().out


def test_kept_features_are_used_and_damaged_ones_made_again(data, weights, tmp_path, monkeypatch):
    assert main(arguments(data, weights, tmp_path, seeds=1)) == 0
    first = rows(tmp_path)
    files = sorted((tmp_path / "features").glob("*/*.safetensors"))
    assert len(files) == 8  # two networks; images to train on, and three views of those to test on
    sizes = [file.stat().st_size for file in files]
    files[0].write_bytes(files[0].read_bytes()[:-100])
    files[1].write_bytes(files[1].read_bytes()[:200])
    decoded = []
    real = photos.decode
    monkeypatch.setattr(
        photos, "decode", lambda *args, **options: decoded.append(options["name"]) or real(*args, **options)
    )
    (tmp_path / "fit.jsonl").unlink()
    assert main(arguments(data, weights, tmp_path, seeds=1)) == 0
    again = rows(tmp_path)
    assert [(r["row"], r["column"], r["errors"]) for r in again] == [
        (r["row"], r["column"], r["errors"]) for r in first
    ]
    checked = (4 + 2) * CLASSES
    assert checked < len(decoded) < checked + 8 * 4 * CLASSES  # beside the check, the images of two files
    assert [file.stat().st_size for file in files] == sizes


def test_pictures_that_cannot_be_read_are_named_and_left_out(tmp_path, weights, capsys):
    data = tmp_path / "data"
    write_photos(data, classes=2, images=6, seed=0)
    broken = sorted(data.rglob("*.jpg"))[:2]
    broken[0].write_bytes(broken[0].read_bytes()[:300])
    broken[1].write_bytes(b"")
    assert main(arguments(data, weights, tmp_path / "out", seeds=1)) == 0
    said = capsys.readouterr().out
    assert all(re.search(rf"left out: .*{path.name}", said) for path in broken)
    counts = {(row["details"]["training images"], row["n"]) for row in rows(tmp_path / "out")}
    assert len(counts) == 1
    assert sum(counts.pop()) == 10


def test_a_class_of_which_nothing_can_be_read_is_an_error(tmp_path, weights, data, capsys):
    for part, images in (("train", 2), ("val", 1)):
        write_photos(tmp_path / "data" / part, classes=2, images=images, seed=0)
    for path in (tmp_path / "data" / "train" / "class-0001").iterdir():
        path.write_bytes(b"")
    assert main(arguments(tmp_path / "data", weights, tmp_path / "out")) == 2
    assert "no image of the class class-0001 can be read" in capsys.readouterr().err


def test_classes_without_a_test_picture_and_other_files_are_told(tmp_path, weights, capsys):
    data = tmp_path / "data"
    write_photos(data / "train", classes=3, images=4, seed=0)
    write_photos(data / "val", classes=3, images=2, seed=1)
    for path in (data / "val" / "class-0001").iterdir():
        path.unlink()
    (data / "train" / "class-0000" / "notes.txt").write_text("no picture")
    assert main(arguments(data, weights, tmp_path / "out", seeds=1)) == 0
    said = capsys.readouterr().out
    assert "1 classes have no test image: 'class-0001'" in said
    assert re.search(r"1 files are not images and are left out: '.*notes.txt'", said)
    found = rows(tmp_path / "out")
    assert {row["n"] for row in found} == {4}
    _, classes = patchreorder.load_classifier(tmp_path / "out" / "classifier.safetensors")
    assert len(classes) == 3  # labels stay train's: class 2 is not taken for class 1
    answers = mistakes(
        *predict(
            patchreorder.load_classifier(tmp_path / "out" / "classifier.safetensors")[0],
            Photos.open(data, "val", view="Ori"),
        )
    )[0]
    (row,) = (r for r in found if (r["row"], r["column"]) == ("reordered", "Ori"))
    assert answers.tolist() == row["errors"]
    assert set(Photos.open(data, "val", view="Ori").labels.tolist()) == {0, 2}


@pytest.mark.parametrize("reorder", ["pool5:ranked:quantiles=4", "input:align", "pool5:reorder:grid=pixels"])
def test_other_layers_of_the_family(reorder, data, weights, tmp_path):
    """Their classifier answers as it was measured on kept features."""
    assert main(arguments(data, weights, tmp_path, seeds=1, reorder=reorder)) == 0
    model, _ = patchreorder.load_classifier(tmp_path / "classifier.safetensors")
    layer = reorder.partition(":")[2]
    kind = type(patchreorder.create_layer(layer))
    assert sum(isinstance(module, kind) for module in model.modules()) == 1
    for view in ("Ori", "R", "T"):
        wrong, answers = mistakes(*predict(model, Photos.open(data, "val", view=view)))
        (row,) = (r for r in rows(tmp_path) if (r["row"], r["column"]) == ("reordered", view))
        assert (wrong.tolist(), answers.tolist()) == (row["errors"], row["answers"])
        assert row["details"]["options"].items() >= fit.reordering(reorder).items()
        assert row["parameters"] == sum(parameter.numel() for parameter in model.parameters())


def test_only_layers_behind_the_last_convolution_share_its_maps():
    def trunk(**options):
        return own_trunk(Row("a", "a", "a", "alexnet_pr", options=options))

    assert trunk() == trunk(place="pool5") == trunk(place="conv5", grid=2) == ""
    assert "" != trunk(place="conv4") != trunk(place="conv3") != trunk(place="input")


def test_the_layer_at_the_input_has_maps_of_its_own(data, weights, tmp_path):
    """Rows that share the fifth convolution's answer share it no longer where a layer stands before it."""
    assert main(arguments(data, weights, tmp_path, seeds=1, reorder="input:align")) == 0
    files = [load_file(file)["features"] for file in sorted((tmp_path / "features").glob("*/*.safetensors"))]
    assert len({tuple(file.flatten()[:200].tolist()) for file in files}) == 8


def test_other_photographs_are_other_cells(tmp_path, weights, data):
    """The same output folder never takes the rows of one folder for those of another."""
    assert main(arguments(data, weights, tmp_path, seeds=1)) == 0
    other = tmp_path / "other"
    write_photos(other, classes=2, images=8, seed=3)
    assert main(arguments(other, weights, tmp_path, seeds=1)) == 0
    assert len({(row["row"], row["column"], row["settings"]) for row in rows(tmp_path)}) == 12


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("pool5:grid=pixels", {"place": "pool5", "grid": "pixels", "levels": 1}),
        ("pool5", {"place": "pool5", "grid": "pixels", "levels": 1}),
        ("conv5:grid=2,levels=2", {"place": "conv5", "grid": 2, "levels": 2}),
        (
            "conv5:grid=3,energy=l1,per_channel=false,descending=true",
            {"place": "conv5", "grid": 3, "levels": 1, "energy": "l1", "per_channel": False, "descending": True},
        ),
        ("pool5:", {"place": "pool5", "grid": "pixels", "levels": 1}),
        ("pool5:reorder", {"place": "pool5", "grid": "pixels", "levels": 1}),
        ("conv5:reorder:grid=2,levels=2", {"place": "conv5", "grid": 2, "levels": 2}),
        ("pool5:ranked:quantiles=16", {"place": "pool5", "layer": "ranked:quantiles=16"}),
        ("conv5:ranked", {"place": "conv5", "layer": "ranked"}),
        ("conv5:align", {"place": "conv5", "layer": "align"}),
        ("input:align:energy=l1", {"place": "input", "layer": "align:energy=l1"}),
    ],
)
def test_reordering_as_text(text, found):
    assert fit.reordering(text) == found


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"reorder": "conv6:grid=2"}, r"reorder \('conv6:grid=2'\) must begin with one of conv5, pool5"),
        ({"reorder": "pool5:orient"}, r"reorder \('pool5:orient'\): .* needs maps of a group convolution"),
        (
            {"reorder": "pool5:sorted"},
            r"layer \('sorted'\) must begin with one of reorder, ranked, align, pose, orient",
        ),
        ({"reorder": "pool5:ranked:keep=37"}, r"reorder \('pool5:ranked:keep=37'\): .*does not fit pool5: keep \(37\)"),
        ({"reorder": "pool5:ranked:kept=3"}, r"'kept=3' must be one of keep=NUMBER"),
        ({"reorder": "input:ranked"}, r"layer \('ranked'\) at input gives no maps"),
        ({"reorder": "pool5:grid"}, r"'grid' must be one of grid=NUMBER"),
        ({"reorder": "pool5:grids=2"}, r"'grids=2' must be one of"),
        ({"reorder": "pool5:per_channel=1"}, r"'per_channel=1' must be one of"),
        ({"reorder": "pool5:grid=7"}, r"grid \(7\)"),
        ({"model": "resnet"}, r"model \('resnet'\) must be one of alexnet"),
        ({"width": 0}, r"width \(0\) must be more than 0"),
        ({"seeds": 0}, r"seeds \(0\) must be more than 0"),
        ({"epochs": -1}, r"epochs \(-1.0\) must be more than 0"),
        ({"workers": -1}, r"workers \(-1\) must be 0"),
        ({"threads": -1}, r"threads \(-1\) must be 0"),
        ({"lr": 0}, r"lr \(0.0\) must be more than 0"),
    ],
    ids=str,
)
def test_bad_options_are_named_before_anything_is_done(data, weights, tmp_path, capsys, options, says):
    assert main(arguments(data, weights, tmp_path / "out", **options)) == 2
    assert re.search(says, capsys.readouterr().err)
    assert not list(tmp_path.rglob("*.jsonl"))


def test_weights_of_something_else_are_refused(data, tmp_path, capsys):
    save_file({"other": torch.zeros(2)}, tmp_path / "w.safetensors")
    assert main(arguments(data, tmp_path / "w.safetensors", tmp_path / "out")) == 2
    assert "features.0" in capsys.readouterr().err


def test_a_folder_that_is_none_is_named(tmp_path, weights, capsys):
    assert main(arguments(tmp_path / "nowhere", weights, tmp_path / "out")) == 2
    assert re.search(r"data \(.*nowhere\) must be a folder with train/CLASS", capsys.readouterr().err)
