"""Answers to photographs, and the names of the classes."""

import importlib.util

import pytest
import torch
from PIL import Image
from torch import nn

from patchreorder.data.poses import Pose
from patchreorder.operator.functional import PatchReorderOptions
from patchreorder.playground import imagenet
from patchreorder.playground.app import create_app
from patchreorder.playground.imagenet import ANGLES, ImagenetClassifier, class_names
from patchreorder.playground.photographs import Photographs

from .images import encode, pattern


@pytest.fixture
def fresh():
    class_names.cache_clear()
    yield
    class_names.cache_clear()


def test_names_are_read_from_torchvision_and_not_run(fresh, tmp_path, monkeypatch):
    folder = tmp_path / "torchvision" / "models"
    folder.mkdir(parents=True)
    (tmp_path / "torchvision" / "__init__.py").write_text("raise SystemExit('run')")
    names = [f"thing {number}" for number in range(1000)]
    (folder / "_meta.py").write_text(f"raise SystemExit('run')\n_IMAGENET_CATEGORIES = {names}\n")
    spec = importlib.util.spec_from_file_location("torchvision", tmp_path / "torchvision" / "__init__.py")
    monkeypatch.setattr(imagenet.importlib.util, "find_spec", lambda name: spec)
    assert class_names() == names


def test_without_torchvision_classes_have_numbers(fresh, monkeypatch):
    monkeypatch.setattr(imagenet.importlib.util, "find_spec", lambda name: None)
    assert class_names()[281] == "class 281"


def test_the_names_of_torchvision_are_in_its_order(fresh):
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    assert [class_names()[number] for number in (0, 207, 999)] == ["tench", "golden retriever", "toilet tissue"]


class Brightest(nn.Module):
    """Its class is the quarter of the image that is brightest."""

    def forward(self, images):
        logits = torch.zeros(len(images), 1000)
        logits[:, :4] = 20 * nn.functional.adaptive_avg_pool2d(images.mean(1, keepdim=True), 2).flatten(1)
        return logits


def test_the_answers_are_those_of_the_pose(weights):
    image = Image.new("RGB", (256, 256))
    image.paste((255, 255, 255), (0, 0, 128, 128))  # upper left
    photos = Photographs(weights=weights, classifier=ImagenetClassifier(network=Brightest()))
    name = photos.add(encode(image))
    found = photos.look(name, Pose(degrees=90.0), PatchReorderOptions())["answers"]  # counter-clockwise: lower left
    names = class_names()
    assert found["upright"][0]["name"] == names[0]
    assert found["posed"][0]["name"] == names[2]
    assert found["upright"][0]["probability"] > found["upright"][1]["probability"]
    ring = photos.ring(name, Pose(), check=lambda: None)
    firsts = dict(zip(ring["angles"], (own["name"] for own in ring["answers"]), strict=True))
    assert list(firsts) == list(ANGLES)
    assert [firsts[angle] for angle in (0, 90, -180, -90)] == [names[0], names[2], names[3], names[1]]


def test_answers_need_no_maps(tmp_path, monkeypatch, no_mnist):
    """AlexNet is fetched apart; whoever has used `fit` has the classifier alone."""
    from fastapi.testclient import TestClient

    monkeypatch.setenv("PATCHREORDER_CACHE", str(tmp_path))
    photos = Photographs(classifier=ImagenetClassifier(network=Brightest()))
    assert photos.reason
    with TestClient(create_app(mnist=no_mnist, photos=photos), base_url="http://localhost") as client:
        about = client.get("/api/about").json()
        assert (about["photographs"], about["conv5"]) == ("", photos.reason)
        name = client.post("/api/photos", content=encode(pattern())).json()["photo"]
        found = client.post("/api/photo", json={"photo": name, "rotation": 90}).json()
        assert (found["layer"], len(found["answers"]["posed"])) == (None, 3)
        assert len(client.post("/api/photo-ring", json={"photo": name}).json()["answers"]) == 12


def test_without_weights_the_reason_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PATCHREORDER_CACHE", str(tmp_path))
    none = ImagenetClassifier()
    assert "play --fetch" in none.reason
    assert none.answers(torch.zeros(1, 224, 224, 3, dtype=torch.uint8)) == []


def test_the_route_of_the_ring(client):
    name = client.post("/api/photos", content=encode(pattern())).json()["photo"]
    found = client.post("/api/photo-ring", json={"photo": name, "right": 5}).json()
    assert len(found["answers"]) == len(found["angles"]) == 12
    assert client.post("/api/photo-ring", json={"photo": 7}).status_code == 422
    assert client.post("/api/photo-ring", json={"photo": "0" * 64}).status_code == 404
