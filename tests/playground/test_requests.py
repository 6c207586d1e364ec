"""Invalid requests: the error names the field and its value."""

import json
import re

import pytest

ONE = {"digit": {"strokes": [[500, 100, 500, 900]]}}
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({}, r"digit \(None\) must be"),
        ({"digit": {"mnist": 10_000}}, r"mnist \(10000\) must be an integer from 0 to 9999"),
        ({"digit": {"mnist": True}}, r"mnist \(True\) must be"),
        ({"digit": {"strokes": []}}, r"strokes \(\[\]\) must be a list of 1 to 64 strokes"),
        ({"digit": {"strokes": [[1, 2, 3]]}}, r"a stroke \(\[1, 2, 3\]\)"),
        ({"digit": {"strokes": [[1, 1001]]}}, r"integers from 0 to 1000"),
        ({"digit": {"strokes": [[1, 2.5]]}}, r"integers"),
        ({"digit": {"strokes": [[1, 2] * 1025] * 2}}, r"2050 points, more than 2048"),
        ({**ONE, "rotation": 181}, r"rotation \(181\) must be an integer from -180 to 180"),
        ({**ONE, "right": float("nan")}, r"right \(nan\) must be"),
        ({**ONE, "down": "x" * 1000}, r"down \('x{56}\.\.\.\) must be"),
        ({**ONE, "trained": "s"}, r"trained \('s'\) must be one of r, t"),
        ({**ONE, "trained": []}, r"trained \(\[\]\) must be one of r, t"),
        ({**ONE, "layer": 3}, r"layer \(3\) must be an object"),
        ({**ONE, "layer": {"grid": 3, "levels": 2}}, r"9 patches a side do not fit a 4x4 map"),
        ({**ONE, "layer": {"grid": 64, "levels": 10**9}}, r"levels \(1000000000\) must be"),
        ({**ONE, "layer": {"grid": "pixels", "levels": 2}}, r"levels \(2\) must be 1 with grid='pixels'"),
        ({**ONE, "layer": {"energy": "l3"}}, r"energy \('l3'\) must be one of l2, l1"),
        ({**ONE, "layer": {"per_channel": 1}}, r"per_channel \(1\) must be true or false"),
    ],
)
def test_an_invalid_value_is_named(client, request_, reason):
    answer = client.post("/api/answer", content=json.dumps(request_), headers=JSON)
    assert answer.status_code == 422
    assert re.search(reason, answer.json()["error"])


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b"[" * 60_000, b"\xff\xfe", b"1" * 5000])
def test_a_body_must_be_a_json_object(client, body):
    answer = client.post("/api/answer", content=body, headers=JSON)
    assert answer.status_code == 422
    assert "must be a JSON object" in answer.json()["error"]


def test_a_form_on_another_site_is_rejected(client):
    answer = client.post("/api/answer", content=json.dumps(ONE), headers={"content-type": "text/plain"})
    assert answer.status_code == 422
    assert answer.json()["error"] == "content-type ('text/plain') must be application/json"


def test_the_pose_of_a_photograph_is_in_percent(client):
    answer = client.post("/api/photo", json={"photo": "0" * 64, "right": 41})
    assert answer.json()["error"] == "right (41) must be an integer from -40 to 40"
