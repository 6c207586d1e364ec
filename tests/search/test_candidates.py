"""Candidates: the nearest vectors of every vector, exact or nearly so, continued after a kill, on a full disk."""

import errno
import os
import signal

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from patchreorder.data import loader
from patchreorder.engine.progress import Screen
from patchreorder.search import candidates as module
from patchreorder.search.candidates import find_candidates, index_candidates
from patchreorder.search.index import Index
from patchreorder.search.stores import Vectors

from .samples import change, made, nearest


def drawn(count, dimensions=24, seed=0):
    """Groups of vectors in blocks of different sizes."""
    random = torch.Generator().manual_seed(seed)
    centres = torch.randn(max(1, count // 10), dimensions, generator=random)
    points = centres[torch.randint(len(centres), (count,), generator=random)]
    points = normalize(points + 0.3 * torch.randn(count, dimensions, generator=random))
    return Vectors([*points.split(77)])


def oracle(vectors, alive, k):
    """Names and distances of the k nearest by numpy, in double precision."""
    points = torch.cat(vectors.blocks).double().numpy()
    distances = np.stack([np.sqrt(((points - point) ** 2).sum(1)) for point in points])
    distances[:, ~alive] = np.inf
    distances[~alive] = np.inf
    np.fill_diagonal(distances, np.inf)
    order = distances.argsort(1, kind="stable")[:, :k]
    return order, np.take_along_axis(distances, order, 1)


def recall(found, order, alive):
    return np.mean([len({*found.slots[row]} & {*order[row]}) / order.shape[1] for row in alive.nonzero()[0]])


@pytest.fixture
def cells(monkeypatch):
    """Cells of 20 vectors, for more than 100."""
    monkeypatch.setattr(module, "EXACT", 100)
    monkeypatch.setattr(module, "CELL", 20)
    monkeypatch.setattr(module, "PROBES", 6)


@pytest.mark.parametrize("k", [1, 5, 40])
def test_all_are_compared_up_to_a_number(tmp_path, k):
    vectors, alive = drawn(300), np.random.default_rng(0).random(300) < 0.8
    found = find_candidates(vectors, k=k, folder=tmp_path, key="", alive=alive)
    order, distances = oracle(vectors, alive, k)
    assert recall(found, order, alive) == 1
    np.testing.assert_allclose(found.distances[alive], distances[alive], atol=1e-3)
    assert (found.slots[~alive] == -1).all()
    assert np.isinf(found.distances[~alive]).all()


def test_fewer_than_k(tmp_path):
    found = find_candidates(drawn(3), k=5, folder=tmp_path, key="")
    assert (np.sort(found.slots, 1) == [[-1, -1, -1, 1, 2], [-1, -1, -1, 0, 2], [-1, -1, -1, 0, 1]]).all()
    assert (np.isinf(found.distances) == (found.slots < 0)).all()
    none = find_candidates(drawn(3), k=5, folder=tmp_path, key="", alive=np.zeros(3, bool))
    assert (none.slots == -1).all()
    assert np.isinf(none.distances).all()
    assert find_candidates(Vectors([]), k=5, folder=tmp_path, key="").slots.shape == (0, 5)
    with pytest.raises(ValueError, match=r"k \(0\) must be 1 or more"):
        find_candidates(drawn(3), k=0, folder=tmp_path, key="")


def test_cells_find_nearly_all(cells, tmp_path):
    vectors, alive = drawn(2000), np.random.default_rng(1).random(2000) < 0.9
    found = find_candidates(vectors, k=5, folder=tmp_path, key="", alive=alive)
    order, distances = oracle(vectors, alive, 5)
    assert recall(found, order, alive) > 0.97
    same = (found.slots == order) & alive[:, None]
    np.testing.assert_allclose(found.distances[same], distances[same], atol=1e-3)
    assert (np.diff(found.distances[alive]) >= 0).all()
    assert not (found.slots == np.arange(2000)[:, None]).any()
    assert all(len({*row}) == 5 for row in found.slots[alive])
    assert {path.name for path in tmp_path.iterdir()} == {"found.npz"}  # the copy is gone
    assert found.seconds.keys() == {"finding cells", "assigning", "copying", "comparing"}


def test_many_equal_vectors_do_not_compare_all_pairs(cells, tmp_path, monkeypatch):
    """A folder may hold thousands of blank images; two others are still found."""
    points = torch.cat([torch.ones(3000, 8), torch.randn(50, 8, generator=torch.Generator().manual_seed(0))])
    points[3049] = points[3048] + 0.001
    compared, real = [], module._keep_nearest

    def counted(near, far, copy, queries, begin, end, squares):
        compared.append(len(queries) * (end - begin))
        real(near, far, copy, queries, begin, end, squares)

    monkeypatch.setattr(module, "_keep_nearest", counted)
    monkeypatch.setattr(module, "TOGETHER", 6400)  # tiles of 64 vectors
    found = find_candidates(Vectors([points]), k=4, folder=tmp_path, key="")
    assert sum(compared) < 3050 * 3050 / 5
    assert found.distances[:3000].max() < 2e-3
    assert (found.slots[:3000] < 3000).all()
    assert found.slots[3049, 0] == 3048


# ---- continued -------------------------------------------------------------------------------------


class Stopped(Screen):
    """A screen that ends the process in the middle of a part."""

    def __init__(self, part):
        self.part = part

    def count(self, title, total):
        done = 0

        def more(number):
            nonlocal done
            done += number
            if title == self.part and done > total // 2:
                os.kill(os.getpid(), signal.SIGKILL)

        return more


class Counted(Screen):
    """A screen that keeps the first number of each part: what earlier calls did."""

    def __init__(self):
        self.first = {}

    def count(self, title, total):
        return lambda number: self.first.setdefault(title, number)


def search_and_die(folder, part):
    torch.set_num_threads(1)
    module.EXACT, module.CELL, module.PROBES, module.SAVED = 100, 20, 6, 0.0
    find_candidates(drawn(2000), k=5, folder=folder, key="these", screen=Stopped(part))


@pytest.mark.parametrize("part", ["finding cells", "assigning", "copying", "comparing"])
def test_a_killed_search_continues(cells, tmp_path, part):
    whole = find_candidates(drawn(2000), k=5, folder=tmp_path / "whole", key="these")
    process = loader._context().Process(target=search_and_die, args=(tmp_path / "cut", part))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    screen = Counted()
    found = find_candidates(drawn(2000), k=5, folder=tmp_path / "cut", key="these", screen=screen)
    np.testing.assert_array_equal(found.slots, whole.slots)
    np.testing.assert_array_equal(found.distances, whole.distances)
    parts = {"finding cells", "assigning", "copying", "comparing"}
    repeated = {"copying": {"copying", "comparing"}, "comparing": {"comparing"}}.get(part, parts)
    assert screen.first.keys() == repeated
    if part == "comparing":
        assert screen.first[part] > 2000 * 6 // 3
    assert {path.name for path in (tmp_path / "cut").iterdir()} - {".found.npz"} == {"found.npz"}


def test_a_finished_search_is_not_repeated_and_another_replaces_it(cells, tmp_path):
    first = find_candidates(drawn(500), k=5, folder=tmp_path, key="these")
    again = find_candidates(drawn(500), k=5, folder=tmp_path, key="these")
    np.testing.assert_array_equal(again.slots, first.slots)
    assert not again.seconds
    for options in ({"key": "others"}, {"alive": np.arange(500) < 400}, {"k": 4}):
        given = {"k": 5, "key": "these", **options}
        assert find_candidates(drawn(500), folder=tmp_path, **given).seconds


def test_damaged_files_are_made_again(cells, tmp_path):
    whole = find_candidates(drawn(500), k=5, folder=tmp_path, key="these")
    content = (tmp_path / "found.npz").read_bytes()
    for damaged in (b"", b"not a zip file", content[: len(content) // 2], content[:-30]):
        for name in ("found.npz", "cells.npz", "copy"):
            (tmp_path / name).write_bytes(damaged)
        found = find_candidates(drawn(500), k=5, folder=tmp_path, key="these")
        np.testing.assert_array_equal(found.slots, whole.slots)
    with np.load(tmp_path / "found.npz") as file:
        kept = {**file}
    kept["slots"] = kept["slots"] + 1000  # out of range
    np.savez(tmp_path / "found.npz", **kept)
    np.testing.assert_array_equal(find_candidates(drawn(500), k=5, folder=tmp_path, key="these").slots, whole.slots)


def test_a_full_disk_is_named_before_the_copy(cells, tmp_path, monkeypatch):
    def full(*given):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match=r"No space left on device: a copy of the vectors needs 0.0 GB"):
            find_candidates(drawn(500), k=5, folder=tmp_path, key="")
    assert {path.name for path in tmp_path.iterdir()} == {"cells.npz"}
    assert "assigning" not in find_candidates(drawn(500), k=5, folder=tmp_path, key="").seconds


# ---- of an index -----------------------------------------------------------------------------------


def test_candidates_of_an_index_are_those_of_a_search(photos, tmp_path):
    made(photos, tmp_path / "out")
    opened = Index(tmp_path / "out")
    found = index_candidates(opened, k=3)
    for file, slot in zip(opened.manifest.files, opened.manifest.slots, strict=True):
        hits = nearest(tmp_path / "out", photos / file.name, k=4)
        assert [name for _, name in hits][1:] == [opened.names_of(near)[0] for near in found.slots[slot]]
    assert not index_candidates(Index(tmp_path / "out"), k=3).seconds
    change(photos)
    made(photos, tmp_path / "out")  # the folder of the candidates is no obstacle
    changed = Index(tmp_path / "out")
    again = index_candidates(changed, k=3)
    assert again.seconds
    assert set(again.slots[changed.alive].ravel()) <= set(changed.alive.nonzero()[0])


def test_an_index_that_cannot_be_written_has_candidates_too(photos, tmp_path, monkeypatch):
    made(photos, tmp_path / "out")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert (index_candidates(Index(tmp_path / "out"), k=3).slots >= 0).all()
    assert not (tmp_path / "out/.candidates").exists()
