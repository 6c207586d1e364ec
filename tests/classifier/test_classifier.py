"""`load_classifier` and what it takes: bytes and floats are both right, anything else is refused."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

import patchreorder
from patchreorder.classifier import classifier as classifier_module
from patchreorder.classifier.classifier import as_image, predict_files, views_of
from patchreorder.classifier.export import export
from patchreorder.classifier.fit import FitOptions, fit
from tests.allocations import most_memory
from tests.classifier.photographs import write_photographs


@pytest.fixture
def classifier(tmp_path, small_backbone):
    fit(write_photographs(tmp_path / "data"), tmp_path / "out", FitOptions(copies=2))
    return patchreorder.load_classifier(tmp_path / "out" / "classifier.safetensors")


@pytest.fixture
def unsure(tmp_path, small_backbone):
    """A classifier whose probabilities change with every pixel."""
    fit(write_photographs(tmp_path / "data", wrong=4), tmp_path / "out", FitOptions(copies=2))
    return patchreorder.load_classifier(tmp_path / "out" / "classifier.safetensors")


def test_every_form_of_an_image_has_the_same_answer(classifier, tmp_path):
    file = tmp_path / "data" / "red" / "00.png"
    pixels = np.array(Image.open(file))
    wanted = classifier(file)
    assert wanted.name == "red"
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    for image in (
        str(file),
        Image.open(file),
        pixels,
        pixels / 255,
        (pixels / 255).astype(np.float32),
        tensor,
        tensor / 255,
    ):
        assert classifier(image) == wanted
    assert classifier(torch.stack([tensor, tensor])) == [wanted, wanted]
    assert classifier([file, pixels]) == [wanted, wanted]
    assert sum(chance for _, chance in wanted.top) == pytest.approx(1)


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (np.zeros((4, 4, 3), np.int64), "bytes .uint8. or floats .* got int64"),
        (np.full((4, 4, 3), 255.0), "floats must be from 0 to 1, got 255 to 255"),
        (np.full((4, 4, 3), -1.0), "floats must be from 0 to 1"),
        (np.full((4, 4, 3), np.nan), "floats must be from 0 to 1"),
        (np.zeros((3, 4, 4), np.uint8), r"\(height, width, 3\) .* got \(3, 4, 4\)"),
        (torch.zeros(4, 4, 3), r"\(3, height, width\) .* got \(4, 4, 3\)"),
        (np.zeros((0, 4, 3), np.uint8), "an array must be"),
    ],
)
def test_other_arrays_are_refused(image, reason):
    with pytest.raises(ValueError, match=reason):
        as_image(image, short=64)


def test_other_things_are_refused():
    with pytest.raises(TypeError, match="a path, a Pillow image, an array or a tensor, got int"):
        as_image(3, short=64)


def test_an_image_unlike_all_others_is_none_of_these(classifier):
    noise = np.random.default_rng(0).integers(0, 2, (64, 64, 3)).astype(np.uint8) * 255
    assert classifier(noise).name is None


def test_views_stay_within_the_rotations_that_mean_the_same(classifier):
    assert [shown.pose.degrees for shown in views_of(classifier.facts, 4)] == [0, 90, 180, 270]
    narrow = patchreorder.models.saved.ClassifierFacts(**{**classifier.facts.__dict__, "rotations": 30.0})
    assert sorted(shown.pose.degrees for shown in views_of(narrow, 3)) == [-30, 0, 30]
    with pytest.raises(ValueError, match=r"views \(0\) must be from 1 to 64"):
        views_of(narrow, 0)


def test_files_are_answered_in_order_and_bad_ones_named(classifier, tmp_path):
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    good = [str(tmp_path / "data" / name / "01.png") for name in ("blue", "green")]
    answers = list(predict_files(classifier, [good[0], str(tmp_path / "bad.jpg"), good[1], "nowhere.png"]))
    assert [path for path, _ in answers] == [good[0], str(tmp_path / "bad.jpg"), good[1], "nowhere.png"]
    assert [answers[place][1].name for place in (0, 2)] == ["blue", "green"]
    assert "cannot be read as an image" in answers[1][1]
    assert "No such file" in answers[3][1]


def test_huge_files_and_files_without_an_end_are_not_read_whole(classifier, tmp_path, monkeypatch):
    with open(tmp_path / "sparse.jpg", "wb") as file:
        file.truncate(40 << 30)
    with most_memory() as memory:
        answers = list(predict_files(classifier, [str(tmp_path / "sparse.jpg")]))
    assert memory() < 100_000_000
    monkeypatch.setattr(classifier_module, "MAX_BYTES", 1 << 20)
    answers += predict_files(classifier, ["/dev/zero"])
    assert [path for path, _ in answers] == [str(tmp_path / "sparse.jpg"), "/dev/zero"]
    assert all("GB: it is no photograph" in reason for _, reason in answers)


def test_an_exported_classifier_gives_the_same_probabilities(classifier, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    export(classifier, tmp_path / "c.onnx")
    session = runtime.InferenceSession(str(tmp_path / "c.onnx"), providers=["CPUExecutionProvider"])
    size = classifier.facts.size
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3, size, size)).astype(np.uint8)
    probabilities, distances = session.run(None, {"pixels": pixels})
    with torch.inference_mode():
        logits, far = classifier.network.judge(torch.from_numpy(pixels).float() / 255)
    np.testing.assert_allclose(probabilities, logits.softmax(1).numpy(), atol=1e-5)
    np.testing.assert_allclose(distances, far.numpy(), rtol=1e-3)
    facts = session.get_modelmeta().custom_metadata_map
    assert facts["classes"] == '["blue", "green", "red"]'


def test_grey_and_transparent_images(classifier):
    file = io.BytesIO()
    Image.new("L", (50, 40), 200).save(file, "PNG")
    assert as_image(Image.open(file), short=64).mode == "RGB"
    assert as_image(np.zeros((5, 6), np.uint8), short=64).size == (6, 5)


def photograph(height, width):
    """Smooth colours with fine noise: every way to scale it gives other pixels."""
    random = np.random.default_rng(0)
    coarse = Image.fromarray(random.integers(0, 256, (6, 8, 3)).astype(np.uint8)).resize((width, height))
    return Image.fromarray((np.array(coarse) // 2 + random.integers(0, 128, (height, width, 3))).astype(np.uint8))


def test_an_opened_image_has_the_answer_of_its_file(unsure, tmp_path):
    """Also a large one, one that EXIF turns, a transparent one, and 16 bits of grey."""
    large = photograph(900, 1200)
    turned = Image.Exif()
    turned[0x0112] = 6
    clear = large.resize((60, 50)).convert("RGBA")
    clear.putalpha(Image.linear_gradient("L").resize(clear.size))
    grey = Image.fromarray((np.arange(3600, dtype=np.uint16) * 18).reshape(60, 60))
    for name, image, options in (
        ("large.png", large, {}),
        ("turned.png", large.resize((90, 50)), {"exif": turned}),
        ("clear.png", clear, {}),
        ("grey.png", grey, {}),
    ):
        image.save(tmp_path / name, **options)
        answer = unsure(tmp_path / name, views=3)
        assert answer.probability < 0.99
        assert unsure(Image.open(tmp_path / name), views=3) == answer
    assert unsure(np.array(large)) == unsure(tmp_path / "large.png")


def test_a_damaged_opened_image_is_refused(classifier, tmp_path):
    photograph(60, 60).save(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:900])
    with Image.open(tmp_path / "cut.png") as image, pytest.raises(ValueError, match=r"cut\.png cannot be read"):
        classifier(image)
