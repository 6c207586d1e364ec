"""Exact resume: a run that was killed at any moment ends with the bits of a run that was not."""

import os
import random
import resource
import signal
import time

import pytest
import torch
from torch import nn

from patchreorder.engine import checkpoint
from patchreorder.engine import train as module
from patchreorder.engine.distributed import World
from patchreorder.engine.options import Training
from patchreorder.engine.train import train
from tests.engine.processes import child
from tests.engine.toy import TRAINING, Killed, bits, dies_at, digits, network, outcome

pytestmark = pytest.mark.usefixtures("one_thread")

KINDS = {
    "plain": ("plain", {}),
    "noisy": ("noisy", {"clip": 0.5, "weight_decay": 1e-3}),
    "amp": ("noisy", {"amp": True, "schedule": "step", "decay_every": 4}),
    "scaled": ("noisy", {"amp": True, "clip": 0.5}),  # float16 with loss scaling, as on older GPUs
    "adamw": ("noisy", {"optimiser": "adamw", "lr": 0.01, "weight_decay": 0.05}),
    "frozen adamw": ("frozen", {"optimiser": "adamw", "lr": 0.01}),
    "frozen": ("frozen", {"weight_decay": 1e-3}),
    "no momentum": ("noisy", {"momentum": 0.0}),
    "rare": ("noisy", {}),  # the loss is checked every third update, as on GPUs
}


@pytest.fixture
def file(tmp_path):
    """A checkpoint in the middle of a run of TRAINING."""
    with pytest.raises(Killed):
        train(network(), digits(), TRAINING, file=tmp_path / "c", callback=dies_at(4), save_every=0.0)
    return tmp_path / "c"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("save_every", [0.0, 0.003])
def test_resumed_run_ends_bit_for_bit_the_same(tmp_path, monkeypatch, kind, save_every):
    """Killed three times, also within epochs; updates after the last checkpoint are repeated."""
    name, options = KINDS[kind]
    if kind == "scaled":
        monkeypatch.setattr(module, "half_precision", lambda device: torch.float16)
        monkeypatch.setattr(torch.amp.GradScaler.__init__, "__defaults__", scaler_defaults())
    if kind == "rare":
        monkeypatch.setattr(module, "_check_every", lambda device: 3)
    training = Training(epochs=2.6, batch=8, **options)
    whole = network(name)
    done = train(whole, digits(), training, seed=4, file=tmp_path / "whole")
    for step in (5, 9, 12):
        with pytest.raises(Killed):
            train(
                network(name),
                digits(),
                training,
                seed=4,
                file=tmp_path / "c",
                callback=dies_at(step),
                save_every=save_every,
            )
    resumed = network(name)
    again = train(resumed, digits(), training, seed=4, file=tmp_path / "c")
    assert outcome(tmp_path / "c") == outcome(tmp_path / "whole")
    assert bits(resumed.state_dict()) == bits(whole.state_dict())
    assert again.curve == done.curve
    if not save_every:
        assert again.resumed == 3
        assert again.seconds > 0
        assert again.cpu_seconds > 0
    if kind == "scaled":
        assert checkpoint.read(tmp_path / "c")[1]["scaler"]["scale"] > 2.0**12  # it grew


def scaler_defaults():
    """Grows every other update."""
    growth = {"init_scale": 2.0**12, "growth_interval": 2}
    names = ("device", "init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")
    return tuple(growth.get(n, d) for n, d in zip(names, torch.amp.GradScaler.__init__.__defaults__, strict=True))


def test_a_finished_run_is_loaded_and_not_trained_again(tmp_path):
    model, again = network("noisy"), network("noisy")
    train(model, digits(), TRAINING, file=tmp_path / "c")
    done = train(again, digits(), TRAINING, file=tmp_path / "c", callback=dies_at(8))
    assert (done.steps, done.resumed) == (8, 0)
    assert bits(again.state_dict()) == bits(model.state_dict())


def _trains_until_killed(pipe, file, last):
    """Sends every step; waits to be killed at the last one."""

    def callback(progress):
        pipe.send(progress.step)
        if progress.step == last:
            pipe.recv()

    train(network("noisy"), digits(), Training(epochs=6, batch=8), seed=4, file=file, callback=callback, save_every=0.0)


def test_killed_at_any_moment_and_resumed(tmp_path):
    train(network("noisy"), digits(), Training(epochs=6, batch=8), seed=4, file=tmp_path / "whole")
    file, begins = tmp_path / "c", 0
    for _ in range(3):
        process, pipe = child(_trains_until_killed, file, begins + 9)
        while pipe.recv() < begins + 2:
            pass
        time.sleep(random.random() * 0.02)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        begins = checkpoint.read(file)[1]["step"]
        assert 0 < begins <= 27
    done = train(network("noisy"), digits(), Training(epochs=6, batch=8), seed=4, file=file)
    assert done.resumed == 3
    assert outcome(file) == outcome(tmp_path / "whole")


def _dies_writing(pipe, file, where):
    """In the middle of its third checkpoint."""
    calls = []

    def third(real):
        def call(*args):
            calls.append(args)
            if len(calls) == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args)

        return call

    def limit(progress):
        if progress.step == 3:  # the system kills the process in the middle of the file
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size // 2, resource.RLIM_INFINITY))
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)

    if where == "fsync":  # of the file, not of the folder
        real, os.fsync = (
            os.fsync,
            lambda handle: real(handle) if os.path.isdir(f"/proc/self/fd/{handle}") else mine(handle),
        )
        mine = third(real)
    elif where == "replace":
        os.replace = third(os.replace)
    callback = limit if where == "write" else lambda progress: None
    train(network(), digits(), TRAINING, file=file, callback=callback, save_every=0.0)


@pytest.mark.parametrize("where", ["write", "fsync", "replace"])
def test_killed_while_a_checkpoint_is_written(tmp_path, where):
    process, _ = child(_dies_writing, tmp_path / "c", where)
    process.join(60)
    assert process.exitcode == -(signal.SIGXFSZ if where == "write" else signal.SIGKILL)
    assert len(list(tmp_path.iterdir())) == 2  # the file, and the remains of the next one
    assert checkpoint.read(tmp_path / "c")[1]["step"] == 2
    train(network(), digits(), TRAINING, file=tmp_path / "c")
    train(network(), digits(), TRAINING, file=tmp_path / "whole")
    assert outcome(tmp_path / "c") == outcome(tmp_path / "whole")


@pytest.mark.parametrize("name", ["threads", "world", "device", "precision", "accumulate"])
def test_resuming_in_another_setting_warns(file, name):
    tensors, state = checkpoint.read(file)
    checkpoint.write(file, tensors, state | {name: "other"})
    with pytest.warns(UserWarning, match=rf"{name} is .*, but was other when {file} was saved: .*differ in bits"):
        train(network(), digits(), TRAINING, file=file)
    assert checkpoint.read(file)[1]["step"] == 8


@pytest.mark.parametrize(
    ("count", "training", "seed"),
    [
        (46, Training(steps=9, batch=8), 0),
        (46, Training(steps=8, batch=8, clip=0.9), 0),
        (46, TRAINING, 1),
        (45, TRAINING, 0),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(file, count, training, seed):
    with pytest.raises(
        ValueError, match=f"{file} is the checkpoint of another run: remove it or choose another folder"
    ):
        train(network(), digits(count), training, seed=seed, file=file)


def test_a_checkpoint_of_another_network_is_refused_and_changes_nothing(file):
    wide = nn.Sequential(nn.Conv2d(1, 4, 5), nn.MaxPool2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(64, 11))
    message = rf"{file} is the checkpoint of another network: .*%s.*; remove it or choose another folder"
    for model, detail in (
        (network("noisy"), "model.3.bias"),
        (wide, r"model.4.weight is \(10, 64\) torch.float32 there, \(11, 64\) torch.float32 here"),
        (network().double(), "float32 there, .* torch.float64 here"),
    ):
        before = bits(model.state_dict())
        with pytest.raises(ValueError, match=message % detail):
            train(model, digits(), TRAINING, file=file)
        assert bits(model.state_dict()) == before


def test_a_damaged_checkpoint_is_refused(file):
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match="remove it to train from the start"):
        train(network(), digits(), TRAINING, file=file)


def test_the_hash_of_a_run_stays():
    """If it changed, every unfinished run would have to start again."""
    run = module._Run(network(), digits(), TRAINING, 0, None, World(), 1)
    assert run.state.run == "1bcaeba5"


def test_a_finished_run_removes_what_a_killed_process_left(tmp_path):
    train(network(), digits(), TRAINING, file=tmp_path / "c")
    (tmp_path / ".c.0123abcd").write_bytes(b"a checkpoint that was being written")
    train(network(), digits(), TRAINING, file=tmp_path / "c")
    assert list(tmp_path.iterdir()) == [tmp_path / "c"]
