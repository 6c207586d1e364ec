"""Processes that tests start, and how they end: with everything that they started themselves."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

TORCHRUN_SECONDS = 240


def environment(**others: str) -> dict[str, str]:
    """The environment of a process that computes with one thread."""
    return os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "100"} | others


@contextlib.contextmanager
def running(command: Sequence[str], **options: Any) -> Iterator["subprocess.Popen[Any]"]:
    """Start a process; at the end of the block it is killed, if it still runs, with all that it started."""
    process = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        kill_family(process.pid)
        process.wait(10)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream:
                stream.close()


def torchrun(*command: str, size: int = 2, restarts: int = 0) -> list[str]:
    """The command that runs a command in `size` processes on this machine."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
    return [*start, f"--max-restarts={restarts}", "--monitor-interval=0.2", *command]


def run_within(command: Sequence[str], *, seconds: float = TORCHRUN_SECONDS, **options: Any) -> str:
    """The output of a command, which must succeed within a time; what it started ends with it.

    torchrun's processes are in sessions of their own, and would go on if torchrun alone were killed.
    """
    with running(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options) as process:
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as error:
            said = (error.stderr or b"").decode(errors="replace")[-3000:]
            raise AssertionError(f"{' '.join(command)[-200:]} took longer than {seconds:g} seconds: {said}") from None
    assert process.returncode == 0, err[-3000:]
    return out


def kill_family(pid: int) -> None:
    """Kill a process and all that it started, however deep."""
    for each in [pid, *descendants(pid)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have."""
    found = [pid]
    for parent in found:
        found += [child for child in _children(parent) if child not in found]
    return found[1:]


def _children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError):  # it has ended
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                if parent == pid:
                    found.append(int(entry.name))
    return found
