"""Definitions that share no code with src: the operator by loops over patches, and the length of a descriptor."""

import math

import numpy as np
import torch
from torch import Tensor


def reorder(x: Tensor, *, grid=2, levels=1, energy="l2", per_channel=True, descending=True) -> tuple[Tensor, Tensor]:
    b, c, h, w = x.shape
    rows, columns = (h, w) if grid == "pixels" else (grid**levels,) * 2
    children = (rows, columns) if grid == "pixels" else (grid, grid)
    maps = x.detach().to("cpu", torch.float64 if x.dtype == torch.float64 else torch.float32).numpy()
    with np.errstate(all="ignore"):
        unit = unit_energies(maps, rows, columns, energy)
        unit = (
            unit if per_channel else halve([unit[:, j : j + 1] for j in range(c)] or [np.zeros((b, 1, rows, columns))])
        )
        pyramid = [unit]
        for _ in range(levels - 1):
            pyramid.insert(0, parent_energies(pyramid[0], children))
    order = np.zeros(unit.shape, dtype=np.int64)
    for index in np.ndindex(unit.shape[:2]):
        found = sources([level[index] for level in pyramid], children, descending)
        order[index] = np.array(found).reshape(rows, columns)
    return move(x, order), torch.from_numpy(order)


def unit_energies(maps: np.ndarray, rows: int, columns: int, energy: str) -> np.ndarray:
    """Pixel by pixel, for all maps at once: down each column of a patch, then over the columns."""
    h, w = maps.shape[2] // rows, maps.shape[3] // columns
    unit = np.zeros((*maps.shape[:2], rows, columns), maps.dtype)
    for r, s in np.ndindex(rows, columns):
        total = None
        for x in range(s * w, (s + 1) * w):
            column = None
            for y in range(r * h, (r + 1) * h):
                pixel = maps[:, :, y, x]
                value = abs(pixel) if energy == "l1" else pixel * pixel
                column = value if column is None else column + value
            total = column if total is None else total + column
        unit[:, :, r, s] = total
    return unit


def halve(parts: list[np.ndarray]) -> np.ndarray:
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [parts[k] + parts[half + k] for k in range(half)] + parts[2 * half :]
    return parts[0]


def parent_energies(fine: np.ndarray, children: tuple[int, int]) -> np.ndarray:
    rows, columns = fine.shape[2] // children[0], fine.shape[3] // children[1]
    coarse = np.zeros((*fine.shape[:2], rows, columns), fine.dtype)
    for r, s in np.ndindex(rows, columns):
        total = None
        for i, j in np.ndindex(children):
            part = fine[:, :, r * children[0] + i, s * children[1] + j]
            total = part if total is None else total + part
        coarse[:, :, r, s] = total
    return coarse


def sources(pyramid: list[np.ndarray], children: tuple[int, int], descending: bool) -> list[int]:
    """The source unit patches in raster order: place the blocks of the coarsest level, then sort inside each."""
    if not pyramid:
        return [0]
    rows, columns = pyramid[-1].shape
    high, wide = rows // children[0], columns // children[1]
    blocks = list(np.ndindex(children))
    energies = pyramid[0].ravel().tolist()
    ranked = sorted(range(len(blocks)), key=lambda k: sort_key(energies[k], descending))
    result = [[0] * columns for _ in range(rows)]
    for place, k in enumerate(ranked):
        (r, s), (to_r, to_s) = blocks[k], blocks[place]
        sizes = [(level.shape[0] // children[0], level.shape[1] // children[1]) for level in pyramid[1:]]
        below = [e[r * m : (r + 1) * m, s * n : (s + 1) * n] for e, (m, n) in zip(pyramid[1:], sizes, strict=True)]
        for q, source in enumerate(sources(below, children, descending)):
            row, column = r * high + source // wide, s * wide + source % wide
            result[to_r * high + q // wide][to_s * wide + q % wide] = row * columns + column
    return [source for line in result for source in line]


def sort_key(energy: float, descending: bool) -> tuple[int, float]:
    if math.isnan(energy):
        return (0, 0.0)
    return (1, -energy if descending else energy)


def move(x: Tensor, order: np.ndarray) -> Tensor:
    rows, columns = order.shape[2:]
    high, wide = x.shape[2] // rows, x.shape[3] // columns
    words = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]  # NumPy has no bfloat16
    before = x.detach().contiguous().view(words).numpy()
    after = before.copy()
    for i, j in np.ndindex(*x.shape[:2]):
        for place, source in enumerate(order[i, j if order.shape[1] > 1 else 0].ravel().tolist()):
            r, s = place // columns * high, place % columns * wide
            u, v = source // columns * high, source % columns * wide
            after[i, j, r : r + high, s : s + wide] = before[i, j, u : u + high, v : v + wide]
    return torch.from_numpy(after).view(x.dtype)


def normalise(features: Tensor) -> Tensor:
    """The signed square root of every dimension, then unit length."""
    root = features.double().sign() * features.double().abs() ** 0.5
    return (root / root.square().sum(-1, keepdim=True).sqrt()).to(features.dtype)
