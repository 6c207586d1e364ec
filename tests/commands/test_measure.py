"""`patchreorder measure`: its files, its output, its errors."""

import json
from pathlib import Path

import pytest

from patchreorder.__main__ import main
from patchreorder.data.generated import generate_digits
from patchreorder.measuring import image_set

pytestmark = pytest.mark.usefixtures("one_thread")


def run(*args: str) -> dict:
    assert main(["measure", *args, "--workers", "0", "--out", "out"]) == 0
    return json.loads(Path("out/measure.json").read_text())


@pytest.fixture
def digits(tmp_path, monkeypatch):
    """Generated digits in place of MNIST, in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(image_set.datasets, "mnist", lambda name, **options: generate_digits(name, count=20))


def test_class_folders(module, class_folders, capsys):
    (class_folders / "dog & co" / "broken.png").write_bytes(b"no image")
    document = run(f"{module}:build", "--images", "images", "--size", "32", "--axes", "x")
    assert (document["n"], document["labelled"], document["seed"]) == (12, True, 0)
    assert document["models"][0]["forwards"] == 12 * 22
    assert {"commit", "machine", "versions", "finished"} <= document["origin"].keys()
    measures = {(row["measure"], row["layer"]) for row in document["rows"]}
    assert {("error", ""), ("consistency", ""), ("invariance", "1"), ("similarity", "image")} <= measures
    unposed = next(row for row in document["rows"] if row["measure"] == "error" and row["pose"] == "as it is")
    assert unposed["value"] == pytest.approx(100 * len(unposed["indices"]) / 12)
    page = Path("out/measure.html").read_text()
    assert "<script>" not in page
    assert "<b>cat" not in page
    assert "broken.png cannot be read" in page
    assert 'src="http' not in page
    output = capsys.readouterr().out
    assert "1 image is left out: " in output
    assert "as it is" in output
    assert f"{module}:build is wrong about" in output
    assert "Page: out/measure.html" in output


def test_no_labels(module, class_folders):
    document = run(f"{module}:grey", "--images", "images", "--size", "32", "--no-labels", "--transforms", "rotate")
    assert not document["labelled"]
    kinds = {"agreement", "commonest answer", "consistency", "invariance", "similarity", "different"}
    kinds |= {"mean change", "worst change", "equivariance", "unmoved maps", "derivative", "module derivative"}
    assert {row["measure"] for row in document["rows"]} == kinds
    assert list(document["transforms"]) == ["rotate"]
    page = Path("out/measure.html").read_text()
    assert "without labels" in page
    assert "wrong predictions" not in page
    assert any("changes its prediction for" in sentence for sentence in document["summary"])


def test_compare(digits, capsys):
    document = run("pr_cnn", "cnn", "cnn", "--images", "mnist", "--axes", "x", "--measures", "similarity,order")
    assert [model["name"] for model in document["models"]] == [
        "pr_cnn",
        "cnn (trained on mnist-r)",
        "cnn (trained on mnist-r), 2",
    ]
    assert [pair["where"] for pair in document["pairs"]] == ["as it is", "rotate", "translate"] * 2
    assert {pair["names"][0] for pair in document["pairs"]} == {"pr_cnn"}
    kinds = {"error", "agreement", "commonest answer", "consistency", "similarity", "different", "order"}
    kinds |= {"mean error", "mean change", "worst error", "worst change"}
    assert {row["measure"] for row in document["rows"]} == kinds
    page = Path("out/measure.html").read_text()
    for text in ("Two networks, image by image", "before reorder", "Order of the patches", "Least stable images"):
        assert text in page
    printed = capsys.readouterr().out
    assert "pr_cnn" in printed
    assert "`--transforms all` adds rotate360, flip, scale, crops, combine." in printed
    assert "compares this network" not in printed


@pytest.mark.parametrize("form", ["json", "csv"])
def test_standard_output_holds_the_numbers_alone(digits, capsys, form):
    written = run("cnn", "--images", "mnist", "--transforms", "rotate", "--measures", "similarity", f"--{form}")
    out, messages = capsys.readouterr()
    if form == "json":
        assert json.loads(out) == written
    else:
        assert len(out.splitlines()) == 1 + len(written["rows"])
    assert "Next: open the page" in messages


def test_one_answer_to_all_images_is_said_first(module, class_folders, capsys):
    document = run(f"{module}:grey", "--images", "images", "--size", "32", "--no-labels")
    answers = next(row for row in document["rows"] if row["measure"] == "commonest answer")
    assert (answers["value"] == 100) == any("gives one answer to 100.0 %" in text for text in document["summary"])
    assert document["summary"][0].startswith("Only ")
    assert capsys.readouterr().out.startswith("Only ")


def test_all_transforms_on_a_padded_canvas(module, class_folders, capsys):
    arguments = ["--images", "images", "--size", "32", "--transforms", "all", "--padded", "--measures", "similarity"]
    document = run(f"{module}:build", f"{module}:grey", *arguments)
    assert list(document["transforms"]) == ["rotate", "rotate360", "translate", "flip", "scale", "crops", "combine"]
    poses = {name: tuple(pose) for name, pose in document["poses"].items()}
    assert len(set(poses.values())) == len(poses) == document["models"][0]["forwards"] / 12
    assert 0.3 < document["side"] < 0.5
    for row in document["rows"]:
        if row["measure"].startswith("worst"):
            (mean,) = (
                other
                for other in document["rows"]
                if other["measure"] == row["measure"].replace("worst", "mean")
                and (other["model"], other["transform"]) == (row["model"], row["transform"])
            )
            assert mean["value"] <= row["value"] == pytest.approx(100 * len(row["indices"]) / 12)
            assert row["low"] <= row["value"] <= row["high"]
    printed = capsys.readouterr().out
    assert "combine: worst of 16" in printed
    assert "Next: open the page in a browser.\n" in printed  # nothing is left to propose
    assert "shrunk to" in Path("out/measure.html").read_text()


def test_a_layer_for_one_network_of_two(module, class_folders):
    arguments = ["--images", "images", "--size", "32", "--transforms", "flip", "--measures", "similarity"]
    document = run(f"{module}:build", f"{module}:build", *arguments, "--layer", "-", "align", "--place", "-", "0")
    assert [model["name"] for model in document["models"]] == [f"{module}:build", f"{module}:build (align at 0)"]


def test_the_order_alone(digits, capsys):
    document = run("pr_cnn", "--images", "mnist", "--transforms", "rotate", "--measures", "order")
    changed = [row["value"] for row in document["rows"] if row["measure"] == "order"]
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("reorder "))
    assert f"{sum(changed) / len(changed):.1f}" in line


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["cnn", "--images", "none"], "images (none) must be a folder of images, or one of mnist"),
        (["cnn", "--images", "images", "--transforms", "mirror"], "transforms (mirror) must be one or more of rotate,"),
        (["cnn", "--images", "images", "--axes", "z"], "axes (z) must be one or more of x, y, diagonal"),
        (["cnn", "--images", "images", "--count", "-1"], "count (-1) must be 0 or more"),
        (
            ["cnn", "--images", "images", "--size", "32"],
            "size (32) is for networks that do not say theirs, but cnn takes 28",
        ),
        (["cnn", "--images", "images"], "has 10 outputs, but the labels have 2 classes"),
        (["cnn", "--images", "images", "--no-labels", "--layers", "x"], "layer ('x') is not a layer of the network"),
        (["MODULE:build", "--images", "images"], "cannot take images of 3x224x224"),
        (["cnn", "--images", "mnist", "--measures", "order"], "measures (order) needs a reordering layer, and cnn has"),
        (["cnn", "fcn", "--images", "images", "--weights", "w.pt"], "weights (w.pt) must have one value for each of 2"),
        (["--images", "images"], "model (none): name one network or more"),
    ],
)
def test_errors(module, class_folders, capsys, args, message):
    arguments = ["measure", *(arg.replace("MODULE", module) for arg in args), "--workers", "0"]
    assert main(arguments) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not Path("runs").exists()


def test_strict(module, class_folders, capsys):
    (class_folders / "dog & co" / "broken.png").write_bytes(b"no image")
    assert main(["measure", f"{module}:build", "--images", "images", "--strict", "--workers", "0"]) == 2
    assert "broken.png cannot be read" in capsys.readouterr().err
