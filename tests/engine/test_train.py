"""The training loop: known answers, exact resume after any death, clear ends, and many processes that equal one."""

import errno
import io
import itertools
import json
import math
import multiprocessing
import os
import pickle
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

import pytest
import safetensors.torch
import torch
import torch.distributed as dist
from rich.console import Console
from torch import nn
from torch.nn import functional as F

from patchreorder.data.generated import generate_digits
from patchreorder.engine import checkpoint, distributed, memory, progress
from patchreorder.engine import train as engine
from patchreorder.engine.distributed import World, join
from patchreorder.engine.predict import predict
from patchreorder.engine.progress import Screen, Terminal
from patchreorder.engine.train import Interrupted, NotFinite, Progress, Training, train

pytestmark = pytest.mark.usefixtures("one_thread")

# Children are forked from a process that has imported torch but never used it: seconds cheaper than a new interpreter.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    ["torch._dynamo", "torch.distributed._shard.sharded_tensor", "patchreorder.engine.predict", "pytest"]
)


@pytest.fixture
def _doubles():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def digits(count=46):
    """With batches of 8: five updates an epoch, six images left over."""
    return generate_digits("mnist-r", count=count, seed=1)


class Images:
    """A data set of given images, which remembers what was asked of it."""

    def __init__(self, images, labels):
        self.images, self.labels, self.asked = images, labels, []

    def __len__(self):
        return len(self.images)

    def batch(self, indices, *, epoch=0):
        self.asked.append((epoch, indices.tolist()))
        return self.images[indices], self.labels[indices]


class Frozen(nn.Module):
    """Frozen, unused and tied weights, a kernel of five dimensions, an integer buffer, a mask."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Conv2d(1, 4, 5).requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.first = nn.Linear(4 * 16, 4 * 16)
        self.second = nn.Linear(4 * 16, 4 * 16)
        self.second.weight = self.first.weight
        self.deep = nn.Parameter(torch.rand(1, 1, 1, 1, 4 * 16))
        self.head = nn.Linear(4 * 16, 10)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mask", torch.tensor([0.0] * 10 + [-math.inf]))

    def forward(self, x):
        if self.training:
            self.count += 1
        x = F.max_pool2d(self.frozen(x), 6).flatten(1)
        x = self.second(self.first(x).relu()) * self.deep.flatten()
        return self.head(x) + self.mask[:10]


def network(kind="plain"):
    torch.manual_seed(3)
    if kind == "frozen":
        return Frozen()
    layers = [nn.Conv2d(1, 4, 5), nn.MaxPool2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10)]
    if kind == "noisy":  # all that is not a function of weights and batch
        layers[3:3] = [nn.BatchNorm2d(4), nn.Dropout(0.3)]
    return nn.Sequential(*layers)


def bits(tensors):
    return {name: (value.dtype, value.shape, value.contiguous().numpy().tobytes()) for name, value in tensors.items()}


def outcome(file):
    """What a run must end with, whatever happened to it: weights, momentum, averages, losses."""
    tensors, state = checkpoint.read(file)
    return bits(tensors), {name: state[name] for name in ("run", "step", "curve", "loss_sum", "scaler")}


class Killed(BaseException):
    """Stands for a death that leaves nothing but the files."""


def dies_at(step):
    def report(at):
        if at.step == step:
            raise Killed

    return report


# ---- settings --------------------------------------------------------------------------------------


def test_one_cycle_rises_and_falls_to_nothing():
    training = Training(steps=100, lr=0.5, warmup=0.19)
    rates = [training.rate(step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(0.5 / 20)
    assert rates[18] == pytest.approx(0.5 * 19 / 20)
    assert rates[19] == 0.5 == max(rates)
    assert rates[19 + 27] == pytest.approx(0.5 * 0.5 * (1 + math.cos(math.pi / 3)))
    assert 0 < rates[99] < 0.5 * 4e-4
    assert rates[:20] == sorted(rates[:20])
    assert rates[19:] == sorted(rates[19:], reverse=True)
    assert training.rate(100, 100) == 0
    assert Training(steps=1, lr=0.5, warmup=0.0).rate(0, 1) == 0.5


def test_steps_divide_the_rate_by_ten():
    training = Training(steps=9, lr=0.02, schedule="step", decay_every=3)
    rates = [training.rate(step, 9) for step in range(9)]
    assert rates == pytest.approx([0.02] * 3 + [0.002] * 3 + [0.0002] * 3)


def test_updates_in_all():
    assert Training(steps=7, batch=8).total(46) == 7
    assert Training(epochs=2.5, batch=8).total(46) == 12  # of 5 an epoch
    assert Training(epochs=0.01, batch=8).total(46) == 1
    with pytest.raises(ValueError, match=r"batch \(8\) must not be larger than the number of training images \(7\)"):
        Training(epochs=1, batch=8).total(7)
    with pytest.raises(ValueError, match=r"batch \(8\)"):
        train(network(), digits(7), Training(steps=1, batch=8))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({}, "steps"),
        ({"steps": 1, "epochs": 1}, "steps"),
        ({"steps": 0}, "steps"),
        ({"steps": 2.5}, "steps"),
        ({"steps": 1, "batch": 8.0}, "batch"),
        ({"epochs": -1.0}, "epochs"),
        ({"steps": 1, "batch": 0}, "batch"),
        ({"steps": 1, "lr": math.nan}, "lr"),
        ({"steps": 1, "clip": 0.0}, "clip"),
        ({"steps": 1, "schedule": "cosine"}, "cosine"),
        ({"steps": 1, "ema": 1.0}, "ema"),
        ({"steps": 1, "warmup": 1.0}, "warmup"),
        ({"steps": 1, "momentum": -0.1}, "momentum"),
    ],
)
def test_settings_that_make_no_sense(wrong, says):
    with pytest.raises(ValueError, match=says):
        Training(**wrong)


# ---- one update, by hand ---------------------------------------------------------------------------


def classifier():
    """Ten numbers to three classes, and the softmax gradient of its weight written down in numpy's words."""
    torch.manual_seed(0)
    images, labels = torch.randn(6, 10, 1, 1), torch.tensor([0, 1, 2, 0, 1, 2])
    model = nn.Sequential(nn.Flatten(), nn.Linear(10, 3, bias=False))

    def gradient(weight):
        x = images.flatten(1)
        errors = (x @ weight.T).softmax(1) - torch.eye(3)[labels]
        return errors.T @ x / len(x)

    return model, Images(images, labels), gradient


@pytest.mark.usefixtures("_doubles")
@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_with_momentum_and_decay(nesterov):
    model, data, gradient = classifier()
    training = Training(
        steps=4, batch=6, lr=0.3, schedule="step", decay_every=2, momentum=0.8, nesterov=nesterov, weight_decay=0.1
    )
    weight, speed = model[1].weight.detach().clone(), 0.0
    for rate in (0.3, 0.3, 0.03, 0.03):
        slope = gradient(weight) + 0.1 * weight
        speed = 0.8 * speed + slope
        weight = weight - rate * (slope + 0.8 * speed if nesterov else speed)
    train(model, data, training)
    torch.testing.assert_close(model[1].weight.detach(), weight, rtol=1e-12, atol=0)


@pytest.mark.usefixtures("_doubles")
def test_clipping_limits_the_norm_of_the_update():
    """Over all parameters together, and only where the gradient is longer."""

    def moved(clip):
        model = network()
        before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        training = Training(steps=1, batch=8, lr=0.5, momentum=0.0, warmup=0.0, clip=clip)
        train(model, digits(), training)
        return (nn.utils.parameters_to_vector(model.parameters()) - before).detach()

    free = moved(None)
    length = float(free.norm()) / 0.5
    assert float(moved(length / 7).norm()) == pytest.approx(0.5 * length / 7, rel=1e-5)
    torch.testing.assert_close(moved(length / 7), free / 7, rtol=1e-4, atol=1e-12)
    assert torch.equal(moved(length * 7), free)


def test_parts_learn_at_their_own_rates():
    def moved(**scales):
        model = network("noisy")
        before = {name: value.detach().clone() for name, value in model.named_parameters()}
        train(model, digits(), Training(steps=1, batch=8, momentum=0.0, scales=scales))
        return {name: value.detach() - before[name] for name, value in model.named_parameters()}

    plain, scaled = moved(), moved(**{"0": 3.0, "0.bias": 0.5, "bias": 2.0})
    for name, scale in {"0.weight": 3.0, "0.bias": 3.0, "6.bias": 2.0, "6.weight": 1.0, "3.bias": 2.0}.items():
        torch.testing.assert_close(scaled[name], plain[name] * scale, rtol=1e-3, atol=1e-7)
    with pytest.raises(ValueError, match=r"scales \(nowhere\) match no parameter"):
        moved(nowhere=2.0)


def test_learning_rate_scales_of_all_matching_names_multiply():
    """As in Caffe: the biases of a layer with lr_mult 0.01 have lr_mult 0.02."""
    model = nn.ModuleDict({"transformer": nn.Linear(2, 3), "fc": nn.Linear(3, 4)})
    groups = engine._groups(model, Training(steps=1, scales={"bias": 2.0, "transformer": 0.01}))
    scales = {id(parameter): group["scale"] for group in groups for parameter in group["params"]}
    assert {name: scales[id(parameter)] for name, parameter in model.named_parameters()} == {
        "transformer.weight": 0.01,
        "transformer.bias": 0.02,
        "fc.weight": 1.0,
        "fc.bias": 2.0,
    }


@pytest.mark.usefixtures("_doubles")
def test_average_of_the_weights_by_hand(tmp_path):
    """The model ends with the average, the checkpoint has both; counts are copied."""
    model, file = network("noisy"), tmp_path / "c"
    average = model[0].weight.detach().clone()
    seen = []
    training = Training(steps=30, batch=8, ema=0.7)
    train(model, digits(), training, file=file, report=lambda at: seen.append(model[0].weight.detach().clone()))
    for step, weight in enumerate(seen):
        decay = min(0.7, (step + 1) / (step + 10))
        average = decay * average + (1 - decay) * weight
    torch.testing.assert_close(model[0].weight.detach(), average, rtol=1e-12, atol=1e-15)
    assert not torch.equal(average, seen[-1])
    tensors = checkpoint.read(file)[0]
    assert torch.equal(tensors["model.0.weight"], seen[-1])
    assert torch.equal(tensors["average.0.weight"], model[0].weight)
    assert int(model[3].num_batches_tracked) == 30
    train(other := network("noisy"), digits(), training, file=file)  # all done before
    assert bits(other.state_dict()) == bits(model.state_dict())


def test_half_precision_is_used_and_weights_stay_whole():
    model, types = network(), set()
    model[0].register_forward_hook(lambda layer, x, y: types.add(y.dtype))
    done = train(model, digits(), Training(epochs=8, batch=8, amp=True))
    assert types == {torch.bfloat16}
    assert {value.dtype for value in model.state_dict().values()} == {torch.float32}
    assert done.curve[-1][1] < done.curve[0][1]


# ---- the loop --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "noisy"])
def test_same_seed_same_bits_other_seed_other_bits(tmp_path, kind):
    """Where the seed decides about the order of the images alone, and about dropout as well."""

    def trained(seed, name):
        train(network(kind), digits(), Training(epochs=2.4, batch=8, ema=0.9), seed=seed, file=tmp_path / name)
        return outcome(tmp_path / name)

    first = trained(5, "a")
    torch.rand(7)
    assert trained(5, "b") == first
    other = trained(6, "c")
    assert all(other[0][name] != value for name, value in first[0].items() if "num_batches" not in name)
    assert other[1]["curve"] != first[1]["curve"]
    with pytest.raises(ValueError, match=r"seed \(-1\) must be 0 or more"):
        trained(-1, "d")


def test_an_epoch_takes_every_image_once_but_those_that_fill_no_batch():
    source = digits()
    data = Images(source.batch(torch.arange(46))[0], source.labels)
    train(network(), data, Training(epochs=2.4, batch=8))
    assert [epoch for epoch, _ in data.asked] == [0] * 5 + [1] * 5 + [2] * 2
    epochs = [[index for at, indices in data.asked for index in indices if at == epoch] for epoch in range(3)]
    assert [len(set(indices)) for indices in epochs] == [len(indices) for indices in epochs] == [40, 40, 16]
    assert epochs[0] != epochs[1]
    assert set(range(46)) - set(epochs[0]) != set(range(46)) - set(epochs[1])


class Ordered(Images):
    """Backwards in even epochs; no order of its own in odd ones."""

    def order(self, *, seed, epoch):
        return None if epoch % 2 else torch.arange(len(self) - 1, -1, -1)


def test_data_may_have_an_order_of_their_own():
    source = digits()
    pixels = source.batch(torch.arange(46))[0]
    data, other = Ordered(pixels, source.labels), Images(pixels, source.labels)
    for each in (data, other):
        train(network(), each, Training(epochs=2, batch=8))
    assert [index for epoch, indices in data.asked for index in indices if not epoch] == list(range(45, 5, -1))
    assert [asked for asked in data.asked if asked[0]] == [asked for asked in other.asked if asked[0]]


def test_images_of_bytes_are_what_floats_are(tmp_path):
    bytes_ = torch.randint(0, 256, (46, 1, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(46) % 10
    found = []
    for images in (bytes_, bytes_ / 255):
        model = network()
        train(model, Images(images, labels), Training(steps=7, batch=8))
        found.append(bits(model.state_dict() | {"answers": predict(model, Images(images, labels))[0]}))
    assert found[0] == found[1]


@pytest.mark.usefixtures("_doubles")
@pytest.mark.parametrize("parts", [2, 3, 8, 100])
def test_a_batch_in_parts_is_the_same_batch(parts):
    models, reports = [network(), network()], [[], []]
    training = Training(steps=12, batch=8, clip=0.5, weight_decay=1e-3, ema=0.8)
    for model, accumulate, seen in zip(models, (1, parts), reports, strict=True):
        train(model, digits(), training, accumulate=accumulate, report=seen.append)
    torch.testing.assert_close(models[1].state_dict(), models[0].state_dict(), rtol=0, atol=1e-12)
    assert [at.loss for at in reports[1]] == pytest.approx([at.loss for at in reports[0]], rel=1e-12)


def test_a_batch_in_parts_holds_one_part_at_a_time():
    seen = []
    model = network()
    model[0].register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    train(model, digits(), Training(steps=2, batch=8), accumulate=3)
    assert seen == [3, 3, 2] * 2
    with pytest.raises(ValueError, match=r"accumulate \(0\) must be 1 or more"):
        train(model, digits(), Training(steps=2, batch=8), accumulate=0)


@pytest.mark.parametrize(("budget", "ends"), [({"epochs": 2.4}, [5, 10, 12]), ({"steps": 3}, [3]), ({"steps": 5}, [5])])
@pytest.mark.parametrize("look", [1, 3, 4, 100])
def test_curve_is_the_mean_loss_of_each_epoch(monkeypatch, budget, ends, look):
    """At fractions of epochs too, and where the loss is looked at now and then only, as on GPUs."""
    seen = []
    train(network(), digits(), Training(**budget, batch=8), report=seen.append)
    losses = [at.loss for at in seen]
    assert [at.step for at in seen] == list(range(1, ends[-1] + 1))
    assert [at.epoch for at in seen] == pytest.approx([step / 5 for step in range(1, ends[-1] + 1)])
    monkeypatch.setattr(engine, "_look_every", lambda device: look)
    rare = []
    done = train(network(), digits(), Training(**budget, batch=8), report=rare.append)
    begins = [0, *ends]
    means = [sum(losses[a:b]) / (b - a) for a, b in zip(begins, ends, strict=False)]
    assert [x for x, _ in done.curve] == pytest.approx([end / 5 for end in ends])
    assert [y for _, y in done.curve] == pytest.approx(means)
    assert [at.step for at in rare] == [s for s in range(1, ends[-1] + 1) if s % look == 0 or s in ends]
    assert [at.loss for at in rare] == [losses[at.step - 1] for at in rare]
    assert (done.steps, done.resumed) == (ends[-1], 0)


def test_reports_say_where_the_run_is():
    seen = []
    training = Training(steps=7, batch=8)
    train(network(), digits(), training, report=seen.append)
    assert [at.rate for at in seen] == [training.rate(step, 7) for step in range(7)]
    assert all(at.total == 7 and at.images_per_second > 0 for at in seen)
    images, labels = digits().batch(engine._shuffled(46, seed=0, epoch=0)[:8])
    with torch.no_grad():
        assert seen[0].loss == pytest.approx(float(F.cross_entropy(network()(images), labels)), rel=1e-5)


def test_freed_memory_is_kept_without_a_word():
    memory.keep_freed_memory()


# ---- exact resume ----------------------------------------------------------------------------------

KINDS = {
    "plain": ("plain", {}),
    "noisy": ("noisy", {"ema": 0.9, "clip": 0.5, "weight_decay": 1e-3}),
    "amp": ("noisy", {"amp": True, "ema": 0.9, "schedule": "step", "decay_every": 4}),
    "scaled": ("noisy", {"amp": True, "clip": 0.5}),  # float16 with a scaler, as on older GPUs
    "frozen": ("frozen", {"ema": 0.9, "weight_decay": 1e-3}),
    "still": ("noisy", {"momentum": 0.0}),
    "rare": ("noisy", {"ema": 0.9}),  # a look at every third update, as on GPUs
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("save_every", [0.0, 0.003])
def test_resumed_run_ends_bit_for_bit_the_same(tmp_path, monkeypatch, kind, save_every):
    """Killed three times, in the middle of epochs too; what was done after the last checkpoint is done again."""
    name, options = KINDS[kind]
    if kind == "scaled":
        monkeypatch.setattr(engine, "_precision", lambda device: torch.float16)
        monkeypatch.setattr(torch.amp.GradScaler.__init__, "__defaults__", scaler_defaults())
    if kind == "rare":
        monkeypatch.setattr(engine, "_look_every", lambda device: 3)
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
                report=dies_at(step),
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


def test_frozen_and_unused_parameters_stay_and_masks_survive():
    model = Frozen()
    before = bits(model.state_dict())
    train(model, digits(), Training(steps=6, batch=8, ema=0.9, weight_decay=0.1))
    after = bits(model.state_dict())
    same = {name for name in before if after[name] == before[name]}
    assert same == {"frozen.weight", "frozen.bias", "unused.weight", "unused.bias", "mask"}
    assert model.first.weight is model.second.weight
    assert int(model.count) == 6


def child(function, *args):
    """A process of its own, and the end of a pipe to it."""
    here, there = SERVER.Pipe()
    process = SERVER.Process(target=_begin, args=(function, there, *args), daemon=True)
    process.start()
    there.close()
    return process, here


def _begin(function, pipe, *args):
    torch.set_num_threads(1)
    function(pipe, *args)


def _trains_until_killed(pipe, file, far):
    """Tells every step; waits for its death at a far one."""

    def report(at):
        pipe.send(at.step)
        if at.step == far:
            pipe.recv()

    model = network("noisy")
    train(model, digits(), Training(epochs=6, batch=8, ema=0.9), seed=4, file=file, report=report, save_every=0.0)


def test_killed_at_any_moment_and_resumed(tmp_path):
    train(network("noisy"), digits(), Training(epochs=6, batch=8, ema=0.9), seed=4, file=tmp_path / "whole")
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
    done = train(network("noisy"), digits(), Training(epochs=6, batch=8, ema=0.9), seed=4, file=file)
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

    def limit(at):
        if at.step == 3:  # the system ends us in the middle of the file
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size // 2, resource.RLIM_INFINITY))
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)

    if where == "fsync":  # of the file; the second call is that of the folder
        real, os.fsync = (
            os.fsync,
            lambda handle: real(handle) if os.path.isdir(f"/proc/self/fd/{handle}") else mine(handle),
        )
        mine = third(real)
    elif where == "replace":
        os.replace = third(os.replace)
    report = limit if where == "write" else lambda at: None
    train(network(), digits(), Training(epochs=2, batch=8), file=file, report=report, save_every=0.0)


@pytest.mark.parametrize("where", ["write", "fsync", "replace"])
def test_killed_while_a_checkpoint_is_written(tmp_path, where):
    process, _ = child(_dies_writing, tmp_path / "c", where)
    process.join(60)
    assert process.exitcode == -(signal.SIGXFSZ if where == "write" else signal.SIGKILL)
    assert len(list(tmp_path.iterdir())) == 2  # the file, and what became of the next one
    assert checkpoint.read(tmp_path / "c")[1]["step"] == 2
    train(network(), digits(), Training(epochs=2, batch=8), file=tmp_path / "c")
    train(network(), digits(), Training(epochs=2, batch=8), file=tmp_path / "whole")
    assert outcome(tmp_path / "c") == outcome(tmp_path / "whole")


@pytest.mark.parametrize("name", ["threads", "world", "device", "precision", "accumulate"])
def test_resuming_under_other_circumstances_warns(tmp_path, name):
    file, training = tmp_path / "c", Training(steps=8, batch=8)
    with pytest.raises(Killed):
        train(network(), digits(), training, file=file, report=dies_at(4), save_every=0.0)
    tensors, state = checkpoint.read(file)
    checkpoint.write(file, tensors, state | {name: "other"})
    with pytest.warns(UserWarning, match=rf"{name}: .* other when {file}.*not bit for bit"):
        train(network(), digits(), training, file=file)
    assert checkpoint.read(file)[1]["step"] == 8


def test_checkpoints_of_the_first_version_go_on(tmp_path):
    """They have no checksum and name neither device nor precision."""
    training = Training(steps=8, batch=8)
    train(network(), digits(), training, file=tmp_path / "whole")
    with pytest.raises(Killed):
        train(network(), digits(), training, file=tmp_path / "c", report=dies_at(4), save_every=0.0)
    tensors, state = checkpoint.read(tmp_path / "c")
    old = {name: value for name, value in state.items() if name not in ("device", "precision", "accumulate")}
    safetensors.torch.save_file(tensors, tmp_path / "c", metadata={"state": json.dumps(old)})
    train(network(), digits(), training, file=tmp_path / "c")
    assert outcome(tmp_path / "c") == outcome(tmp_path / "whole")


# ---- stopped from outside --------------------------------------------------------------------------


def handlers():
    return signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_request_to_end_saves_and_says_so(tmp_path, number):
    file, training, before = tmp_path / "c", Training(epochs=2, batch=8), handlers()

    def report(at):
        assert handlers() != before
        if at.step == 3:
            os.kill(os.getpid(), number)

    with pytest.raises(Interrupted, match=rf"after step 4 of 10, saved in {file}"):
        train(network(), digits(), training, file=file, report=report)
    assert handlers() == before
    assert checkpoint.read(file)[1]["step"] == 4
    with pytest.raises(Interrupted, match="after step 4 of 10; nothing was saved"):
        train(network(), digits(), training, report=report)
    train(network(), digits(), training, file=file)
    train(network(), digits(), training, file=tmp_path / "whole")
    assert outcome(file) == outcome(tmp_path / "whole")


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_ctrl_c_ends_at_once(tmp_path, first):
    before = handlers()
    reached = []

    def report(at):
        reached.append(at.step)
        if at.step == 3:
            os.kill(os.getpid(), first)
            os.kill(os.getpid(), signal.SIGINT)
            signal.getsignal(signal.SIGINT)  # handlers run between bytecodes

    with pytest.raises(KeyboardInterrupt) as ended:
        train(network(), digits(), Training(epochs=2, batch=8), file=tmp_path / "c", report=report)
    assert ended.type is KeyboardInterrupt
    assert reached == [1, 2, 3]
    assert not list(tmp_path.iterdir())
    assert handlers() == before


def test_a_second_ctrl_c_while_saving_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    file, fsync = tmp_path / "c", os.fsync

    def slow(handle):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        fsync(handle)

    def report(at):
        if at.step == 4:
            monkeypatch.setattr(os, "fsync", slow)

    with pytest.raises(KeyboardInterrupt):
        train(network(), digits(), Training(epochs=2, batch=8), file=file, report=report, save_every=0.0)
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]
    assert checkpoint.read(file)[1]["step"] == 3


def test_ctrl_c_while_the_last_checkpoint_is_written_counts(tmp_path, monkeypatch):
    write = checkpoint.write
    monkeypatch.setattr(checkpoint, "write", lambda *args: (write(*args), os.kill(os.getpid(), signal.SIGINT)))
    with pytest.raises(Interrupted, match="after step 5 of 5, saved in"):
        train(network(), digits(), Training(steps=5, batch=8), file=tmp_path / "c")
    monkeypatch.undo()
    done = train(network(), digits(), Training(steps=5, batch=8), file=tmp_path / "c")
    assert (done.steps, done.resumed) == (5, 0)


def test_other_threads_train_without_handlers(tmp_path):
    before, ends = handlers(), []

    def run():
        train(
            network(),
            digits(),
            Training(epochs=2, batch=8),
            file=tmp_path / "c",
            report=lambda at: seen.add(handlers()),
        )
        ends.append("well")

    seen = set()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert ends == ["well"]
    assert seen == {before}
    train(network(), digits(), Training(epochs=2, batch=8), file=tmp_path / "whole")
    assert outcome(tmp_path / "c") == outcome(tmp_path / "whole")


def test_a_handler_that_is_not_pythons(monkeypatch):
    """`signal.signal` says None for it, and takes no None."""
    real = signal.signal
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(signal, "signal", lambda number, handler: real(number, handler) and None)
    try:
        train(network(), digits(), Training(steps=2, batch=8))
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        real(signal.SIGTERM, before)
        real(signal.SIGINT, signal.default_int_handler)


# ---- numbers that are none -------------------------------------------------------------------------


class Spoilt(Images):
    """Images that are not a number from the batch of this update on."""

    def __init__(self, update):
        source = digits()
        super().__init__(source.batch(torch.arange(46))[0], source.labels)
        self.update = update

    def batch(self, indices, *, epoch=0):
        images, labels = super().batch(indices, epoch=epoch)
        return (images * math.nan if len(self.asked) >= self.update else images), labels


def test_a_loss_that_is_not_finite_stops(tmp_path):
    file, training = tmp_path / "c", Training(epochs=2, batch=8)
    with pytest.raises(
        NotFinite, match=rf"loss of step 7 is not finite \(nan\).*checkpoint is step 6, {file}; try a low"
    ):
        train(network(), Spoilt(7), training, file=file, save_every=0.0)
    assert checkpoint.read(file)[1]["step"] == 6
    with pytest.raises(NotFinite, match=r"loss of step 1 is not finite \(nan\); there is no earlier checkpoint"):
        train(network(), Spoilt(1), training)
    with pytest.raises(NotFinite, match="last good checkpoint is step 6"):  # known from the file
        train(network(), Spoilt(1), training, file=file)


@pytest.mark.parametrize("update", range(1, 11))
def test_rare_looks_name_the_right_step(tmp_path, monkeypatch, update):
    """Three updates from one look to the next, five an epoch: looks after 3, 5, 6, 9 and 10."""
    monkeypatch.setattr(engine, "_look_every", lambda device: 3)
    good = max([look for look in (3, 5, 6, 9) if look < update], default=0)
    says = rf"loss of step {update} is not finite .*" + (rf"checkpoint is step {good}," if good else "no earlier")
    with pytest.raises(NotFinite, match=says):
        train(network(), Spoilt(update), Training(epochs=2, batch=8), file=tmp_path / "c", save_every=0.0)
    assert (tmp_path / "c").is_file() == (good > 0)


class Overflowing(nn.Module):
    """Answers well; the gradient is infinite in one update."""

    def __init__(self, update):
        super().__init__()
        self.body, self.update, self.calls = network(), update, 0

    def forward(self, x):
        self.calls += 1
        y = self.body(x)
        if self.calls == self.update:
            y.register_hook(lambda gradient: gradient * math.inf)
        return y


def test_infinite_weights_are_never_saved(tmp_path):
    file = tmp_path / "c"
    with pytest.raises(
        NotFinite, match=rf"model.body.* is not finite after step 4; the last good checkpoint is step 3, {file}"
    ):
        train(Overflowing(4), digits(), Training(epochs=2, batch=8), file=file, save_every=0.0)
    tensors, state = checkpoint.read(file)
    assert state["step"] == 3
    assert all(bool(value.isfinite().all()) for value in tensors.values())


@pytest.mark.parametrize("saved", [False, True])
def test_infinite_weights_never_end_a_run_well(tmp_path, saved):
    """In the last update, after which no loss would tell."""
    with pytest.raises(NotFinite, match=r"model.body.* is not finite after step 10; there is no earlier checkpoint"):
        train(Overflowing(10), digits(), Training(epochs=2, batch=8), file=tmp_path / "c" if saved else None)
    assert not list(tmp_path.iterdir())


# ---- checkpoints -----------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    """A checkpoint in the middle of a run of TRAINING."""
    with pytest.raises(Killed):
        train(network(), digits(), TRAINING, file=tmp_path / "c", report=dies_at(4), save_every=0.0)
    return tmp_path / "c"


TRAINING = Training(steps=8, batch=8)


@pytest.mark.parametrize(
    ("count", "training", "seed"),
    [
        (46, Training(steps=9, batch=8), 0),
        (46, Training(steps=8, batch=8, ema=0.9), 0),
        (46, TRAINING, 1),
        (45, TRAINING, 0),
    ],
)
def test_another_run_is_refused(file, count, training, seed):
    with pytest.raises(
        ValueError, match=f"{file} is the checkpoint of another run: remove it or choose another folder"
    ):
        train(network(), digits(count), training, seed=seed, file=file)


def test_another_network_is_refused_and_left_as_it_is(file):
    wide = nn.Sequential(nn.Conv2d(1, 4, 5), nn.MaxPool2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(64, 11))
    says = rf"{file} is the checkpoint of another network: .*%s.*; remove it or choose another folder"
    for model, detail in (
        (network("noisy"), "model.3.bias"),
        (wide, r"model.4.weight is \(10, 64\) torch.float32 there, \(11, 64\) torch.float32 here"),
        (network().double(), "float32 there, .* torch.float64 here"),
    ):
        before = bits(model.state_dict())
        with pytest.raises(ValueError, match=says % detail):
            train(model, digits(), TRAINING, file=file)
        assert bits(model.state_dict()) == before


def test_a_damaged_file_is_refused(file):
    """Cut anywhere, or with any bit turned: an error that names it, or not a bit of harm."""
    content, whole = file.read_bytes(), outcome(file)
    chance = random.Random(0)
    header = 8 + int.from_bytes(content[:8], "little")
    places = [*range(16), *chance.sample(range(16, header), 60), *chance.sample(range(header, len(content)), 60)]
    damaged = []
    for place in places:
        turned = bytearray(content)
        turned[place] ^= 1 << chance.randrange(8)
        damaged.append(bytes(turned))
    damaged += [content[:length] for length in (0, 1, 7, 8, 100, header, len(content) // 2, len(content) - 1)]
    damaged += [content + b"x", b"\0" * len(content), content[header:]]
    unharmed = 0
    for wrong in damaged:
        file.write_bytes(wrong)
        try:
            found = outcome(file)
        except ValueError as error:
            found = str(error)
        if isinstance(found, str):
            assert re.fullmatch(rf"{file} is .*: remove it to train from the start", found, re.DOTALL)
        else:
            assert found == whole
            unharmed += 1
    assert unharmed < 3  # a turned bit in the checksum's own name, and the like
    with pytest.raises(ValueError, match="remove it to train from the start"):
        train(network(), digits(), TRAINING, file=file)


class Bomb:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("kind", ["pickle", "torch", "state"])
def test_a_checkpoint_cannot_run_code(tmp_path, kind):
    file, target = tmp_path / "c", tmp_path / "hit"
    bomb = pickle.dumps(Bomb(target))
    if kind == "pickle":
        file.write_bytes(bomb)
    elif kind == "torch":
        torch.save({"state": Bomb(target)}, file)
    else:
        safetensors.torch.save_file({"a": torch.zeros(1)}, file, metadata={"state": bomb.decode("latin1")})
    with pytest.raises(ValueError, match="is no checkpoint or is damaged"):
        train(network(), digits(), TRAINING, file=file)
    assert not target.exists()
    pickle.loads(bomb)  # it would have been seen
    assert target.exists()


@pytest.mark.parametrize("state", ["[]", "3", '"run"', "[" * 100_000, "{}"])
def test_a_strange_state_is_refused(tmp_path, state):
    safetensors.torch.save_file({"a": torch.zeros(1)}, tmp_path / "c", metadata={"state": state})
    with pytest.raises(ValueError, match=f"{tmp_path / 'c'}.*remove it"):
        train(network(), digits(), TRAINING, file=tmp_path / "c")
    safetensors.torch.save_file({"a": torch.zeros(1)}, tmp_path / "c")
    with pytest.raises(ValueError, match=f"{tmp_path / 'c'}.*remove it"):
        checkpoint.read(tmp_path / "c")


@pytest.mark.parametrize("call", ["fsync", "replace", "write"])
def test_a_full_disk_leaves_the_old_checkpoint(file, monkeypatch, call):
    content = file.read_bytes()

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if call == "write":  # the system itself refuses the second half
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(content) // 2, limits[1]))
    else:
        monkeypatch.setattr(os, call, full)
    try:
        with pytest.raises(OSError, match=str(file)) as error:
            train(network(), digits(), TRAINING, file=file, save_every=0.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    monkeypatch.undo()
    assert error.value.errno == (errno.EFBIG if call == "write" else errno.ENOSPC)
    assert file.read_bytes() == content
    assert [entry.name for entry in file.parent.iterdir()] == ["c"]
    assert train(network(), digits(), TRAINING, file=file).resumed == 1


def test_checkpoint_keeps_any_tensor(tmp_path):
    shared = torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last)
    tensors = {
        "shared": shared,
        "again": shared,
        "part": shared[:, :1],
        "turned": torch.rand(3, 4).T,
        "half": torch.rand(3).bfloat16(),
        "count": torch.tensor(7),
        "flags": torch.tensor([True, False]),
        "empty": torch.zeros(0, 3),
        "double": nn.Parameter(torch.rand(2, dtype=torch.float64)),
    }
    state = {"step": 3, "curve": [[0.1, 1 / 3]], "none": None, "text": "\N{SNOWMAN}"}
    checkpoint.write(tmp_path / "deep" / "folder" / "c", tensors, state)
    found, back = checkpoint.read(tmp_path / "deep" / "folder" / "c")
    assert back == state
    assert found.keys() == tensors.keys()
    for name, value in tensors.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value)
    with safetensors.safe_open(tmp_path / "deep" / "folder" / "c", framework="pt") as opened:
        assert json.loads(opened.metadata()["state"]) == state  # anybody can read it
    assert zlib.crc32(b"123456789") == 0xCBF43926


# ---- answers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 4, 46, 100])
def test_predict_answers_in_order(batch):
    model, data = network("noisy"), digits()
    images, labels = data.batch(torch.arange(46))
    model.train()
    logits, truth = predict(model, data, batch=batch)
    assert model.training
    assert torch.equal(truth, labels)
    model.eval()
    torch.testing.assert_close(logits, model(images).detach())
    outer = nn.Sequential(model, nn.Linear(3, 3))
    with pytest.raises(RuntimeError):
        predict(outer, data)
    assert (outer.training, model.training) == (True, False)


# ---- what a person sees ----------------------------------------------------------------------------


def terminal(**options):
    file = io.StringIO()
    return Terminal(Console(file=file, width=120, color_system=None, **options)), file


def test_terminal_shows_loss_speed_and_time_left():
    screen, file = terminal(force_terminal=True)
    report = screen.watch("CNN [R], seed 0")
    for step in (1, 2, 3):
        report(Progress(step, 4, step / 5, 2.34567, 0.1, 1234.5))
        screen.bar.refresh()
        time.sleep(0.01)
    text = file.getvalue()
    assert "CNN [R], seed 0" in text
    assert "75%" in text
    assert "loss 2.346  1234 images/s" in text
    assert re.search(r"left 0:\d\d:\d\d", text)  # an estimate, no dashes
    assert "\x1b[?25h" not in text
    report(Progress(4, 4, 0.8, 1.0, 0.1, 1.0))
    assert screen.bar is None
    assert file.getvalue().endswith("\x1b[?25h")  # the cursor is back


def test_terminal_gives_the_cursor_back_whatever_happens(monkeypatch):
    ends = []
    monkeypatch.setattr(progress.atexit, "register", ends.append)
    screen, file = terminal(force_terminal=True)
    report = screen.watch("one")
    screen.say("stopped [here]")
    assert screen.bar is None
    assert "\x1b[?25h" in file.getvalue()
    assert file.getvalue().endswith("stopped [here]\n")
    report(Progress(1, 4, 0.2, 1.0, 0.1, 1.0))  # harmless
    screen.watch("two")
    file.truncate(0)
    for end in ends:  # of the interpreter
        end()
    assert "\x1b[?25h" in file.getvalue()


def test_silent_when_not_a_terminal():
    screen, file = terminal(force_terminal=False)
    train(network(), digits(), Training(steps=4, batch=8), report=screen.watch("CNN"))
    assert file.getvalue() == ""
    assert screen.bar is None
    screen.say("a line")
    assert file.getvalue() == "a line\n"
    Screen().say("nothing")
    Screen().watch("nothing")(Progress(1, 4, 0.2, 1.0, 0.1, 1.0))


def test_tensorboard_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"pip install 'patchreorder\[tensorboard\]'"):
        progress.tensorboard(tmp_path)


def test_tensorboard_of_a_resumed_run_has_each_step_once(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    training, seen = Training(steps=45, batch=8), []
    log = tmp_path / "log"

    def report(stop=None):
        return progress.both(progress.both(progress.tensorboard(log), seen.append), dies_at(stop))

    file = tmp_path / "c"
    with pytest.raises(Killed):
        train(network(), digits(), training, file=file, report=report(12), save_every=0.0)
    content = file.read_bytes()
    with pytest.raises(Killed):  # logs 20 and 30, which are lost with the checkpoint
        train(network(), digits(), training, file=file, report=report(35))
    file.write_bytes(content)
    time.sleep(1.1)  # files of events are named by the second
    train(network(), digits(), training, file=file, report=report())
    found = EventAccumulator(str(log))
    found.Reload()
    assert set(found.Tags()["scalars"]) == {"loss", "learning rate", "images per second"}
    losses = {at.step: at.loss for at in seen}
    values = [(event.step, event.value) for event in found.Scalars("loss")]
    assert values == [(step, pytest.approx(losses[step])) for step in (10, 20, 30, 40, 45)]
    rates = [(event.step, event.value) for event in found.Scalars("learning rate")]
    assert rates == [(step, pytest.approx(training.rate(step - 1, 45))) for step in (10, 20, 30, 40, 45)]


# ---- many processes --------------------------------------------------------------------------------


def together(size, function, *args):
    """What a function of (world, *args) answers in each of these processes, which gloo joins."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    members = [child(_joins, rank, size, store.port, function, *args) for rank in range(size)]
    try:
        answers = [pipe.recv() if pipe.poll(60) else "no answer" for _, pipe in members]
    finally:
        for process, _ in members:
            process.join(10)
            process.kill()
    assert not [answer for answer in answers if isinstance(answer, str)], answers
    return [answer for (answer,) in answers]


def _joins(pipe, rank, size, port, function, *args):
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        GLOO_SOCKET_IFNAME="lo",
        TORCHELASTIC_USE_AGENT_STORE="True",
        TORCHELASTIC_RESTART_COUNT="0",
    )
    try:
        with join() as world:
            pipe.send((function(world, *args),))
    except BaseException as error:
        pipe.send(repr(error))
        raise


WORKER = """
import os, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from tests.engine import test_train
from patchreorder.engine.distributed import join
with join() as world:
    test_train.in_doubles(world, Path({folder!r}))
    world.wait()
    os._exit(0)  # gloo's threads sometimes abort a process that ends in the ordinary way
"""


def in_doubles(world, folder):
    """Twenty updates of 15 images, twice, and the answers for 47 images."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    training = Training(steps=20, batch=15, ema=0.8, clip=1.0, weight_decay=1e-3)
    for name in ("first", "second"):
        seen = []
        model = network()
        train(model, digits(), training, file=folder / f"{name}.c", world=world, report=seen.append)
    logits, labels = predict(model, digits(47), world=world, batch=5)
    checkpoint.write(
        folder / f"answers.{world.rank}",
        {"logits": logits, "labels": labels, "ones": predict(nn.Flatten(), Indices(47), world=world, batch=5)[0]}
        | {f"model.{name}": value for name, value in model.state_dict().items()},
        {"losses": [at.loss for at in seen]},
    )


def in_parts(world, accumulate):
    """Some updates with each process's share in parts, and how often gradients went from one to the other."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    model, exchanges = network(), []

    class Watched(engine.DistributedDataParallel):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.register_comm_hook(None, lambda state, bucket: _counted(exchanges, bucket))

    engine.DistributedDataParallel = Watched
    train(model, digits(), Training(steps=6, batch=15), world=world, accumulate=accumulate)
    return {name: value.tolist() for name, value in model.state_dict().items()}, len(exchanges)


def _counted(exchanges, bucket):
    exchanges.append(1)
    work = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return work.then(lambda done: done.value()[0].div_(dist.get_world_size()))


@pytest.mark.usefixtures("_doubles")
def test_processes_exchange_gradients_once_for_all_parts():
    model = network()
    train(model, digits(), Training(steps=6, batch=15))
    alone = {name: torch.tensor(value.tolist()) for name, value in model.state_dict().items()}
    counts = set()
    for answer, count in together(2, in_parts, 3) + together(2, in_parts, 1):
        torch.testing.assert_close({n: torch.tensor(v) for n, v in answer.items()}, alone, rtol=0, atol=1e-12)
        counts.add(count)
    assert len(counts) == 1


class Indices:
    """Images that are their own index plus one."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def batch(self, indices, *, epoch=0):
        return (indices + 1.0).reshape(-1, 1, 1, 1), indices


def torchrun(size, folder):
    script = folder / "worker.py"
    script.write_text(WORKER.format(tests=str(Path(__file__).parents[2]), folder=str(folder)))
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}", str(script)],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("_doubles")
@pytest.mark.parametrize("start", ["forked", pytest.param("torchrun", marks=pytest.mark.slow)])
def test_two_processes_equal_one(tmp_path, start):
    alone = tmp_path / "alone"
    in_doubles(World(), alone)
    torchrun(2, tmp_path) if start == "torchrun" else together(2, in_doubles, tmp_path)
    assert outcome(tmp_path / "first.c") == outcome(tmp_path / "second.c")
    one, state = checkpoint.read(alone / "first.c")
    two, other = checkpoint.read(tmp_path / "first.c")
    assert state["run"] == other["run"]
    torch.testing.assert_close(two, one, rtol=0, atol=1e-5)  # much closer, really
    torch.testing.assert_close(torch.tensor(other["curve"]), torch.tensor(state["curve"]), rtol=1e-10, atol=0)
    expected, reports = checkpoint.read(alone / "answers.0")
    assert torch.equal(expected["ones"], torch.arange(1.0, 48)[:, None])
    answers = [checkpoint.read(tmp_path / f"answers.{rank}") for rank in (0, 1)]
    for found, _ in answers:
        assert torch.equal(found["ones"], expected["ones"])  # each image once, none twice
        assert torch.equal(found["labels"], expected["labels"])
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert bits(answers[0][0]) == bits(answers[1][0])
    assert answers[0][1]["losses"] == pytest.approx(reports["losses"])  # of the whole batch, by the leading process
    assert answers[1][1]["losses"] == []


class Turned(nn.Module):
    """Layers that are not declared in the order of their use."""

    def __init__(self):
        super().__init__()
        self.last, self.first, self.middle = nn.Linear(30, 10), nn.Linear(784, 60), nn.Linear(60, 30)

    def forward(self, x):
        return self.last(self.middle(self.first(x.flatten(1)).relu()).relu())


def _resumes(world, folder, kind):
    """Whole, and killed and resumed; what this process ends with."""
    training = Training(epochs=2.6, batch=8, ema=0.9)
    answer = {}

    def new():
        torch.manual_seed(world.rank)  # the leading process's weights count
        return Turned() if kind == "turned" else network(kind) if world.leads else network(kind).apply(_other)

    model = new()
    train(model, digits(), training, file=folder / "whole", world=world)
    answer["whole"] = bits(model.state_dict())
    update = engine._Run.update
    for step in (2, 8):
        engine._Run.update = lambda run, *batch, at=step: _dies_before(update, run, batch, at)
        with pytest.raises(Killed):
            train(new(), digits(), training, file=folder / "c", world=world, save_every=0.0)
        engine._Run.update = update
        world.wait()
    model = new()
    train(model, digits(), training, file=folder / "c", world=world)
    answer["resumed"] = bits(model.state_dict())
    answer["answers"] = bits(dict(zip(("logits", "labels"), predict(model, digits(), world=world), strict=True)))
    return answer


def _other(layer):
    if isinstance(layer, nn.Linear):
        nn.init.zeros_(layer.weight)


def _dies_before(update, run, batch, step):
    if run.step == step:
        raise Killed
    return update(run, *batch)


@pytest.mark.parametrize(("size", "kind"), [(2, "noisy"), (2, "frozen"), (3, "turned")])
def test_many_processes_resume_bit_for_bit(tmp_path, size, kind):
    """With running statistics, averages, unused parameters, shares that differ, and weights drawn differently."""
    answers = together(size, _resumes, tmp_path, kind)
    assert outcome(tmp_path / "c") == outcome(tmp_path / "whole")
    for answer in answers:
        assert answer["whole"] == answer["resumed"]
        assert answer == answers[0]  # all have the leading process's model
    found = checkpoint.read(tmp_path / "whole")[0]
    averages = {name.removeprefix("average."): value for name, value in found.items() if name.startswith("average.")}
    assert bits(averages) == answers[0]["whole"]


def _ends(world, folder, case):
    """How a training ends in this process."""
    data, model, last = digits(), network(), world.rank == world.size - 1
    if case == "spoilt" and last:
        data = Spoilt(4)
    model.register_buffer("running", torch.zeros(()))
    update, steps = engine._Run.update, []

    def counted(run, *batch):
        steps.append(run.step)
        if case == "signal" and last and run.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        loss = update(run, *batch)
        if case == "overflow" and last and run.step == 2:
            model.running.fill_(math.inf)  # until the next update gives it the leading process's value
        return loss

    engine._Run.update = counted
    try:
        train(model, data, Training(epochs=2, batch=9), file=folder / "c", world=world, save_every=0.0)
    except (Interrupted, NotFinite) as error:
        return type(error).__name__, str(error), len(steps)


@pytest.mark.parametrize(
    ("case", "name", "says", "saved"),
    [
        ("signal", "Interrupted", "stopped after step 4 of 10, saved in", 4),
        ("spoilt", "NotFinite", "the loss of step 4 is not finite (nan); the last good checkpoint is step 3", 3),
        ("overflow", "NotFinite", "is not finite after step 3; the last good checkpoint is step 2", 2),
    ],
)
def test_processes_end_together(tmp_path, case, name, says, saved):
    """Whichever of them got the signal or the bad number."""
    answers = together(2, _ends, tmp_path, case)
    assert [(kind, steps) for kind, _, steps in answers] == [(name, 3 if case == "overflow" else 4)] * 2
    assert all(says in text for _, text, _ in answers)
    assert checkpoint.read(tmp_path / "c")[1]["step"] == saved


def _has_little_to_do(world):
    with pytest.raises(ValueError, match=r"batch \(1\) must not be smaller than the number of processes \(2\)"):
        train(network(), digits(), Training(steps=3, batch=1), world=world)
    return predict(network(), digits(1), world=world)[0].tolist()


def test_one_image_for_two_processes():
    """The answers are there, an update is refused."""
    assert together(2, _has_little_to_do) == [predict(network(), digits(1))[0].tolist()] * 2


def test_processes_that_start_again_meet_anew():
    """In a store that still holds what dead processes said, among them a leading one that heard all."""
    store = dist.HashStore()
    old = {}
    names = ["hello 1", "hello 2", "agreed 1", "agreed 2", "heard"]
    for attempt in range(3):
        rounds = {}
        threads = [threading.Thread(target=_meets, args=(store, rank, rank == attempt, rounds)) for rank in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert len(rounds) == 3
        assert len(set(rounds.values())) == 1
        assert rounds[0] not in old
        old[rounds[0]] = [store.get(name) for name in names]
    assert len({tuple(said) for said in old.values()}) == 3


def _meets(store, rank, late, rounds):
    time.sleep(0.3 * late)
    rounds[rank] = distributed._round(store, rank, 3)


def test_a_process_that_nobody_meets_says_so():
    with pytest.raises(OSError, match="process 1 of 2 did not find the others within 0 seconds"):
        distributed._round(dist.HashStore(), 1, 2, seconds=0.1)


def test_shares_differ_by_one_at_most():
    for count in range(8):
        shares = [World(rank, 3).share(torch.arange(count)).tolist() for rank in range(3)]
        assert sorted(itertools.chain(*shares)) == list(range(count))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_alone_without_torchrun(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with join() as world:
        assert (world.rank, world.size, world.leads) == (0, 1, True)
        assert world.agreed(True)
        assert world.any(True)
        assert not world.any(False)
        assert not dist.is_initialized()


def test_digest_of_a_run_is_what_running_trainings_have():
    """Were it to change, every unfinished run would have to begin again."""
    run = engine._Run(network(), digits(), TRAINING, 0, None, World(), 1)
    assert run.state()["run"] == "51755d09"
