"""One suite for all stores: the same results, shared safely, nothing lost. And FAISS's graph as an index grows."""

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

# ---- all stores ------------------------------------------------------------------------------------


@contextlib.contextmanager
def opened_index(out):
    with contextlib.closing(Index(out)) as index:
        yield index


@contextlib.contextmanager
def connected(url, out, **options):
    """The store of an index."""
    with contextlib.closing(
        stores.open_store(url, identity=Manifest.read(out).identity, dimensions=48, **options)
    ) as store:
        yield store


def held(url, out):
    with connected(url, out) as store:
        return store.count()


def test_every_store_gives_the_results_of_comparing_all(photos, tmp_path, any_store):
    out = tmp_path / "out"
    made(photos, out, **any_store)
    queries = torch.rand(5, 48, generator=torch.Generator().manual_seed(0))
    for changes in (True, False):
        vectors = state(out)
        with opened_index(out) as opened:
            for k in (1, 5, 99):
                for query, hits in zip(queries, opened.search(queries, k), strict=True):
                    assert [hit.name for hit in hits] == [name for _, name in brute_force(vectors, query, k)]
            assert opened.search(torch.empty(0, 48), 4) == []
        if changes:
            change(photos)
            assert made(photos, out).changed  # in the store of the last update
    assert vectors.keys() == {path.relative_to(photos).as_posix() for path in photos.rglob("*.*")}


def test_in_every_store_removed_images_are_not_found(photos, tmp_path, any_store):
    out = tmp_path / "out"
    made(photos, out, **any_store)
    (photos / "class-0000/0000.jpg").unlink()
    made(photos, out)
    with opened_index(out) as opened:
        assert "class-0000/0000.jpg" not in {hit.name for hit in opened.search(torch.ones(1, 48), 99)[0]}
        assert len(opened.search(torch.ones(1, 48), 99)[0]) == 11


def test_every_store_can_be_left_for_another(photos, tmp_path, any_store):
    out, model = tmp_path / "out", Colours()
    for options in (any_store, {"store": "local"}, any_store):
        made(photos, out, model, **options)
        with opened_index(out) as opened:
            assert len(opened.search(torch.ones(1, 48), 99)[0]) == 12
    assert model.seen == 12


# ---- shared stores ---------------------------------------------------------------------------------


def test_vectors_come_back_as_they_were_put(photos, tmp_path, shared):
    out = tmp_path / "out"
    made(photos, out)
    odd = [0.0, -0.0, 1e-45, 3.4e38, -1 / 3, 1.1754944e-38]
    vectors = torch.randn(7, 48, generator=torch.Generator().manual_seed(0))
    vectors[0, :6] = torch.tensor(odd)
    digests = [f"{number:032x}" for number in range(7)]
    names = ["plain.jpg", "a 'b' \"c\" %s \\ {}.jpg", "ä/日本\n\t.jpg", "bad\udcff.jpg"]
    files = [{name: (number, 1_700_000_000_123_456_789)} for number, name in enumerate(names)] + [{}, {}, {}]
    with connected(shared, out) as store:
        assert store.count() == 0
        for _ in range(2):
            store.put(digests, vectors, files)
            assert store.count() == 7
        listed = dict(store.listed())
        found = store.fetch([*digests, "f" * 32])
        assert listed == {
            digest: {} if "bad\udcff.jpg" in own else own for digest, own in zip(digests, files, strict=True)
        }
        assert found.keys() == {*digests}
        for digest, vector in zip(digests, vectors, strict=True):
            assert found[digest].numpy().tobytes() == vector.numpy().tobytes()
        store.keep_only({digests[3], "e" * 32})
        assert dict(store.listed()).keys() == {digests[3]}
        store.put([], torch.empty(0, 48), [])
        assert store.fetch([]) == {}
        store.keep_only(set())
        assert store.count() == 0


def test_only_new_vectors_are_sent(photos, tmp_path, shared, monkeypatch):
    out = tmp_path / "out"
    made(photos, out, store=shared)
    change(photos)
    with connected(shared, out) as store:
        kind = type(store)
    sent, real = [], kind.put
    monkeypatch.setattr(kind, "put", lambda self, digests, *given: sent.extend(digests) or real(self, digests, *given))
    made(photos, out)
    assert len(sent) == 4
    assert held(shared, out) == len({file.digest for file in Manifest.read(out).files})
    monkeypatch.setattr(kind, "put", None)  # nothing to send
    assert not made(photos, out).changed


def test_indexes_can_share_a_store(photos, tmp_path, shared):
    one, other = tmp_path / "one", tmp_path / "other"
    made(photos, one, store=shared)
    made(noise(tmp_path / "in", 3), other, store=shared)
    assert (held(shared, one), held(shared, other)) == (12, 3)
    (tmp_path / "in/0000.png").unlink()
    made(tmp_path / "in", other)
    assert (held(shared, one), held(shared, other)) == (12, 2)
    with opened_index(other) as opened:
        assert {hit.name for hit in opened.search(torch.rand(1, 48), 9)[0]} == {"0001.png", "0002.png"}


def test_vectors_of_an_unfinished_update_are_left_out(photos, tmp_path, shared):
    out = tmp_path / "out"
    made(photos, out, store=shared)
    with connected(shared, out) as store:
        store.put([f"{number:032x}" for number in range(100)], torch.ones(100, 48) / 48**0.5, [{}] * 100)
    with opened_index(out) as opened:
        assert len(opened.search(torch.ones(1, 48), 4)[0]) == 4
    made(photos, out)
    assert held(shared, out) == 12


def test_lost_vectors_are_noticed_and_sent_again(photos, tmp_path, shared):
    out = tmp_path / "out"
    made(photos, out, store=shared)
    with connected(shared, out) as store:
        store.keep_only({Manifest.read(out).files[0].digest})
    with (
        opened_index(out) as opened,
        pytest.raises(OSError, match=r"lacks vectors of this index: run `patchreorder index` again"),
    ):
        opened.search(torch.ones(1, 48), 4)
    made(photos, out)
    assert held(shared, out) == 12
    made(photos, out, store="local")
    assert isinstance(Index(out).store, stores.Vectors)


def test_a_lost_index_is_made_of_its_store(photos, tmp_path, shared, reads):
    out, model = tmp_path / "out", Colours()
    made(photos, out, model, store=shared)
    before = state(out)
    shutil.rmtree(out)
    reads.clear()
    done = made(photos, out, model, store=shared)
    assert (model.seen, reads, done.images) == (12, [], 12)
    assert state(out) == before


def test_spoilt_vectors_of_a_store_are_described_again(photos, tmp_path, shared):
    out = tmp_path / "out"
    made(photos, out, store=shared)
    before = state(out)
    first, second = (file.digest for file in Manifest.read(out).files[:2])
    with connected(shared, out) as store:
        every = dict(store.listed())
        store.keep_only(every.keys() - {first, second})
        store.put([first, second], torch.zeros(2, 48), [every[first], every[second]])
    shutil.rmtree(out)
    model = Colours()
    made(photos, out, model, store=shared)
    assert model.seen == 2
    assert state(out) == before


@pytest.mark.parametrize("url", ["qdrant://", "qdrant://host", "postgresql://", "postgresql://host", "http://h/x", "x"])
def test_a_bad_url_is_named(photos, tmp_path, url):
    with pytest.raises(ValueError, match=r"store \(.*\) must be .*//"):
        made(photos, tmp_path / "out", store=url)


@pytest.mark.parametrize("url", ["qdrant://localhost:9/x", "postgresql://localhost:9/x"])
def test_a_server_that_does_not_respond_is_named_before_the_work(photos, tmp_path, url):
    pytest.importorskip("qdrant_client")
    pytest.importorskip("psycopg")
    model = Colours()
    with pytest.raises(OSError, match=rf"the store {url} failed .*is it running"):
        made(photos, tmp_path / "out", model, store=url)
    assert model.seen == 0


@pytest.mark.parametrize(("url", "package"), [("qdrant:///x/y", "qdrant"), ("postgresql://h/x", "postgres")])
def test_without_its_client_a_store_says_what_to_install(photos, tmp_path, monkeypatch, url, package):
    monkeypatch.setitem(sys.modules, "qdrant_client", None)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ImportError, match=rf"needs its client: pip install 'patchreorder\[{package}\]'"):
        made(photos, tmp_path / "out", store=url)


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
