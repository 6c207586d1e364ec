"""Stores: FAISS's graph as the index grows and shrinks, and Qdrant."""

import contextlib
import shutil
import sys

import pytest
import torch
from torch import nn

from patchreorder.search import stores
from patchreorder.search import update as update_module
from patchreorder.search.index import Index
from patchreorder.search.manifest import MANIFEST, Manifest

from .samples import Colours, Table, brute_force, change, files, made, noise, state

# ---- FAISS -----------------------------------------------------------------------------------------


@pytest.fixture
def graphs(monkeypatch):
    """A graph for more than 20 images."""
    pytest.importorskip("faiss")
    monkeypatch.setattr(update_module, "LARGE", 20)
    monkeypatch.setattr(update_module, "ADDED", 8)
    monkeypatch.setattr(update_module, "CHUNK", 16)


def clustered(count, seed=0):
    random = torch.Generator().manual_seed(seed)
    centres = torch.randn(20, 24, generator=random)
    points = centres[torch.arange(count) % 20] + 0.5 * torch.randn(count, 24, generator=random)
    return nn.functional.normalize(points)


def test_a_graph_is_extended_masked_and_built_again(graphs, tmp_path, monkeypatch):
    folder, out, every = tmp_path / "in", tmp_path / "out", noise(tmp_path / "all", 120)
    folder.mkdir()
    model, real = Table(clustered(200)), stores.build_graph
    names = sorted(path.name for path in every.iterdir())
    built = []
    monkeypatch.setattr(
        update_module, "build_graph", lambda *given, **options: built.append(options["skip"]) or real(*given, **options)
    )

    def updated(begin, end):
        """With images `begin` to `end`."""
        for number, name in enumerate(names):
            if not begin <= number < end:
                (folder / name).unlink(missing_ok=True)
            elif not (folder / name).exists():
                shutil.copy2(every / name, folder)
        made(folder, out, model)
        found = Manifest.read(out)
        opened, vectors, queries = Index(out), state(out), clustered(20, seed=1)
        for k in (4, 60):
            for query, hits in zip(queries, opened.search(queries, k), strict=True):
                assert [hit.name for hit in hits] == [name for _, name in brute_force(vectors, query, k)]
        assert files(out) == {MANIFEST, *found.chunks, *([found.graph] if found.graph else [])}
        return found

    assert updated(0, 20).graph is None
    first = updated(0, 60)
    assert first.graphed == len(first.chunks)
    assert isinstance(Index(out).store, stores.Graph)
    beside = updated(0, 66)  # few new vectors: compared one by one
    assert (beside.graph, beside.graphed) == (first.graph, first.graphed)
    grown = updated(0, 90)
    assert grown.graph != first.graph
    assert built == [0, first.graphed]
    masked = updated(20, 90)
    assert (masked.graph, masked.graphed) == (grown.graph, grown.graphed)
    assert not Index(out).alive.all()
    assert sum(updated(30, 90).rows) == 60
    assert built == [0, first.graphed, 0]
    assert updated(80, 90).graph is None


def test_without_faiss_a_large_folder_is_refused_before_the_work(graphs, tmp_path, monkeypatch):
    folder, model = noise(tmp_path / "in", 21), Colours()
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ImportError, match=r"needs faiss: pip install 'patchreorder\[search\]'"):
        made(folder, tmp_path / "out", model)
    assert model.seen == 0
    (folder / "0000.png").unlink()
    made(folder, tmp_path / "out", model)
    assert len(Index(tmp_path / "out")) == 20


# ---- Qdrant ----------------------------------------------------------------------------------------


@pytest.fixture
def qdrant(tmp_path):
    pytest.importorskip("qdrant_client")
    return f"qdrant://{tmp_path / 'qdrant'}"


def connected(url, out):
    """The store of an index."""
    return contextlib.closing(stores.Qdrant(url, identity=Manifest.read(out).identity, dimensions=48))


def points(url, out):
    with connected(url, out) as store:
        return store.count()


@contextlib.contextmanager
def opened_index(out):
    index = Index(out)
    yield index
    index.store.close()


def test_qdrant_gives_the_same_results(photos, tmp_path, qdrant, monkeypatch):
    near, far = tmp_path / "near", tmp_path / "far"
    made(photos, near)
    made(photos, far, store=qdrant)
    queries = torch.rand(5, 48)
    for changes in (True, False):
        with opened_index(far) as opened:
            assert isinstance(opened.store, stores.Qdrant)
            assert opened.search(queries, 5) == Index(near).search(queries, 5)
            assert opened.search(queries, 99) == Index(near).search(queries, 99)
        if changes:
            change(photos)
            made(photos, near)
            assert made(photos, far).changed  # in the store of the last update
            assert points(qdrant, far) == len({file.digest for file in Manifest.read(far).files})
    monkeypatch.setattr(stores.Qdrant, "put", None)  # nothing to send
    assert not made(photos, far).changed


def test_indexes_can_share_a_collection(photos, tmp_path, qdrant):
    one, other = tmp_path / "one", tmp_path / "other"
    made(photos, one, store=qdrant)
    made(noise(tmp_path / "in", 3), other, store=qdrant)
    assert (points(qdrant, one), points(qdrant, other)) == (12, 3)
    (tmp_path / "in/0000.png").unlink()
    made(tmp_path / "in", other)
    assert (points(qdrant, one), points(qdrant, other)) == (12, 2)
    with opened_index(other) as opened:
        assert {hit.name for hit in opened.search(torch.rand(1, 48), 9)[0]} == {"0001.png", "0002.png"}


def test_points_of_an_unfinished_update_are_left_out(photos, tmp_path, qdrant):
    out = tmp_path / "out"
    made(photos, out, store=qdrant)
    with connected(qdrant, out) as store:
        store.put([f"{number:032x}" for number in range(100)], torch.ones(100, 48) / 48**0.5)
    with opened_index(out) as opened:
        assert len(opened.search(torch.ones(1, 48), 4)[0]) == 4
    made(photos, out)
    assert points(qdrant, out) == 12


def test_lost_points_are_noticed_and_sent_again(photos, tmp_path, qdrant):
    out = tmp_path / "out"
    made(photos, out, store=qdrant)
    with connected(qdrant, out) as store:
        store.keep_only({Manifest.read(out).files[0].digest})
    with (
        opened_index(out) as opened,
        pytest.raises(OSError, match=r"lacks vectors of this index: run `patchreorder index` again"),
    ):
        opened.search(torch.ones(1, 48), 4)
    made(photos, out)
    assert points(qdrant, out) == 12
    made(photos, out, store="local")
    assert isinstance(Index(out).store, stores.Vectors)


@pytest.mark.parametrize("url", ["qdrant://", "qdrant://host", "http://host/x", "faiss://x/y"])
def test_a_bad_url_is_named(photos, tmp_path, url):
    with pytest.raises(ValueError, match=r"store \(.*\) must be qdrant://HOST\[:PORT\]/COLLECTION"):
        made(photos, tmp_path / "out", store=url)


def test_a_server_that_does_not_respond_is_named_before_the_work(photos, tmp_path):
    pytest.importorskip("qdrant_client")
    model = Colours()
    with pytest.raises(OSError, match=r"the store qdrant://localhost:9/x failed .*is it running"):
        made(photos, tmp_path / "out", model, store="qdrant://localhost:9/x")
    assert model.seen == 0
