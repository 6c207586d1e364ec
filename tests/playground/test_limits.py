"""Which requests are answered, and how large and slow they may be."""

import asyncio
import json
import time

import pytest

from patchreorder.playground import limits
from patchreorder.playground.limits import HEADERS, LimitedApp

ONE = {"digit": {"strokes": [[500, 100, 500, 900]]}}


@pytest.mark.parametrize(
    ("host", "exposed", "status"),
    [
        ("localhost", False, 200),
        ("LOCALHOST:8028", False, 200),
        ("127.0.0.1:1", False, 200),
        ("[::1]:8028", False, 200),
        ("evil.example", False, 421),
        ("127.0.0.1.evil.example", False, 421),
        ("localhost.", False, 421),
        ("192.168.1.2:8028", False, 421),
        ("", False, 421),
        ("192.168.1.2:8028", True, 200),
        ("box.local", True, 200),
        ("evil.example", True, 421),
    ],
)
def test_only_the_hosts_of_this_server_are_answered(app, host, exposed, status):
    from fastapi.testclient import TestClient

    limited = LimitedApp(app._app, hosts=["box.local"] if exposed else (), any_address=exposed)
    answer = TestClient(limited, base_url="http://localhost").get("/page.css", headers={"host": host})
    assert answer.status_code == status


@pytest.mark.parametrize(
    ("origin", "status"), [("http://localhost", 200), ("https://evil.example", 403), ("null", 403)]
)
def test_pages_of_other_sites_are_not_answered(client, origin, status):
    answer = client.post("/api/answer", json=ONE, headers={"origin": origin})
    assert answer.status_code == status


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 200),
        ("GET", "/main.js", 200),
        ("GET", "/api/about", 200),
        ("GET", "/../app.py", 404),
        ("GET", "/%2e%2e/app.py", 404),
        ("GET", "/docs", 404),
        ("GET", "/openapi.json", 404),
        ("GET", "/api/mnist?seed=x", 422),
        ("DELETE", "/", 405),
        ("POST", "/", 405),
    ],
)
def test_every_response_has_the_headers(client, method, path, status):
    answer = client.request(method, path)
    assert answer.status_code == status
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    assert "unsafe" not in answer.headers["content-security-policy"]
    if status >= 400:
        assert list(answer.json()) == ["error"]


def post(app, messages, *, path="/api/photos", headers=(), seconds=limits.SECONDS):
    """Status and error of a request whose body comes in these messages; an int is a wait in milliseconds."""
    sent: list = []
    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": [(b"host", b"localhost"), *headers], "root_path": "", "scheme": "http", "http_version": "1.1",
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "asgi": {"version": "3.0"},
    }  # fmt: skip
    rest, whole = iter(messages), []

    async def receive():
        for message in rest:
            if isinstance(message, int):
                await asyncio.sleep(message / 1000)
            else:
                return {"type": "http.request", "body": message, "more_body": True}
        if whole:
            await asyncio.sleep(60)  # nothing more comes
        whole.append(True)
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    asyncio.run(LimitedApp(app._app, seconds=seconds)(scope, receive, send))
    return sent[0]["status"], json.loads(sent[1]["body"])["error"]


def test_bodies_are_bounded_whatever_their_headers_say(app):
    part = b"x" * 1_000_000
    taken = []

    def endless():
        for _ in range(1000):
            taken.append(1)
            yield part

    assert post(app, endless()) == (413, "the request is larger than 10000000 bytes")
    assert len(taken) == 11  # it stops reading at the limit
    assert post(app, [], headers=[(b"content-length", b"10000001")])[0] == 413
    assert post(app, endless(), headers=[(b"content-length", b"5")])[0] == 413
    assert post(app, [b"x" * 64_001], path="/api/answer")[0] == 413


def test_a_body_that_does_not_arrive_times_out(app):
    began = time.monotonic()
    assert post(app, [b"x", 5000], seconds=0.1) == (408, "the request did not arrive within 0.1 seconds")
    assert time.monotonic() - began < 3


def test_the_number_of_requests_is_bounded(app, monkeypatch):
    monkeypatch.setattr(limits, "MAX_UPLOADS", 0)
    assert post(app, [b"x"]) == (503, "the server is busy: try again in a moment")
    monkeypatch.setattr(limits, "MAX_UPLOADS", 1)
    assert post(app, [b"x"])[0] == 415
    monkeypatch.setattr(limits, "MAX_REQUESTS", 0)
    assert post(app, [b"{}"], path="/api/answer")[0] == 503
