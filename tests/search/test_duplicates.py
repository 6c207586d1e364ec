"""Groups of near images: all pairs, pairs of a graph, copies, the default threshold."""

import shutil

import numpy as np
import pytest

from patchreorder.search import duplicates as duplicates_module
from patchreorder.search import stores
from patchreorder.search.duplicates import find_groups, median_distance
from patchreorder.search.index import Hit, Index
from patchreorder.search.manifest import Manifest

from .samples import made, state


def components(vectors, threshold):
    """Groups by merging sets."""
    sets = [{name} for name in vectors]
    for a in vectors:
        for b in vectors:
            if a < b and np.linalg.norm(np.array(vectors[a]) - vectors[b]) <= threshold:
                one, other = (next(s for s in sets if name in s) for name in (a, b))
                if one is not other:
                    sets.remove(other)
                    one |= other
    return sorted((sorted(found) for found in sets if len(found) > 1), key=lambda names: (-len(names), names[0]))


@pytest.mark.parametrize("threshold", [0.0, 1.0, 1.5, 2.0])
def test_groups_are_connected_components(table, threshold):
    found, vectors = find_groups(Index(table / "out"), threshold=threshold), state(table / "out")
    assert [[hit.name for hit in group] for group in found] == components(vectors, threshold)
    for group in found:
        for hit in group:
            others = [vectors[other.name] for other in group if other.name != hit.name]
            assert hit.distance == pytest.approx(np.linalg.norm(np.array(others) - vectors[hit.name], axis=1).min())


def test_groups_of_a_graph_are_the_same_with_enough_candidates(table, tmp_path, monkeypatch):
    pytest.importorskip("faiss")
    opened = Index(table / "out")
    stores.build_graph(tmp_path / "graph.faiss", opened.vectors.blocks, more=lambda more: None)
    expected = find_groups(opened, threshold=1.0)
    opened.store = stores.Graph(tmp_path / "graph.faiss", opened.vectors, len(opened.vectors.blocks))
    monkeypatch.setattr(duplicates_module, "NEIGHBOURS", 89)
    assert find_groups(opened, threshold=1.0) == expected


def test_copies_are_a_group_and_removed_images_are_not(photos, tmp_path):
    shutil.copy2(photos / "class-0000/0000.jpg", photos / "copy.jpg")
    made(photos, tmp_path / "out")
    (group,) = find_groups(Index(tmp_path / "out"), threshold=0)
    assert group == [Hit(0.0, "class-0000/0000.jpg"), Hit(0.0, "copy.jpg")]
    (photos / "copy.jpg").unlink()
    (photos / "class-0000/0000.jpg").unlink()
    made(photos, tmp_path / "out")
    assert Manifest.read(tmp_path / "out").rows == [12]  # its vector is still there
    assert find_groups(Index(tmp_path / "out"), threshold=0) == []
    everything = find_groups(Index(tmp_path / "out"), threshold=9)
    assert len(everything[0]) == 11


def test_the_median_distance(photos, tmp_path):
    made(photos, tmp_path / "out")
    opened = Index(tmp_path / "out")
    vectors = np.array([*state(tmp_path / "out").values()])
    distances = np.linalg.norm(vectors[:, None] - vectors, axis=2)[np.triu_indices(12, 1)]
    assert np.quantile(distances, 0.4) < median_distance(opened) < np.quantile(distances, 0.6)


@pytest.mark.parametrize("threshold", [-1.0, float("nan")])
def test_a_bad_threshold_is_refused(table, threshold):
    with pytest.raises(ValueError, match=r"threshold \(.*\) must be a distance"):
        find_groups(Index(table / "out"), threshold=threshold)
