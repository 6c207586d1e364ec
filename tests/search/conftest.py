"""Fixtures of the tests of search."""

import pytest
import torch

from patchreorder.data.generated import write_photos
from patchreorder.search import update as update_module
from patchreorder.search.images import Reader

from .samples import Table, aged, made, noise


@pytest.fixture
def photos(tmp_path):
    """A folder of twelve images of three classes."""
    return aged(write_photos(tmp_path / "photos", classes=3, images=4, size=(24, 16)))


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(update_module, "CHUNK", 3)


@pytest.fixture
def reads(monkeypatch):
    """The names of the files that are read."""
    names, real = [], Reader._read
    monkeypatch.setattr(Reader, "_read", lambda self, name: names.append(name) or real(self, name))
    return names


@pytest.fixture(scope="session")
def table(tmp_path_factory):
    """A folder with an index of 90 images. Many of its vectors are equal, or equally far from others."""
    folder = tmp_path_factory.mktemp("table")
    vectors = torch.randint(-2, 3, (90, 5), generator=torch.Generator().manual_seed(1)).float()
    vectors[vectors.abs().sum(1) == 0] = 1
    noise(folder / "in", 90)
    late = [path.rename(folder / path.name) for path in sorted((folder / "in").iterdir())[:40]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(update_module, "CHUNK", 32)
        for paths in ([], late):  # so that the vectors are not in the order of the names
            for path in paths:
                path.rename(folder / "in" / path.name)
            made(folder / "in", folder / "out", Table(vectors[len(paths) :]))
    return folder
