"""Worker threads with a bounded queue and a time limit. A full queue is an error at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Busy(Exception):
    """All threads are busy and the queue is full."""


class TimedOut(Exception):
    """The job took longer than the time limit."""


class Abandoned(Exception):
    """Nobody waits for the result of the job any more."""


class Pool:
    """Threads for one kind of job.

    A thread cannot be stopped from outside. A job therefore gets a function `check` and calls it between steps: it
    raises `Abandoned` once the job has timed out or its client has disconnected. Until then the job counts as pending.

    Args:
        workers: number of threads.
        waiting: number of jobs that may wait for a thread.
        seconds: time limit of a job, including the wait.
    """

    def __init__(self, *, workers: int, waiting: int, seconds: float) -> None:
        self._threads = ThreadPoolExecutor(workers)
        self._capacity = workers + waiting
        self._pending = 0
        self.seconds = seconds

    async def run(self, job: Callable[[Callable[[], None]], T], *, disconnected: Awaitable[Any] | None = None) -> T:
        """Return what `job(check)` returns.

        Args:
            job: the function to run in a thread.
            disconnected: completes once nobody waits for the result.

        Raises:
            Busy: the queue is full.
            TimedOut: the job took too long.
            Abandoned: `disconnected` completed first.
        """
        if self._pending >= self._capacity:
            raise Busy
        self._pending += 1
        stopped = threading.Event()

        def check() -> None:
            if stopped.is_set():
                raise Abandoned

        def begin() -> T:
            check()
            return job(check)

        future = asyncio.wrap_future(self._threads.submit(begin))
        future.add_done_callback(self._done)
        leaving = None if disconnected is None else asyncio.ensure_future(disconnected)
        try:
            await asyncio.wait(
                {future} if leaving is None else {future, leaving},
                timeout=self.seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if future.done():
                return future.result()
            raise Abandoned if leaving is not None and leaving.done() else TimedOut
        finally:
            stopped.set()
            if leaving is not None:
                leaving.cancel()

    def _done(self, future: asyncio.Future[Any]) -> None:
        self._pending -= 1
        if not future.cancelled():
            future.exception()  # asyncio would log the exception of an abandoned job

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
