"""Batches prefetched by worker processes: in order, and bit for bit the same for any number of workers.

Workers are forked from a server process without other threads (`forkserver`). A fork of this process could copy a lock
that a thread of the native kernel, OpenMP or gloo holds at that moment, and wait for it forever. The server imports
torch once; with `spawn` every worker would.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

PREFETCH = 2  # batches that a worker makes in advance
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Batches(Protocol):
    """What a data set must have; it is pickled for the workers."""

    def batch(self, indices: Tensor, *, epoch: int = 0) -> tuple[Tensor, Tensor]: ...


class WorkerDied(OSError):
    """A worker process ended before it was done."""


def processors() -> int:
    """How many processors this process may use: in many containers fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def stream(
    data: Batches, parts: Iterable[tuple[Tensor, int]], *, workers: int
) -> Generator[tuple[Tensor, Tensor], None, None]:
    """Yield `data.batch(indices, epoch=epoch)` for every (indices, epoch) in `parts`, in this order.

    Args:
        data: its batches depend on indices and epoch only.
        parts: may be endless; a few are taken at a time.
        workers: processes that make batches in advance; 0 makes each in this process when it is needed.

    Raises:
        WorkerDied: if a worker was killed.
        Exception: what `data.batch` raises, also in a worker.
    """
    # As arrays: a tensor would be sent with all the memory that it is a view of.
    return parallel_map(_Batch(data), ((indices.numpy(), epoch) for indices, epoch in parts), workers=workers)


def parallel_map(
    function: Callable[[_Item], _Result], items: Iterable[_Item], *, workers: int
) -> Generator[_Result, None, None]:
    """Yield `function(item)` for every item, in this order; see `stream`. Closing it ends the workers."""
    if workers < 0:
        raise ValueError(f"workers ({workers}) must be 0 (none) or more")
    if workers == 0:
        return (function(item) for item in items)
    return _by_workers(function, items, workers)


@dataclass(frozen=True)
class _Batch:
    data: Batches

    def __call__(self, part: tuple[Any, int]) -> tuple[Tensor, Tensor]:
        return self.data.batch(torch.from_numpy(part[0]), epoch=part[1])


class _Failure(NamedTuple):
    """An exception as a result: torch would replace its message by a traceback."""

    error: Exception


class _Calls(Dataset[Any]):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __getitem__(self, item: Any) -> Any:
        try:
            return self.function(item)
        except Exception as error:
            try:
                pickle.loads(pickle.dumps(error))
            except Exception:
                return _Failure(RuntimeError(f"{type(error).__name__}: {error}"))
            return _Failure(error)


def _by_workers(
    function: Callable[[_Item], _Result], items: Iterable[_Item], workers: int
) -> Generator[_Result, None, None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of more workers than cores: the caller chose them
        loader: DataLoader[Any] = DataLoader(
            _Calls(function),
            batch_size=None,
            sampler=items,
            num_workers=workers,
            prefetch_factor=PREFETCH,
            collate_fn=_unchanged,
            worker_init_fn=_prepare,
            multiprocessing_context=_context(),
            generator=torch.Generator(),  # or the default generator would depend on the number of workers
        )
    with _sigint_blocked():
        iterator = iter(loader)
    try:
        while True:
            try:
                result = next(iterator)
            except StopIteration:
                return
            except (RuntimeError, OSError, EOFError) as error:
                if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
                    raise  # from `items`
                raise WorkerDied(
                    "a worker process ended unexpectedly: killed, or out of memory or of shared memory (/dev/shm; "
                    f"for a container see --shm-size); try fewer workers than {workers}"
                ) from error
            if isinstance(result, _Failure):
                raise result.error
            yield result
            del result  # or its memory would be held until the next one
    finally:
        del iterator  # the last reference: ends the workers at once


def _context() -> Any:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["patchreorder.data.photos"])
    return context


@contextlib.contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Processes started in this context never receive Ctrl-C, not even before they can ignore it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prepare(worker: int) -> None:
    """In a worker: leave Ctrl-C to the main process, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.join,), daemon=True).start()


def _end_with(wait: Callable[[], None]) -> None:
    # torch watches the parent process only, which is the server and lives as long as a worker.
    wait()
    os._exit(1)


def _unchanged(result: Any) -> Any:
    return result
