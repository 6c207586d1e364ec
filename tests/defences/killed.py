"""Commands in processes of their own that are killed: after a time, or at one of their steps on the disk."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from patchreorder.__main__ import main
from patchreorder.classifier import features
from patchreorder.search import descriptors, update
from tests.classifier.photographs import use_small_backbone
from tests.engine.processes import child
from tests.search.samples import Colours

STEPS = ("replace", "fsync", "unlink", "open", "ftruncate", "write")  # functions of `os` that a process may die before
PATIENCE = 240.0  # seconds for a command that is not killed


def start(*args: str, dies_at: int | None = None) -> tuple[Any, Any]:
    """A process that runs a command, and kills itself before the given step on the disk; a pipe for what it says."""
    return child(_command, list(args), dies_at)


def _command(pipe: Any, args: list[str], dies_at: int | None) -> None:
    """Run a command with a small descriptor and a small backbone; send its status and its steps on the disk."""
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    os.setsid()
    patch = pytest.MonkeyPatch()
    patch.setattr(descriptors, "open_descriptor", lambda name, *, weights=None, say=None: Colours())
    patch.setattr(update, "CHUNK", 20)
    patch.setattr(features, "CHUNK", 5)
    use_small_backbone(patch)
    steps = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*given: Any, **options: Any) -> Any:
            nonlocal steps
            if steps == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            steps += 1
            return real(*given, **options)

        return step

    for name in STEPS:
        patch.setattr(os, name, counted(getattr(os, name)))
    torch.manual_seed(0)
    status = main(args)
    pipe.send((status, steps))


def finish(*args: str) -> tuple[int, float]:
    """Run a command to its end; its steps on the disk and its seconds."""
    began = time.monotonic()
    process, pipe = start(*args)
    try:
        assert pipe.poll(PATIENCE), f"no end after {PATIENCE:g} s"
        status, steps = pipe.recv()
        assert status == 0, f"status {status}"
    except EOFError:
        raise AssertionError(f"it died with {process.exitcode}") from None
    finally:
        process.kill()
        process.join(10)
    return steps, time.monotonic() - began


def kill(chance: Any, steps: int, seconds: float, *args: str) -> str:
    """Start a command and kill it by chance; return how."""
    if chance.random() < 0.6:
        at = chance.randrange(steps)
        process, _ = start(*args, dies_at=at)
        process.join(PATIENCE)
        return f"before step {at}"
    process, _ = start(*args)
    after, how = (
        chance.uniform(0, seconds),
        chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT]),
    )
    process.join(after)
    if process.is_alive():
        os.kill(process.pid, how)
    process.join(PATIENCE)
    process.kill()
    return f"with {how.name} after {after:.2f} s"
