"""Grey values of two images laid over each other, whose light may differ: by value, and slowly from place to place."""

from __future__ import annotations

import numpy as np

from .local_features import need_opencv

UNEVEN = 0.22  # logarithm of the least ratio of light within an image that is evened out: a quarter
STEP = 4  # only every so many rows and columns are looked at
ROUNDS = 5  # of fitting tones and light in turn
DARK, BRIGHT = 4, 248  # grey values beyond which light was cut off


def light_field(one: np.ndarray, other: np.ndarray, mask: np.ndarray) -> np.ndarray | None:
    """The logarithm (height, width) of how much darker places of the other image are; None if its light is even.

    A polynomial of the place, beside a curve of grey values, is fitted to layers (height, width, 3), uint8. It is 0 at
    the brightest places.
    """
    x, y = (smooth_grey(layer)[::STEP, ::STEP] for layer in (one, other))
    rows, columns = (np.linspace(-1, 1, size) for size in mask.shape)
    v, u = np.meshgrid(rows, columns, indexing="ij")
    places = np.stack([u, v, u * u, u * v, v * v, (u * u + v * v) ** 2], 2)
    few = places[::STEP, ::STEP]
    known = mask[::STEP, ::STEP] & (x > DARK) & (x < BRIGHT) & (y > DARK) & (y < BRIGHT)
    if known.sum() < 100:
        return None
    weights = np.zeros(places.shape[2])
    for _ in range(ROUNDS):
        curve = tones(x, y / np.exp(few @ weights), known)
        change = np.log((y + 1) / (np.maximum(curve, 0) + 1))
        usual = np.abs(change - few @ weights)
        near = known & (usual <= 3 * np.median(usual[known]) + 0.01)  # not what was laid over
        weights = np.linalg.lstsq(few[near], change[near], rcond=None)[0]
    field: np.ndarray = places @ weights
    inside = field[mask]
    low, high = np.quantile(inside, (0.001, 0.98))
    return np.clip(field, low, high) - high if high - low > UNEVEN else None


def grey_of(layer: np.ndarray) -> np.ndarray:
    cv2 = need_opencv()
    return cv2.cvtColor(layer, cv2.COLOR_RGB2GRAY)


def smooth_grey(layer: np.ndarray) -> np.ndarray:
    cv2 = need_opencv()
    return cv2.GaussianBlur(grey_of(layer), (0, 0), 1.0).astype(np.float32)


def tones(x: np.ndarray, y: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """What y is in the mean for pixels of x of the same grey value, for every pixel."""
    bins = x.astype(np.uint8) >> 2
    inside = bins[mask]
    counts = np.bincount(inside, minlength=64)
    sums = np.bincount(inside, weights=y[mask], minlength=64)
    known = counts > 0
    curve = np.interp(np.arange(64), np.flatnonzero(known), sums[known] / counts[known])
    return curve[bins].astype(np.float32)
