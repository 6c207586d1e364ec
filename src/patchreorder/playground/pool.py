"""Work for a few threads with a short queue: who comes when it is full is told so, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Busy(Exception):
    """All threads work and the queue is full."""


class TimeOver(Exception):
    """The work took longer than it may."""


class GivenUp(Exception):
    """Nobody waits for the work any more."""


class Pool:
    """Threads that do one kind of work.

    A thread cannot be stopped from outside: work gets a function `check` that raises once nobody waits for it, because
    its time is over or who asked has left, and calls it between steps. Until it has really ended it keeps its place.

    Args:
        workers: how many threads.
        waiting: how many may wait for one.
        seconds: that a request may take, waiting included.
    """

    def __init__(self, *, workers: int, waiting: int, seconds: float) -> None:
        self._threads = ThreadPoolExecutor(workers)
        self._places = workers + waiting
        self._taken = 0
        self.seconds = seconds

    async def run(self, work: Callable[[Callable[[], None]], T], *, left: Awaitable[Any] | None = None) -> T:
        """What `work(check)` returns.

        Args:
            work: the work.
            left: is done as soon as nobody waits for the answer.

        Raises:
            Busy, TimeOver, GivenUp: see there.
        """
        if self._taken >= self._places:
            raise Busy
        self._taken += 1
        stopped = threading.Event()

        def check() -> None:
            if stopped.is_set():
                raise GivenUp

        def begin() -> T:
            check()
            return work(check)

        job = asyncio.wrap_future(self._threads.submit(begin))
        job.add_done_callback(self._ended)
        leaving = asyncio.ensure_future(left) if left is not None else None
        try:
            await asyncio.wait(
                {job} if leaving is None else {job, leaving},
                timeout=self.seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if job.done():
                return job.result()
            raise GivenUp if leaving is not None and leaving.done() else TimeOver
        finally:
            stopped.set()
            if leaving is not None:
                leaving.cancel()

    def _ended(self, job: asyncio.Future[Any]) -> None:
        self._taken -= 1
        if not job.cancelled():
            job.exception()  # of work that nobody waited for: it is not missed

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class Cache:
    """The answers that were asked for last, by key; for many threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """What is kept for the key, else what `make` returns, which is kept from now on."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = make()
        with self._lock:
            self._kept[key] = made
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)
        return made

    def __contains__(self, key: Hashable) -> bool:
        with self._lock:
            return key in self._kept
