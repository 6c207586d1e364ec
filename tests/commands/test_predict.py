"""`patchreorder fit`, `predict` and `export` as a user calls them."""

import csv
import io
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from patchreorder import load_classifier
from patchreorder.__main__ import main
from patchreorder.classifier.fit import FitOptions, fit
from tests.classifier.photographs import small_backbone, write_photographs

__all__ = ["small_backbone"]

# The small backbone of the fixture, in another process; its weights are in the file.
SMALL = """
from patchreorder.models import backbones
from tests.classifier.photographs import SMALL_BACKBONE
backbones.BACKBONES["efficientnet_lite0"] = SMALL_BACKBONE
"""


@pytest.fixture
def fitted(tmp_path, small_backbone, capsys):
    pytest.importorskip("jinja2")
    data = write_photographs(tmp_path / "data")
    assert main(["fit", "--data", str(data), "--out", str(tmp_path / "out"), "--workers", "0"]) == 0
    text = capsys.readouterr().out
    return tmp_path, text


def test_fit_leaves_a_classifier_and_a_report(fitted):
    folder, text = fitted
    assert "% of 6 test photographs are right as they are" in text
    assert "classifier.safetensors" in text
    assert {file.name for file in (folder / "out").iterdir()} == {
        "classifier.safetensors", "report.json", "report.html", "features",
    }  # fmt: skip
    assert json.loads((folder / "out" / "report.json").read_text())["test"] == 6


def test_commands_that_are_shown_can_be_copied(tmp_path, small_backbone, capsys):
    pytest.importorskip("jinja2")
    data, out = write_photographs(tmp_path / "my data", count=4), tmp_path / "my out"
    assert main(["fit", "--data", str(data), "--out", str(out), "--workers", "0", "--copies", "1"]) == 0
    assert f"`patchreorder predict '{out}/classifier.safetensors' PATH...`" in capsys.readouterr().out
    report = json.loads((out / "report.json").read_text())
    assert report["command"].startswith(f"patchreorder fit --data '{data}' ")


def test_predict_prints_csv_and_nothing_else(fitted, capsys):
    folder, _ = fitted
    classifier = str(folder / "out" / "classifier.safetensors")
    assert main(["predict", classifier, str(folder / "data" / "red"), "--csv", "--workers", "0"]) == 0
    text = capsys.readouterr().out
    assert "\r" not in text
    rows = list(csv.reader(io.StringIO(text)))
    assert rows[0][:3] == ["path", "class", "probability"]
    assert len(rows) == 13
    assert [row[0] for row in rows[1:]] == [str(folder / "data" / "red" / f"{number:02}.png") for number in range(12)]
    assert {row[1] for row in rows[1:]} <= {"red", ""}
    assert all(0 < float(row[2]) <= 1 for row in rows[1:])


def test_csv_has_odd_names_as_json_strings(fitted):
    """Also those that are no text: a pipe is strict about them in most languages."""
    folder, _ = fitted
    name = os.fsdecode(b"caf\xe9 \x1b[31m.png")
    shutil.copy(folder / "data" / "red" / "00.png", folder / name)
    code = "import sys; from patchreorder.__main__ import main; sys.exit(main(sys.argv[1:]))"
    classifier = folder / "out" / "classifier.safetensors"
    made = subprocess.run(
        [sys.executable, "-c", SMALL + code, "predict", str(classifier), "-", "--csv", "--workers", "0"],
        input=os.fsencode(folder / name) + b"\n",
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
    )
    assert made.returncode == 0, made.stderr.decode()
    (_, row) = csv.reader(made.stdout.decode().splitlines())
    assert (json.loads(row[0]), row[1]) == (str(folder / name), "red")
    assert b"\x1b" not in made.stdout


def test_predict_reads_paths_from_standard_input_and_prints_json(fitted, capsys, monkeypatch):
    folder, _ = fitted
    path = str(folder / "data" / "blue" / "03.png")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{path}\n\n"))
    assert main(["predict", str(folder / "out" / "classifier.safetensors"), "-", "--json", "--views", "4"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    answer = json.loads(line)
    assert (answer["path"], answer["class"]) == (path, "blue")
    assert len(answer["top"]) == 3


def test_a_large_jpeg_has_the_same_answer_in_python(tmp_path, small_backbone, capsys):
    fit(write_photographs(tmp_path / "data", wrong=4), tmp_path, FitOptions(copies=2))
    random = np.random.default_rng(0)
    coarse = Image.fromarray(random.integers(0, 256, (6, 8, 3)).astype(np.uint8)).resize((2000, 1500))
    noisy = np.array(coarse) // 2 + random.integers(0, 128, (1500, 2000, 3))
    Image.fromarray(noisy.astype(np.uint8)).save(tmp_path / "large.jpg")
    classifier = tmp_path / "classifier.safetensors"
    assert main(["predict", str(classifier), str(tmp_path / "large.jpg"), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    own = load_classifier(classifier)(tmp_path / "large.jpg")
    assert own.probability < 0.99
    assert [(each["class"], each["probability"]) for each in answer["top"]] == own.top


def test_bad_files_are_named_and_the_others_answered(fitted, capsys):
    folder, _ = fitted
    bad = folder / "bad.jpg"
    bad.write_bytes(b"no image")
    good = folder / "data" / "green" / "00.png"
    assert main(["predict", str(folder / "out" / "classifier.safetensors"), str(bad), str(good)]) == 2
    out, err = capsys.readouterr()
    assert "green" in out
    assert f"{bad} cannot be read as an image" in err
    assert "1 of 2 files cannot be read" in err


def test_a_list_with_names_that_no_file_has_is_answered_for_the_others(fitted, capsys, monkeypatch):
    folder, _ = fitted
    (folder / "empty").mkdir()
    good = folder / "data" / "green" / "00.png"
    names = [str(folder / "empty"), "n" * 5000, "a\0b.png", str(folder / "missing.png"), str(good)]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(names)))
    assert main(["predict", str(folder / "out" / "classifier.safetensors"), "-", "--csv"]) == 2
    out, err = capsys.readouterr()
    assert out.splitlines()[1].startswith(f"{good},green,")
    assert f"{folder / 'empty'} is a folder without an image" in err
    assert "4 of 5 files cannot be read" in err


@pytest.mark.parametrize(("name", "reason"), [("-", "standard input is closed"), ("", "the name of an image is empty")])
def test_nothing_to_read_is_said(name, reason, fitted, capsys, monkeypatch):
    folder, _ = fitted
    monkeypatch.setattr("sys.stdin", None)
    assert main(["predict", str(folder / "out" / "classifier.safetensors"), name]) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["--top", "0"], "top (0) must be 1 or more"),
        (["--csv", "--json"], "exclude each other"),
        (["--views", "0"], "views (0) must be from 1 to 64"),
    ],
)
def test_options_out_of_range_are_refused(args, reason, fitted, capsys):
    folder, _ = fitted
    image = str(folder / "data" / "red" / "00.png")
    assert main(["predict", str(folder / "out" / "classifier.safetensors"), image, *args]) == 2
    assert reason in capsys.readouterr().err


def test_export_writes_onnx(fitted, capsys):
    pytest.importorskip("onnxscript")
    folder, _ = fitted
    classifier = str(folder / "out" / "classifier.safetensors")
    assert main(["export", classifier, str(folder / "c.onnx")]) == 0
    assert (folder / "c.onnx").stat().st_size > 1000
    assert main(["export", classifier, str(folder / "c.txt")]) == 2
    assert "must end in .onnx" in capsys.readouterr().err


def test_a_folder_that_is_none_is_named(tmp_path, capsys):
    assert main(["fit", "--data", str(tmp_path / "none")]) == 2
    assert f"data ({tmp_path / 'none'}) must be a folder" in capsys.readouterr().err
