"""Photographs: formats, limits, what stays in memory, and AlexNet's feature maps."""

import base64
import io
import os
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from patchreorder import create_model
from patchreorder.data.poses import UPRIGHT, Pose
from patchreorder.operator.functional import PatchReorderOptions
from patchreorder.playground.app import create_app
from patchreorder.playground.photographs import MAX_SCANS, SHORT, Photographs, open_photo
from patchreorder.playground.requests import RequestError

from .images import encode, from_base64, header_only, pattern


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_a_photograph_is_uploaded_and_posed(client, kind):
    sent = client.post("/api/photos", content=encode(pattern(), kind))
    assert sent.status_code == 200, sent.text
    ask = {"photo": sent.json()["photo"], "layer": {"grid": 2, "levels": 2}}
    upright = client.post("/api/photo", json=ask).json()
    assert upright["layer"]["similarity"] == pytest.approx({"before": 1, "after": 1}, abs=1e-3)
    posed = client.post("/api/photo", json={**ask, "rotation": 40, "right": 10}).json()
    assert posed["layer"]["similarity"]["before"] < 0.999
    assert posed["layer"]["size"] == [13, 13]
    image = Image.open(io.BytesIO(base64.b64decode(posed["image"])))
    assert (image.format, image.size) == ("JPEG", (224, 224))


def test_feature_maps_are_alexnets(weights):
    photos = Photographs(weights=weights)
    name = photos.add(encode(pattern(256, 256)))
    view = photos.look(name, Pose(90), PatchReorderOptions(grid="pixels"))["layer"]
    model = create_model("alexnet", variant="torchvision", width=1, classes=1).eval()
    model.load_state_dict(load_file(weights), strict=False)
    whole = torch.from_numpy(np.array(pattern(256, 256))).permute(2, 0, 1).float().div(255)
    image = torch.rot90(whole, 1, (1, 2))[None, :, 16:240, 16:240]
    with torch.inference_mode():
        maps = model.get_submodule("features")[:-1](model.get_submodule("normalise")(image))
    found = from_base64(view["posed"]["before"]).reshape(-1, 13, 13)[0].astype(float)
    wanted = maps[0, view["channels"][0]].numpy()
    assert np.corrcoef(found.ravel(), wanted.ravel())[0, 1] > 0.99


@pytest.mark.parametrize(
    ("content", "status", "reason"),
    [
        (b"", 422, "empty"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", 415, "send JPEG, PNG, GIF, WebP, BMP"),
        (b"RIFF\0\0\0\0AVI ", 415, "send JPEG"),
        (encode(pattern(), "TIFF"), 415, "send JPEG"),
        (b"\x89PNG\r\n\x1a\n" + b"0" * 99, 400, "cannot be read as"),
        (encode(pattern(), "JPEG")[:2000], 400, "cannot be read as"),
        (header_only(8000, 5001), 400, "8000 x 5001 pixels, more than 40000000"),
        (encode(Image.new("L", (10, 81))), 422, "at most 8 times"),
        (b"\xff\xd8\xff" + b"\xff\xda" * 65, 400, "65 scans, more than 64"),
    ],
)
def test_bad_files_are_rejected_with_a_reason(client, content, status, reason):
    answer = client.post("/api/photos", content=content)
    assert (answer.status_code, reason in answer.json()["error"]) == (status, True), answer.text
    assert "<svg" not in answer.text


def test_a_progressive_jpeg_is_accepted():
    content = encode(pattern(), "JPEG", progressive=True)
    assert 5 < content.count(b"\xff\xda") <= MAX_SCANS
    assert open_photo(content).size == (300, 260)


def test_large_photographs_are_scaled_down():
    image = open_photo(encode(Image.new("RGB", (3000, 1500), (9, 99, 9)), "JPEG"))
    assert min(image.size) <= SHORT
    assert open_photo(encode(Image.new("RGB", (2000, 1600)))).size == (640, 512)
    with pytest.raises(RequestError, match="not an image of a supported format"):
        open_photo(b"GIF88a")


def test_the_oldest_photographs_are_dropped(weights):
    photos = Photographs(weights=weights, cached=2)
    names = [photos.add(encode(pattern(300 + number))) for number in range(3)]
    assert photos.look(names[2], UPRIGHT, PatchReorderOptions())["image"]
    with pytest.raises(RequestError, match="send it again"):
        photos.look(names[0], UPRIGHT, PatchReorderOptions())


def test_an_unknown_photograph_must_be_sent_again(client):
    gone = client.post("/api/photo", json={"photo": "0" * 64})
    assert (gone.status_code, "send it again" in gone.json()["error"]) == (404, True)
    assert client.post("/api/photo", json={"photo": "../../etc/passwd"}).status_code == 422


WRITTEN: list | None = None


def _watch(event, given):
    if WRITTEN is not None and event == "open" and given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        WRITTEN.append(given[0])


def test_photographs_are_never_written_to_disk(client):
    global WRITTEN
    sys.addaudithook(_watch)  # it cannot be removed, but it does nothing while WRITTEN is None
    WRITTEN = []
    try:
        content = encode(pattern(310, 270), "JPEG", quality=99)
        name = client.post("/api/photos", content=content).json()["photo"]
        assert client.post("/api/photo", json={"photo": name, "rotation": 10}).status_code == 200
        assert WRITTEN == []
        with open(os.devnull, "w"):
            assert WRITTEN  # the hook works
    finally:
        WRITTEN = None


def test_absent_weights_say_what_to_do(tmp_path, monkeypatch, no_mnist):
    from fastapi.testclient import TestClient

    monkeypatch.setenv("PATCHREORDER_CACHE", str(tmp_path))
    none = Photographs()
    assert "--weights FILE" in none.reason
    with TestClient(create_app(mnist=no_mnist, photos=none), base_url="http://localhost") as client:
        assert client.get("/api/about").json()["photographs"] == none.reason
        answer = client.post("/api/photos", content=encode(pattern()))
        assert (answer.status_code, answer.json()["error"]) == (422, none.reason)
    with pytest.raises(OSError, match=r"no such|No such"):
        Photographs(weights=tmp_path / "missing.safetensors")
