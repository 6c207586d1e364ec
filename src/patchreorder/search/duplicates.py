"""Groups of images that are near each other: the same thing, perhaps rotated, shifted or from another side."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from patchreorder.engine.progress import SILENT, Screen

from .index import Hit, Index
from .stores import Vectors

RELATIVE = 0.5  # of the median distance of two images; docs/search.md says how it was chosen
SAMPLED = 2000  # pairs for the median
NEIGHBOURS = 16  # candidates for each image from a graph or a server


def median_distance(index: Index) -> float:
    """The median distance of random pairs of images, the same pairs in every call; 0 for fewer than two images."""
    slots = index.alive.nonzero()[0]
    if len(slots) < 2:
        return 0.0
    random = np.random.Generator(np.random.Philox(0))
    first = random.integers(0, len(slots), SAMPLED)
    second = (first + random.integers(1, len(slots), SAMPLED)) % len(slots)  # never the same one
    difference = index.vectors.take(slots[first]).double() - index.vectors.take(slots[second]).double()
    return float(difference.square().sum(1).sqrt().median())


def find_groups(index: Index, *, threshold: float, screen: Screen = SILENT) -> list[list[Hit]]:
    """Images that are connected by pairs at most `threshold` apart, the largest group first.

    The images of a group are sorted by name, each with the distance of the nearest other one. Every pair is compared if
    the index has no graph and no other store. Else each image is compared with the candidates of that store.
    """
    if not threshold >= 0:
        raise ValueError(f"threshold ({threshold}) must be a distance, 0 or more")
    slots = index.alive.nonzero()[0]
    parent = np.arange(len(index.vectors))
    nearest = np.full(len(index.vectors), np.inf)

    def head(slot: int) -> int:
        while parent[slot] != slot:
            parent[slot] = slot = parent[parent[slot]]
        return slot

    pairs = _all_pairs if isinstance(index.store, Vectors) else _candidate_pairs
    more = screen.count("comparing", len(slots))
    for first, seconds, distances in pairs(index, threshold):
        if len(seconds):
            nearest[first] = min(nearest[first], distances.min())
            nearest[seconds] = np.minimum(nearest[seconds], distances)
            for second in seconds.tolist():
                parent[head(second)] = head(first)
        more(1)
    groups: dict[int, list[Hit]] = {}
    for slot in slots.tolist():
        names = index.names_of(slot)
        distance = 0.0 if len(names) > 1 else float(nearest[slot])
        groups.setdefault(head(slot), []).extend(Hit(distance, name) for name in names)
    found = [sorted(group, key=lambda hit: hit.name) for group in groups.values() if len(group) > 1]
    return sorted(found, key=lambda group: (-len(group), group[0].name))


def _all_pairs(index: Index, threshold: float) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Each slot, the later slots within the threshold, and their distances."""
    vectors = index.vectors
    begins, blocks = vectors.ends[:-1], vectors.blocks
    for first, (begin, block) in enumerate(zip(begins, blocks, strict=True)):
        slack = vectors.slack(block)
        near: list[list[int]] = [[] for _ in block]
        for second in range(first, len(blocks)):
            squares = vectors.squares[first][:, None] + vectors.squares[second] - 2 * (block @ blocks[second].T)
            for row, column in (squares <= threshold**2 + slack).nonzero().tolist():
                near[row].append(int(begins[second]) + column)
        for row in range(len(block)):
            slot = int(begin + row)
            if index.alive[slot]:
                others = np.array(near[row], dtype=np.int64)
                yield slot, *_within(index, slot, others[others > slot], threshold)


def _candidate_pairs(index: Index, threshold: float) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Each slot, the candidates of the store within the threshold, and their distances."""
    slots = index.alive.nonzero()[0]
    for part in np.array_split(slots, max(1, len(slots) // 256)):
        queries = index.vectors.take(part)
        for slot, near in zip(part.tolist(), index.store.candidates(queries, NEIGHBOURS, index.alive), strict=True):
            yield slot, *_within(index, slot, near[near != slot], threshold)


def _within(index: Index, slot: int, near: np.ndarray, threshold: float) -> tuple[np.ndarray, np.ndarray]:
    near = near[index.alive[near]]
    distances = index.vectors.distances(index.vectors.take(np.array([slot]))[0], near)
    return near[distances <= threshold], distances[distances <= threshold]
