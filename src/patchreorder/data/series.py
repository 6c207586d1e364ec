"""Folds of photographs that look unlike: images of the same shelf, taken one after the other, stay in one fold.

A random fold holds neighbours of the training images and is much easier than photographs from elsewhere. Here images
with similar colours (light and surroundings differ from place to place) are in the same fold. No network decides, so
none is favoured.
"""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .images import decode
from .photos import Photos

FOLDS = 3
SIDE = 64  # pixels a side of the images whose colours are counted


def folds(images: Photos, *, count: int = FOLDS) -> Tensor:
    """The fold of each image, from 0 to count - 1; every class is divided into folds of about equal size.

    Raises:
        BadImage: if an image cannot be read.
        ValueError: if count is less than 2.
    """
    if count < 2:
        raise ValueError(f"count ({count}) must be 2 or more")
    histograms = np.stack(
        [colour_histogram(decode(images.source.read(i), name=images.source.names[i])) for i in images.chosen.tolist()]
    )
    labels, found = images.labels, torch.zeros(len(images), dtype=torch.int64)
    for label in labels.unique().tolist():
        own = (labels == label).nonzero()[:, 0]
        found[own] = torch.from_numpy(cluster(histograms[own.numpy()], count=count))
    return found


def colour_histogram(image: Image.Image) -> np.ndarray:
    """The square roots of the fractions of 64 colours, four levels of red, green and blue each: (64,)."""
    levels = np.asarray(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BOX)).astype(np.int64) // 64
    return np.sqrt(np.bincount((levels @ [16, 4, 1]).ravel(), minlength=64) / SIDE**2)


def cluster(points: np.ndarray, *, count: int) -> np.ndarray:
    """Divide points (n, d) into `count` folds by average linkage; no group grows larger than a fold.

    Groups then go to the folds, the largest first, each to the fold with the fewest points.

    >>> cluster(np.array([[0.0], [9.0], [0.1], [9.1]]), count=2).tolist()
    [0, 1, 0, 1]
    """
    size = len(points)
    largest = -(-size // count)
    groups: dict[int, list[int]] = {i: [i] for i in range(size)}
    distances = np.sqrt(((points[:, None] - points[None]) ** 2).sum(2))
    sizes = np.ones(size)
    gone = np.eye(size, dtype=bool)
    while True:
        allowed = np.where(gone | (sizes[:, None] + sizes[None] > largest), np.inf, distances)
        first, second = sorted(int(i) for i in np.unravel_index(allowed.argmin(), allowed.shape)) if size else (0, 0)
        if first == second or not np.isfinite(allowed[first, second]):
            break
        total = sizes[first] + sizes[second]
        distances[first] = (sizes[first] * distances[first] + sizes[second] * distances[second]) / total
        distances[:, first] = distances[first]
        sizes[first] = total
        gone[second], gone[:, second] = True, True
        groups[first] += groups.pop(second)
    fold, load = np.zeros(size, dtype=np.int64), [0] * count
    for group in sorted(groups.values(), key=lambda group: (-len(group), group)):
        fewest = load.index(min(load))
        fold[group] = fewest
        load[fewest] += len(group)
    return fold
