"""Fixtures of the tests of search."""

import os

import pytest
import torch

from patchreorder.data.generated import write_photos
from patchreorder.search import update as update_module
from patchreorder.search.images import Reader

from .samples import Table, aged, made, noise
from .server import PASSWORD, running_server


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


@pytest.fixture(scope="session")
def server():
    """A PostgreSQL server with pgvector."""
    with running_server() as started:
        yield started


def url_of(kind, tmp_path, request):
    """The URL of a shared store; servers of their own only where the environment names them."""
    if kind == "qdrant":
        pytest.importorskip("qdrant_client")
        return f"qdrant://{tmp_path / 'qdrant'}"
    if kind == "postgres":
        request.getfixturevalue("monkeypatch").setenv("PGPASSWORD", PASSWORD)  # the index does not keep it
        return request.getfixturevalue("server").url
    name = {"qdrant server": "PATCHREORDER_TEST_QDRANT", "postgres server": "PATCHREORDER_TEST_POSTGRES"}[kind]
    if name not in os.environ:
        pytest.skip(f"{name} names no server")
    return os.environ[name]


SHARED = ("qdrant", "postgres", "qdrant server", "postgres server")


@pytest.fixture(params=SHARED)
def shared(request, tmp_path):
    """The URL of each shared store."""
    return url_of(request.param, tmp_path, request)


@pytest.fixture(params=("exact", "graph", *SHARED))
def any_store(request, tmp_path, monkeypatch):
    """The options of an update for each store."""
    if request.param == "exact":
        return {}
    if request.param == "graph":
        pytest.importorskip("faiss")
        monkeypatch.setattr(update_module, "LARGE", 4)
        monkeypatch.setattr(update_module, "ADDED", 0)
        return {}
    return {"store": url_of(request.param, tmp_path, request)}
