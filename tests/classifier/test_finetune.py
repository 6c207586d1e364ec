"""Fine-tuning: it learns, it is kept only if it is better, and a killed run goes on."""

import signal

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from patchreorder.classifier import finetune
from patchreorder.classifier.finetune import relit
from patchreorder.classifier.fit import FitOptions, fit
from patchreorder.engine import checkpoint
from patchreorder.engine.progress import SILENT, Screen
from patchreorder.models.backbones import truncated
from patchreorder.models.photo_classifier import Block, FeatureBlocks, PhotoClassifier
from tests.classifier.photographs import write_photographs

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


def run(data, out, epochs, *, screen=SILENT, seed=0):
    options = FitOptions(copies=1, angles=1, seed=seed)
    return finetune.finetuned(fit(data, out, options), out, options, epochs=epochs, screen=screen)


class Killed(Screen):
    """Sends the signal of Ctrl-C after so many epochs."""

    def __init__(self, epochs):
        self.epochs = epochs

    def training(self, title):
        def tell(progress):
            if progress.epoch == self.epochs:
                signal.raise_signal(signal.SIGINT)

        return tell


@pytest.fixture
def better(monkeypatch):
    """Whatever is trained is kept."""
    monkeypatch.setattr(finetune, "difference", lambda ours, theirs: {"value": 1.0, "low": 0.5, "high": 2.0})


def equal(one, other):
    states = one.network.state_dict(), other.network.state_dict()
    return all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.usefixtures("better")
def test_a_run_that_is_killed_after_an_epoch_ends_as_an_undisturbed_one(stripes, tmp_path):
    whole = run(stripes, tmp_path / "whole", 3)
    with pytest.raises(KeyboardInterrupt):
        run(stripes, tmp_path / "out", 3, screen=Killed(1))
    (kept,) = (tmp_path / "out").glob("finetune-*.safetensors")
    _, state = checkpoint.read(kept)
    assert state["step"] == 5  # 28 photographs in batches of 7: the first update of the second epoch
    seen = []
    screen = Screen()
    screen.training = lambda title: lambda progress: seen.append(progress.step)
    again = run(stripes, tmp_path / "out", 3, screen=screen)
    assert seen == list(range(6, 13))
    assert equal(again, whole)
    assert again.report["accuracy"] == whole.report["accuracy"]
    assert not equal(again, run(stripes, tmp_path / "other", 3, seed=1))


@pytest.mark.usefixtures("better")
@pytest.mark.parametrize("changed", ["photograph", "label", "seed", "epochs"])
def test_a_checkpoint_of_other_photographs_or_options_is_not_resumed(changed, stripes, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(stripes, tmp_path / "out", 2, screen=Killed(1))
    epochs, seed = 2, 0
    if changed == "photograph":
        file = stripes / "fine" / "3.png"
        Image.fromarray(255 - np.array(Image.open(file))).save(file)
    elif changed == "label":
        (stripes / "fine" / "3.png").rename(stripes / "swapped")
        (stripes / "coarse" / "3.png").rename(stripes / "fine" / "3.png")
        (stripes / "swapped").rename(stripes / "coarse" / "3.png")
    else:
        epochs, seed = (3, 0) if changed == "epochs" else (2, 1)
    resumed = run(stripes, tmp_path / "out", epochs, seed=seed)
    assert equal(resumed, run(stripes, tmp_path / "fresh", epochs, seed=seed))
    assert len(list((tmp_path / "out").glob("finetune-*.safetensors"))) == 1


@pytest.mark.usefixtures("better")
def test_early_layers_stay_and_the_weights_are_between_those_before_and_after(stripes, tmp_path, monkeypatch):
    trained = []

    def spied(model, *rest, **options):
        before = {name: value.clone() for name, value in model.state_dict().items()}
        done = train(model, *rest, **options)
        trained.append((before, {name: value.clone() for name, value in model.state_dict().items()}))
        return done

    train = finetune.train
    monkeypatch.setattr(finetune, "train", spied)
    made = run(stripes, tmp_path / "out", 1)
    ((before, after),) = trained
    saved = made.network.features.state_dict()
    for name, value in saved.items():
        name = f"features.{name}"
        wanted = before[name].lerp(after[name], finetune.TRAINED)
        assert torch.allclose(value, wanted, atol=1e-7), name
    early, _ = truncated("efficientnet_lite0", ["stage2"])
    same = {name for name in saved if torch.equal(before[f"features.{name}"], after[f"features.{name}"])}
    assert {f"backbone.{name}" for name, _ in early.named_parameters()} <= same
    assert len(same) < len(saved) / 2


def test_batch_norms_learn_but_keep_their_statistics():
    backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    network = PhotoClassifier(
        FeatureBlocks(backbone, {"all": "2"}, [Block("all")]), widths=[4], classes=2, directions=1
    )
    finetune.set_trainable(network, "torchvision:any")
    before = backbone[1].running_mean.clone()
    network.train()
    network(torch.rand(4, 3, 8, 8)).sum().backward()
    assert torch.equal(backbone[1].running_mean, before)
    assert backbone[0].weight.grad is not None
    assert backbone[1].weight.grad is not None


def test_a_result_that_is_not_better_is_not_kept(stripes, tmp_path, monkeypatch):
    monkeypatch.setattr(finetune, "difference", lambda ours, theirs: {"value": -1.0, "low": -2.0, "high": 0.0})
    before = fit(stripes, tmp_path / "frozen", FitOptions(copies=1, angles=1)).network.state_dict()
    made = run(stripes, tmp_path / "out", 1)
    assert made.report["finetune"]["kept"] is False
    assert all(torch.equal(value, made.network.state_dict()[key]) for key, value in before.items())


@pytest.mark.usefixtures("better")
def test_the_classifier_that_is_given_stays_as_it_is(stripes, tmp_path):
    """Its backbone may serve others."""
    options = FitOptions(copies=1, angles=1)
    fitted = fit(stripes, tmp_path / "out", options)
    before = {key: value.clone() for key, value in fitted.network.state_dict().items()}
    made = finetune.finetuned(fitted, tmp_path / "out", options, epochs=1)
    assert all(torch.equal(value, fitted.network.state_dict()[key]) for key, value in before.items())
    assert not equal(made, fitted)
    assert "finetune" not in fitted.report


def test_a_result_that_is_better_is_saved_and_tested(stripes, tmp_path, monkeypatch):
    monkeypatch.setattr(finetune, "difference", lambda ours, theirs: {"value": 1.0, "low": 0.5, "high": 2.0})
    made = run(stripes, tmp_path / "out", 2)
    told = made.report["finetune"]
    assert (told["kept"], told["held_out"]) == (True, 4)
    assert made.report["accuracy"]["as they are"]["fit"]["n"] == 8
    from patchreorder.classifier.classifier import load_classifier

    again = load_classifier(tmp_path / "out" / "classifier.safetensors")
    assert all(torch.equal(value, again.network.state_dict()[key]) for key, value in made.network.state_dict().items())


def test_single_photographs_are_too_few(tmp_path):
    data = write_photographs(tmp_path / "data" / "train", count=1).parent
    write_photographs(data / "val", count=2)
    with pytest.raises(ValueError, match=r"finetune \(1\) needs a class with two or more training photographs"):
        run(data, tmp_path / "out", 1)


def test_another_light_changes_colours_and_keeps_what_is_shown():
    pixels = np.random.default_rng(0).integers(60, 190, (1, 24, 24, 3), np.uint8)
    lit = [relit(pixels, np.random.default_rng(seed)) for seed in range(20)]
    assert np.array_equal(lit[0], relit(pixels, np.random.default_rng(0)))
    means = np.array([own.mean((0, 1, 2)) for own in lit])
    assert means.mean(1).std() > 10  # some are brighter
    assert (means[:, 0] / means[:, 2]).std() > 0.05  # some are redder
    for own in lit:
        assert own.dtype == np.uint8
        assert np.corrcoef(own.mean(3).ravel(), pixels.mean(3).ravel())[0, 1] > 0.9


def test_epochs_out_of_range_are_refused(stripes, tmp_path):
    with pytest.raises(ValueError, match=r"finetune \(-1\) must be more than 0"):
        run(stripes, tmp_path / "out", -1)


@pytest.mark.usefixtures("better")
def test_the_head_learns_what_the_trained_network_describes(stripes, tmp_path, monkeypatch):
    learned = []

    def spied(features, labels, chosen, **options):
        learned.append((features, options.get("rows")))
        return train_head(features, labels, chosen, **options)

    train_head = finetune.train_head
    monkeypatch.setattr(finetune, "train_head", spied)
    made = run(stripes, tmp_path / "out", 1)
    features, rows = learned[-1]
    assert rows is None  # all photographs, also those that were held out
    assert features.digests == made.known.features.digests
    block = list(features.pools)[-1]
    assert not torch.equal(features.pools[block], made.known.features.pools[block])


@pytest.mark.usefixtures("better")
def test_a_photograph_that_changes_meanwhile_is_an_error(stripes, tmp_path):
    options = FitOptions(copies=1, angles=1)
    fitted = fit(stripes, tmp_path / "out", options)
    path = fitted.known.photographs.path(fitted.known.features.kept[0])
    Image.new("RGB", (80, 80)).save(path)
    with pytest.raises(ValueError, match="fit again"):
        finetune.finetuned(fitted, tmp_path / "out", options, epochs=0.1)


@pytest.mark.usefixtures("better")
def test_without_a_readable_test_photograph(stripes, tmp_path):
    for name in ("coarse", "fine"):
        (tmp_path / "parts/val" / name).mkdir(parents=True)
        (tmp_path / "parts/val" / name / "broken.png").write_bytes(b"no image")
    stripes.rename(tmp_path / "parts/train")
    made = run(tmp_path / "parts", tmp_path / "out", 0.1)
    assert made.report["finetune"]["kept"]
    assert made.report["test"] == 0
    assert made.report["accuracy"] == {}
