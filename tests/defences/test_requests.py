"""Random requests to the playground, sound ones, wrong ones and no HTTP at all: none makes an error of the server."""

import copy
import json
import random
import re
import select
import socket
import urllib.request
from typing import Any

from tests.defences.chance import cases
from tests.defences.damage import damaged
from tests.playground.conftest import address, app, no_mnist, weights  # noqa: F401
from tests.playground.images import encode, pattern

PATIENCE = 60.0  # seconds for an answer, on a busy machine
STROKES = [[100, 100, 500, 900, 700, 300], [400, 400, 600, 600]]
LAYER = {"grid": 2, "levels": 1, "energy": "l2", "per_channel": True}
DIGIT = {"digit": {"strokes": STROKES}, "rotation": 30, "down": 2, "right": -3, "trained": "r", "layer": LAYER}
UPLOAD = encode(pattern(40, 30), "JPEG")
PHOTO = {"photo": "0" * 64, "rotation": 30, "down": 2, "right": -3, "layer": LAYER}
ASKED = {"/api/answer": DIGIT, "/api/ring": DIGIT, "/api/shifts": DIGIT, "/api/photo": PHOTO}
PATHS = [
    *ASKED,
    "/api/photos",
    "/api/about",
    "/api/mnist?seed=3",
    "/",
    "/index.html",
    "/../../etc/passwd",
    "/%00",
    "/" * 5000,
]
VALUES: list[Any] = [
    None, True, -1, 0, 1, 7, 10**6, 10**400, 0.5, -1e308, "", "pixels", "l1", "\ud800", "\x1b[2J", "0" * 64,
    "a" * 10**5, [], {}, [[]], [[0, 0]], [[1000, 1000]] * 65, [list(range(1000)) * 5], {"mnist": 3}, {"strokes": []},
    {"grid": 64, "levels": 6},
]  # fmt: skip


def changed(chance: random.Random, asked: Any) -> Any:
    """A JSON value with another value somewhere, or without one."""
    asked = copy.deepcopy(asked)
    at, key = asked, None
    while isinstance(at, dict | list) and at and (key is None or chance.random() < 0.5):
        parent, key = at, chance.choice(sorted(at) if isinstance(at, dict) else range(len(at)))
        at = parent[key]
    if key is None:
        return chance.choice(VALUES)
    if isinstance(parent, dict) and chance.random() < 0.2:
        del parent[key]
    else:
        parent[key] = chance.choice(VALUES)
    return asked


def request_of(chance: random.Random) -> tuple[bytes, bool]:
    """A request, in most cases with something wrong in its body, its headers or anywhere; and whether it is whole."""
    path = chance.choice([*PATHS, *ASKED, *ASKED])
    method = chance.choice(["POST"] * 30 + ["GET"] * 5 + ["HEAD", "PUT", "DELETE", "OPTIONS", "X" * 300])
    if path == "/api/photos":
        body = damaged(chance, UPLOAD)[0] if chance.random() < 0.7 else UPLOAD
    else:
        asked = ASKED.get(path, {})
        for _ in range(chance.choice([0, 1, 1, 2])):
            asked = changed(chance, asked)
        body = json.dumps(asked).encode("utf-8", "surrogatepass")
        if chance.random() < 0.15:
            body = chance.choice([damaged(chance, body)[0], b"[" * 20_000, b"", b"\xff" * 3000])
    length = len(body) if chance.random() < 0.85 else chance.choice([0, -1, 5, len(body) + 9, 10**12, "x", "1_0"])
    headers = [
        f"host: {chance.choice(['localhost'] * 40 + ['example.org', 'localhost:1@other', '', '[', 'x' * 3000])}",
        f"content-type: {chance.choice(['application/json'] * 30 + ['text/plain', '', 'x' * 9000])}",
        f"content-length: {length}",
        "connection: close",
    ]
    if chance.random() < 0.1:
        odd = [
            "transfer-encoding: chunked",
            "expect: 100-continue",
            "upgrade: websocket",
            "origin: http://other",
            "x:y\0z",
        ]
        headers.append(chance.choice(odd))
    content = written(f"{method} {path} HTTP/1.1", *headers, body=body)
    if chance.random() < 0.1:
        return damaged(chance, content)[0], False
    return content, length == len(body) and len(headers) == 4


def written(*lines: str, body: bytes) -> bytes:
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body


def answer_to(port: int, content: bytes, *, whole: bool = True) -> bytes:
    """What the server sends until it closes the connection; nothing if it closes at once.

    The server may wait for more of a request that is not whole. It is told that no more will come.
    """
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        try:
            connection.sendall(content)
            if not whole and not select.select([connection], [], [], 0.3)[0]:
                connection.shutdown(socket.SHUT_WR)
            while more := connection.recv(1 << 16):
                received += more
        except ConnectionError:  # it refuses the rest
            pass
    return received


def test_no_request_makes_an_error_of_the_server(address, caplog):  # noqa: F811
    port = int(address.rpartition(":")[2])
    body = json.dumps(DIGIT).encode()
    headers = "host: localhost", "content-type: application/json", f"content-length: {len(body)}", "connection: close"
    sound = written("POST /api/answer HTTP/1.1", *headers, body=body)
    assert answer_to(port, sound).startswith(b"HTTP/1.1 200 ")  # what is changed is not wrong already
    statuses: dict[int, int] = {}
    for number, chance in enumerate(cases("requests")):
        content, whole = request_of(chance)
        print(content[:600])
        received = answer_to(port, content, whole=whole)
        if received:
            found = re.match(rb"HTTP/1\.1 (\d{3}) ", received)
            assert found, f"no status: {received[:200]!r}"
            status = int(found[1])
            assert status < 500 or status in (503, 504), received[:2000]  # busy or slow is no error
            statuses[status] = statuses.get(status, 0) + 1
        assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")], caplog.text
        if number % 20 == 0:
            with urllib.request.urlopen(f"{address}/api/about", timeout=PATIENCE) as about:
                assert about.status == 200
    print("answers:", dict(sorted(statuses.items())))
