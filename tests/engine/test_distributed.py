"""Many processes: they equal one, resume exactly, stop together, and find each other again after a restart."""

import itertools
import math
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from patchreorder.engine import checkpoint, distributed
from patchreorder.engine import train as module
from patchreorder.engine.distributed import World, join
from patchreorder.engine.options import Training
from patchreorder.engine.predict import predict
from patchreorder.engine.state import NotFinite
from patchreorder.engine.train import Interrupted, train
from tests.engine.processes import together
from tests.engine.toy import Killed, NaNFrom, bits, digits, network, outcome
from tests.processes import environment, run_within, torchrun

pytestmark = pytest.mark.usefixtures("one_thread")

WORKER = """
import os, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from tests.engine import test_distributed
from patchreorder.engine.distributed import join
with join() as world:
    test_distributed.in_doubles(world, Path({folder!r}))
    world.barrier()
    os._exit(0)  # gloo's threads sometimes abort a process that ends in the ordinary way
"""


class Indices:
    """Images that are their own index plus one."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def batch(self, indices, *, epoch=0):
        return (indices + 1.0).reshape(-1, 1, 1, 1), indices


def in_doubles(world, folder):
    """Twenty updates of 15 images, twice, and the logits of 47 images, in double precision."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    training = Training(steps=20, batch=15, clip=1.0, weight_decay=1e-3)
    for name in ("first", "second"):
        seen = []
        model = network()
        train(model, digits(), training, file=folder / f"{name}.c", world=world, callback=seen.append)
    logits, labels = predict(model, digits(47), world=world, batch=5)
    checkpoint.write(
        folder / f"answers.{world.rank}",
        {"logits": logits, "labels": labels, "ones": predict(nn.Flatten(), Indices(47), world=world, batch=5)[0]}
        | {f"model.{name}": value for name, value in model.state_dict().items()},
        {"losses": [at.loss for at in seen]},
    )


def run_by_torchrun(size, folder):
    script = folder / "worker.py"
    script.write_text(WORKER.format(tests=str(Path(__file__).parents[2]), folder=str(folder)))
    run_within(torchrun(str(script), size=size), env=environment(GLOO_SOCKET_IFNAME="lo"))


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("start", ["forked", pytest.param("torchrun", marks=pytest.mark.slow)])
def test_two_processes_equal_one(tmp_path, start):
    alone = tmp_path / "alone"
    in_doubles(World(), alone)
    run_by_torchrun(2, tmp_path) if start == "torchrun" else together(2, in_doubles, tmp_path)
    assert outcome(tmp_path / "first.c") == outcome(tmp_path / "second.c")
    one, state = checkpoint.read(alone / "first.c")
    two, other = checkpoint.read(tmp_path / "first.c")
    assert state["run"] == other["run"]
    torch.testing.assert_close(two, one, rtol=0, atol=1e-5)  # usually much closer
    torch.testing.assert_close(torch.tensor(other["curve"]), torch.tensor(state["curve"]), rtol=1e-10, atol=0)
    expected, reports = checkpoint.read(alone / "answers.0")
    assert torch.equal(expected["ones"], torch.arange(1.0, 48)[:, None])
    answers = [checkpoint.read(tmp_path / f"answers.{rank}") for rank in (0, 1)]
    for found, _ in answers:
        assert torch.equal(found["ones"], expected["ones"])  # each image once
        assert torch.equal(found["labels"], expected["labels"])
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert bits(answers[0][0]) == bits(answers[1][0])
    assert answers[0][1]["losses"] == pytest.approx(reports["losses"])  # of the whole batch, in the main process
    assert answers[1][1]["losses"] == []


def _in_parts(world, accumulate):
    """Some updates with accumulated gradients, and how often processes exchanged gradients."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    model, exchanges = network(), []

    class Recorded(module.DistributedDataParallel):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.register_comm_hook(None, lambda state, bucket: _recorded(exchanges, bucket))

    module.DistributedDataParallel = Recorded
    train(model, digits(), Training(steps=6, batch=15), world=world, accumulate=accumulate)
    return {name: value.tolist() for name, value in model.state_dict().items()}, len(exchanges)


def _recorded(exchanges, bucket):
    exchanges.append(1)
    work = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return work.then(lambda done: done.value()[0].div_(dist.get_world_size()))


@pytest.mark.usefixtures("double_precision")
def test_processes_exchange_accumulated_gradients_once():
    model = network()
    train(model, digits(), Training(steps=6, batch=15))
    alone = {name: torch.tensor(value.tolist()) for name, value in model.state_dict().items()}
    counts = set()
    for answer, count in together(2, _in_parts, 3) + together(2, _in_parts, 1):
        torch.testing.assert_close({n: torch.tensor(v) for n, v in answer.items()}, alone, rtol=0, atol=1e-12)
        counts.add(count)
    assert len(counts) == 1


class Reversed(nn.Module):
    """Layers that are not declared in the order of their use."""

    def __init__(self):
        super().__init__()
        self.last, self.first, self.middle = nn.Linear(30, 10), nn.Linear(784, 60), nn.Linear(60, 30)

    def forward(self, x):
        return self.last(self.middle(self.first(x.flatten(1)).relu()).relu())


def _resumes(world, folder, kind):
    """A run, and another that is killed and resumed; the bits of the models of this process."""
    training = Training(epochs=2.6, batch=8)
    answer = {}

    def new():
        torch.manual_seed(world.rank)  # the main process's weights count
        return Reversed() if kind == "reversed" else network(kind) if world.is_main else network(kind).apply(_zero)

    model = new()
    train(model, digits(), training, file=folder / "whole", world=world)
    answer["whole"] = bits(model.state_dict())
    update = module._Run.update
    for step in (2, 8):
        module._Run.update = lambda run, *batch, at=step: _dies_before(update, run, batch, at)
        with pytest.raises(Killed):
            train(new(), digits(), training, file=folder / "c", world=world, save_every=0.0)
        module._Run.update = update
        world.barrier()
    model = new()
    train(model, digits(), training, file=folder / "c", world=world)
    answer["resumed"] = bits(model.state_dict())
    answer["logits"] = bits(dict(zip(("logits", "labels"), predict(model, digits(), world=world), strict=True)))
    return answer


def _zero(layer):
    if isinstance(layer, nn.Linear):
        nn.init.zeros_(layer.weight)


def _dies_before(update, run, batch, step):
    if run.state.step == step:
        raise Killed
    return update(run, *batch)


@pytest.mark.parametrize(("size", "kind"), [(2, "noisy"), (2, "frozen"), (3, "reversed")])
def test_many_processes_resume_bit_for_bit(tmp_path, size, kind):
    """With running statistics, unused parameters, unequal shares, and weights that are initialised differently."""
    answers = together(size, _resumes, tmp_path, kind)
    assert outcome(tmp_path / "c") == outcome(tmp_path / "whole")
    for answer in answers:
        assert answer["whole"] == answer["resumed"]
        assert answer == answers[0]  # all have the main process's model
    saved = checkpoint.read(tmp_path / "whole")[0]
    model = {name.removeprefix("model."): value for name, value in saved.items() if name.startswith("model.")}
    assert bits(model) == answers[0]["whole"]


def _stops(world, folder, case):
    """How a run stops in this process: the error, its message, the number of updates."""
    data, model, last = digits(), network(), world.rank == world.size - 1
    if case == "nan" and last:
        data = NaNFrom(4)
    model.register_buffer("running", torch.zeros(()))
    update, steps = module._Run.update, []

    def counted(run, *batch):
        steps.append(run.state.step)
        if case == "signal" and last and run.state.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        loss = update(run, *batch)
        if case == "overflow" and last and run.state.step == 2:
            model.running.fill_(math.inf)  # until the next update gives it the main process's value
        return loss

    module._Run.update = counted
    try:
        train(model, data, Training(epochs=2, batch=9), file=folder / "c", world=world, save_every=0.0)
    except (Interrupted, NotFinite) as error:
        return type(error).__name__, str(error), len(steps)


@pytest.mark.parametrize(
    ("case", "name", "message", "saved"),
    [
        ("signal", "Interrupted", "stopped after step 4 of 10, saved in", 4),
        ("nan", "NotFinite", "the loss is not finite at step 4 (nan); the last good checkpoint is step 3", 3),
        ("overflow", "NotFinite", "is not finite after step 3; the last good checkpoint is step 2", 2),
    ],
    ids=["signal", "nan", "overflow"],
)
def test_processes_stop_together(tmp_path, case, name, message, saved):
    """Whichever of them got the signal or the number that is not finite."""
    answers = together(2, _stops, tmp_path, case)
    assert [(kind, steps) for kind, _, steps in answers] == [(name, 3 if case == "overflow" else 4)] * 2
    assert all(message in text for _, text, _ in answers)
    assert checkpoint.read(tmp_path / "c")[1]["step"] == saved


def _has_one_image(world):
    with pytest.raises(ValueError, match=r"batch \(1\) must not be smaller than the number of processes \(2\)"):
        train(network(), digits(), Training(steps=3, batch=1), world=world)
    return predict(network(), digits(1), world=world)[0].tolist()


def test_one_image_for_two_processes():
    """It is predicted by both; a batch of one is refused."""
    assert together(2, _has_one_image) == [predict(network(), digits(1))[0].tolist()] * 2


def _broadcasts(world):
    tensors = [torch.full((2, 3), world.rank + 1.0).T, torch.full((2, 3), world.rank + 1.0), torch.tensor(world.rank)]
    world.broadcast(tensors)
    return [tensor.tolist() for tensor in tensors], float(world.sum(torch.tensor(world.rank + 1.0)))


def test_broadcast_and_sum():
    """Also of tensors that are not contiguous."""
    assert together(2, _broadcasts) == [([[[1.0, 1.0]] * 3, [[1.0] * 3] * 2, 0], 3.0)] * 2


def test_restarted_processes_agree_on_a_new_name():
    """In a store that still holds what dead processes wrote, among them a main process that finished its part."""
    store = dist.HashStore()
    old = {}
    keys = ["token 1", "token 2", "acknowledged 1", "acknowledged 2", "tokens"]
    for late in (1, 0, 2):  # the rank of the process that starts last
        names = {}
        threads = [threading.Thread(target=_meets, args=(store, rank, rank == late, names)) for rank in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert len(names) == 3
        assert len(set(names.values())) == 1
        assert names[0] not in old
        old[names[0]] = [store.get(key) for key in keys]
    assert len({tuple(values) for values in old.values()}) == 3


def _meets(store, rank, late, names):
    time.sleep(0.3 * late)
    names[rank] = distributed._session(store, rank, 3, seconds=5)


def test_a_process_that_finds_no_other_raises():
    with pytest.raises(OSError, match="process 1 of 2 did not find the others within 0 seconds"):
        distributed._session(dist.HashStore(), 1, 2, seconds=0.1)


def test_shares_differ_in_length_by_one_at_most():
    for count in range(8):
        shares = [World(rank, 3).share(torch.arange(count)).tolist() for rank in range(3)]
        assert sorted(itertools.chain(*shares)) == list(range(count))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_world_of_one_without_torchrun(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with join() as world:
        assert (world.rank, world.size, world.is_main) == (0, 1, True)
        assert [world.any(flag) for flag in (True, False)] == [True, False]
        assert [world.from_main(flag) for flag in (True, False)] == [True, False]
        assert not dist.is_initialized()
