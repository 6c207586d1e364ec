"""Queries by image: one, a folder, in other poses, and those without a result."""

import pytest
from PIL import Image

from patchreorder.engine.predict import for_inference
from patchreorder.search.descriptors import create_descriptor
from patchreorder.search.images import scan
from patchreorder.search.index import Hit, Index
from patchreorder.search.query import POSES, search_images
from patchreorder.search.update import update

from .samples import Colours, aged, made, nearest, noise


def test_an_image_finds_itself_first(photos, tmp_path):
    made(photos, tmp_path / "out")
    assert nearest(tmp_path / "out", photos / "class-0001/0002.jpg", k=1) == [(0.0, "class-0001/0002.jpg")]
    answers, _ = search_images(Index(tmp_path / "out"), Colours(), photos, batch=5, workers=2)
    names = [name for name, _, _ in scan(photos)[0]]
    assert [(answer.query, answer.hits[0].name) for answer in answers] == [(name, name) for name in names]
    assert all(len(answer.hits) == 4 for answer in answers)


def test_poses_find_a_rotated_image(tmp_path):
    folder, out, query = noise(tmp_path / "in", 6), tmp_path / "out", tmp_path / "rotated.png"
    for path in folder.iterdir():
        Image.open(path).resize((64, 64), Image.Resampling.NEAREST).save(path)
    made(aged(folder), out)
    Image.open(folder / "0003.png").transpose(Image.Transpose.ROTATE_90).save(query)
    assert nearest(out, query)[0][0] > 0.1
    (answer,), _ = search_images(Index(out), Colours(), query, poses=True)
    assert answer.hits[0] == Hit(pytest.approx(0, abs=0.01), "0003.png", "rotated by 270°")
    assert len({hit.name for hit in answer.hits}) == 4
    assert answer.hits == sorted(answer.hits, key=lambda hit: hit.distance)
    (answer,), _ = search_images(Index(out), Colours(), folder / "0001.png", poses=True, k=99)
    assert answer.hits[0] == Hit(pytest.approx(0, abs=1e-6), "0001.png", "")
    assert len(answer.hits) == 6
    assert len(set(POSES.values())) == 12


@pytest.mark.parametrize(
    ("colour", "reason"),
    [((255, 0, 0), "its features are not finite"), ((0, 0, 255), "all its features are zero: a blank image")],
)
@pytest.mark.parametrize("poses", [False, True])
def test_a_query_with_unusable_features_is_named(photos, tmp_path, colour, reason, poses):
    made(photos, tmp_path / "out")
    Image.new("RGB", (9, 9), colour).save(tmp_path / "plain.png")
    answers, bad = search_images(Index(tmp_path / "out"), Colours(spoilt=True), tmp_path / "plain.png", poses=poses)
    assert (answers, bad) == ([], [f"plain.png cannot be searched for: {reason}"])


def test_a_real_descriptor(photos, tmp_path):
    model = for_inference(create_descriptor("alexnet/gap"))
    done = update(photos, tmp_path / "out", model)
    assert (done.images, done.unreadable) == (12, [])
    query = photos / "class-0000/0001.jpg"
    (answer,), _ = search_images(Index(tmp_path / "out"), model, query)
    assert answer.hits[0].name == "class-0000/0001.jpg"
    assert answer.hits[0].distance < 1e-3  # a batch of another size rounds differently
