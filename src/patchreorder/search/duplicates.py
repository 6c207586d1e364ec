"""Groups of pictures that are near each other: the same thing, perhaps turned, shifted or seen from another side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from patchreorder.engine.progress import Screen

from .index import Index
from .stores import Vectors

RELATIVE = 0.5  # of the median distance of two pictures: docs/search.md says how it was chosen
SAMPLED = 2000  # pairs of which the median is taken
NEIGHBOURS = 16  # that are asked of a graph or a server for each picture
_SILENT = Screen()


class Member(NamedTuple):
    """A picture of a group, and how far the nearest other one of the group is."""

    distance: float
    name: str


def usual_distance(index: Index) -> float:
    """The median distance of two pictures of the index, drawn at random, always the same ones; 0 for one or none."""
    slots = index.alive.nonzero()[0]
    if len(slots) < 2:
        return 0.0
    random = np.random.Generator(np.random.Philox(0))
    first = random.integers(0, len(slots), SAMPLED)
    second = (first + random.integers(1, len(slots), SAMPLED)) % len(slots)  # another one
    difference = index.vectors.take(slots[first]).double() - index.vectors.take(slots[second]).double()
    return float(difference.square().sum(1).sqrt().median())


def groups(index: Index, *, threshold: float | None = None, screen: Screen = _SILENT) -> list[list[Member]]:
    """Pictures that are joined by pairs at most `threshold` apart, the largest group first.

    Up to the size at which an index gets a graph every pair is compared. Beyond, and with a store elsewhere, each
    picture is compared with those that are nearest by the store's answer.

    Args:
        index: the pictures.
        threshold: a Euclidean distance; by default RELATIVE times `usual_distance`.
        screen: shows what is done.

    Raises:
        ValueError: if the threshold is negative.
    """
    if threshold is None:
        threshold = RELATIVE * usual_distance(index)
    if not threshold >= 0:
        raise ValueError(f"threshold ({threshold}) must be a distance, 0 or more")
    slots = index.alive.nonzero()[0]
    parent = np.arange(len(index.vectors))
    nearest = np.full(len(index.vectors), np.inf)

    def head(slot: int) -> int:
        while parent[slot] != slot:
            parent[slot] = slot = parent[parent[slot]]
        return slot

    pairs = _all_pairs if isinstance(index.store, Vectors) else _near_pairs
    more = screen.count("comparing", len(slots))
    for first, seconds, distances in pairs(index, threshold):
        if len(seconds):
            nearest[first] = min(nearest[first], distances.min())
            nearest[seconds] = np.minimum(nearest[seconds], distances)
            for second in seconds.tolist():
                parent[head(second)] = head(first)
        more(1)
    members: dict[int, list[Member]] = {}
    names = index.names
    for slot in slots.tolist():
        files = index.files_of(slot)
        distance = 0.0 if len(files) > 1 else float(nearest[slot])
        members.setdefault(head(slot), []).extend(Member(distance, names[file]) for file in files)
    found = [sorted(group, key=lambda member: member.name) for group in members.values() if len(group) > 1]
    return sorted(found, key=lambda group: (-len(group), group[0].name))


def _all_pairs(index: Index, threshold: float) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Of each slot the later slots within the threshold, and their distances."""
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
                yield slot, *_within(index, slot, np.array(near[row], dtype=np.int64), threshold)


def _near_pairs(index: Index, threshold: float) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    slots = index.alive.nonzero()[0]
    for part in np.array_split(slots, max(1, len(slots) // 256)):
        queries = index.vectors.take(part)
        for slot, near in zip(part, index.store.candidates(queries, NEIGHBOURS, index.alive), strict=True):
            yield int(slot), *_within(index, int(slot), near, threshold, later=False)


def _within(
    index: Index, slot: int, near: np.ndarray, threshold: float, *, later: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    near = near[index.alive[near] & ((near > slot) if later else (near != slot))]
    distances = index.vectors.distances(index.vectors.take(np.array([slot]))[0], near)
    return near[distances <= threshold], distances[distances <= threshold]
