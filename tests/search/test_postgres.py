"""PostgreSQL with pgvector, a real server: killed and restarted, several writers, a wrong password, a full disk."""

import contextlib
import subprocess
import tempfile
import threading
import traceback
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from patchreorder.__main__ import main
from patchreorder.data import loader
from patchreorder.search import descriptors, postgres
from patchreorder.search.index import Index
from patchreorder.search.manifest import MANIFEST
from patchreorder.search.postgres import Postgres

from .samples import Colours, brute_force, made, state
from .server import ENCODED, PASSWORD, Server, running_server


@pytest.fixture(autouse=True)
def password(monkeypatch):
    monkeypatch.setenv("PGPASSWORD", PASSWORD)


@pytest.fixture
def own_server():
    """A server that a test may kill."""
    with running_server() as started:
        yield started


def names(count, begin=0):
    return [f"{number:032x}" for number in range(begin, begin + count)]


def vectors(count, dimensions=48, seed=0):
    random = torch.Generator().manual_seed(seed)
    centres = torch.randn(20, dimensions, generator=random)
    return normalize(centres[torch.arange(count) % 20] + 0.7 * torch.randn(count, dimensions, generator=random))


def opened(server, identity, dimensions=48, **options):
    return contextlib.closing(Postgres(server.url, identity=identity, dimensions=dimensions, **options))


# ---- killed and restarted --------------------------------------------------------------------------


def killed_at(monkeypatch, server: Server, method: str, call: int) -> list[threading.Thread]:
    """Kill the server before one call of a method; it is back after a second."""
    calls, threads, real = [], [], getattr(Postgres, method)

    def late(self, *given):
        calls.append(method)
        if len(calls) == call:
            server.kill()
            threads.append(threading.Timer(1, server.start))
            threads[0].start()
        return real(self, *given)

    monkeypatch.setattr(Postgres, method, late)
    return threads


class Said:
    """A screen that keeps what is said."""

    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)

    def count(self, title, total):
        return lambda more: None


@pytest.mark.parametrize(("method", "call"), [("_put", 1), ("_put", 3), ("_rows", 2), ("_keep_only", 1)])
def test_a_server_that_is_killed_and_restarted_during_an_update(
    small_chunks, photos, tmp_path, own_server, monkeypatch, method, call
):
    out, said = tmp_path / "out", Said()
    made(photos, tmp_path / "local")
    if method == "_keep_only":
        made(photos, out, store=own_server.url)
        (photos / "class-0000/0000.jpg").unlink()
        made(photos, tmp_path / "local")
    threads = killed_at(monkeypatch, own_server, method, call)
    made(photos, out, store=own_server.url, screen=said, batch=3)
    threads[0].join()
    assert state(out) == state(tmp_path / "local")
    assert any("does not respond" in line for line in said.lines)
    with contextlib.closing(Index(out)) as index:
        assert len(index.search(torch.ones(1, 48), 99)[0]) == len(state(out))
    (table,) = own_server.execute("SELECT tablename FROM pg_tables WHERE tablename LIKE 'patchreorder%'")[0]
    assert own_server.execute(f"SELECT count(*) FROM {table}") == [(len(state(out)),)]


def test_a_server_that_is_killed_during_a_search(photos, tmp_path, own_server, monkeypatch):
    made(photos, tmp_path / "out", store=own_server.url)
    with contextlib.closing(Index(tmp_path / "out")) as index:
        expected = index.search(torch.ones(2, 48), 5)
        threads = killed_at(monkeypatch, own_server, "_near", 1)
        assert index.search(torch.ones(2, 48), 5) == expected
        threads[0].join()


def test_a_server_that_is_killed_within_a_transaction(own_server):
    given, said = vectors(30_000), []
    with opened(own_server, "b" * 32, say=said.append) as store:
        timer = threading.Timer(0.15, lambda: (own_server.kill(), own_server.start()))
        timer.start()
        store.put(names(30_000), given, [{}] * 30_000)
        timer.join()
        assert "does not respond" in said[0]
        assert store.count() == 30_000
        found = store.fetch(names(30_000))
        assert all(torch.equal(found[name], vector) for name, vector in zip(names(30_000), given, strict=True))


def test_a_server_that_stays_away_loses_nothing_that_is_finished(
    small_chunks, photos, tmp_path, own_server, monkeypatch
):
    out, model = tmp_path / "out", Colours()
    with monkeypatch.context() as patch:
        patch.setattr(postgres, "PATIENCE", 0.5)
        real = Postgres._put
        patch.setattr(Postgres, "_put", lambda *given: own_server.kill() or real(*given))
        with pytest.raises(OSError, match=r"the store postgresql://postgres@127.* failed .*is it running"):
            made(photos, out, model, store=own_server.url, batch=3)
    own_server.start()
    made(photos, out, model, store=own_server.url)
    assert model.seen == 12
    assert len(state(out)) == 12


# ---- several writers -------------------------------------------------------------------------------


def write(url, seed, pipe):
    given, every = vectors(2000), names(2000)
    with contextlib.closing(Postgres(url, identity="c" * 32, dimensions=48)) as store:
        for chosen in _chosen(seed):
            store.put([every[row] for row in chosen], given[chosen], [{f"{seed}.jpg": (1, seed)}] * 400)
        store.finish()
    pipe.send("done")


def test_several_writers(server):
    context = loader._context()
    workers = []
    for seed in range(4):
        pipe, own = context.Pipe(duplex=False)
        workers.append((context.Process(target=write, args=(server.url, seed, own)), pipe))
        workers[-1][0].start()
        own.close()
    for process, pipe in workers:
        assert pipe.recv() == "done"
        process.join()
    given = vectors(2000)
    expected = {seed: {*np.concatenate(_chosen(seed))} for seed in range(4)}
    with opened(server, "c" * 32) as store:
        listed = dict(store.listed())
        for row, name in enumerate(names(2000)):
            own = {f"{seed}.jpg": (1, seed) for seed, rows in expected.items() if row in rows}
            assert listed.get(name, {}) == own
        assert len(listed) == len(set.union(*expected.values()))
        found = store.fetch(names(2000))
    assert all(torch.equal(vector, given[int(name, 16)]) for name, vector in found.items())


def _chosen(seed):
    order = np.random.default_rng(seed)
    return [order.permutation(2000)[:400] for _ in range(10)]


def test_many_that_begin_at_once(server):
    counts = []

    def begin():
        with opened(server, "d" * 32) as store:
            counts.append(store.count())

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [0] * 8


# ---- the graph -------------------------------------------------------------------------------------


def test_the_graph_finds_nearly_all(server, monkeypatch):
    monkeypatch.setattr(postgres, "INDEXED", 1000)
    given, queries = vectors(4040).split([4000, 40])
    table = dict(zip(names(4000), given.tolist(), strict=True))
    slots = {name: slot for slot, name in enumerate(names(4000))}
    with opened(server, "e" * 32, slots=slots) as store:
        store.put(names(4000)[:900], given[:900], [{}] * 900)
        store.finish()
        indexes = f"SELECT indexdef FROM pg_indexes WHERE tablename = '{store.table}'"
        assert "hnsw" not in str(server.execute(indexes))
        store.put(names(4000)[900:], given[900:], [{}] * 3100)
        for _ in range(2):
            store.finish()
        assert "USING hnsw (vector vector_l2_ops)" in str(server.execute(indexes))
        with store.connection.transaction():
            store.connection.execute("SET LOCAL enable_seqscan = off")
            plan = store.connection.execute(
                f"EXPLAIN SELECT digest FROM {store.table} ORDER BY vector <-> %b LIMIT 5", (queries[0].numpy(),)
            ).fetchall()
        assert f"Index Scan using {store.table}_near" in str(plan)
        alive = np.ones(4000, dtype=bool)
        for k, least in ((4, 0.97), (700, 1.0)):
            hits = []
            for query, found in zip(queries, store.candidates(queries, k, alive), strict=True):
                nearest = {slots[name] for _, name in brute_force(table, query, k)}
                hits.append(len(nearest & set(found.tolist())) / k)
            assert np.mean(hits) >= least
    few = dict(zip(names(10, begin=3990), range(10), strict=True))  # the others are of an unfinished update
    with opened(server, "e" * 32, slots=few) as store:
        for found in store.candidates(queries, 10, np.ones(10, dtype=bool)):
            assert sorted(found) == [*range(10)]


@pytest.mark.parametrize("dimensions", [2001, 16_000])
def test_long_vectors_are_compared_without_a_graph(server, monkeypatch, dimensions):
    monkeypatch.setattr(postgres, "INDEXED", 2)
    given = vectors(5, dimensions)
    with opened(server, f"{dimensions:032}", dimensions, slots=dict(zip(names(5), range(5), strict=True))) as store:
        store.put(names(5), given, [{}] * 5)
        store.finish()
        assert [found[0] for found in store.candidates(given, 1, np.ones(5, dtype=bool))] == [*range(5)]
        assert torch.equal(store.fetch(names(1))[names(1)[0]], given[0])


def test_too_long_vectors_are_refused(server):
    with pytest.raises(ValueError, match=r"at most 16000 dimensions, not 16001: choose a shorter --model"):
        Postgres(server.url, identity="f" * 32, dimensions=16_001)


# ---- the password ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "secret", ["wr0ng%20pass", "wr0ng@pass", "wr0ng?pass=1#x"]
)  # the last two are no valid URLs; libpq then shows parts of them
@pytest.mark.parametrize("place", ["postgres:{}@", "postgres@{query}"])
def test_a_wrong_password_is_never_shown(photos, tmp_path, server, monkeypatch, capsys, secret, place):
    monkeypatch.delenv("PGPASSWORD")
    monkeypatch.setattr(descriptors, "open_descriptor", lambda name, *, weights=None, say=None: Colours())
    host = f"127.0.0.1:{server.port}/postgres"
    url = f"postgresql://postgres@{host}?password={secret}"
    if place == "postgres:{}@":
        url = f"postgresql://postgres:{secret}@{host}"
    with pytest.raises((OSError, ValueError)) as caught:
        made(photos, tmp_path / "out", store=url)
    assert main(["index", str(photos), "--out", str(tmp_path / "out"), "--store", url, "--workers", "0"]) != 0
    shown = capsys.readouterr()
    for text in ("".join(traceback.format_exception(caught.value)), shown.out, shown.err):
        assert "wr0ng" not in text
    assert "postgresql://" in str(caught.value)
    if secret == "wr0ng%20pass":
        assert f"the store postgresql://postgres@{host} failed" in str(caught.value)
        assert "password authentication failed" in str(caught.value)
        assert "set PGPASSWORD" in str(caught.value)


def test_the_password_is_not_kept(photos, tmp_path, server, monkeypatch):
    monkeypatch.delenv("PGPASSWORD")
    made(photos, tmp_path / "out", store=server.url)
    for path in (tmp_path / "out").iterdir():
        content = path.read_bytes()
        assert PASSWORD.encode() not in content
        assert ENCODED.encode() not in content
    assert f"postgresql://postgres@127.0.0.1:{server.port}/postgres" in (tmp_path / "out" / MANIFEST).read_text()
    with pytest.raises(OSError, match=r"no password supplied.*set PGPASSWORD"):
        Index(tmp_path / "out").search(torch.ones(1, 48))


# ---- a full disk -----------------------------------------------------------------------------------


def test_a_server_that_reports_a_full_disk(small_chunks, photos, tmp_path, own_server):
    out, model = tmp_path / "out", Colours()
    made(photos, out, model, store=own_server.url)
    (table,) = own_server.execute("SELECT tablename FROM pg_tables WHERE tablename LIKE 'patchreorder%'")[0]
    own_server.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$",
        f"CREATE TRIGGER refusing BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION refuse()",
    )
    before = state(out)
    (photos / "new.jpg").write_bytes((photos / "class-0000/0000.jpg").read_bytes() + b"\0")
    with pytest.raises(
        OSError, match=r"No space left on device.*its disk is full; make room.*what is finished is kept"
    ):
        made(photos, out, model)
    assert state(out) == before
    own_server.execute(f"DROP TRIGGER refusing ON {table}")
    made(photos, out, model)
    assert (model.seen, len(state(out))) == (13, 13)


@pytest.fixture
def small_disk():
    """A disk of a megabyte for the server's tables; only root can make one."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        disk = Path(folder, "disk")
        disk.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=777", "none", str(disk)]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("a small disk needs the right to mount")
        try:
            yield disk
        finally:
            subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_disk_that_is_full(small_disk, own_server):
    (small_disk / "tables").mkdir(mode=0o700)
    if own_server.user:
        subprocess.run(["chown", own_server.user, str(small_disk / "tables")], check=True)
    own_server.execute(f"CREATE TABLESPACE small LOCATION '{small_disk / 'tables'}'")
    own_server.execute("ALTER ROLE postgres SET default_tablespace = small")
    given = vectors(6000)
    with opened(own_server, "a" * 32) as store:
        store.put(names(500), given[:500], [{}] * 500)
        with pytest.raises(OSError, match=r"No space left on device.*its disk is full; make room"):
            store.put(names(6000), given, [{}] * 6000)
        assert store.count() == 500  # all or nothing
        subprocess.run(["mount", "-o", "remount,size=100m", str(small_disk)], check=True)
        store.put(names(6000), given, [{}] * 6000)
        found = store.fetch(names(6000))
    assert all(torch.equal(found[name], vector) for name, vector in zip(names(6000), given, strict=True))
    own_server.stop()
