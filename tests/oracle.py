"""Definitions that share no code with src: the operator by loops over patches, and the length of a descriptor."""

import numpy as np
import torch
from torch import Tensor


def reorder(x: Tensor, *, grid=2, levels=1, energy="l2", per_channel=True, descending=True) -> tuple[Tensor, Tensor]:
    b, c, h, w = x.shape
    rows, columns = (h, w) if grid == "pixels" else (grid**levels,) * 2
    maps = x.detach().to("cpu", torch.float64 if x.dtype == torch.float64 else torch.float32).numpy()
    order = np.zeros((b, c if per_channel else 1, rows, columns), dtype=np.int64)
    for i in range(b):
        units = [unit_energies(maps[i, j], rows, columns, energy) for j in range(c)]
        if not per_channel:
            units = [halve(units) if units else np.zeros((rows, columns), np.float32)]
        for j, unit in enumerate(units):
            step = (rows, columns) if grid == "pixels" else (grid, grid)
            order[i, j] = np.array(sources(unit, step, levels, descending)).reshape(rows, columns)
    return move(x, order), torch.from_numpy(order)


def unit_energies(image: np.ndarray, rows: int, columns: int, energy: str) -> np.ndarray:
    h, w = image.shape[0] // rows, image.shape[1] // columns
    unit = np.zeros((rows, columns), image.dtype)
    with np.errstate(all="ignore"):
        for r in range(rows):
            for s in range(columns):
                total = None
                for x in range(s * w, (s + 1) * w):
                    column = None
                    for y in range(r * h, (r + 1) * h):
                        v = abs(image[y, x]) if energy == "l1" else image[y, x] * image[y, x]
                        column = v if column is None else column + v
                    total = column if total is None else total + column
                unit[r, s] = total
    return unit


def halve(parts: list[np.ndarray]) -> np.ndarray:
    with np.errstate(all="ignore"):
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [parts[k] + parts[half + k] for k in range(half)] + parts[2 * half :]
    return parts[0]


def sources(unit: np.ndarray, step: tuple[int, int], levels: int, descending: bool) -> list[int]:
    """The source unit patches in raster order: place the blocks of the coarsest level, then sort inside each."""
    rows, columns = unit.shape
    if levels == 0:
        assert unit.shape == (1, 1)
        return [0]
    high, wide = rows // step[0], columns // step[1]
    blocks = [(r * high, s * wide) for r in range(step[0]) for s in range(step[1])]
    energies = [block_energy(unit[r : r + high, s : s + wide], step) for r, s in blocks]
    ranked = sorted(range(len(blocks)), key=lambda k: sort_key(energies[k], descending))
    result = [[0] * columns for _ in range(rows)]
    for place, k in enumerate(ranked):
        r, s = blocks[k]
        to_r, to_s = blocks[place]
        inside = sources(unit[r : r + high, s : s + wide], step, levels - 1, descending)
        for q, source in enumerate(inside):
            row, column = r + source // wide, s + source % wide
            result[to_r + q // wide][to_s + q % wide] = row * columns + column
    return [source for line in result for source in line]


def block_energy(unit: np.ndarray, step: tuple[int, int]):
    if unit.shape == (1, 1):
        return unit[0, 0]
    high, wide = unit.shape[0] // step[0], unit.shape[1] // step[1]
    total = None
    with np.errstate(all="ignore"):
        for r in range(step[0]):
            for s in range(step[1]):
                part = block_energy(unit[r * high : (r + 1) * high, s * wide : (s + 1) * wide], step)
                total = part if total is None else total + part
    return total


def sort_key(energy, descending: bool) -> tuple[int, float]:
    if np.isnan(energy):
        return (0, 0.0)
    return (1, -float(energy) if descending else float(energy))


def move(x: Tensor, order: np.ndarray) -> Tensor:
    b, c, h, w = x.shape
    rows, columns = order.shape[2:]
    high, wide = h // rows, w // columns
    z = x.detach().clone()
    for i in range(b):
        for j in range(c):
            for place, source in enumerate(order[i, j if order.shape[1] > 1 else 0].ravel()):
                r, s = place // columns * high, place % columns * wide
                u, v = source // columns * high, source % columns * wide
                z[i, j, r : r + high, s : s + wide] = x[i, j, u : u + high, v : v + wide]
    return z


def normalise(features: Tensor) -> Tensor:
    """The signed square root of every dimension, then unit length."""
    root = features.double().sign() * features.double().abs() ** 0.5
    return (root / root.square().sum(-1, keepdim=True).sqrt()).to(features.dtype)
