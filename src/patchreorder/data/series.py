"""Photographs of one class in parts that look unlike: pictures of the same shelf, taken one after the other, together.

A part drawn at random holds neighbours of what was trained on, and is much easier than photographs from elsewhere. Here
pictures of alike colours (the light and the surroundings tell a place apart) stay in one part. No network is asked, so
that none is favoured.
"""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .images import decode
from .photos import Photos

FOLDS = 3
SIDE = 64  # pixels that a picture is scaled to before its colours are counted


def folds(images: Photos, *, count: int = FOLDS) -> Tensor:
    """The part, from 0 to count - 1, that each picture is in; every class is divided into parts of about equal size.

    Raises:
        BadImage: if a picture cannot be read.
        ValueError: count is less than 2.
    """
    if count < 2:
        raise ValueError(f"count ({count}) must be 2 or more")
    seen = np.stack(
        [colours(decode(images.source.read(i), name=images.source.names[i])) for i in images.chosen.tolist()]
    )
    labels, found = images.labels, torch.zeros(len(images), dtype=torch.int64)
    for label in labels.unique().tolist():
        own = (labels == label).nonzero()[:, 0]
        found[own] = torch.from_numpy(divided(seen[own.numpy()], count=count))
    return found


def colours(picture: Image.Image) -> np.ndarray:
    """The roots of the shares of 64 colours in a picture, four steps of red, green and blue each: (64,)."""
    steps = np.asarray(picture.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BOX)).astype(np.int64) // 64
    return np.sqrt(np.bincount((steps @ [16, 4, 1]).ravel(), minlength=64) / SIDE**2)


def divided(points: np.ndarray, *, count: int) -> np.ndarray:
    """Points (n, d) in `count` parts: the two nearest groups become one, as long as it is no larger than a part.

    Nearest by the mean distance between their points. Groups then go to the parts, the largest first, each to the part
    that holds the fewest.

    >>> divided(np.array([[0.0], [9.0], [0.1], [9.1]]), count=2).tolist()
    [0, 1, 0, 1]
    """
    size = len(points)
    largest = -(-size // count)
    groups: dict[int, list[int]] = {i: [i] for i in range(size)}
    apart = np.sqrt(((points[:, None] - points[None]) ** 2).sum(2))
    sizes = np.ones(size)
    gone = np.eye(size, dtype=bool)
    while True:
        open_to = np.where(gone | (sizes[:, None] + sizes[None] > largest), np.inf, apart)
        first, second = sorted(int(i) for i in np.unravel_index(open_to.argmin(), open_to.shape)) if size else (0, 0)
        if first == second or not np.isfinite(open_to[first, second]):
            break
        apart[first] = (sizes[first] * apart[first] + sizes[second] * apart[second]) / (sizes[first] + sizes[second])
        apart[:, first] = apart[first]
        sizes[first] += sizes[second]
        gone[second], gone[:, second] = True, True
        groups[first] += groups.pop(second)
    part, load = np.zeros(size, dtype=np.int64), [0] * count
    for group in sorted(groups.values(), key=lambda group: (-len(group), group)):
        fewest = load.index(min(load))
        part[group] = fewest
        load[fewest] += len(group)
    return part
