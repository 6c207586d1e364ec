"""Local features of images (SIFT), and the affine map that aligns two images, also mirrored ones.

OpenCV does the work; it is the extra `duplicates`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from .borders import content_frame

SIDE = 400  # pixels of the long side that is compared: larger images are scaled down
FEATURES = 500  # the most of an image
CONTRAST = 0.015  # SIFT's threshold: half its usual one, for dull images
RATIO = 0.85  # of the distances of the nearest and the second nearest feature
TOLERANCE = 3.0  # pixels between a feature and its mapped partner
LEAST = 8  # features that must agree on the map
STRETCH = 2.5  # the most that a map may stretch one direction against the other
QUICK, HINT = 300, 5  # so many of the strongest features decide, if so few agree, whether all are compared
NEGATIVES = 150  # and so many whether an image is compared with the negative of another one
COLOURS, LARGEST_COLOUR, FILLED = 6, 0.25, 0.8  # what the most frequent colour and the first six fill in a drawn image
THUMBNAIL = 24  # pixels a side of the thumbnail for quick comparisons

# A mirrored patch has the same values in another order: rows of cells and directions of gradients run backwards.
_MIRRORED = np.arange(128).reshape(4, 4, 8)[::-1][:, :, [0, 7, 6, 5, 4, 3, 2, 1]].reshape(-1)
# In a negative the direction of a patch is the opposite one, so that its cells run backwards in rows and columns.
_NEGATIVE = np.arange(128).reshape(4, 4, 8)[::-1, ::-1].reshape(-1)


@cache
def need_opencv() -> Any:
    """OpenCV with one thread, or an ImportError that says what to install."""
    try:
        import cv2
    except ImportError:
        raise ImportError("comparing images needs OpenCV: pip install 'patchreorder[duplicates]'") from None
    cv2.setNumThreads(1)
    return cv2


def has_opencv() -> bool:
    """Whether images can be compared."""
    try:
        need_opencv()
    except ImportError:
        return False
    return True


class Features(NamedTuple):
    """Points (n, 2) as x and y, and their vectors (n, 128) in bytes, the strongest first."""

    points: np.ndarray
    codes: np.ndarray

    @property
    def vectors(self) -> np.ndarray:
        """Unit vectors (n, 128), float32."""
        vectors = self.codes.astype(np.float32)
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6)

    def strongest(self, count: int) -> Features:
        return Features(self.points[:count], self.codes[:count])

    def negative(self) -> Features:
        """Those of the image with inverted colours."""
        return Features(self.points, self.codes[:, _NEGATIVE])


@dataclass(frozen=True, eq=False)
class Picture:
    """An image that can be compared.

    Args:
        pixels: (height, width, 3), uint8, the long side at most SIDE.
        width, height: of the file, upright.
    """

    pixels: np.ndarray
    width: int
    height: int

    @classmethod
    def of(cls, image: Image.Image, *, size: tuple[int, int] | None = None, side: int = SIDE) -> Picture:
        """A picture of an upright RGB image, its long side at most `side`; `size` if the file is larger than this."""
        width, height = size or image.size
        factor = side / max(image.size)
        if factor < 1:
            small = max(1, round(image.width * factor)), max(1, round(image.height * factor))
            image = image.resize(small, Image.Resampling.LANCZOS)
        return cls(np.asarray(image), width, height)

    @property
    def shape(self) -> tuple[int, int]:
        """Width and height of the pixels that are compared."""
        return self.pixels.shape[1], self.pixels.shape[0]

    @property
    def grey(self) -> np.ndarray:
        """(height, width), uint8."""
        cv2 = need_opencv()
        return cv2.cvtColor(self.pixels, cv2.COLOR_RGB2GRAY)

    @cached_property
    def negative(self) -> Picture:
        """The same with inverted colours."""
        return Picture(255 - self.pixels, self.width, self.height)

    @cached_property
    def features(self) -> Features:
        cv2 = need_opencv()
        sift = cv2.SIFT_create(FEATURES, contrastThreshold=CONTRAST, edgeThreshold=12)
        found, vectors = sift.detectAndCompute(self.grey, None)
        if not found:
            return Features(np.empty((0, 2), np.float32), np.empty((0, 128), np.uint8))
        order = np.argsort([-point.response for point in found], kind="stable")[:FEATURES]
        points = np.array([point.pt for point in found], np.float32)[order]
        vectors = np.sqrt(vectors / np.maximum(vectors.sum(1, keepdims=True), 1e-6))  # RootSIFT
        return Features(points, np.clip(np.rint(vectors[order] * 400), 0, 255).astype(np.uint8))

    @cached_property
    def border(self) -> np.ndarray | None:
        """The corners of what a border of one colour surrounds, see `content_frame`; None without such a border."""
        return content_frame(self.pixels)

    @cached_property
    def frame(self) -> np.ndarray:
        """The corners (4, 2), in pixels, of the image without a border of one colour, one after the other.

        Pixel centres are at whole numbers, corners at the outer edges of pixels.
        """
        if self.border is not None:
            start, along, down, _ = self.border[[0, 1, 3, 2]]
            along, down = along - start, down - start
            along, down = along / np.linalg.norm(along), down / np.linalg.norm(down)
            return self.border + 0.5 * np.array([-along - down, along - down, along + down, down - along])
        return self.edges

    @cached_property
    def few_colours(self) -> bool:
        """Whether few colours fill most of what is in the frame, as in a screenshot, also after compression."""
        left, top = np.maximum(self.frame.min(0).round().astype(int), 0)
        right, bottom = self.frame.max(0).round().astype(int) + 1
        rest = self.pixels[top:bottom, left:right].reshape(-1, 3).astype(np.int16)
        count, largest, filled = len(rest), 0.0, 0.0
        for _ in range(COLOURS):
            if not len(rest):
                break
            coarse = rest >> 3
            codes = (coarse[:, 0].astype(np.int32) * 32 + coarse[:, 1]) * 32 + coarse[:, 2]
            colour = np.median(rest[codes == np.bincount(codes).argmax()], 0)
            near = (np.abs(rest - colour) <= 8).all(1)
            largest, filled = max(largest, near.sum() / count), filled + near.sum() / count
            rest = rest[~near]
        return largest > LARGEST_COLOUR and filled > FILLED

    @property
    def edges(self) -> np.ndarray:
        """The corners of the whole image."""
        width, height = self.shape
        return np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float64) - 0.5

    @cached_property
    def thumbnail(self) -> np.ndarray:
        """What is in the frame: grey, (THUMBNAIL, THUMBNAIL), mean 0 and length 1; zero for an image of one colour."""
        cv2 = need_opencv()
        shown, size = self.grey, (THUMBNAIL, THUMBNAIL)
        if self.border is not None:
            unit = np.linalg.inv(_unit_map(self.frame)) @ np.diag([1 / 96, 1 / 96, 1])
            shown = cv2.warpAffine(shown, unit[:2], (96, 96), flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP)
        small = cv2.resize(shown, size, interpolation=cv2.INTER_AREA).astype(np.float32)
        small -= small.mean()
        length = float(np.linalg.norm(small))
        return small / length if length > 0.5 * THUMBNAIL else np.zeros_like(small)

    @cached_property
    def symmetries(self) -> np.ndarray:
        """The thumbnail in its eight symmetries (8, values): rotated to the left, then the same of the mirrored one."""
        shown = [np.rot90(own, quarter) for own in (self.thumbnail, self.thumbnail[:, ::-1]) for quarter in range(4)]
        return np.stack(shown).reshape(8, -1)


class Alignment(NamedTuple):
    """A map (2, 3) from the pixels of one picture to those of another, and how many features agree."""

    matrix: np.ndarray
    features: int
    negative: bool = False  # whether they are those of the other one's negative


def align(first: Picture, second: Picture) -> Alignment | None:
    """The affine map of the local features that most of them agree on, also to the negative; None if too few do.

    The strongest features tell most pairs apart in less than half the time of all.
    """
    one, other = first.features, second.features
    if _best_map(one.strongest(QUICK), other.strongest(QUICK), least=HINT) is not None:
        best = _best_map(one, other)
        if best is not None:
            return best
    if _best_map(one.strongest(NEGATIVES), other.strongest(NEGATIVES).negative()) is not None:
        best = _best_map(one, other.negative())
        return None if best is None else best._replace(negative=True)
    return None


def _best_map(one: Features, other: Features, *, least: int = LEAST) -> Alignment | None:
    """The affine map, mirrored or not, that most features agree on; None if fewer than `least` do."""
    cv2 = need_opencv()
    own, others = one.vectors, other.vectors
    best = None
    for mirrored in (False, True):
        pairs = _matches(own, np.ascontiguousarray(others[:, _MIRRORED]) if mirrored else others)
        if len(pairs) < max(least, best.features if best else 0):
            continue
        matrix, agree = cv2.estimateAffine2D(
            one.points[pairs[:, 0]],
            other.points[pairs[:, 1]],
            method=cv2.RANSAC,
            ransacReprojThreshold=TOLERANCE,
            maxIters=1000,
            confidence=0.999,
            refineIters=10,
        )
        if matrix is None or not plausible(matrix) or (np.linalg.det(matrix[:, :2]) < 0) != mirrored:
            continue
        if (count := int(agree.sum())) >= max(least, best.features + 1 if best else 0):
            best = Alignment(matrix, count)
    return best


class Symmetry(NamedTuple):
    """How well thumbnails correlate in one of the eight symmetries, which, and whether one is a negative."""

    correlation: float
    quarter: int
    mirrored: bool
    negative: bool


def best_symmetry(first: Picture, second: Picture) -> Symmetry:
    """The symmetry in which thumbnails correlate best, or in which one and the negative of the other do."""
    found = first.symmetries @ second.thumbnail.reshape(-1)
    best = int(np.abs(found).argmax())
    return Symmetry(float(abs(found[best])), best % 4, best >= 4, bool(found[best] < 0))


def frame_map(first: Picture, second: Picture, quarter: int, mirrored: bool) -> np.ndarray:
    """The map of one whole frame to another: mirrored left to right first, then rotated to the left."""
    unit = _unit_map(first.frame)
    turn = np.array([[-1, 0, 1], [0, 1, 0], [0, 0, 1]]) if mirrored else np.eye(3)
    for _ in range(quarter):
        turn = np.array([[0, 1, 0], [-1, 0, 1], [0, 0, 1]]) @ turn  # x, y -> y, 1 - x
    return (np.linalg.inv(_unit_map(second.frame)) @ turn @ unit)[:2]


def _unit_map(frame: np.ndarray) -> np.ndarray:
    """The map (3, 3) from pixels to [0, 1] over a frame."""
    side, down, start = frame[1] - frame[0], frame[3] - frame[0], frame[0]
    return np.linalg.inv(np.array([[side[0], down[0], start[0]], [side[1], down[1], start[1]], [0, 0, 1]]))


def whole_frames(first: Picture, second: Picture, matrix: np.ndarray) -> np.ndarray | None:
    """The map of one whole frame to another that is near this one; None if it maps the corners elsewhere.

    Features find such a map only up to a part of a pixel.
    """
    corners = first.frame
    found = mapped(matrix, corners)
    for mirrored in (False, True):
        for quarter in range(4):
            frames = frame_map(first, second, quarter, mirrored)
            if np.abs(mapped(frames, corners) - found).max() < 0.02 * max(second.shape):
                return frames
    return None


def plausible(matrix: np.ndarray) -> bool:
    """Whether a map is one of a copy: not stretched much, and not larger or smaller than 12 times."""
    (a, b), (c, d) = matrix[:, :2].tolist()
    total, difference = math.hypot(a + d, c - b), math.hypot(a - d, c + b)  # of the two singular values
    large, small = (total + difference) / 2, abs(total - difference) / 2
    return small > 1 / 12 and large < 12 and large < STRETCH * small


def inverse(matrix: np.ndarray) -> np.ndarray:
    """The inverse of a map (2, 3)."""
    return np.linalg.inv(np.vstack([matrix, [0, 0, 1]]))[:2]


def mapped(matrix: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Points (n, 2) by a map (2, 3)."""
    return points @ matrix[:, :2].T + matrix[:, 2]


def _matches(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Pairs (n, 2) of features that are nearest to each other, and much nearer than the second nearest."""
    if len(one) < LEAST or len(other) < LEAST:
        return np.empty((0, 2), np.int64)
    products = (torch.from_numpy(one) @ torch.from_numpy(other).T).numpy()  # with the threads of this process
    rows = np.arange(len(one))
    nearest = products.argmax(1)
    mutual = products.argmax(0)[nearest] == rows
    rows, nearest = rows[mutual], nearest[mutual]
    best = products[rows, nearest]
    products[rows, nearest] = -1
    clear = 2 - 2 * best < RATIO**2 * (2 - 2 * products[rows].max(1))
    return np.stack([rows[clear], nearest[clear]], 1)
