"""`fit`: what it chooses, what it reports, and every fault that a folder of photographs can have."""

import json
import os
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from patchreorder.classifier import features as features_module
from patchreorder.classifier import fit as fit_module
from patchreorder.classifier.choose import Candidate, Scored
from patchreorder.classifier.classifier import load_classifier
from patchreorder.classifier.fit import FitOptions, fit, gain, verdict
from patchreorder.classifier.photographs import TEST_POSES, SamePoses, open_photographs
from patchreorder.engine import checkpoint
from patchreorder.models.photo_classifier import Block
from tests.classifier.photographs import write_photographs

pytestmark = pytest.mark.usefixtures("small_backbone")


def test_colours_are_told_apart_in_every_pose(tmp_path):
    data = write_photographs(tmp_path / "data")
    made = fit(data, tmp_path / "out", FitOptions())
    report = made.report
    assert report["train"] == 30
    assert report["test"] == 6  # a fifth of 12, rounded, of each class
    assert report["accuracy"].keys() == set(TEST_POSES)
    assert report["accuracy"]["as they are"]["fit"]["value"] == 100
    assert report["accuracy"]["any rotation"]["fit"]["value"] == 100
    assert report["mistakes"] == []
    assert np.array(report["confusion"]).tolist() == [[2, 0, 0], [0, 2, 0], [0, 0, 2]]
    assert len(report["angles"]["fit"]["degrees"]) == 24
    assert json.loads(json.dumps(report)) == report
    assert [own["name"] for own in report["tried"]][:2] == ["plain average", "plain average"]


def test_the_saved_file_answers_as_the_report_says(tmp_path):
    data = write_photographs(tmp_path / "data")
    made = fit(data, tmp_path / "out", FitOptions())
    classifier = load_classifier(tmp_path / "out" / "classifier.safetensors")
    _, testing = open_photographs(data)
    for index in range(len(testing)):
        answer = classifier(testing.path(index))
        assert answer.top[0][0] == testing.classes[int(testing.labels[index])]
    assert classifier.classes == ["blue", "green", "red"]
    assert classifier.facts == made.facts


def test_what_is_saved_is_never_worse_in_cross_validation_than_the_plain_average(tmp_path):
    report = fit(write_photographs(tmp_path / "data"), tmp_path / "out", FitOptions()).report

    def score(own):
        return own["upright"] + own["posed"]

    assert score(report["chosen"]) == max(score(own) for own in report["tried"])


def test_the_gain_in_poses_is_that_of_posed_copies_alone():
    candidate = Candidate("average", (Block("head"),))

    def scored(upright, posed):
        return Scored(candidate, True, 1e-3, torch.tensor([[upright, posed, posed]] * 4))

    own = gain(scored(True, False), scored(False, True))
    assert (own["upright"]["value"], own["posed"]["value"]) == (100, -100)
    assert gain(scored(True, True), scored(True, False))["posed"]["value"] == 100


@pytest.mark.parametrize(
    ("rotations", "sentence"),
    [
        (180, "90.0 % of 30 test photographs are right as they are, 70.0 % in any rotation: there 7.0 points more"),
        (90, "in any rotation"),
        (45, "as they are, 80.0 % rotated by up to 45 degrees: there 4.5 points more"),
        (15, "rotated by up to 45 degrees"),
        (0, "90.0 % of 30 test photographs are right as they are: 1.0 points more than the plain average"),
    ],
)
def test_the_verdict_is_of_rotations_that_mean_the_same(rotations, sentence):
    report = {
        "test": 30,
        "same_poses": {"rotations": rotations},
        "accuracy": {},
        "differences": {},
    }
    for pose, value, more in (("as they are", 90, 1.0), ("rotated up to 45", 80, 4.5), ("any rotation", 70, 7.0)):
        report["accuracy"][pose] = {"fit": {"value": value}}
        report["differences"][pose] = {"plain average": {"value": more, "low": more / 2, "high": 2 * more}}
    assert sentence in verdict(report)
    assert verdict(report).endswith("than the plain average with a linear head.")


def test_unreadable_files_are_listed_and_skipped(tmp_path):
    data = write_photographs(tmp_path / "data")
    (data / "red" / "cut.jpg").write_bytes(b"\xff\xd8\xff\xe0 cut")
    report = fit(data, tmp_path / "out", FitOptions()).report
    assert list(report["unreadable"]) == ["red/cut.jpg"]
    assert "cannot be read as an image" in report["unreadable"]["red/cut.jpg"]
    assert report["train"] + report["test"] == 36


def test_a_class_with_one_photograph_is_learned_and_not_tested(tmp_path):
    data = write_photographs(tmp_path / "data", classes=("red", "green"))
    write_photographs(data, classes=("blue",), count=1)
    report = fit(data, tmp_path / "out", FitOptions()).report
    assert report["single"] == ["blue"]
    assert [own["test"] for own in report["per_class"]] == [0, 2, 2]


def test_a_photograph_in_two_classes_is_named(tmp_path):
    data = write_photographs(tmp_path / "data" / "train").parent
    write_photographs(data / "val", count=3, seed=1)
    shutil.copy(data / "train" / "blue" / "00.png", data / "train" / "red" / "twin.png")
    shutil.copy(data / "train" / "green" / "00.png", data / "train" / "green" / "again.png")  # of one class: no fault
    report = fit(data, tmp_path / "out", FitOptions()).report
    assert [sorted(own) for own in report["in_two_classes"]] == [["blue/00.png", "red/twin.png"]]
    assert (report["shared"], report["repeated"]) == ([], 2)


def test_photographs_of_the_test_that_are_in_training_are_left_out(tmp_path):
    data = write_photographs(tmp_path / "data" / "train").parent
    write_photographs(data / "val", count=3, seed=1)
    shutil.copy(data / "train" / "red" / "00.png", data / "val" / "red" / "same.png")
    report = fit(data, tmp_path / "out", FitOptions()).report
    assert report["shared"] == ["red/same.png"]
    assert report["test"] == 9


def test_a_killed_run_goes_on_where_it_was(tmp_path, monkeypatch):
    data = write_photographs(tmp_path / "data")
    whole = fit(data, tmp_path / "whole", FitOptions()).report
    monkeypatch.setattr(features_module, "CHUNK", 8)
    written = []
    write = checkpoint.write_whole

    def killed(path, content):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(path)
        write(path, content)

    monkeypatch.setattr(checkpoint, "write_whole", killed)
    with pytest.raises(KeyboardInterrupt):
        fit(data, tmp_path / "out", FitOptions())
    monkeypatch.setattr(checkpoint, "write_whole", write)
    before = {path: path.stat().st_mtime_ns for path in written}
    again = fit(data, tmp_path / "out", FitOptions()).report
    assert {path: path.stat().st_mtime_ns for path in written} == before
    assert again["accuracy"] == whole["accuracy"]
    assert again["tried"] == whole["tried"]


def test_a_damaged_feature_file_is_computed_again(tmp_path):
    data = write_photographs(tmp_path / "data")
    first = fit(data, tmp_path / "out", FitOptions()).report
    for file in (tmp_path / "out" / "features").rglob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:-7])
    assert fit(data, tmp_path / "out", FitOptions()).report["tried"] == first["tried"]


def test_a_changed_photograph_is_computed_again(tmp_path):
    data = write_photographs(tmp_path / "data")
    fit(data, tmp_path / "out", FitOptions())
    training, _ = open_photographs(data)
    Image.new("RGB", (60, 60), (1, 2, 3)).save(training.path(0))
    os.utime(training.path(0), ns=(1, 1))
    changed = fit(data, tmp_path / "out", FitOptions()).report
    fresh = fit(data, tmp_path / "fresh", FitOptions()).report
    assert changed["tried"] == fresh["tried"]


def test_features_of_other_settings_are_removed_and_nothing_else(tmp_path):
    data, place = write_photographs(tmp_path / "data"), tmp_path / "out" / "features"
    fit(data, tmp_path / "out", FitOptions(copies=1))
    old = {folder.name for folder in place.iterdir()}
    own = [place / "train-photographs" / "1.jpg", place / "train-0123abcd" / "mine.safetensors", place / "test-notes"]
    for path in own:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"mine")
    (place / "train-0123abcd" / ".00000000.safetensors.89abcdef").write_bytes(b"cut")
    fit(data, tmp_path / "out", FitOptions(copies=2))
    assert all(path.read_bytes() == b"mine" for path in own)
    assert [path.name for path in (place / "train-0123abcd").iterdir()] == ["mine.safetensors"]
    assert len(old & {folder.name for folder in place.iterdir()}) == 1  # the test's poses are the same
    assert len(list(place.glob("train-*"))) == 3


def test_a_full_disk_loses_no_finished_features(tmp_path, monkeypatch):
    data = write_photographs(tmp_path / "data")
    monkeypatch.setattr(features_module, "CHUNK", 8)
    write, written = checkpoint.write_whole, []

    def full(path, content):
        if written:
            raise OSError(28, "No space left on device", str(path))
        written.append(path)
        write(path, content)

    monkeypatch.setattr(checkpoint, "write_whole", full)
    with pytest.raises(OSError, match="No space left"):
        fit(data, tmp_path / "out", FitOptions())
    assert written[0].exists()


def test_rotations_that_change_the_class_are_noticed(tmp_path):
    """Arrows up and down are each other's rotations."""
    random = np.random.default_rng(0)
    for name in ("down", "up"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(40):
            pixels = random.integers(0, 40, (64, 64, 3)).astype(np.uint8)
            half = slice(0, 32) if name == "up" else slice(32, 64)
            pixels[half] = 200 + random.integers(0, 40, 3)
            Image.fromarray(pixels).save(tmp_path / "data" / name / f"{number}.png")
    report = fit(tmp_path / "data", tmp_path / "out", FitOptions(same=SamePoses(shifts=0, zoom=0))).report
    assert report["rotations_hurt"]["classes"] == [["down", "up"]]
    assert report["rotations_hurt"]["loss"]["value"] > 30
    small = fit(tmp_path / "data", tmp_path / "out", FitOptions(same=SamePoses(20, shifts=0, zoom=0))).report
    assert small["rotations_hurt"] is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"copies": -1}, r"copies \(-1\) must be from 0 to 64"),
        ({"angles": 5}, r"angles \(5\) must divide 24"),
        ({"test": 1.5}, r"test \(1.5\) must be more than 0"),
        ({"backbone": "vgg"}, r"backbone \('vgg'\) must be one of alexnet, .*torchvision:NAME"),
        (
            {"backbone": "timm:hf-hub:me/mine"},
            r"backbone \('timm:hf-hub:me/mine'\) must be timm:NAME or torchvision:NAME",
        ),
        ({"size": 8}, r"size \(8\) must be from 32 to 1024"),
    ],
)
def test_options_out_of_range_are_refused(options, reason, tmp_path):
    data = write_photographs(tmp_path / "data", count=2)
    with pytest.raises(ValueError, match=reason):
        fit(data, tmp_path / "out", FitOptions(**options))


@pytest.mark.parametrize(("name", "value"), [("rotations", 181), ("shifts", -0.1), ("zoom", 2)])
def test_poses_out_of_range_are_refused(name, value):
    with pytest.raises(ValueError, match=rf"{name} \({value}\) must be from 0 to"):
        SamePoses(**{name: value})


def test_no_copies_and_few_photographs(tmp_path):
    data = write_photographs(tmp_path / "data", count=2)
    report = fit(data, tmp_path / "out", FitOptions(copies=0)).report
    assert report["copies"] == 0
    assert {own["copies"] for own in report["tried"]} == {False}
    assert report["train"] == 3


def test_one_class_is_refused(tmp_path):
    data = write_photographs(tmp_path / "data", classes=("red",))
    with pytest.raises(ValueError, match="holds one class, red"):
        fit(data, tmp_path / "out", FitOptions())


def test_many_classes(tmp_path):
    random = np.random.default_rng(0)
    for label in range(120):
        folder = tmp_path / "data" / f"c{label:03}"
        folder.mkdir(parents=True)
        for number in range(2):
            colour = random.integers(0, 255, 3)
            Image.fromarray(np.full((40, 40, 3), colour, np.uint8)).save(folder / f"{number}.png")
    report = fit(tmp_path / "data", tmp_path / "out", FitOptions(copies=1, angles=1)).report
    assert len(report["per_class"]) == 120
    assert report["test"] == 120

    assert report["chosen"]["upright"] is None  # nothing can be left out
    assert report["chosen"]["name"] == "plain average"
    json.dumps(report, allow_nan=False)


def test_one_photograph_of_each_class(tmp_path):
    """Nothing can be left out, and nothing is for the test."""
    data = write_photographs(tmp_path / "data", count=1)
    for copies in (0, 4):
        report = fit(data, tmp_path / "out", FitOptions(copies=copies)).report
        assert (report["test"], report["train"], report["accuracy"]) == (0, 3, {})
        assert report["verdict"].endswith("nothing was measured.")
        json.dumps(report, allow_nan=False)
        answer = load_classifier(tmp_path / "out" / "classifier.safetensors")(data / "red" / "00.png")
        assert answer.name == "red"
        assert answer.probability < 0.999


@pytest.fixture
def odd(tmp_path):
    """Everything that a folder of photographs may hold."""
    data, random = write_photographs(tmp_path / "data"), np.random.default_rng(1)
    red, green = data / "red", data / "green"
    image = Image.fromarray(random.integers(0, 256, (40, 50, 3)).astype(np.uint8))
    image.convert("L").save(red / "grey.png")
    image.convert("RGBA").save(red / "clear.png")
    image.convert("CMYK").save(red / "cmyk.jpg")
    image.convert("P").save(red / "palette.png")
    Image.fromarray(random.integers(0, 65536, (40, 40)).astype(np.uint16)).save(red / "16bits.png")
    turned = Image.Exif()
    turned[0x0112] = 6
    image.save(green / "turned.jpg", exif=turned)
    image.save(green / "moving.gif", save_all=True, append_images=[image.rotate(90)])
    image.resize((4000, 3)).save(green / "strip.png")
    image.resize((3, 4000)).save(green / "high strip.png")
    image.resize((1, 1)).save(green / "point.png")
    image.save(green / "new\nline \x1b[31m.jpg")
    image.save(red / "cut.jpg")
    (red / "cut.jpg").write_bytes((red / "cut.jpg").read_bytes()[:-200])
    (red / "page.jpg").write_text("<html>404</html>")
    (red / "empty.jpg").write_bytes(b"")
    with (red / "sparse.jpg").open("wb") as file:
        file.truncate(40 << 30)
    for name, target in (("self.jpg", "self.jpg"), ("broken.jpg", "nowhere")):
        (green / name).symlink_to(target)
    (data / "loop").symlink_to("loop")
    (green / "notes.txt").write_text("mine")
    (green / ".hidden.jpg").write_bytes(b"")
    os.mkfifo(green / "pipe.jpg")
    return data


@pytest.mark.parametrize("workers", [0, 2])
def test_odd_files_are_read_or_listed_and_skipped(odd, tmp_path, workers):
    report = fit(odd, tmp_path / "out", FitOptions(copies=1, angles=1, workers=workers)).report
    assert {name: reason for name, reason in report["unreadable"].items() if "truncated" not in reason} == {
        "red/empty.jpg": "cannot be read as an image: it is empty",
        "red/page.jpg": "cannot be read as an image: it is no JPEG, PNG, GIF, WEBP, BMP, TIFF or PPM file, or its "
        "header is damaged",
        "red/sparse.jpg": "has more than 1 GB: it is no image",
    }
    assert "truncated" in report["unreadable"]["red/cut.jpg"]
    assert report["ignored"] == ["green/broken.jpg", "green/notes.txt", "green/pipe.jpg", "green/self.jpg", "loop"]
    assert report["train"] + report["test"] + len(report["shared"]) == 36 + 11


def test_a_file_that_is_deleted_after_the_listing_is_listed_and_skipped(tmp_path, monkeypatch):
    data, open_backbone = write_photographs(tmp_path / "data"), fit_module.open_backbone

    def opened(*args, **options):
        (data / "red" / "03.png").unlink()
        return open_backbone(*args, **options)

    monkeypatch.setattr(fit_module, "open_backbone", opened)
    report = fit(data, tmp_path / "out", FitOptions(copies=1, angles=1)).report
    assert list(report["unreadable"]) == ["red/03.png"]
    assert "No such file" in report["unreadable"]["red/03.png"]


def test_a_chunk_without_a_readable_photograph(tmp_path, monkeypatch):
    data = write_photographs(tmp_path / "data")
    monkeypatch.setattr(features_module, "CHUNK", 4)
    for number in range(20):
        (data / "blue" / f"a{number:02}.jpg").write_bytes(b"no image")
    for _ in range(2):  # from files, then
        report = fit(data, tmp_path / "out", FitOptions(copies=1, angles=1)).report
        assert len(report["unreadable"]) == 20
        assert report["train"] + report["test"] == 36


def test_files_of_training_and_test_are_told_apart(tmp_path):
    data = write_photographs(tmp_path / "data" / "train").parent
    write_photographs(data / "val", count=3, seed=1)
    for part in ("train", "val"):
        (data / part / "red" / "bad.jpg").write_bytes(b"no image")
        (data / part / "red" / "notes.txt").write_bytes(b"mine")
    for file in (data / "train" / "blue").iterdir():
        file.write_bytes(b"no image")
    report = fit(data, data / "out", FitOptions(copies=1, angles=1)).report  # beside train/ it is no class
    assert {"train/red/bad.jpg", "val/red/bad.jpg"} <= report["unreadable"].keys()
    assert report["ignored"] == ["train/red/notes.txt", "val/red/notes.txt"]
    assert report["absent"] == ["blue"]


@pytest.mark.parametrize("out", [".", "out", "red/out", "../link/out"])
def test_a_folder_among_the_classes_is_refused(out, tmp_path):
    data = write_photographs(tmp_path / "data", count=2)
    (tmp_path / "link").symlink_to(data)
    with pytest.raises(ValueError, match=r"out \(.*\) is in .*data, whose folders are classes: name a folder"):
        fit(data, data / out, FitOptions())
    assert sorted(path.name for path in data.iterdir()) == ["blue", "green", "red"]


def test_the_same_seed_gives_the_same_network(tmp_path):
    data = write_photographs(tmp_path / "data")
    first, second = (fit(data, tmp_path / name, FitOptions()).network.state_dict() for name in "ab")
    assert all(torch.equal(first[key], second[key]) for key in first)
