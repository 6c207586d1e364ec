"""Files of MNIST and CIFAR-10: known answers, and refusal of anything else."""

import numpy as np
import pytest
from PIL import Image

from patchreorder.data import formats
from patchreorder.data.formats import read_idx

from .toy_source import fill


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([0, 0, 8, 1, 0, 0, 0, 3, 7, 0, 255], [7, 0, 255]),
        ([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6], [[1, 2, 3], [4, 5, 6]]),
        ([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 1, 2, 3, 4], [[[1, 2]], [[3, 4]]]),
        ([0, 0, 8, 1, 0, 0, 1, 1, *range(256), 9], [*range(256), 9]),
    ],
)
def test_read_idx_known_answers(content, expected, tmp_path):
    path = fill(tmp_path, {"idx": bytes(content)}) / "idx"
    array = read_idx(path)
    assert array.dtype == np.uint8
    assert array.flags.writeable  # torch.from_numpy warns of an array that is not
    np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([], r"starts with \[\], expected \[0, 0, 8, 1 to 32\]"),
        ([0, 0, 8], "is no idx file"),
        ([0, 0, 13, 1, 0, 0, 0, 1, 0, 0, 0, 0], r"starts with \[0, 0, 13, 1\]"),  # floats
        ([0, 0, 8, 0, 1], "is no idx file"),
        ([0, 0, 8, 33, *[0, 0, 0, 1] * 33, 1], "is no idx file"),
        ([0x1F, 0x8B, 8, 0, 0, 0, 0, 0], "is no idx file"),  # gzipped
        ([0, 0, 8, 2, 0, 0, 0, 1, 0, 0, 0], "is truncated: it has 11 bytes, its header alone 12"),
        ([0, 0, 8, 1, 0, 0, 0, 3, 7, 0], "has 10 bytes, expected 11"),
        ([0, 0, 8, 1, 0, 0, 0, 3, 7, 0, 1, 1], "has 12 bytes, expected 11"),
        ([0, 0, 8, 2, *[255] * 8, 1], "has 13 bytes, expected 18446744065119617037"),
    ],
)
def test_read_idx_refuses(content, reason, tmp_path):
    path = fill(tmp_path, {"some-idx": bytes(content)}) / "some-idx"
    with pytest.raises(ValueError, match=reason) as caught:
        read_idx(path)
    assert str(path) in str(caught.value)


def test_mnist_from_csv_known_answer(tmp_path):
    rows = np.arange(2 * 785).reshape(2, 785) % 256
    lines = ["label," + ",".join(f"{y}x{x}" for y in range(1, 29) for x in range(1, 29))]
    lines += [",".join(map(str, row)) for row in rows]
    files = dict(formats.mnist_from_csv("a/mnist_test.csv", "\r\n".join([*lines, ""]).encode()))
    assert list(files) == ["t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]
    fill(tmp_path, files)
    np.testing.assert_array_equal(read_idx(tmp_path / "t10k-labels-idx1-ubyte"), rows[:, 0])
    np.testing.assert_array_equal(read_idx(tmp_path / "t10k-images-idx3-ubyte"), rows[:, 1:].reshape(2, 28, 28))
    assert files["t10k-labels-idx1-ubyte"] == bytes([0, 0, 8, 1, 0, 0, 0, 2, 0, 785 % 256])


def write(path, pixels: np.ndarray) -> None:
    Image.fromarray(pixels).save(path)


def test_a_png_batch_is_read(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4, 4, 3), np.uint8)
    write(tmp_path / "batch.png", pixels.reshape(5, 16, 3))
    found = formats.read_png_batch(tmp_path / "batch.png", count=5, side=4)
    assert found.flags.writeable
    np.testing.assert_array_equal(found, pixels.transpose(0, 3, 1, 2))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("grey", r"holds \('L', 16, 5\) \(mode, width, height\), expected \('RGB', 16, 5\)"),
        ("long", r"holds \('RGB', 16, 6\)"),
        ("cut", "cannot be read as PNG"),
        ("jpeg", "cannot be read as PNG"),
        ("empty", "cannot be read as PNG"),
    ],
)
def test_other_images_are_refused(kind, reason, tmp_path):
    path = tmp_path / "batch.png"
    pixels = np.random.default_rng(0).integers(0, 256, (6 if kind == "long" else 5, 16, 3), np.uint8)
    write(path, pixels[..., 0] if kind == "grey" else pixels)
    if kind == "cut":
        path.write_bytes(path.read_bytes()[:150])
    if kind == "empty":
        path.write_bytes(b"")
    if kind == "jpeg":
        Image.fromarray(pixels).save(path, format="JPEG")
    with pytest.raises(ValueError, match=reason):
        formats.read_png_batch(path, count=5, side=4)


@pytest.mark.parametrize("content", ["[0, 1]", "[0, 1, 10]", "[0, 1, true]", "[0, 1.0, 2]", "{}", "[0,", "[0, -1, 2]"])
def test_other_labels_are_refused(content, tmp_path):
    path = tmp_path / "labels.json"
    path.write_text("[0, 9, 2]")
    assert formats.read_labels(path, count=3, classes=10).tolist() == [0, 9, 2]
    path.write_text(content)
    with pytest.raises(ValueError, match=r"labels\.json"):
        formats.read_labels(path, count=3, classes=10)
