"""Fine-tuning: it learns, it is kept only if it is better, and a killed run goes on."""

import numpy as np
import pytest
import torch
from PIL import Image

from patchreorder.classifier import finetune
from patchreorder.classifier.fit import FitOptions, fit

pytestmark = pytest.mark.usefixtures("small_backbone")


@pytest.fixture
def stripes(tmp_path):
    """Fine and coarse stripes in all colours: hard for a random backbone, easy to learn."""
    random = np.random.default_rng(0)
    for name, period in (("coarse", 16), ("fine", 12)):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(20):
            wave = np.sin(2 * np.pi * (np.arange(80) + random.integers(16)) / period)[:, None, None]
            pixels = 128 + wave * random.uniform(20, 90, 3) + random.normal(0, 25, (80, 80, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(tmp_path / "data" / name / f"{number}.png")
    return tmp_path / "data"


def run(data, out, epochs):
    options = FitOptions(copies=1, angles=1)
    return finetune.finetuned(fit(data, out, options), data, out, options, epochs=epochs)


def test_a_result_that_is_not_better_is_not_kept(stripes, tmp_path, monkeypatch):
    monkeypatch.setattr(finetune, "difference", lambda ours, theirs: {"value": -1.0, "low": -2.0, "high": 0.0})
    before = fit(stripes, tmp_path / "frozen", FitOptions(copies=1, angles=1)).network.state_dict()
    made = run(stripes, tmp_path / "out", 1)
    assert made.report["finetune"]["kept"] is False
    assert all(torch.equal(value, made.network.state_dict()[key]) for key, value in before.items())


def test_a_result_that_is_better_is_saved_and_tested(stripes, tmp_path, monkeypatch):
    monkeypatch.setattr(finetune, "difference", lambda ours, theirs: {"value": 1.0, "low": 0.5, "high": 2.0})
    made = run(stripes, tmp_path / "out", 2)
    told = made.report["finetune"]
    assert (told["kept"], told["held_out"]) == (True, 4)
    assert made.report["accuracy"]["as they are"]["fit"]["n"] == 8
    from patchreorder.classifier.classifier import load_classifier

    again = load_classifier(tmp_path / "out" / "classifier.safetensors")
    assert all(torch.equal(value, again.network.state_dict()[key]) for key, value in made.network.state_dict().items())


def test_epochs_out_of_range_are_refused(stripes, tmp_path):
    with pytest.raises(ValueError, match=r"finetune \(-1\) must be more than 0"):
        run(stripes, tmp_path / "out", -1)
