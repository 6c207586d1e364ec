"""Batches made ahead by worker processes: in order, and bit for bit the same for any number of workers.

Workers come from a server process that has threads of nobody (`forkserver`): a fork of this process could copy a lock
that a thread of the native kernel, of OpenMP or of gloo holds at that moment, and would wait for it forever. The server
imports torch once, a new interpreter for every worker (`spawn`) would do so each time.
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

AHEAD = 2  # batches that a worker has made or is making before they are asked for
_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


class Batches(Protocol):
    """What is asked of data; it is pickled for the workers."""

    def batch(self, indices: Tensor, *, epoch: int = 0) -> tuple[Tensor, Tensor]: ...


class WorkerDied(OSError):
    """A worker process ended before its work did."""


def stream(
    data: Batches, parts: Iterable[tuple[Tensor, int]], *, workers: int
) -> Generator[tuple[Tensor, Tensor], None, None]:
    """`data.batch(indices, epoch=epoch)` for every (indices, epoch) of `parts`, in this order.

    Args:
        data: gives batches that depend on indices and epoch only.
        parts: asked for a few at a time, so it may be endless.
        workers: processes that make batches ahead; 0 makes them in this one when they are asked for.

    Raises:
        WorkerDied: if a worker was killed.
        Exception: what `data.batch` raised, in a worker too.
    """
    # As arrays: a tensor would travel with all the memory that it is a part of.
    return parallel_map(_Batch(data), ((indices.numpy(), epoch) for indices, epoch in parts), workers=workers)


def parallel_map(
    function: Callable[[_Item], _Made], items: Iterable[_Item], *, workers: int
) -> Generator[_Made, None, None]:
    """`function(item)` for every item, in this order; see `stream`. Closing it ends the workers."""
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
    """An exception on its way: torch would send its traceback as the message."""

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
    function: Callable[[_Item], _Made], items: Iterable[_Item], workers: int
) -> Generator[_Made, None, None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # more workers than cores: somebody chose them
        loader: DataLoader[Any] = DataLoader(
            _Calls(function),
            batch_size=None,
            sampler=items,
            num_workers=workers,
            prefetch_factor=AHEAD,
            collate_fn=_unchanged,
            worker_init_fn=_prepare,
            multiprocessing_context=_context(),
            generator=torch.Generator(),  # else the numbers that others draw would depend on the workers
        )
    with _deaf_to_ctrl_c():
        iterator = iter(loader)
    try:
        while True:
            try:
                made = next(iterator)
            except StopIteration:
                return
            except (RuntimeError, OSError, EOFError) as error:
                if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
                    raise  # of `items`
                raise WorkerDied(
                    "a worker process ended unexpectedly: killed, or out of memory or of shared memory (/dev/shm; "
                    f"in a container see --shm-size): try fewer workers than {workers}"
                ) from error
            if isinstance(made, _Failure):
                raise made.error
            yield made
            del made  # it must not wait here for the next one
    finally:
        del iterator  # the last reference: this ends the workers, at once and not with some traceback's end


def _context() -> Any:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["patchreorder.data.photos"])
    return context


@contextlib.contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Processes that are started in here do not get Ctrl-C, not even before they can ignore it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prepare(worker: int) -> None:
    """In a worker: Ctrl-C is the main process's business, and without it there is none."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.join,), daemon=True).start()


def _end_with(wait: Callable[[], None]) -> None:
    # torch looks at the parent process only, which is the server and lives as long as a worker does.
    wait()
    os._exit(1)


def _unchanged(made: Any) -> Any:
    return made
