"""How two images are related: the same file, a copy and how it was changed, another shot, or only alike."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from .comparison import HAND, Comparison, compare, largest_difference, refine
from .local_features import SIDE, Picture, align, best_symmetry, frame_map, inverse, mapped, whole_frames

# Chosen by benchmarks/copy_rule.py on several sets, whose rows were not kept, before `bend` was there and before drift
# and overlay were measured as now. The logarithm of the odds that two aligned images are copies, in the order of
# `evidence`.
BIAS = -17.784
WEIGHTS = (-0.302, -0.451, -0.372, 2.882, -0.771, -1.403, -1.212, 0.0, 0.741, -0.209)
SURE = 2.0  # the least odds of a copy, as a logarithm
CERTAIN = (
    7.0  # of one whose map is that of another shot: two crops of a photograph have 8 and more, other shots up to 6
)
FRAMED = -3.0  # of one whose frames are the same, and whose windows are shifted by less than these pixels
STILL, STIFF = 0.25, 0.3  # half of the windows, see `Comparison.drift`, and nearly all large ones, see `bend`
LEAST = 0.7  # the least median correlation of a copy
DRAWN_AGREE, DRAWN_MEDIAN = 0.985, 0.88  # of a copy of a drawn image: the windows that agree, their median correlation
LOCAL, PATCHES = 2.0, 0.006  # see `_moved`
OVERLAID = 0.93  # a copy of which fewer windows agree has something laid over it
FLAT = 0.75  # above it, images are drawn (screenshots, text, charts): they differ by small things
FEW = 0.45  # above it they are if they have few colours
DETAIL = 1600  # pixels of the long side at which drawn images are compared
CHANGED = 23.0  # the largest difference of a copy of a drawn image, of 255
OVERLAP = 0.5  # the least share of one of the frames in the other
SAME = 0.9  # the median correlation of images that are the same but for what moved
OUTSIDE = 0.8  # pixels that corners of a frame may be beyond the other one: of nearly all copies they are 0.4 at most
LEAN = 0.6  # pixels, see `Comparison.lean`
SAME_FRAME = 0.3  # pixels that corners of the same frame may be apart
NEARLY = 0.03  # of the side: corners that are less apart, but not the same, are those of another shot
CONTAINED = 0.993  # the share of a frame that lies in the other one; camera shots of one thing overlap, copies contain
PLAIN, FILLED = 24, 10  # levels, of 255, that the colours of a border differ by; of one that stands for a frame
BORDER = 0.995  # the share of pixels of a border that have its colour
SMALLEST = 32.0  # pixels: the least side of an overlap; two shots of a face look the same on 23x28
TEXTURED = 200.0  # pixels with texture, at least
ALIKE = 0.9  # correlation of thumbnails for which whole frames are compared
SCENE = 20  # features that agree, in another shot of the same scene
SHAPE, SIZE, CENTRE = 0.01, 0.006, 0.8  # of a rotation in place: relative, relative, and pixels
WHOLE = 0.94  # the share of a frame above which nothing was cut off

IDENTICAL, COPY, SHOT, SIMILAR = "identical", "copy", "another shot of the same scene", "similar only"


_BOTH_WAYS = ("kind", "features", "agree", "median", "level", "hue", "flat", "inverted", "moved")


@dataclass(frozen=True, kw_only=True)
class Relation:
    """What the second image is to the first.

    Args:
        kind: IDENTICAL (the same bytes), COPY, SHOT or SIMILAR.
        matrix: the map from the first file's pixels to the second's, two rows of three numbers; of copies and shots.
        first, second: the share of each frame that lies in the other.
        features: local features that agree.
        agree, median: of windows of pixels, see `Comparison`.
        level, hue: mean changes of brightness and colour, of 255.
        flat: the share without any gradient, see `Comparison`.
        bordered: what the second frame has beyond the first is of one colour, and the other way round.
        inverted: the second has the colours of a negative; levels and hues are those after inverting it.
        moved: something is seen to differ where the rest is the same, so these are no copies of one image.
    """

    kind: str
    matrix: list[list[float]] | None = None
    first: float = 1.0
    second: float = 1.0
    features: int = 0
    agree: float = 1.0
    median: float = 1.0
    level: float = 0.0
    hue: float = 0.0
    flat: float = 0.0
    bordered: tuple[bool, bool] = (False, False)
    inverted: bool = False
    moved: bool = False

    @property
    def is_copy(self) -> bool:
        return self.kind in (IDENTICAL, COPY)

    def values(self) -> dict[str, Any]:
        """As JSON values, rounded."""
        found = {own.name: getattr(self, own.name) for own in fields(self)} | {"bordered": list(self.bordered)}
        return {key: round(value, 4) if isinstance(value, float) else value for key, value in found.items()}

    @classmethod
    def of_values(cls, values: dict[str, Any]) -> Relation:
        return cls(**values | {"bordered": tuple(values["bordered"])})

    def reversed(self) -> Relation:
        """What the first image is to the second."""
        matrix = None if self.matrix is None else inverse(np.array(self.matrix)).tolist()
        return Relation(
            **{
                **{key: getattr(self, key) for key in _BOTH_WAYS},
                "matrix": matrix,
                "first": self.second,
                "second": self.first,
                "bordered": self.bordered[::-1],
            }
        )

    @property
    def pose(self) -> tuple[bool, float, float, float]:
        """Whether it is mirrored (left to right, first), then degrees clockwise, scale, and stretch (1 or more)."""
        if self.matrix is None:
            return False, 0.0, 1.0, 1.0
        linear = np.array(self.matrix)[:, :2]
        mirrored = bool(np.linalg.det(linear) < 0)
        if mirrored:
            linear = linear @ np.diag([-1.0, 1.0])
        left, sizes, right = np.linalg.svd(linear)
        rotation = left @ right
        degrees = math.degrees(math.atan2(rotation[1, 0], rotation[0, 0])) % 360
        return mirrored, degrees, float(math.sqrt(sizes[0] * sizes[1])), float(sizes[0] / sizes[1])

    def words(self, first: tuple[int, int] | None = None, second: tuple[int, int] | None = None) -> str:
        """In plain words; with the widths and heights of both files also the place of a crop.

        >>> Relation(kind=COPY, matrix=[[0, -0.5, 100], [0.5, 0, 0]]).words()
        'rotated by 90 degrees clockwise, resized to 50 %'
        """
        if self.kind != COPY:
            return self.kind
        mirrored, degrees, scale, stretch = self.pose
        turn = round(degrees) % 360
        said = []
        if mirrored and turn == 180:
            said.append("mirrored top to bottom")
        else:
            said += ["mirrored"] if mirrored else []
            said += [f"rotated by {turn} degrees clockwise"] if turn else []
        if self.first < WHOLE:
            said.append("border cut off" if self.bordered[1] else "cropped" + self._place(first, second))
        if self.second < WHOLE:
            said.append("with a border" if self.bordered[0] else f"shows more, {1 / self.second:.1f} times the area")
        if abs(scale - 1) > 0.02:
            said.append(f"resized to {100 * scale:.0f} %")
        if stretch > 1.05:
            said.append("stretched")
        if self.inverted:
            said.append("colours inverted")
        if self.level > 7 or self.hue > 4:
            said.append("colours changed")
        if self.agree < OVERLAID:
            said.append("with something laid over it")
        return ", ".join(said) or "re-encoded"

    def _place(self, first: tuple[int, int] | None, second: tuple[int, int] | None) -> str:
        """Where the second frame lies in the first."""
        if first is None or second is None or self.matrix is None:
            return ""
        wide, high = second
        corners = np.array([[0, 0], [wide, 0], [0, high], [wide, high]], np.float64) - 0.5
        found = mapped(inverse(np.array(self.matrix)), corners) + 0.5
        left, top = np.clip(found.min(0).round(), 0, first).astype(int)
        right, bottom = np.clip(found.max(0).round(), 0, first).astype(int)
        return f" to {right - left}x{bottom - top} at {left},{top}"


def relate(first: Picture, second: Picture) -> Relation:
    """Compare two images of different files."""
    best: Laid | None = None
    for laid in comparisons(first, second):
        if is_copy(first, laid.second, laid.found):
            return _relation(COPY, first, laid)
        if best is None or laid.features >= SCENE:
            best = laid
    if best is None:
        return Relation(kind=SIMILAR, agree=0.0, median=0.0)
    found = _relation(SHOT if best.features >= SCENE else SIMILAR, first, best)
    return replace(found, moved=best.found.median > SAME and _moved(best.found))


class Laid(NamedTuple):
    """An image, or its negative, laid over another one, and the local features that agree on how."""

    found: Comparison
    second: Picture
    features: int
    negative: bool


def comparisons(first: Picture, second: Picture) -> Iterator[Laid]:
    """Two images laid over each other in the ways that a copy may lie."""
    symmetry = best_symmetry(first, second)
    if symmetry.correlation > ALIKE:
        shown = second.negative if symmetry.negative else second
        whole = frame_map(first, second, symmetry.quarter, symmetry.mirrored)
        yield Laid(compare(first, shown, whole), shown, 0, symmetry.negative)
    aligned = align(first, second)
    if aligned is not None:
        shown = second.negative if aligned.negative else second
        found = compare(first, shown, aligned.matrix)
        yield Laid(found, shown, aligned.features, aligned.negative)
        frames = whole_frames(first, shown, found.matrix)
        if frames is not None:
            yield Laid(compare(first, shown, frames), shown, aligned.features, aligned.negative)


def evidence(found: Comparison) -> list[float]:
    """What speaks for a copy: how far the windows agree, with and without detail, and how little they are shifted."""
    agree, median, rest, coarse = (
        math.log(min(max(1 - value, 1e-3), 1.0)) for value in (found.agree, found.median, found.rest, found.coarse)
    )
    shifts = [math.log(value + 0.05) for value in (found.drift, found.drift_high, found.bend)]
    texture = math.log(max(found.texture * found.side**2, 1.0))
    return [agree, median, rest, found.overlay, coarse, *shifts, texture, found.overlay * agree]


def is_drawn(first: Picture, second: Picture, relation: Relation) -> bool:
    """Whether two copies are of a drawn image, so that small things count."""
    return relation.flat > FLAT or (relation.flat > FEW and (first.few_colours or second.few_colours))


def same_drawing(first: Picture, second: Picture, relation: Relation) -> bool:
    """Whether a copy of a drawn image holds in all its detail; both pictures have up to DETAIL pixels a side."""
    whole = np.vstack([np.array(relation.matrix), [0, 0, 1]])
    matrix = (_from_file(second) @ whole @ np.linalg.inv(_from_file(first)))[:2]
    if relation.inverted:
        second = second.negative
    if largest_difference(first, second, matrix) < CHANGED:
        return True
    # A map found on smaller pictures may be wrong by a pixel here, as much as a stroke of a letter.
    frames = whole_frames(first, second, matrix)
    if frames is not None and largest_difference(first, second, frames) < CHANGED:
        return True
    better = refine(first, second, Comparison(matrix=matrix, first=relation.first, second=relation.second))
    return better is not None and largest_difference(first, second, better) < CHANGED


def _from_file(picture: Picture) -> np.ndarray:
    """The map from pixel centres of a file to those of its picture."""
    wide, high = picture.shape[0] / picture.width, picture.shape[1] / picture.height
    return np.array([[wide, 0, (wide - 1) / 2], [0, high, (high - 1) / 2], [0, 0, 1]])


def is_copy(first: Picture, second: Picture, found: Comparison) -> bool:
    """Whether the pixels say so, and one frame lies in the other but for a border."""
    if not can_be_copy(first, second, found):
        return False
    if found.flat > FLAT:
        return found.agree >= DRAWN_AGREE and found.median >= DRAWN_MEDIAN
    odds = BIAS + sum(weight * own for weight, own in zip(WEIGHTS, evidence(found), strict=True))
    return odds > least_odds(first, second, found)


def least_odds(first: Picture, second: Picture, found: Comparison) -> float:
    """The odds that a copy must have, as a logarithm, by what the map says.

    Programs keep the frame, cut something off, or rotate by an angle that is seen: then less is needed. From hands that
    hold a camera come frames that overlap, or that are rotated, moved and enlarged by a little.
    """
    if found.apart <= SAME_FRAME:
        return FRAMED if found.drift < STILL and found.bend < STIFF else SURE
    known = first.border is not None or second.border is not None  # up to a part of a pixel
    if known and found.apart <= 1 and found.outside <= OUTSIDE:
        return SURE
    if found.lean > LEAN or (not known and found.apart < NEARLY * found.side):
        return CERTAIN
    return SURE if found.outside <= OUTSIDE or (not known and _bordered(first, second, found)) else CERTAIN


def can_be_copy(first: Picture, second: Picture, found: Comparison) -> bool:
    """Whether there is enough to compare, and one frame lies in the other but for a border."""
    if max(found.first, found.second) < OVERLAP or found.texture * found.side**2 < TEXTURED or found.median < LEAST:
        return False
    if found.side < SMALLEST or _moved(found):
        return False
    return (
        max(found.first, found.second) >= CONTAINED
        or _bordered(first, second, found)
        or rotated_in_place(first, second, found.matrix)
    )


def rotated_in_place(first: Picture, second: Picture, matrix: np.ndarray) -> bool:
    """Whether a map rotates a frame around its centre within a frame of the same shape, by an angle that is seen.

    Programs do so, and fill the corners with a colour, with what is at the edge, or mirrored: neither frame then
    contains the other. A hand does not hold the centre and the size to a part of a pixel.
    """
    own, other = np.array(first.shape, np.float64), np.array(second.shape, np.float64)
    scale = float(np.sqrt((other / own).prod()))
    if np.abs(other / own / scale - 1).max() > SHAPE:
        return False
    left, scales, right = np.linalg.svd(matrix[:, :2])
    rotation = left @ right
    degrees = float(np.degrees(np.arctan2(rotation[1, 0], rotation[0, 0])))
    off = abs((degrees + 45) % 90 - 45)
    centre = mapped(matrix, (own[None] - 1) / 2)[0] - (other - 1) / 2
    return (
        off > HAND
        and np.abs(scales / scale - 1).max() < SIZE
        and float(np.linalg.norm(centre)) < CENTRE * max(scale, 1)
    )


def _bordered(first: Picture, second: Picture, found: Comparison) -> bool:
    """Whether what one of the frames has beyond the other is a border."""
    return (found.first < WHOLE and _plain_outside(first, second, found.matrix, spread=FILLED)) or (
        found.second < WHOLE and _plain_outside(second, first, inverse(found.matrix), spread=FILLED)
    )


def _moved(found: Comparison) -> bool:
    """Whether some windows disagree that nothing was laid over: something in the scene moved, as before a tripod.

    A copy that lost detail differs a little everywhere, so that more windows disagree the lower their median is. Lost
    detail has no patches.
    """
    many = 1 - found.agree > LOCAL * (1 - found.median) + 0.02
    return (many or found.patches > PATCHES) and not found.drawn


def _relation(kind: str, first: Picture, laid: Laid) -> Relation:
    found, second = laid.found, laid.second
    whole = np.linalg.inv(_from_file(second)) @ np.vstack([found.matrix, [0, 0, 1]]) @ _from_file(first)
    return Relation(
        kind=kind,
        matrix=[[round(float(value), 5) for value in row] for row in whole[:2]],
        first=found.first,
        second=found.second,
        features=laid.features,
        agree=found.agree,
        median=found.median,
        level=found.level,
        hue=found.hue,
        flat=found.flat,
        bordered=(
            kind == COPY and found.second < WHOLE and _plain_outside(second, first, inverse(found.matrix)),
            kind == COPY and found.first < WHOLE and _plain_outside(first, second, found.matrix),
        ),
        inverted=laid.negative,
    )


def _plain_outside(picture: Picture, other: Picture, matrix: np.ndarray, *, spread: int = PLAIN) -> bool:
    """Whether the pixels of a picture that a map takes beyond the other's frame are of nearly one colour.

    A border that may be lost, of PLAIN levels, has hardly a pixel of another colour.
    """
    height, width = picture.grey.shape
    rows, columns = np.mgrid[0:height, 0:width]
    points = mapped(matrix, np.stack([columns.ravel(), rows.ravel()], 1).astype(np.float64))
    margin = 0.02 * SIDE * abs(float(np.linalg.det(matrix[:, :2]))) ** 0.5
    wide, high = other.shape
    outside = (points < -margin).any(1) | (points[:, 0] > wide - 1 + margin) | (points[:, 1] > high - 1 + margin)
    beyond = picture.pixels.reshape(-1, 3)[outside].astype(np.float64)
    if len(beyond) < 20:
        return spread == PLAIN  # too few to be seen, and no proof of a border
    share = BORDER if spread == PLAIN else 0.95
    return bool((np.abs(beyond - np.median(beyond, 0)).max(1) < spread).mean() > share)
