"""Perceptual hashes: few bits of an image that survive compression and scaling, in the eight symmetries of a square."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

COEFFICIENTS = 6  # a side of the block of the cosine transform whose signs are the hash
FLIPPED = 4  # bits, of 35, that similar hashes may differ in
NEAREST = 4  # similar hashes of each
MOST = 20_000  # hashes that are all compared: more would take minutes
_BLOCK = 512

_COSINES = np.cos(np.pi / 32 * (np.arange(32) + 0.5) * np.arange(COEFFICIENTS)[:, None])


def perceptual_hash(image: Image.Image) -> str:
    """Hexadecimal digits that stay the same for a re-encoded or resized image, and in the eight symmetries of a square.

    The signs of the lowest frequencies of the cosine transform. A mirror changes the signs of its odd ones, a quarter
    rotation also swaps rows and columns: of these eight patterns the smallest is taken.
    """
    grey = np.asarray(image.resize((32, 32), Image.Resampling.BOX, reducing_gap=2).convert("L"), np.float64)
    waves = _COSINES @ (grey - grey.mean()) @ _COSINES.T
    bits = [np.packbits((pose > 1e-6).ravel()[1:]).tobytes() for pose in _symmetric(waves)]
    return min(bits).hex()


def negative_hash(text: str) -> str:
    """The hash of the negative of an image, by the image's own hash; "" has none."""
    if not text:
        return ""
    return min(np.packbits((pose < 0).ravel()[1:]).tobytes() for pose in _symmetric(_signs([text])[0])).hex()


def _signs(hashes: Sequence[str]) -> np.ndarray:
    """Hashes as blocks (n, COEFFICIENTS, COEFFICIENTS) of 1 and -1; the first value, the mean, is 0."""
    packed = np.array([list(bytes.fromhex(text)) for text in hashes], np.uint8)
    signs = np.unpackbits(packed, axis=1)[:, : COEFFICIENTS**2 - 1] * np.float32(2) - 1
    return np.concatenate([np.zeros((len(hashes), 1), np.float32), signs], 1).reshape(-1, COEFFICIENTS, COEFFICIENTS)


def similar_hashes(hashes: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs of positions whose hashes, or one and that of a negative, differ in few bits in some symmetry.

    "" is similar to none. Of each hash the nearest few are taken. Above `MOST` hashes none are compared.

    >>> similar_hashes(["0000000000", "0000000020", "ffff000000", "ffffffffe0", ""])
    [(0, 1), (0, 3), (1, 3)]
    """
    known = [number for number, text in enumerate(hashes) if text]
    if len(known) > MOST or len(known) < 2:
        return []
    poses = np.stack(_symmetric(_signs([hashes[number] for number in known])), 1).reshape(len(known), 8, -1)
    table = np.ascontiguousarray(poses[:, 0].T)
    least = COEFFICIENTS**2 - 1 - 2 * FLIPPED  # a bit that differs lowers the product by two
    found = set()
    for begin in range(0, len(known), _BLOCK):
        own = poses[begin : begin + _BLOCK]
        product = np.abs((own.reshape(-1, table.shape[0]) @ table).reshape(len(own), 8, -1)).max(1)
        product[np.arange(len(own)), np.arange(begin, begin + len(own))] = -np.inf
        count = min(NEAREST, len(known) - 1)
        nearest = np.argpartition(-product, count - 1, axis=1)[:, :count]
        for row, others in enumerate(nearest):
            for other in others[product[row, others] >= least]:
                found.add((min(begin + row, int(other)), max(begin + row, int(other))))
    return [(known[first], known[second]) for first, second in sorted(found)]


def _symmetric(blocks: np.ndarray) -> list[np.ndarray]:
    """Cosine transforms (..., rows, columns) of an image in the eight symmetries."""
    odd = np.where(np.arange(COEFFICIENTS) % 2, -1, 1).astype(blocks.dtype)
    signs = (np.ones_like(odd), odd)
    both = (blocks, np.swapaxes(blocks, -1, -2))
    return [own * rows[:, None] * columns for own in both for rows in signs for columns in signs]
