"""Fixtures of the tests of data."""

import shutil
from pathlib import Path

import pytest

from patchreorder.data.folders import list_images
from patchreorder.data.generated import write_photos
from patchreorder.data.shard_writer import write


@pytest.fixture
def empty_cache(tmp_path, monkeypatch) -> Path:
    """The folder of an empty cache, without a mirror or a proxy."""
    monkeypatch.setenv("PATCHREORDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("PATCHREORDER_MIRROR", raising=False)
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Four class folders of seven images; do not change them."""
    return write_photos(tmp_path_factory.mktemp("photos"), classes=4, images=7, size=(24, 16))


@pytest.fixture(scope="module")
def sharded(photos, tmp_path_factory) -> Path:
    """The same images in six shards of five, the last of three; do not change them."""
    return write(list_images(photos), tmp_path_factory.mktemp("sharded") / "out", size=5).folder


@pytest.fixture
def sharded_copy(sharded, tmp_path) -> Path:
    return shutil.copytree(sharded, tmp_path / "copy")
