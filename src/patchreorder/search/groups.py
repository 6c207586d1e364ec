"""Verified copies joined to groups, but never two images that show different things.

Pairs are verified, groups are more than pairs: what differs must not be joined by a third file that is a copy of both,
be it a thumbnail, a part, or a collage that contains both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np

from .images import ImageFile
from .local_features import inverse, mapped, need_opencv
from .relations import OVERLAP, WHOLE, Relation
from .verification import Pair

SAME_FRAME = 0.985  # the share of each frame in the other one, of two images that show the same part
SHARP = 0.9  # of the pixels along a side that an image must have to show all the detail of another one
APART = 0.05  # the share of a frame that may lie in another one which shows something else
FILLED = 0.75  # the share of a collage that the images in it fill, if it shows them at their own size


def joined(by_digest: Mapping[str, Sequence[ImageFile]], relations: Mapping[Pair, Relation]) -> list[list[str]]:
    """Digests that verified copies connect, the most certain first, in the order of `by_digest`.

    Images in which something is seen to differ are joined by nothing but an image that shows as much as both, such as
    a photograph of which there are copies with different texts over them. A collage is no copy of what is in it.
    """
    group_of = {digest: [digest] for digest in by_digest}
    copies = {pair: relation for pair, relation in relations.items() if relation.is_copy}
    sizes = {digest: (own[0].width, own[0].height) for digest, own in by_digest.items() if own and own[0].width}
    for pair in list(_within_collages(copies, sizes)):
        copies.pop(pair, None)
    alike = defaultdict(set)
    for (one, other), relation in copies.items():
        for whole, copy in ((one, other), (other, one)):
            if _shows_all(relation if whole == one else relation.reversed(), sizes, whole, copy):
                alike[copy].add(whole)
    differ: dict[str, set[str]] = defaultdict(set)
    for (one, other), relation in relations.items():
        if relation.moved and alike[one].isdisjoint(alike[other]):
            differ[one].add(other)
            differ[other].add(one)
    order = sorted(copies.items(), key=lambda item: (-item[1].agree - 2 * item[1].median, item[0]))
    for (one, other), _ in order:
        first, second = group_of[one], group_of[other]
        if first is second or any(not differ[digest].isdisjoint(second) for digest in first):
            continue
        first += second
        group_of |= dict.fromkeys(second, first)
    place = {digest: number for number, digest in enumerate(by_digest)}
    groups = {id(group): sorted(group, key=place.__getitem__) for group in group_of.values()}
    return list(groups.values())


def _shows_all(relation: Relation, sizes: Mapping[str, tuple[int, int]], whole: str, copy: str) -> bool:
    """Whether the first image has the frame of the second one, and all its detail."""
    if whole not in sizes or copy not in sizes or min(relation.first, relation.second) < SAME_FRAME:
        return False
    return bool(np.prod(sizes[whole]) > SHARP**2 * np.prod(sizes[copy]))


def _within_collages(copies: Mapping[Pair, Relation], sizes: Mapping[str, tuple[int, int]]) -> Iterator[Pair]:
    """Pairs of a collage and an image in it.

    An image that contains two others side by side is either what both were cut out of, or was put together of them.
    It was put together if it shows one of them smaller than it is, or if they fill it.
    """
    inside: dict[str, list[tuple[str, np.ndarray, float]]] = defaultdict(list)
    for (one, other), relation in copies.items():
        if relation.matrix is None or one not in sizes or other not in sizes:
            continue
        matrix = np.array(relation.matrix)
        for part, whole, share, rest, there in (
            (one, other, relation.first, relation.second, matrix),
            (other, one, relation.second, relation.first, inverse(matrix)),
        ):
            if share >= WHOLE and rest < WHOLE:
                scale = float(np.sqrt(abs(np.linalg.det(there[:, :2]))))
                inside[whole].append((part, _frame(sizes[part], there), scale))
    for whole, parts in inside.items():
        area = float(np.prod(sizes[whole]))
        for (one, own, scale), (other, others, size) in combinations(parts, 2):
            areas = [_area(own), _area(others)]
            if _common(own, others) > APART * min(areas):
                continue
            if min(scale, size) < SHARP or sum(areas) > FILLED * area:
                yield (one, whole) if one < whole else (whole, one)
                yield (other, whole) if other < whole else (whole, other)


def shows(kept: ImageFile, file: ImageFile, between: ImageFile, relations: Mapping[Pair, Relation]) -> bool:
    """Whether the kept file shows most of another one, if a third file is a verified copy of both.

    Two parts of one image may be copies of it, and still have nothing in common.
    """
    matrix = np.eye(3)
    for one, other in ((file, between), (between, kept)):
        relation = relations.get((one.digest, other.digest))
        if relation is None:
            found = relations.get((other.digest, one.digest))
            relation = found.reversed() if found is not None else None
        if relation is None or not relation.is_copy or relation.matrix is None:
            return False
        matrix = np.vstack([np.array(relation.matrix), [0, 0, 1]]) @ matrix
    own, frame = _frame((file.width, file.height), matrix[:2]), _frame((kept.width, kept.height), np.eye(3)[:2])
    return _common(own, frame) > OVERLAP * _area(own)


def _frame(size: tuple[int, int], matrix: np.ndarray) -> np.ndarray:
    """The corners (4, 2), float32, of a file's frame by a map."""
    wide, high = size
    corners = np.array([[0, 0], [wide, 0], [wide, high], [0, high]], np.float64) - 0.5
    return mapped(matrix, corners).astype(np.float32)


def _area(corners: np.ndarray) -> float:
    cv2 = need_opencv()
    return float(cv2.contourArea(corners))


def _common(first: np.ndarray, second: np.ndarray) -> float:
    """The area of two frames that overlap."""
    cv2 = need_opencv()
    return float(cv2.intersectConvexConvex(first, second)[0])
