"""The playground: what it answers is the library's, nobody can stop it for others, and it works in a real browser."""

import asyncio
import base64
import io
import json
import os
import re
import shutil
import socket
import struct
import sys
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from patchreorder import create_model, patch_reorder
from patchreorder.__main__ import main
from patchreorder.commands import play as play_module
from patchreorder.data import transforms
from patchreorder.operator.functional import Settings
from patchreorder.playground import app as app_module
from patchreorder.playground import guard, layer, networks, photographs
from patchreorder.playground.asked import Drawing, Pick, Pose
from patchreorder.playground.digits import SAMPLES, Mnist, draw, samples
from patchreorder.playground.guard import HEADERS, Guard
from patchreorder.playground.photographs import Photographs, WrongKind, opened
from patchreorder.playground.pool import Busy, Cache, GivenUp, Pool, TimeOver

pytest.importorskip("fastapi", reason="the playground needs the extra `play`")
from fastapi.testclient import TestClient

STROKES = {each["label"]: each["strokes"] for each in json.loads(SAMPLES.read_text())}
THREE = {"digit": {"strokes": STROKES[3]}}
PAGE = app_module.PAGE


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A file with AlexNet's convolutions, not trained."""
    torch.manual_seed(0)
    model = create_model("alexnet", variant="torchvision", width=1, classes=1)
    path = tmp_path_factory.mktemp("weights") / "alexnet.safetensors"
    save_file({name: value for name, value in model.state_dict().items() if name.startswith("features")}, path)
    return path


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """MNIST that is not here, whatever the machine has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATCHREORDER_CACHE", str(tmp_path_factory.mktemp("cache")))
        return Mnist()


@pytest.fixture(scope="module")
def app(weights, digits):
    torch.set_num_threads(1)
    return app_module.create_app(mnist=digits, photographs=Photographs(weights=weights))


@pytest.fixture(scope="module")
def client(app):
    with TestClient(app, base_url="http://localhost") as opened:
        yield opened


@pytest.fixture(scope="module")
def net():
    return networks.Networks()


def encoded(image: Image.Image, kind: str = "PNG", **settings) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **settings)
    return file.getvalue()


def scene(width: int = 300, height: int = 260) -> Image.Image:
    y, x = np.mgrid[0:height, 0:width]
    picture = np.stack([x % 256, y % 256, (x // 20 + y // 20) % 2 * 255], 2).astype(np.uint8)
    return Image.fromarray(picture)


def header_only(width: int, height: int) -> bytes:
    """A PNG that says its size and holds nothing."""
    chunks = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0), b"IDAT"
    parts = (struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def pixels(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), np.uint8)


# ---- what is asked ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "reason"),
    [
        ({}, r"digit \(None\) must be"),
        ({"digit": {"mnist": 10_000}}, r"mnist \(10000\) must be a whole number from 0 to 9999"),
        ({"digit": {"mnist": True}}, r"mnist \(True\) must be"),
        ({"digit": {"strokes": []}}, r"strokes \(\[\]\) must be a list of 1 to 64 lines"),
        ({"digit": {"strokes": [[1, 2, 3]]}}, r"line of strokes \(\[1, 2, 3\]\)"),
        ({"digit": {"strokes": [[1, 1001]]}}, r"whole numbers from 0 to 1000"),
        ({"digit": {"strokes": [[1, 2.5]]}}, r"whole numbers"),
        ({"digit": {"strokes": [[1, 2] * 1025] * 2}}, r"2050 points, more than 2048"),
        ({**THREE, "turn": 181}, r"turn \(181\) must be a whole number from -180 to 180"),
        ({**THREE, "right": float("nan")}, r"right \(nan\) must be"),
        ({**THREE, "down": "x" * 1000}, r"down \('x{56}\.\.\.\) must be"),
        ({**THREE, "trained": "s"}, r"trained \('s'\) must be one of r, t"),
        ({**THREE, "trained": []}, r"trained \(\[\]\) must be one of r, t"),
        ({**THREE, "layer": 3}, r"layer \(3\) must be an object"),
        ({**THREE, "layer": {"grid": 3, "levels": 2}}, r"9 patches a side do not fit a 4x4 map"),
        ({**THREE, "layer": {"grid": 64, "levels": 10**9}}, r"levels \(1000000000\) must be"),
        ({**THREE, "layer": {"grid": "pixels", "levels": 2}}, r"levels \(2\) must be 1 with grid='pixels'"),
        ({**THREE, "layer": {"energy": "l3"}}, r"energy \('l3'\) must be one of l2, l1"),
        ({**THREE, "layer": {"per_channel": 1}}, r"per_channel \(1\) must be true or false"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_name(client, ask, reason):
    answer = client.post("/api/answer", content=json.dumps(ask), headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert re.search(reason, answer.json()["error"])


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b"[" * 60_000, b"\xff\xfe", b"1" * 5000])
def test_what_is_no_object_is_refused(client, body):
    answer = client.post("/api/answer", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert "must be a JSON object" in answer.json()["error"]


def test_a_form_of_another_site_is_refused(client):
    answer = client.post("/api/answer", content=json.dumps(THREE), headers={"content-type": "text/plain"})
    assert answer.status_code == 422
    assert answer.json()["error"] == "content-type ('text/plain') must be application/json"


# ---- digits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_a_drawing_is_as_large_as_mnists_digits_wherever_and_however_small_it_was_drawn(scale):
    lines = tuple(tuple(round(100 + scale * value) for value in line) for line in STROKES[4])
    image = draw(Drawing(lines))
    rows, columns = (np.flatnonzero(image.max(axis)) for axis in (1, 0))
    assert max(len(rows), len(columns)) in (20, 21)
    ink = image.astype(float) / image.sum()
    centre = [(ink.sum(1 - axis) * (np.arange(28) + 0.5)).sum() for axis in (0, 1)]
    assert centre == pytest.approx([14, 14], abs=0.3)


def test_a_dot_is_a_dot():
    image = draw(Drawing(((500, 500),)))
    assert 4 <= np.count_nonzero(image) <= 16
    assert image[14, 14] == 255


@pytest.mark.parametrize("dataset", ["mnist-r", "mnist-t"])
def test_every_network_reads_every_drawing_that_comes_with_the_page(net, dataset):
    for sample in samples():
        answer = net.answer(sample, Pose(), dataset, Settings())
        for name, probabilities in answer["probabilities"].items():
            assert np.argmax(probabilities) == sample.label, name
            assert sum(probabilities) == pytest.approx(1, abs=1e-3)


def test_mnist_that_is_not_here_is_said_to_be(client, digits):
    assert "--fetch" in digits.reason
    answer = client.post("/api/answer", json={"digit": {"mnist": 3}})
    assert (answer.status_code, answer.json()["error"]) == (422, digits.reason)
    assert client.get("/api/mnist").status_code == 422
    assert client.get("/api/about").json()["mnist"] == digits.reason
    with pytest.raises(ValueError, match="does not hold the files of mnist"):
        Mnist(folder=SAMPLES.parent)  # a folder that was named must be right


def test_digits_to_pick_are_one_of_each_class_and_change_with_the_seed(monkeypatch, tmp_path):
    from patchreorder.data import datasets
    from patchreorder.data.generated import generate_digits

    monkeypatch.setattr(datasets, "mnist", lambda *args, **settings: generate_digits("mnist", count=200))
    here = Mnist(folder=tmp_path)
    first, second = here.choice(0), here.choice(1)
    assert [each["label"] for each in first] == list(range(10))
    assert [each["index"] for each in first] != [each["index"] for each in second]
    digit = here.find(Pick(first[7]["index"]))
    assert digit.label == 7
    assert np.array_equal(pixels(first[7]["pixels"]).reshape(28, 28), digit.pixels)


# ---- networks --------------------------------------------------------------------------------------


def test_poses_are_those_of_the_data_sets():
    digit = samples()[5]
    image = digit.image()
    assert torch.allclose(networks.posed(digit, [Pose()], "mnist-r"), image, atol=1e-5)
    turned = networks.posed(digit, [Pose(turn=90)], "mnist-r")
    assert torch.allclose(turned, torch.rot90(image, 1, (2, 3)), atol=1e-4)
    placed = transforms.place(image, corner=torch.tensor([[7 + 5, 7 - 3]]), size=(42, 42))
    assert torch.allclose(networks.posed(digit, [Pose(0, 5, -3)], "mnist-t"), placed, atol=1e-4)


@pytest.mark.parametrize("dataset", ["mnist-r", "mnist-t"])
def test_answers_are_those_of_the_models(net, dataset):
    digit, pose = samples()[7], Pose(33, -2, 3)
    answer = net.answer(digit, pose, dataset, Settings(grid="pixels"))
    image = networks.posed(digit, [pose], dataset)
    assert np.abs(pixels(answer["image"]).astype(float) - 255 * image.flatten().numpy()).max() <= 1
    assert answer["side"] == image.shape[2]
    with torch.inference_mode():
        for name in networks.NAMES:
            model = create_model(name, dataset=dataset, pretrained=True).eval()
            assert answer["probabilities"][name] == pytest.approx(model(image).softmax(1)[0].tolist(), abs=2e-4), name


def test_the_layer_view_is_what_the_operator_does(net):
    digit, pose, settings = samples()[2], Pose(0, 3, -4), Settings(grid=2, levels=2)
    view = net.answer(digit, pose, "mnist-t", settings)["layer"]
    model = create_model("pr_cnn", dataset="mnist-t", pretrained=True).eval()
    with torch.inference_mode():
        maps = model[:5](networks.posed(digit, [Pose(), pose], "mnist-t"))  # up to the second ReLU
        after, order = patch_reorder(maps, grid=2, levels=2, return_order=True)
    chosen = view["channels"]
    assert len(chosen) == layer.CHANNELS
    least = maps.square().sum((2, 3)).prod(0)  # of the energies in both poses
    assert least[chosen].min() >= np.sort(least.numpy())[-layer.CHANNELS]
    assert view["strongest"] == int(least.argmax())
    assert torch.equal(order[1, chosen].flatten(1).long(), torch.tensor(view["order"]))
    for number, name in enumerate(("upright", "posed")):
        for kind, wanted in (("before", maps), ("after", after)):
            found = pixels(view[name][kind]).reshape(layer.CHANNELS, 11, 11).astype(float)
            top = maps[:, chosen].amax((0, 2, 3)).view(-1, 1, 1)
            assert np.abs(found - (255 * wanted[number, chosen] / top).numpy()).max() <= 1
    cosine = torch.nn.functional.cosine_similarity
    for kind, wanted in (("before", maps), ("after", after)):
        assert view["similarity"][kind] == pytest.approx(float(cosine(*wanted.flatten(1), dim=0)), abs=1e-3)
    energy = maps[1, chosen[0], :8, :8].reshape(4, 2, 4, 2).square().sum((1, 3)).flatten()
    assert view["energy"][0] == pytest.approx(energy.tolist(), rel=0.01, abs=1e-6)


def test_joint_ranking_has_one_order_for_all_maps(net):
    view = net.answer(samples()[2], Pose(20), "mnist-r", Settings(per_channel=False))["layer"]
    assert [len(view[name]) for name in ("order", "energy")] == [1, 1]
    energies = [view["energy"][0][source] for source in view["order"][0]]
    assert energies == sorted(energies, reverse=True)


def test_the_page_s_settings_do_not_change_the_network(net):
    answers = [
        net.answer(samples()[2], Pose(50), "mnist-r", Settings(*chosen))["probabilities"]
        for chosen in ((2,), ("pixels",), (4, 1, "l1", False))
    ]
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("kind", ["ring", "shifts"])
def test_rings_and_maps_are_what_single_answers_say(net, kind):
    digit, pose = samples()[3], Pose(60, 2, -1)  # where answers differ
    found = getattr(net, kind)(digit, pose, check=lambda: None)
    if kind == "ring":
        poses, dataset = [pose._replace(turn=angle) for angle in found["angles"]], "mnist-r"
    else:
        places, dataset = found["places"], "mnist-t"
        poses = [Pose(60, down, right) for down in places for right in places]
    assert len(poses) == {"ring": 72, "shifts": 225}[kind]
    for number in range(0, len(poses), len(poses) // 12):
        single = net.answer(digit, poses[number], dataset, Settings())["probabilities"]
        for name, answers in found["answers"].items():
            assert answers["labels"][number] == np.argmax(single[name])
            assert answers["probabilities"][number] == pytest.approx(max(single[name]), abs=2e-3)


def test_work_can_be_given_up_between_batches(net):
    calls = []

    def check():
        calls.append(1)
        if len(calls) == 2:
            raise GivenUp

    with pytest.raises(GivenUp):
        net.shifts(samples()[0], Pose(), check=check)
    assert len(calls) == 2


def test_slow_pictures_are_computed_once(client, monkeypatch):
    times = []
    shift = networks.Networks._winners
    monkeypatch.setattr(networks.Networks, "_winners", lambda *given: times.append(1) or shift(*given))
    ask = {"digit": {"strokes": STROKES[1]}, "turn": 12, "right": 3}
    first = client.post("/api/ring", json=ask)
    assert first.status_code == 200
    # The ring goes all around, whatever the turn; it is another one where the digit was shifted.
    assert client.post("/api/ring", json={**ask, "turn": 99}).json() == first.json()
    assert len(times) == 1
    client.post("/api/ring", json={**ask, "right": 4})
    assert len(times) == 2


def test_about_says_what_was_measured(client):
    about = client.get("/api/about").json()
    assert about["errors"]["pr_cnn"] == {"r": 1.42, "t": 0.61}  # results/table1.jsonl
    assert about["photographs"] == ""
    assert about["maps"] == {"r": [4, 4], "t": [11, 11], "photo": [13, 13]}
    assert [sample["label"] for sample in about["samples"]] == list(range(10))


# ---- photographs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_a_photograph_is_taken_and_looked_at(client, kind):
    sent = client.post("/api/photos", content=encoded(scene(), kind))
    assert sent.status_code == 200, sent.text
    ask = {"photo": sent.json()["photo"], "layer": {"grid": 2, "levels": 2}}
    upright = client.post("/api/photo", json=ask).json()
    assert upright["layer"]["similarity"] == pytest.approx({"before": 1, "after": 1}, abs=1e-3)
    turned = client.post("/api/photo", json={**ask, "turn": 40, "right": 10}).json()
    assert turned["layer"]["similarity"]["before"] < 0.999
    assert turned["layer"]["size"] == [13, 13]
    picture = Image.open(io.BytesIO(base64.b64decode(turned["picture"])))
    assert (picture.format, picture.size) == ("JPEG", (224, 224))


def test_a_photograph_s_maps_are_alexnets(weights):
    kept = Photographs(weights=weights)
    name = kept.take(encoded(scene(256, 256)))
    view = kept.look(name, Pose(90), Settings(grid="pixels"))["layer"]
    model = create_model("alexnet", variant="torchvision", width=1, classes=1).eval()
    from safetensors.torch import load_file

    model.load_state_dict(load_file(weights), strict=False)
    whole = torch.from_numpy(np.array(scene(256, 256))).permute(2, 0, 1).float().div(255)
    image = torch.rot90(whole, 1, (1, 2))[None, :, 16:240, 16:240]
    with torch.inference_mode():
        maps = model.get_submodule("features")[:-1](model.get_submodule("normalise")(image))
    found = pixels(view["posed"]["before"]).reshape(-1, 13, 13)[0].astype(float)
    wanted = maps[0, view["channels"][0]].numpy()
    assert np.corrcoef(found.ravel(), wanted.ravel())[0, 1] > 0.99


@pytest.mark.parametrize(
    ("content", "status", "reason"),
    [
        (b"", 422, "empty"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", 415, "send one of JPEG, PNG, GIF, WebP, BMP"),
        (b"RIFF\0\0\0\0AVI ", 415, "send one of"),
        (encoded(scene(), "TIFF"), 415, "send one of"),
        (b"\x89PNG\r\n\x1a\n" + b"0" * 99, 400, "cannot be read as a picture"),
        (encoded(scene(), "JPEG")[:2000], 400, "cannot be read as a picture"),
        (header_only(8000, 5001), 400, "8000 x 5001 pixels, more than 40000000"),
        (encoded(Image.new("L", (10, 81))), 422, "at most 8 times"),
        (b"\xff\xd8\xff" + b"\xff\xda" * 65, 400, "65 scans, more than 64"),
    ],
)
def test_bad_files_are_refused_with_a_reason(client, content, status, reason):
    answer = client.post("/api/photos", content=content)
    assert (answer.status_code, reason in answer.json()["error"]) == (status, True), answer.text
    assert "<svg" not in answer.text


def test_a_progressive_jpeg_is_no_attack():
    content = encoded(scene(), "JPEG", progressive=True)
    assert 5 < content.count(b"\xff\xda") <= photographs.MAX_SCANS
    assert opened(content).size == (300, 260)


def test_large_photographs_are_kept_small():
    image = opened(encoded(Image.new("RGB", (3000, 1500), (9, 99, 9)), "JPEG"))
    assert min(image.size) <= photographs.SHORT
    assert opened(encoded(Image.new("RGB", (2000, 1600)))).size == (640, 512)
    with pytest.raises(WrongKind):
        opened(b"GIF88a")


def test_photographs_are_forgotten_in_turn(client, monkeypatch):
    monkeypatch.setattr(photographs, "KEPT", 2)
    names = [client.post("/api/photos", content=encoded(scene(300 + number))).json()["photo"] for number in (0, 1, 2)]
    assert client.post("/api/photo", json={"photo": names[2]}).status_code == 200
    gone = client.post("/api/photo", json={"photo": names[0]})
    assert (gone.status_code, "send it again" in gone.json()["error"]) == (404, True)
    assert client.post("/api/photo", json={"photo": "../../etc/passwd"}).status_code == 422


WRITTEN: list | None = None


def _watch(event, given):
    if WRITTEN is not None and event == "open" and given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        WRITTEN.append(given[0])


def test_photographs_are_never_written_to_a_disk(client):
    global WRITTEN
    sys.addaudithook(_watch)  # it cannot be taken away again, but it rests
    WRITTEN = []
    try:
        content = encoded(scene(310, 270), "JPEG", quality=99)
        name = client.post("/api/photos", content=content).json()["photo"]
        assert client.post("/api/photo", json={"photo": name, "turn": 10}).status_code == 200
        assert WRITTEN == []
        with open(os.devnull, "w"):
            assert WRITTEN  # it would have been seen
    finally:
        WRITTEN = None


def test_without_weights_it_says_so(tmp_path, monkeypatch, digits):
    monkeypatch.setenv("PATCHREORDER_CACHE", str(tmp_path))
    none = Photographs()
    assert "--weights FILE" in none.reason
    with TestClient(app_module.create_app(mnist=digits, photographs=none), base_url="http://localhost") as client:
        assert client.get("/api/about").json()["photographs"] == none.reason
        answer = client.post("/api/photos", content=encoded(scene()))
        assert (answer.status_code, answer.json()["error"]) == (422, none.reason)
    with pytest.raises(OSError, match=r"no such|No such"):
        Photographs(weights=tmp_path / "missing.safetensors")


# ---- what stands before it -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "public", "status"),
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
def test_only_names_that_lead_here_are_answered(app, host, public, status):
    before = Guard(app._app, names=["box.local"] if public else (), numbers=public)
    answer = TestClient(before, base_url="http://localhost").get("/page.css", headers={"host": host})
    assert answer.status_code == status


@pytest.mark.parametrize(
    ("origin", "status"), [("http://localhost", 200), ("https://evil.example", 403), ("null", 403)]
)
def test_pages_of_other_sites_are_not_answered(client, origin, status):
    answer = client.post("/api/answer", json=THREE, headers={"origin": origin})
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
def test_every_answer_has_the_headers(client, method, path, status):
    answer = client.request(method, path)
    assert answer.status_code == status
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    assert "unsafe" not in answer.headers["content-security-policy"]
    if status >= 400:
        assert list(answer.json()) == ["error"]


def spoken(app, messages, *, path="/api/photos", headers=(), seconds=None):
    """The status of a request whose body comes in these messages; an int is a wait in milliseconds."""
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

    guarded = Guard(app._app) if seconds is None else Guard(app._app, seconds=seconds)
    asyncio.run(guarded(scope, receive, send))
    return sent[0]["status"], json.loads(sent[1]["body"])["error"]


def test_bodies_are_bounded_whatever_they_say(app):
    part = b"x" * 1_000_000
    taken = []

    def endless():
        for _ in range(1000):
            taken.append(1)
            yield part

    assert spoken(app, endless()) == (413, "the request is larger than 10000000 bytes")
    assert len(taken) == 11  # no more was read than needed
    assert spoken(app, [], headers=[(b"content-length", b"10000001")])[0] == 413
    assert spoken(app, endless(), headers=[(b"content-length", b"5")])[0] == 413
    assert spoken(app, [b"x" * 64_001], path="/api/answer")[0] == 413


def test_a_body_that_does_not_arrive_is_not_waited_for(app):
    began = time.monotonic()
    assert spoken(app, [b"x", 5000], seconds=0.1) == (408, "the request did not arrive within 0.1 seconds")
    assert time.monotonic() - began < 3


def test_uploads_are_bounded_in_number(app, monkeypatch):
    monkeypatch.setattr(guard, "UPLOADS", 0)
    assert spoken(app, [b"x"]) == (503, "the server is busy: try again in a moment")
    monkeypatch.setattr(guard, "UPLOADS", 1)
    assert spoken(app, [b"x"])[0] == 415
    monkeypatch.setattr(guard, "REQUESTS", 0)
    assert spoken(app, [b"{}"], path="/api/answer")[0] == 503


def test_a_full_pool_says_so():
    free = threading.Event()

    async def several():
        pool = Pool(workers=1, waiting=1, seconds=5)
        jobs = [asyncio.ensure_future(pool.run(lambda check: free.wait(5))) for _ in range(2)]
        await asyncio.sleep(0.01)
        with pytest.raises(Busy):
            await pool.run(lambda check: None)
        free.set()
        assert await asyncio.gather(*jobs) == [True, True]
        assert await pool.run(lambda check: 7) == 7  # places are free again
        pool.close()

    asyncio.run(several())


def test_work_that_takes_too_long_is_left_and_stops_itself():
    ended = threading.Event()

    def work(check):
        try:
            for _ in range(1000):
                time.sleep(0.01)
                check()
        finally:
            ended.set()

    async def late():
        pool = Pool(workers=1, waiting=0, seconds=0.1)
        with pytest.raises(TimeOver):
            await pool.run(work)
        assert await asyncio.to_thread(ended.wait, 2)
        await asyncio.sleep(0.05)
        assert await pool.run(lambda check: 1) == 1
        pool.close()

    asyncio.run(late())


def test_work_for_somebody_who_left_is_given_up():
    ended = threading.Event()

    def work(check):
        try:
            for _ in range(1000):
                time.sleep(0.01)
                check()
        except GivenUp:
            ended.set()
            raise

    async def leave():
        pool = Pool(workers=1, waiting=0, seconds=20)
        with pytest.raises(GivenUp):
            await pool.run(work, left=asyncio.sleep(0.05))
        assert await asyncio.to_thread(ended.wait, 2)
        pool.close()

    asyncio.run(leave())


def test_a_busy_server_answers_503_and_a_slow_one_504(client, monkeypatch):
    async def busy(self, work, *, left=None):
        left.close()
        raise Busy

    async def late(self, work, *, left=None):
        left.close()
        raise TimeOver

    monkeypatch.setattr(Pool, "run", busy)
    answer = client.post("/api/answer", json=THREE)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    monkeypatch.setattr(Pool, "run", late)
    answer = client.post("/api/answer", json=THREE)
    assert (answer.status_code, answer.json()["error"]) == (504, "this took longer than 5 seconds")


def test_the_cache_keeps_what_was_asked_for_last():
    cache = Cache(2)
    assert [cache.get(key, lambda key=key: key.upper()) for key in "abac"] == ["A", "B", "A", "C"]
    assert ("a" in cache, "b" in cache, "c" in cache) == (True, False, True)
    assert cache.get("a", lambda: "other") == "A"


# ---- the command -----------------------------------------------------------------------------------


def test_another_address_needs_a_flag(capsys, monkeypatch):
    monkeypatch.setattr(play_module, "_listen", lambda host, port: pytest.fail("it listens"))  # not in a test
    assert main(["play", "--host", "0.0.0.0"]) == 2
    assert capsys.readouterr().err == (
        "patchreorder: host (0.0.0.0) would let other machines in: add --expose if that is meant\n"
    )
    assert main(["play", "--port", "65536"]) == 2
    assert "port (65536) must be from 0 to 65535" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_the_command_says_where_the_page_is_and_warns(capsys, monkeypatch, host):
    import uvicorn

    monkeypatch.setenv("COLUMNS", "300")
    ran, made = [], {}

    def create_app(**given):
        made.update(given)

    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: ran.append(sockets[0].getsockname()))
    monkeypatch.setattr(app_module, "create_app", create_app)
    # Listening where others could reach it is not for a test: what is bound stays on this machine.
    monkeypatch.setattr(play_module, "_listen", lambda host, port, real=play_module._listen: real("127.0.0.1", port))
    monkeypatch.setattr(play_module, "_has_browser", lambda: False)
    assert main(["play", "--port", "0", "--host", host, *(["--expose"] if host == "0.0.0.0" else [])]) == 0
    said = capsys.readouterr().out
    name = "localhost" if host == "0.0.0.0" else host
    assert f"http://{name}:{ran[0][1]}/" in said
    assert ("Warning" in said) == (host == "0.0.0.0") == made["numbers"]


def test_a_taken_port_is_named(capsys):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["play", "--port", str(port)]) == 2
    assert f"cannot listen on 127.0.0.1, port {port}" in capsys.readouterr().err


def test_a_missing_extra_is_named(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert main(["play"]) == 2
    assert capsys.readouterr().err == (
        "patchreorder: the playground needs fastapi and uvicorn: pip install 'patchreorder[play]'\n"
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_this_machine_is_this_machine(host):
    assert play_module._is_loopback(host)
    assert not play_module._is_loopback("192.168.0.1")
    assert not play_module._is_loopback("::")


# ---- the page --------------------------------------------------------------------------------------


def test_the_page_asks_nothing_of_anybody_else():
    for path in PAGE.iterdir():
        text = path.read_text(encoding="utf-8")
        found = set(re.findall(r"(?:https?:)?//[\w.-]+\.[a-z]{2,}[^\s\"']*", text)) - {"http://www.w3.org/2000/svg"}
        assert not found, path.name
        assert "innerHTML" not in text
        assert "eval(" not in text
    html = (PAGE / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]*src=)", html) == []
    assert not re.search(r"<style|\sstyle=|\son\w+=", html)


def test_everything_to_press_has_a_name():
    html = (PAGE / "index.html").read_text(encoding="utf-8")
    labelled = set(re.findall(r'for="([\w-]+)"', html))
    for tag in re.findall(r"<input[^>]*>", html):
        name = re.search(r'id="([\w-]+)"', tag)
        inside = re.search(rf"<label[^>]*>[^<]*{re.escape(tag)}", html)
        assert inside or (name and name[1] in labelled) or 'class="time"' in tag, tag


def test_the_numbers_in_the_documentation_are_those_of_the_page(net):
    rows = {
        "shifted by 5 and -4, 2x2 patches (T)": (Pose(0, -4, 5), "mnist-t", Settings(2)),
        "the same, pixels (T)": (Pose(0, -4, 5), "mnist-t", Settings("pixels")),
        "turned by 60 degrees, pixels (R)": (Pose(60), "mnist-r", Settings("pixels")),
    }
    text = (Path(__file__).parents[2] / "docs" / "playground.md").read_text(encoding="utf-8")
    measured = json.loads((Path(__file__).parents[2] / "results" / "benchmark_playground.json").read_text())
    for title, found in {
        "an answer, 8 clients": measured["load"]["kinds"]["answer"],
        "a map of shifts, 8 clients": measured["load"]["kinds"]["shifts"],
        "a change in the browser, 1 client": measured["browser"],
    }.items():
        assert f"| {title} | {found['median']:.0f} | {found['p95']:.0f} |" in text
    assert measured["load"]["errors"] == 0
    for title, asked in rows.items():
        found = net.answer(samples()[3], *asked)["layer"]["similarity"]
        values = found["before"], found["after"], found["others"]["after"]
        said = re.search(rf"\| {re.escape(title)} \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", text)
        assert [float(value) for value in said.groups()] == pytest.approx(values, abs=0.011), title


# ---- in a real browser -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(app):
    """The playground behind uvicorn, in a thread: its address."""
    import uvicorn

    listening = play_module._listen("127.0.0.1", 0)
    running = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none", lifespan="off"))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    running.should_exit = True
    thread.join(10)
    listening.close()


def test_answers_are_sent_without_delay():
    with play_module._listen("127.0.0.1", 0) as listening:
        assert listening.proto == socket.IPPROTO_TCP  # asyncio looks at it


def test_slow_and_silent_senders_stop_nobody(server):
    import urllib.request

    port = int(server.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as silent, socket.create_connection(("127.0.0.1", port)) as slow:
        silent.sendall(b"POST /api/answer HTTP/1.1\r\nhost: localhost\r\n")
        slow.sendall(
            b"POST /api/photos HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9000000\r\n\r\n" + b"x" * 100_000
        )
        time.sleep(0.1)
        with urllib.request.urlopen(f"{server}/api/about", timeout=10) as answer:
            assert answer.status == 200


@pytest.fixture(scope="module")
def browser():
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    place = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if not place:
        pytest.skip("there is no chromium: `apt-get install chromium`, or name one in the variable CHROMIUM")
    with sync.sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        # Nothing that the browser does for itself, which asks for servers of its maker.
        flags += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
        opened = playwright.chromium.launch(executable_path=place, args=flags)
        yield opened
        opened.close()


@pytest.fixture
def visit(browser, server):
    """Opens the page at a state; in the end there must have been no error and no request to anybody else."""
    contexts, complaints, elsewhere = [], [], []

    def visit(state="", **settings):
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **settings})
        contexts.append(context)
        context.set_default_timeout(20_000)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type != "info" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: elsewhere.append(request.url) if not _own(request.url, server) else None)
        page.goto(f"{server}/{state}")
        page.wait_for_selector("html[data-ready]")
        page.wait_for_selector(".card[data-answer]")
        return page

    visit.expected = complaints
    yield visit
    for context in contexts:
        context.close()
    assert complaints == []
    assert elsewhere == []


def _own(url, server):
    return url.startswith((server, "data:"))


def answers(page):
    return [card.get_attribute("data-answer") for card in page.locator(".card").all()]


def test_draw_turn_and_see_the_answers_change(visit):
    from playwright.sync_api import expect

    page = visit()
    assert answers(page) == ["3", "3", "3"]
    box = page.locator("#pad").bounding_box()
    page.mouse.move(box["x"] + 0.52 * box["width"], box["y"] + 0.15 * box["height"])
    page.mouse.down()
    for step in range(1, 9):
        page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + (0.15 + 0.085 * step) * box["height"])
    page.mouse.up()
    for name in networks.NAMES:
        expect(page.locator(f'.card[data-network="{name}"]')).to_have_attribute("data-answer", "1")
    page.wait_for_url(re.compile(r"#d=w[\w-]+$"))
    page.reload()  # the address holds the drawing
    expect(page.locator(".card").first).to_have_attribute("data-answer", "1")
    assert "d=w" in page.url
    page.goto(page.url.partition("#")[0] + "#d=s3")  # no other page: its state alone changes
    expect(page.locator(".card").first).to_have_attribute("data-answer", "3")
    page.locator("#turn").focus()
    page.keyboard.press("Home")  # -180 degrees
    expect(page.locator("#turn-value")).to_have_text("\u2212180°")
    expect(page.locator(".card").first).to_have_attribute("data-answer", "8")
    expect(page.locator(".ring .right").first).to_be_attached()
    expect(page.locator(".map .wrong").first).to_be_attached()
    assert "3 at" in page.locator(".ring").first.get_attribute("aria-label")
    page.wait_for_url(re.compile("t=-180"))


def test_the_layer_follows_its_controls_and_the_address(visit):
    from playwright.sync_api import expect

    page = visit("#n=t&x=5&y=-4&g=pixels")
    layers = page.locator("#layer")
    expect(layers).to_have_attribute("data-after", re.compile(r"^0\.9"))
    page.locator('#layer input[value="2"][data-name="grid"]').check(force=True)
    expect(layers).to_have_attribute("data-after", re.compile(r"^0\.[0-2]"))
    page.wait_for_url(lambda url: "n=t" in url and "g=" not in url)  # the usual needs no words
    page.locator('#layer input[value="3"][data-name="levels"]').check(force=True)
    page.locator('input[name="trained"][value="r"]').check(force=True)  # its maps are too small for eight patches
    expect(page.locator('#layer input[value="2"][data-name="levels"]')).to_be_checked()
    expect(page.locator('#layer input[value="3"][data-name="levels"]')).to_be_disabled()
    before = page.locator("#layer .after").screenshot()
    page.locator("#layer .time").focus()
    page.keyboard.press("Home")
    assert page.locator("#layer .after").screenshot() != before


def test_motion_is_only_shown_to_those_who_want_it(visit):
    page = visit("#n=t&g=4", reduced_motion="reduce")
    page.locator("#layer .play").click()
    assert page.locator("#layer .time").input_value() == "0"  # at once
    page = visit("#n=t&g=4")
    seen = page.evaluate(
        """async () => {
          document.querySelector("#layer .play").click();
          for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame);
          return Number(document.querySelector("#layer .time").value);
        }"""
    )
    assert 0 < seen < 100


@pytest.mark.parametrize("address", ["#d=w!!&t=999&x=1e9&n=<b>&g=7&k=-1", "#" + "d=w" + "A" * 9000, "#d=m77", "#%"])
def test_an_address_that_anybody_wrote_does_no_harm(visit, address):
    page = visit(address)
    assert answers(page) == ["3", "3", "3"]
    assert page.locator("#problem").is_hidden()


def test_upload_a_good_and_a_bad_file(visit, tmp_path):
    from playwright.sync_api import expect

    page = visit("#pt=30")
    page.set_input_files("#file", {"name": "a.jpg", "mimeType": "image/jpeg", "buffer": encoded(scene(), "JPEG")})
    expect(page.locator("#picture")).to_be_visible()
    expect(page.locator("#photo-layer")).to_have_attribute("data-before", re.compile(r"^0\.\d"))
    page.locator("#p-upright").click()
    expect(page.locator("#photo-layer")).to_have_attribute("data-before", "1")
    page.set_input_files("#file", {"name": "b.jpg", "mimeType": "image/jpeg", "buffer": b"<script>alert(1)</script>"})
    expect(page.locator("#photo-problem")).to_contain_text("send one of JPEG, PNG, GIF, WebP, BMP")
    expect(page.locator("#picture")).to_be_visible()  # the good one stays
    assert [text for text in visit.expected if "415" not in text] == []
    visit.expected.clear()  # the browser itself reports the 415
    (tmp_path / "c.png").write_bytes(b"\x89PNG" * 2_600_000)
    page.set_input_files("#file", tmp_path / "c.png")
    expect(page.locator("#photo-problem")).to_contain_text("more than 10 MB")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_needs_no_scrolling_sideways(visit, scheme):
    page = visit("#t=30", viewport={"width": 360, "height": 740}, color_scheme=scheme, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(253, 253, 252)", "dark": "rgb(23, 24, 28)"}[scheme]
    page.locator("#posed").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press(".")
    assert page.locator("#right-value").inner_text() == "1 px"
    assert page.locator("#turn-value").inner_text() == "25°"


def test_everything_can_be_reached_by_keyboard(visit):
    page = visit()
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "document.activeElement.id || document.activeElement.name || document.activeElement.className"
            )
        )
    wanted = {
        "turn",
        "right",
        "down",
        "posed",
        "upright",
        "trained",
        "sample",
        "undo",
        "clear",
        "share",
        "time",
        "play",
    }
    assert wanted | {"digit-grid", "digit-channel", "p-turn", "file"} <= reached


def test_the_tour_tells_numbers_that_came_from_the_server(visit):
    from playwright.sync_api import expect

    page = visit()
    page.get_by_role("button", name="2 Sort pixels instead").click()
    expect(page.locator("#told strong")).to_have_count(3)
    before, after, others = (float(text) for text in page.locator("#told strong").all_inner_texts())
    assert before < others < after
    page.locator("#turn").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("button", name="2 Sort pixels instead")).to_have_attribute("aria-pressed", "false")
