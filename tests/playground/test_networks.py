"""Predictions of the networks: those of the models, in the poses of the data sets."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from patchreorder.data import transforms
from patchreorder.operator.functional import PatchReorderOptions
from patchreorder.playground import networks
from patchreorder.playground.digits import samples
from patchreorder.playground.networks import NETWORKS, error_rates, load_network, pose_digit
from patchreorder.playground.pool import Abandoned
from patchreorder.playground.requests import DigitPose

from .images import from_base64

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("dataset", ["mnist-r", "mnist-t"])
def test_every_network_recognises_every_sample(models, dataset):
    for sample in samples():
        answer = models.answer(sample, DigitPose(), dataset, PatchReorderOptions())
        for name, probabilities in answer["probabilities"].items():
            assert np.argmax(probabilities) == sample.label, name
            assert sum(probabilities) == pytest.approx(1, abs=1e-3)


def test_poses_are_those_of_the_data_sets():
    digit = samples()[5]
    image = digit.image()
    assert torch.allclose(pose_digit(digit, [DigitPose()], "mnist-r"), image, atol=1e-5)
    rotated = pose_digit(digit, [DigitPose(rotation=90)], "mnist-r")
    assert torch.allclose(rotated, torch.rot90(image, 1, (2, 3)), atol=1e-4)
    shifted = transforms.place(image, corner=torch.tensor([[7 + 5, 7 - 3]]), size=(42, 42))
    assert torch.allclose(pose_digit(digit, [DigitPose(0, 5, -3)], "mnist-t"), shifted, atol=1e-4)


@pytest.mark.parametrize("dataset", ["mnist-r", "mnist-t"])
def test_probabilities_are_those_of_the_models(models, dataset):
    digit, pose = samples()[7], DigitPose(33, -2, 3)
    answer = models.answer(digit, pose, dataset, PatchReorderOptions(grid="pixels"))
    image = pose_digit(digit, [pose], dataset)
    assert np.abs(from_base64(answer["image"]).astype(float) - 255 * image.flatten().numpy()).max() <= 1
    assert answer["side"] == image.shape[2]
    with torch.inference_mode():
        for name in NETWORKS:
            model = load_network(name, dataset)
            assert answer["probabilities"][name] == pytest.approx(model(image).softmax(1)[0].tolist(), abs=2e-4), name


def test_the_settings_of_the_page_do_not_change_the_network(models):
    answers = [
        models.answer(samples()[2], DigitPose(50), "mnist-r", PatchReorderOptions(*chosen))["probabilities"]
        for chosen in ((2,), ("pixels",), (4, 1, "l1", False))
    ]
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("dataset", ["mnist-r", "mnist-t"])
@pytest.mark.parametrize("kind", ["ring", "shifts"])
def test_rings_and_maps_of_shifts_agree_with_single_poses(models, kind, dataset):
    digit, pose = samples()[3], DigitPose(60, 2, -1)  # where the predictions vary
    found = getattr(models, kind)(digit, pose, dataset, check=lambda: None)
    if kind == "ring":
        poses = [pose._replace(rotation=angle) for angle in found["angles"]]
    else:
        shifts = found["shifts"]
        poses = [DigitPose(60, down, right) for down in shifts for right in shifts]
    assert len(poses) == {"ring": 72, "shifts": 225}[kind]
    for number in range(0, len(poses), len(poses) // 12):
        single = models.answer(digit, poses[number], dataset, PatchReorderOptions())["probabilities"]
        for name, predictions in found["predictions"].items():
            assert predictions["labels"][number] == np.argmax(single[name])
            assert predictions["probabilities"][number] == pytest.approx(max(single[name]), abs=2e-3)


def test_networks_that_have_a_pose_built_in_keep_their_answer(models, monkeypatch):
    nothing = lambda: None  # noqa: E731
    monkeypatch.setattr(networks, "NETWORKS", ("aligned_cnn", "unrolled_cnn"))
    for sample in samples():
        squares = models.shifts(sample, DigitPose(), "mnist-t", check=nothing)["predictions"]
        assert set(squares["aligned_cnn"]["labels"]) == {sample.label}
        assert len(set(squares["aligned_cnn"]["probabilities"])) == 1  # the very same image for the network
        assert set(squares["unrolled_cnn"]["labels"]) == {sample.label}
    monkeypatch.undo()
    three = models.ring(samples()[3], DigitPose(), "mnist-r", check=nothing)["predictions"]
    right = {name: sum(label == 3 for label in own["labels"]) / 72 for name, own in three.items()}
    assert right["unrolled_cnn"] == 1  # what the last stop of the tour says
    assert max(right[name] for name in ("cnn", "pr_cnn", "st_cnn")) < 0.9


def test_every_network_has_a_measured_error():
    assert all(0 < error < 6 for errors in error_rates().values() for error in errors.values())
    assert list(error_rates()) == list(NETWORKS)


def test_a_job_can_be_abandoned_between_batches(models):
    calls = []

    def check():
        calls.append(1)
        if len(calls) == 2:
            raise Abandoned

    with pytest.raises(Abandoned):
        models.shifts(samples()[0], DigitPose(), "mnist-t", check=check)
    assert len(calls) == 2


def test_the_numbers_in_the_documentation_are_those_of_the_page(models):
    rows = {
        "shifted by 5 and -4, 2x2 patches (T)": (DigitPose(0, -4, 5), "mnist-t", PatchReorderOptions(2)),
        "the same, pixels (T)": (DigitPose(0, -4, 5), "mnist-t", PatchReorderOptions("pixels")),
        "rotated by 60 degrees, pixels (R)": (DigitPose(60), "mnist-r", PatchReorderOptions("pixels")),
    }
    text = (ROOT / "docs" / "playground.md").read_text(encoding="utf-8")
    measured = json.loads((ROOT / "results" / "benchmark_playground.json").read_text())
    for title, found in {
        "an answer, 8 clients": measured["load"]["kinds"]["answer"],
        "a map of shifts, 8 clients": measured["load"]["kinds"]["shifts"],
        "a change in the browser, 1 client": measured["browser"],
    }.items():
        assert f"| {title} | {found['median']:.0f} | {found['p95']:.0f} |" in text
    assert measured["load"]["errors"] == 0
    for title, asked in rows.items():
        found = models.answer(samples()[3], *asked)["layer"]["similarity"]
        values = found["before"], found["after"], found["others"]["after"]
        written = re.search(rf"\| {re.escape(title)} \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", text)
        assert [float(value) for value in written.groups()] == pytest.approx(values, abs=0.011), title
