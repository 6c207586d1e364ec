"""An opened index: exact results, one state of the disk."""

import os
import shutil

import numpy as np
import pytest
import torch

from patchreorder.search import index as index_module
from patchreorder.search import stores
from patchreorder.search.images import scan
from patchreorder.search.index import Index
from patchreorder.search.manifest import Damaged

from .samples import Table, brute_force, change, made, noise, state


@pytest.mark.parametrize("k", [1, 4, 31, 89, 90, 1000])
def test_a_search_is_exact(table, k):
    opened, vectors = Index(table / "out"), state(table / "out")
    queries = torch.cat([opened.vectors.take(np.arange(90)), torch.randn(10, 5)])
    for query, hits in zip(queries, opened.search(queries, k), strict=True):
        expected = brute_force(vectors, query, k)
        assert [hit.name for hit in hits] == [name for _, name in expected]
        np.testing.assert_allclose([hit.distance for hit in hits], [distance for distance, _ in expected], rtol=1e-12)


def test_queries_are_compared_in_parts(table, monkeypatch):
    opened, queries = Index(table / "out"), torch.randn(7, 5)
    whole = opened.search(queries, 4)
    monkeypatch.setattr(stores, "TOGETHER", 200)
    assert opened.search(queries, 4) == whole


def test_rounding_does_not_decide(tmp_path):
    # Far from zero the single-precision product rounds these distances by more than they differ.
    base = torch.full((1, 4), 1000.0)
    steps = torch.randperm(30, generator=torch.Generator().manual_seed(0)) + 1
    made(noise(tmp_path / "in", 30), tmp_path / "out", Table(base + steps[:, None] * 2**-12))
    names = [f"{number:04d}.png" for number in steps.argsort().tolist()]
    for k in (1, 2, 10, 30):
        (hits,) = Index(tmp_path / "out").search(base, k)
        assert [hit.name for hit in hits] == names[:k]
        assert [hit.distance * 2**11 for hit in hits] == [*range(1, k + 1)]


@pytest.mark.parametrize(
    ("queries", "k", "reason"),
    [
        (torch.ones(1, 5), 0, r"k \(0\) must be 1 or more"),
        (torch.ones(1, 4), 4, r"queries \(1, 4\) must be \(q, 5\)"),
        (torch.ones(5), 4, r"queries \(5,\) must be"),
        (torch.full((1, 5), torch.nan), 4, "must be finite"),
        (torch.full((1, 5), torch.inf), 4, "must be finite"),
    ],
)
def test_bad_queries_are_refused(table, queries, k, reason):
    with pytest.raises(ValueError, match=reason):
        Index(table / "out").search(queries, k)


def test_no_query_has_no_result(table):
    assert Index(table / "out").search(torch.empty(0, 5)) == []


def test_the_same_content_has_one_vector(photos, tmp_path):
    shutil.copy(photos / "class-0000/0000.jpg", photos / "copy.jpg")
    done = made(photos, tmp_path / "out")
    assert (done.images, done.described) == (13, 12)
    opened = Index(tmp_path / "out")
    slot = opened.manifest.slots[0]
    assert opened.names_of(slot) == ["class-0000/0000.jpg", "copy.jpg"]


def test_an_update_during_the_opening_gives_the_new_state(small_chunks, photos, tmp_path, monkeypatch):
    out = tmp_path / "out"
    made(photos, out)
    real, calls = index_module.read_vectors, []

    def late(path, **options):
        if not calls:
            calls.append(path)
            change(photos)
            made(photos, out)  # removes the file
        return real(path, **options)

    monkeypatch.setattr(index_module, "read_vectors", late)
    opened = Index(out)
    assert not calls[0].exists()
    assert len(opened) == len(scan(photos)[0])


def test_a_chunk_that_is_removed_between_its_check_and_its_mapping_gives_the_new_state(
    small_chunks, photos, tmp_path, monkeypatch
):
    out, calls = tmp_path / "out", []
    made(photos, out)
    real = torch.UntypedStorage.from_file  # safetensors has opened the file then

    def late(path, *given, **options):
        if not calls:
            calls.append(path)
            change(photos)
            made(photos, out)  # removes the file
        return real(path, *given, **options)

    monkeypatch.setattr(torch.UntypedStorage, "from_file", late)
    opened = Index(out)
    assert calls
    assert not os.path.exists(calls[0])
    assert len(opened) == len(scan(photos)[0])


def test_a_chunk_that_cannot_be_mapped_is_damaged(photos, tmp_path, monkeypatch):
    made(photos, tmp_path / "out")

    def refuse(*given, **options):
        raise RuntimeError("unable to mmap")

    monkeypatch.setattr(torch.UntypedStorage, "from_file", refuse)
    with pytest.raises(Damaged, match=r"safetensors is damaged \(unable to mmap\): run `patchreorder index` again"):
        Index(tmp_path / "out")
