"""Worker threads: a full queue, a time limit, a client that disconnects."""

import asyncio
import gc
import threading
import time

import pytest

from patchreorder.playground.pool import Abandoned, Pool
from patchreorder.playground.requests import RequestError


def run(pool, job):
    return pool.run(job, disconnected=asyncio.sleep(60))


def test_a_full_queue_is_an_error_at_once():
    free = threading.Event()

    async def several():
        pool = Pool(workers=1, waiting=1, seconds=5)
        jobs = [asyncio.ensure_future(run(pool, lambda check: free.wait(5))) for _ in range(2)]
        await asyncio.sleep(0.01)
        with pytest.raises(RequestError, match="busy"):
            await run(pool, lambda check: None)
        free.set()
        assert await asyncio.gather(*jobs) == [True, True]
        assert await run(pool, lambda check: 7) == 7  # there is room again
        pool.close()

    asyncio.run(several())


def test_a_refused_request_leaves_no_coroutine_behind(recwarn):
    async def refuse():
        pool = Pool(workers=1, waiting=-1, seconds=5)
        with pytest.raises(RequestError, match="busy"):
            await run(pool, lambda check: None)
        pool.close()

    asyncio.run(refuse())
    gc.collect()
    assert not recwarn.list  # "coroutine was never awaited"


class Slow:
    """A job of ten seconds that calls `check` all the time."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def __call__(self, check):
        try:
            for _ in range(1000):
                time.sleep(0.01)
                check()
        finally:
            self.ended.set()


@pytest.mark.parametrize(
    ("seconds", "leaves_after", "reason"),
    [(0.1, 60, pytest.raises(RequestError, match=r"0\.1 seconds")), (20, 0.05, pytest.raises(Abandoned))],
)
def test_a_job_stops_when_nobody_waits_for_it(seconds, leaves_after, reason):
    job = Slow()

    async def leave():
        pool = Pool(workers=1, waiting=0, seconds=seconds)
        with reason:
            await pool.run(job, disconnected=asyncio.sleep(leaves_after))
        assert await asyncio.to_thread(job.ended.wait, 2)
        await asyncio.sleep(0.05)
        assert await run(pool, lambda check: 1) == 1
        pool.close()

    asyncio.run(leave())
