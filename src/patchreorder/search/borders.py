"""Borders of one colour: a frame, bars, or the corners of a canvas that a rotated image was put on.

What is inside, the content, is a rectangle in any rotation. A copy with such a border then has the content of its
original, which is what is described, hashed and compared.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

LEVELS = 12  # of 255, that the pixels of a border differ from its colour
FILLED = 0.97  # the least share of the content's rectangle that is within its outline
LEAST, MOST = 0.1, 0.985  # the share of the image that the content may have
EVEN = 0.97  # the share of what is around the content that must have the border's colour
SMALLEST = 24  # pixels: of a side of the content
REACH = 8  # pixels that an edge may lie within the first pixels that differ
SIDE = 400  # pixels of the long side at which borders are looked for


def content_frame(pixels: np.ndarray) -> np.ndarray | None:
    """The corners (4, 2), as x and y, of what a border of one colour surrounds; None if there is no such border.

    Pixels (height, width, 3) are uint8 and have their centres at whole numbers. Corners follow each other around the
    content; the first is the one nearest to the upper left of the image.
    """
    height, width = pixels.shape[:2]
    colour = _border_colour(pixels)
    if colour is None or min(height, width) < SMALLEST:
        return None
    full = (np.abs(pixels.astype(np.int16) - colour) > LEVELS).any(2)
    solid = _mostly(full)  # without single pixels, which compression leaves beside an edge
    rows, columns = np.flatnonzero(solid.any(1)), np.flatnonzero(solid.any(0))
    if len(rows) < SMALLEST or len(columns) < SMALLEST:
        return None
    left, right = solid[rows].argmax(1), width - 1 - solid[rows][:, ::-1].argmax(1)
    top, bottom = solid[:, columns].argmax(0), height - 1 - solid[:, columns][::-1].argmax(0)
    points = np.concatenate(
        [
            np.stack([np.concatenate([left, right]), np.concatenate([rows, rows])], 1),
            np.stack([np.concatenate([columns, columns]), np.concatenate([top, bottom])], 1),
        ]
    ).astype(np.float64)
    corners = _smallest_rectangle(points)
    across = np.arange(width)
    outside = (across < left[:, None] - 2) | (across > right[:, None] + 2)
    if outside.any() and full[rows][outside].mean() > 1 - EVEN:
        return None
    corners = _refined(np.abs(pixels - colour.astype(np.float32)).max(2), corners)
    sides = np.linalg.norm(corners - np.roll(corners, 1, 0), axis=1) + 1
    area = float(sides[0] * sides[1])
    outline = float((right - left + 1).sum())
    if min(sides) < SMALLEST or not LEAST < area / full.size < MOST or outline < FILLED * area:
        return None
    return np.roll(corners, -int((corners @ (1.0, 1.0)).argmin()), 0)


def _mostly(mask: np.ndarray) -> np.ndarray:
    """Where more than half of the 5x5 pixels around are set."""
    sums = np.pad(mask, 3, mode="edge").astype(np.int32).cumsum(0).cumsum(1)
    found: np.ndarray = sums[5:-1, 5:-1] - sums[:-6, 5:-1] - sums[5:-1, :-6] + sums[:-6, :-6] > 12
    return found


def _border_colour(pixels: np.ndarray) -> np.ndarray | None:
    """The colour of at least two corners of an image, and of most of the edge between them."""
    corners = pixels[[0, 0, -1, -1], [0, -1, -1, 0]].astype(np.int16)
    edges = (pixels[0], pixels[:, -1], pixels[-1], pixels[:, 0])  # each between a corner and the next
    for place in range(4):
        same = (np.abs(corners - corners[place]) <= LEVELS).all(1)
        if same.sum() < 2:
            continue
        if same.all():
            return np.median(corners, 0).astype(np.int16)
        for start in range(4):
            if same[start] and same[(start + 1) % 4]:
                edge = np.abs(edges[start].astype(np.int16) - corners[place]) <= LEVELS
                if edge.all(1).mean() > EVEN:
                    return corners[place]
    return None


def _smallest_rectangle(points: np.ndarray) -> np.ndarray:
    """The corners (4, 2) of the rectangle of the smallest area, in any rotation, around points (n, 2)."""

    def extents(degrees: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        cosine, sine = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
        along = points[:, :1] * cosine + points[:, 1:] * sine
        across = points[:, 1:] * cosine - points[:, :1] * sine
        return along.min(0), along.max(0), across.min(0), across.max(0)

    angle, step = 0.0, 1.0
    tried = np.arange(90.0)
    for _ in range(3):
        low, high, least, most = extents(tried)
        areas = (high - low + 1) * (most - least + 1)
        areas[tried == 0] -= 1e-6 * areas[tried == 0]  # a tie is for the axes
        angle = float(tried[areas.argmin()])
        tried, step = angle + np.linspace(-step, step, 21), step / 10
    if abs((angle + 45) % 90 - 45) < 0.1:
        angle = 0.0
    (low,), (high,), (least,), (most,) = (value.tolist() for value in extents(np.array([angle])))
    cosine, sine = np.cos(np.radians(angle)), np.sin(np.radians(angle))
    found = np.array([[low, least], [high, least], [high, most], [low, most]])
    return found @ np.array([[cosine, sine], [-sine, cosine]])


def _refined(difference: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """The corners with each side moved to where the difference from the border has half of its height.

    Compression and interpolation put the first pixels that differ up to some pixels beyond the edge.
    """
    height, width = difference.shape
    offsets = np.arange(-2.0, REACH + 1.5, 0.5)
    moves = []
    for place in range(4):
        start, end = corners[place], corners[(place + 1) % 4]
        inwards = corners[(place + 2) % 4] - end
        inwards = inwards / np.linalg.norm(inwards)
        along = start + np.linspace(0.15, 0.85, 64)[:, None] * (end - start)
        points = along[None] + offsets[:, None, None] * inwards  # (offsets, 64, 2)
        x, y = np.rint(points[..., 0]).astype(int), np.rint(points[..., 1]).astype(int)
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        values = np.where(inside, difference[y.clip(0, height - 1), x.clip(0, width - 1)], 0).mean(1)
        half = values[-3:].mean() / 2
        first = int((values > half).argmax())
        move = 0.0
        if first > 0:
            part = (half - values[first - 1]) / (values[first] - values[first - 1])
            move = float(offsets[first - 1] + part * (offsets[first] - offsets[first - 1])) + 0.5
        straight = abs(inwards).max() > 0.9999
        moves.append(0.0 if straight and not inside[0].all() else move)  # the edge of the image, not of a border
    sides = [corners[(place + 1) % 4] - corners[place] for place in range(4)]
    sides = [side / np.linalg.norm(side) for side in sides]
    # A corner lies on two sides; each moves along the other one.
    found = [
        corners[place] + moves[place] * sides[(place + 1) % 4] + moves[place - 1] * sides[place] for place in range(4)
    ]
    return np.array(found)


def content_of(image: Image.Image) -> Image.Image:
    """The content of an image with a border of one colour, upright or rotated by a quarter; others as they are."""
    factor = SIDE / max(image.size)
    small = image
    if factor < 1:
        size = max(1, round(image.width * factor)), max(1, round(image.height * factor))
        small = image.resize(size, Image.Resampling.BOX, reducing_gap=2)
    corners = content_frame(np.asarray(small))
    if corners is None:
        return image
    scale = np.array(image.size) / small.size
    edge = (corners + 0.5) * scale  # from pixel centres to edges of pixels
    side, down = edge[1] - edge[0], edge[3] - edge[0]
    size = max(1, round(float(np.linalg.norm(side)))), max(1, round(float(np.linalg.norm(down))))
    data = (side[0] / size[0], down[0] / size[1], edge[0, 0], side[1] / size[0], down[1] / size[1], edge[0, 1])
    return image.transform(size, Image.Transform.AFFINE, data, Image.Resampling.BILINEAR)
