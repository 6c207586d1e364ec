"""The routes of the application."""

import asyncio
import time

from patchreorder.playground import networks
from patchreorder.playground.pool import BUSY, Pool
from patchreorder.playground.requests import RequestError

ONE = {"digit": {"strokes": [[500, 100, 500, 900]]}}


def test_rings_are_cached(client, monkeypatch):
    times = []
    compute = networks.Networks._predictions
    monkeypatch.setattr(networks.Networks, "_predictions", lambda *given: times.append(1) or compute(*given))
    ask = {**ONE, "rotation": 12, "right": 3}
    first = client.post("/api/ring", json=ask)
    assert first.status_code == 200
    # The ring has every rotation, whatever the current one is. Another shift gives another ring.
    assert client.post("/api/ring", json={**ask, "rotation": 99}).json() == first.json()
    assert len(times) == 1
    client.post("/api/ring", json={**ask, "right": 4})
    assert len(times) == 2


def test_about_has_the_measured_errors(client):
    about = client.get("/api/about").json()
    assert about["errors"]["pr_cnn"] == {"r": 1.42, "t": 0.61}  # results/table1.jsonl
    assert about["photographs"] == ""
    assert about["maps"] == {"r": [4, 4], "t": [11, 11], "photo": [13, 13]}
    assert [sample["label"] for sample in about["samples"]] == list(range(10))


def test_a_busy_server_responds_503_and_a_slow_one_504(client, monkeypatch):
    monkeypatch.setattr(networks.Networks, "answer", lambda *given: time.sleep(0.3))
    wait = asyncio.wait
    monkeypatch.setattr(asyncio, "wait", lambda tasks, timeout, **given: wait(tasks, timeout=timeout / 500, **given))
    slow = client.post("/api/answer", json=ONE)
    assert (slow.status_code, slow.json()["error"]) == (504, "this took longer than 5 seconds")
    monkeypatch.setattr(Pool, "run", _busy)
    busy = client.post("/api/answer", json=ONE)
    assert (busy.status_code, busy.headers["retry-after"]) == (503, "1")


async def _busy(self, job, *, disconnected):
    disconnected.close()
    raise RequestError(*BUSY)
