"""What differs between two images that are the same elsewhere: was it drawn over one of them, or before the camera?"""

from __future__ import annotations

import numpy as np

from .local_features import need_opencv

STROKE, THICK = 5, 0.2  # pixels: strokes are thinner; the share of a drawing beyond which it is more than strokes
OVERLAY, TEXT, TEXT_AREA = 0.6, 0.35, 0.007  # least `overlay` of strokes; of so many that they are a text; its area
EXACT, PLAIN = 3, 0.8  # grey levels on both sides of a colour; the least share of patches in two such colours
VISIBLE = 10.0  # grey levels of a difference that is seen


def overlaid(
    one: np.ndarray, other: np.ndarray, x: np.ndarray, y: np.ndarray, expected: np.ndarray, bad: np.ndarray
) -> tuple[float, bool, float]:
    """How far what differs in the windows that disagree was drawn over one of the images: 0 to 1.

    Also whether it surely was drawn, and how many pixels it has that are no thin strokes.

    A text or a bar has few colours, or it shines through and makes all lighter or all darker. A thing that came, went
    or moved has many colours, or swaps them with the background.

    Args:
        one, other: grey values; x, y: the same, smoothed.
        expected: what y would be by the values of x.
        bad: the windows.
    """
    cv2 = need_opencv()
    difference = y - expected
    sharp = other - (expected + one - x)
    strong = bad & (np.abs(difference) > VISIBLE) & (np.abs(sharp) > VISIBLE)
    if strong.sum() < max(10, 0.01 * bad.sum()):
        return 1.0, True, 0.0  # nothing to be seen: lost detail
    signs = difference[strong]
    signed = abs(float(signs.sum())) / float(np.abs(signs).sum())
    first, second = one[strong].astype(np.float32), other[strong].astype(np.float32)
    both = np.histogram2d(first, second, 8, ((0, 256), (0, 256)))[0] / len(signs)
    swapped = float(np.minimum(both, both.T).sum())
    plain = max(_two_values(layer, 24) for layer in (first, second)) * (1 - swapped)
    clear = max(_two_values(2 * layer - base, 48) for layer, base in ((first, second), (second, first))) * signed
    found = max(plain, clear)
    inner = cv2.erode(strong.astype(np.uint8), np.ones((STROKE, STROKE), np.uint8)) > 0
    return found, _drawn(one, other, strong, inner, found), float(inner.sum())


def _drawn(one: np.ndarray, other: np.ndarray, strong: np.ndarray, inner: np.ndarray, overlay: float) -> bool:
    """Whether what differs has thin strokes only, or has at most two exact colours where it is thick.

    It lies in the image in which it has the clearer edge: a plain background has exact colours too.
    """
    cv2 = need_opencv()
    part, area = strong.astype(np.uint8), int(strong.sum())
    if inner.sum() < max(20, THICK * area):
        return overlay >= (TEXT if area > TEXT_AREA * part.size else OVERLAY)
    ring = cv2.morphologyEx(part, cv2.MORPH_GRADIENT, np.ones((3, 3), np.uint8)) > 0

    def edge(layer: np.ndarray) -> float:
        slopes = (cv2.Sobel(layer, cv2.CV_32F, *axis) for axis in ((1, 0), (0, 1)))
        return float(np.hypot(*slopes)[ring].mean())

    shown = one if edge(one) > edge(other) else other
    counts = np.bincount(shown[inner], minlength=256)
    near = np.convolve(counts, np.ones(2 * EXACT + 1), "same")
    top = int(near.argmax())
    counts[max(0, top - EXACT) : top + EXACT + 1] = 0
    return bool(near[top] + np.convolve(counts, np.ones(2 * EXACT + 1), "same").max() > PLAIN * inner.sum())


def _two_values(values: np.ndarray, width: int) -> float:
    """The share of values near the two most frequent ones, each within this width."""
    counts = np.histogram(values, 256, (-256, 512))[0]
    near = np.convolve(counts, np.ones(width // 3), "same") / len(values)
    top = int(near.argmax())
    rest = near.copy()
    rest[max(0, top - width // 3) : top + width // 3 + 1] = 0
    return min(1.0, float(near[top] + rest.max()))
