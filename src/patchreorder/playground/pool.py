"""Worker threads with a bounded queue and a time limit. A full queue is an error at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from .requests import RequestError

T = TypeVar("T")
BUSY = 503, "the server is busy: try again in a moment"


class Abandoned(Exception):
    """Nobody waits for the result of the job any more."""


class Pool:
    """Threads for one kind of job: `workers` run, `waiting` may wait, each for so many seconds altogether.

    A thread cannot be stopped from outside. A job therefore gets a function `check` and calls it between steps: it
    raises `Abandoned` once the job has timed out or its client has disconnected. Until then the job counts as pending.
    """

    def __init__(self, *, workers: int, waiting: int, seconds: float) -> None:
        self._threads = ThreadPoolExecutor(workers)
        self._capacity, self._pending, self._seconds = workers + waiting, 0, seconds

    async def run(self, job: Callable[[Callable[[], None]], T], *, disconnected: Awaitable[Any]) -> T:
        """Return what `job(check)` returns; raise `Abandoned` if `disconnected` completes first."""
        leaving = asyncio.ensure_future(disconnected)
        stopped = threading.Event()

        def check() -> None:
            if stopped.is_set():
                raise Abandoned

        def begin() -> T:
            check()
            return job(check)

        try:
            if self._pending >= self._capacity:
                raise RequestError(*BUSY)
            self._pending += 1
            future = asyncio.wrap_future(self._threads.submit(begin))
            future.add_done_callback(self._done)
            await asyncio.wait({future, leaving}, timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
            if future.done():
                return future.result()
            raise Abandoned if leaving.done() else RequestError(504, f"this took longer than {self._seconds:g} seconds")
        finally:
            stopped.set()
            leaving.cancel()

    def _done(self, future: asyncio.Future[Any]) -> None:
        self._pending -= 1
        if not future.cancelled():
            future.exception()  # asyncio would log the exception of an abandoned job

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
