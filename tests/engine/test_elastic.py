"""Training beyond one process, through the real command: a killed worker costs nothing but time."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from patchreorder.data.generated import write_photos
from patchreorder.engine import checkpoint
from tests.processes import descendants, environment, running, torchrun

pytestmark = pytest.mark.slow
CLASSES = 1000
STEPS = 14
CHANGES = [f"steps={STEPS}", "batch=8", "lr=0.01"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A thousand classes: two images each to train on, one to test on."""
    root = tmp_path_factory.mktemp("photographs")
    write_photos(root / "train", classes=CLASSES, images=2, seed=0)
    write_photos(root / "val", classes=CLASSES, images=1, seed=1)
    return root


@pytest.fixture(scope="module")
def shards(folder, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("shards") / "out"
    command = [sys.executable, "-m", "patchreorder", "shard", str(folder), str(out), "--size", "150", "--workers", "0"]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return out


@contextlib.contextmanager
def started(data: Path, out: Path, *, restarts: int) -> Iterator[subprocess.Popen]:
    command = torchrun("-m", "patchreorder", "run", "table2", restarts=restarts)
    command += ["--data", str(data), "--setting", "smoke", "--rows", "pr_cnn", "--columns", "Ori", "R"]
    command += ["--change", *CHANGES, "--save-every", "0", "--accumulate", "2", "--workers", "1", "--threads", "1"]
    variables = environment(GLOO_SOCKET_IFNAME="lo")
    with (
        (out.parent / f"{out.name}.log").open("w") as log,
        running([*command, "--out", str(out)], stdout=log, stderr=log, env=variables) as process,
    ):
        yield process


def ended(process: subprocess.Popen, out: Path) -> tuple[dict, dict, list[dict]]:
    """The weights, the state of the last checkpoint and the rows."""
    log = out.parent / f"{out.name}.log"
    assert process.wait(timeout=400) == 0, log.read_text()[-3000:]
    (cell,) = (out / "cells").iterdir()
    weights = checkpoint.read(cell / "weights.safetensors")[0]
    rows = [json.loads(line) for line in (out / "table2.jsonl").read_text().splitlines()]
    return weights, checkpoint.read(cell / "checkpoint.safetensors")[1], rows


def worker_of(process: subprocess.Popen, rank: int) -> int:
    """The process that torchrun started with this rank."""
    for pid in descendants(process.pid):
        with contextlib.suppress(OSError):
            if f"RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                return pid
    raise AssertionError(f"no process of rank {rank}")


def kill_worker(process: subprocess.Popen, out: Path, *, rank: int, step: int) -> int:
    """End a worker with SIGKILL once this step is saved; the step that was saved then."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and process.poll() is None:
        for file in out.glob("cells/*/checkpoint.safetensors"):
            if (at := checkpoint.read(file)[1]["step"]) >= step:
                os.kill(worker_of(process, rank), signal.SIGKILL)
                return at
        time.sleep(0.02)
    raise AssertionError((out.parent / f"{out.name}.log").read_text()[-3000:])


@pytest.mark.parametrize("kind", ["folder", "shards"])
def test_a_killed_worker_costs_nothing_but_time(kind, request, tmp_path):
    data = request.getfixturevalue(kind)
    with started(data, tmp_path / "whole", restarts=0) as process:
        weights, state, rows = ended(process, tmp_path / "whole")
    assert (state["step"], state["world"], state["accumulate"], state["resumed"]) == (STEPS, 2, 2, 0)
    with started(data, tmp_path / "killed", restarts=2) as process:
        at = kill_worker(process, tmp_path / "killed", rank=1, step=4)
        assert at < STEPS - 2
        again, after, its_rows = ended(process, tmp_path / "killed")
    assert after["resumed"] == 1
    assert after["curve"] == state["curve"]
    assert {name: value.numpy().tobytes() for name, value in again.items()} == {
        name: value.numpy().tobytes() for name, value in weights.items()
    }
    assert [row["errors"] for row in its_rows] == [row["errors"] for row in rows]
    assert [(row["column"], row["n"], row["details"]["processes"]) for row in rows] == [("Ori", 6, 2), ("R", 6, 2)]
