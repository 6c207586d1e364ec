"""Strips of images: tiles as they were saved, and files that are no strips."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from patchreorder.report.tiles import LARGEST, BadStrip, read_tiles, tile_uri


def test_tiles_are_those_of_the_strip(tmp_path):
    strip = np.random.default_rng(0).integers(256, size=(28, 84, 3), dtype=np.uint8)
    Image.fromarray(strip).save(tmp_path / "a.png")
    tiles = read_tiles(tmp_path / "a.png", 2)
    assert tiles.shape == (2, 28, 28, 3)
    assert np.array_equal(tiles[1], strip[:, 28:56])
    image = Image.open(io.BytesIO(base64.b64decode(tile_uri(tiles[1]).split(",")[1])))
    assert np.array_equal(np.asarray(image), tiles[1])
    Image.fromarray(strip[..., 0]).save(tmp_path / "grey.png")
    assert np.array_equal(read_tiles(tmp_path / "grey.png", 9)[2, ..., 1], strip[:, 56:, 0])


def test_a_missing_file_is_no_bad_strip(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_tiles(tmp_path / "none.png", 2)


@pytest.mark.parametrize("size", [(10, LARGEST + 1), (100 * LARGEST + 1, 4)])
def test_strips_may_not_be_too_large(tmp_path, size):
    Image.new("L", size).save(tmp_path / "a.png")
    with pytest.raises(BadStrip, match=f"too large \\({size[0]}x{size[1]}\\)"):
        read_tiles(tmp_path / "a.png", 2)


@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n\x1a\n", b"GIF89a"])
def test_files_that_are_no_png_are_bad_strips(tmp_path, content):
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(BadStrip, match="cannot be read"):
        read_tiles(tmp_path / "a.png", 2)
