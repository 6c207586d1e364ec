"""Which requests are answered, and how large and slow they may be."""

import asyncio
import json
import time

import pytest

from patchreorder.playground import app as app_module
from patchreorder.playground import limits
from patchreorder.playground.limits import HEADERS, LimitedApp
from patchreorder.playground.photographs import Photographs

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
        ("other@localhost", False, 421),
        ("localhost:80@other", False, 421),
        ("localhost/x", False, 421),
        ("localhost?x", False, 421),
        ("localhost:x", False, 421),
        ("localhost:1:2", False, 421),
        ("localhost\tx", False, 421),
        ("[localhost]", False, 421),
        ("::1", False, 421),
        ("192.168.1.2:8028", False, 421),
        ("", False, 421),
        ("[", False, 421),
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
        ("HEAD", "/index.html", 200),
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


def post(app, messages, *, path="/api/photos", headers=()):
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

    asyncio.run(app(scope, receive, send))
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
    json_type = (b"content-type", b"application/json")
    assert post(app, [b"x" * 64_001], path="/api/answer", headers=[json_type])[0] == 413


def test_a_body_that_does_not_arrive_times_out(app, monkeypatch):
    monkeypatch.setattr(limits, "SECONDS", 0.1)
    began = time.monotonic()
    assert post(app, [b"x", 5000]) == (408, "the request did not arrive within 0.1 seconds")
    assert time.monotonic() - began < 3


def test_the_number_of_uploads_is_bounded(weights, no_mnist, monkeypatch):
    photos = Photographs(weights=weights)
    for most, status in ((0, 503), (1, 415)):
        monkeypatch.setattr(app_module, "MAX_UPLOADS", most)
        assert post(app_module.create_app(mnist=no_mnist, photos=photos), [b"x"])[0] == status
