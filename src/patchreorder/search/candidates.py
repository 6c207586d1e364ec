"""The nearest vectors of every vector of an index: candidates for pairs that show the same thing.

Vectors are sorted into cells of vectors that lie together (k-means on their first principal components). Each is
compared, in all its dimensions, with the vectors of the cells nearest to it. So a million vectors take minutes instead
of hours. They are compared on the disk, in the order of their cells, and an interrupted call continues where it was.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from patchreorder.engine.progress import SILENT, Screen
from patchreorder.files import open_whole

from .index import Index
from .stores import Vectors

FORMAT = 1
EXACT = 10_000  # up to so many vectors all are compared
CELL = 512  # vectors of a cell, on average
PROBES = 12  # cells whose vectors a vector is compared with
COMPONENTS = 64  # principal components that decide about cells
SAMPLE = 48  # vectors for each cell in k-means
ROUNDS = 8  # of k-means
TOGETHER = 1 << 24  # numbers of vectors in memory at a time
SAVED = 30.0  # seconds between two states to continue from
_FILES = ("cells.npz", "copy.part", "copy", "found.npz")


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The nearest other slots of every slot (n, k), nearest first; -1 and infinity where there are fewer.

    Distances come from products in single precision: right to 0.001 for vectors of length 1. `seconds` has the cost of
    each part of the call.
    """

    slots: np.ndarray
    distances: np.ndarray
    seconds: dict[str, float] = field(default_factory=dict)


def index_candidates(index: Index, *, k: int = 16, folder: Path | None = None, screen: Screen = SILENT) -> Candidates:
    """The k nearest images of every image of an index.

    They are kept in `folder`, by default one inside the index: an unchanged index has them at once, and an interrupted
    call continues. If it cannot be written, nothing is kept.
    """
    key = sha256(json.dumps(index.manifest.chunks).encode() + np.packbits(index.alive).tobytes()).hexdigest()
    folder = index.folder / ".candidates" if folder is None else folder
    if os.access(folder if folder.exists() else folder.parent, os.W_OK):
        return find_candidates(index.vectors, k=k, folder=folder, key=key, alive=index.alive, screen=screen)
    with tempfile.TemporaryDirectory() as temporary:
        return find_candidates(index.vectors, k=k, folder=Path(temporary), key=key, alive=index.alive, screen=screen)


def find_candidates(
    vectors: Vectors, *, k: int, folder: Path, key: str, alive: np.ndarray | None = None, screen: Screen = SILENT
) -> Candidates:
    """The k nearest of every vector, among those that are alive.

    Up to `EXACT` vectors all are compared. Of more, one is missed if it is in none of the `PROBES` cells nearest to the
    other. In memory are 16 k + 250 bytes for each vector, and 0.2 GB; on the disk a copy of the vectors, until the end.

    Args:
        folder: keeps what is finished; no other call may use it at the same time.
        key: says which vectors these are; what the folder holds of others is replaced.

    Raises:
        ValueError: k is less than 1.
        OSError: the disk is too small for the copy.

    >>> vectors = Vectors([torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.6, 0.8]])])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     find_candidates(vectors, k=2, folder=Path(folder), key="three").slots.tolist()
    [[2, 1], [2, 0], [0, 1]]
    """
    if k < 1:
        raise ValueError(f"k ({k}) must be 1 or more")
    slots = np.arange(len(vectors)) if alive is None else alive.nonzero()[0]
    if not len(slots):
        nothing = np.empty((len(vectors), k))
        return Candidates(slots=np.full_like(nothing, -1, np.int32), distances=np.full_like(nothing, np.inf))
    return _Search(vectors, slots, k=k, folder=folder, key=key, screen=screen).run()


class _Cells(NamedTuple):
    """Vectors in the order of their cells; a position is one in this order."""

    order: np.ndarray  # (n,) slots
    starts: np.ndarray  # (cells + 1,) the positions at which cells begin
    probes: np.ndarray  # (n, probes) the cells nearest to a vector
    reach: np.ndarray  # (n, probes) its distance from their centres; by the first a cell is sorted


class _Found(NamedTuple):
    """The nearest so far."""

    compared: np.ndarray  # (2,) the number of cells, and whether all is finished
    slots: np.ndarray  # (n, k) positions; when finished: slots, by slot
    distances: np.ndarray  # (n, k) squared, less the vector's own square; when finished: distances, by slot
    squares: np.ndarray  # (n,)

    @property
    def finished(self) -> bool:
        return bool(self.compared[1])


class _Search:
    """One call: its vectors and its folder."""

    def __init__(self, vectors: Vectors, slots: np.ndarray, *, k: int, folder: Path, key: str, screen: Screen) -> None:
        self.vectors, self.slots, self.k, self.folder, self.screen = vectors, slots, k, folder, screen
        self.width = vectors.blocks[0].shape[1]
        self.tile = max(16, min(1024, TOGETHER // max(self.width, EXACT)))  # vectors that are compared at a time
        self.cells = 1 if len(slots) <= EXACT else -(-len(slots) // CELL)
        self.probes = min(PROBES, self.cells)
        self.seconds: dict[str, float] = {}
        options = [FORMAT, EXACT, CELL, PROBES, COMPONENTS, SAMPLE, ROUNDS]
        about = [key, k, len(vectors), len(slots), self.width, options]
        self.about = sha256(json.dumps(about).encode()).hexdigest()

    def run(self) -> Candidates:
        self.folder.mkdir(parents=True, exist_ok=True)
        found = self._found()
        if found is None or not found.finished:
            cells = self._cells()
            if cells is None:
                for name in _FILES:
                    (self.folder / name).unlink(missing_ok=True)
                found, cells = None, self._sort()
                self._save("cells.npz", cells)
            found = self._compare(self._copy(cells), cells, found)
            self._save("found.npz", found)
            for name in _FILES[:-1]:
                (self.folder / name).unlink(missing_ok=True)
        return Candidates(slots=found.slots, distances=found.distances, seconds=self.seconds)

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[part] = time.perf_counter() - began

    # ---- what is kept for the next call ----

    def _save(self, name: str, state: _Cells | _Found) -> None:
        with open_whole(self.folder / name) as file:
            np.savez(file, about=np.array(self.about), **state._asdict())

    def _load(self, name: str) -> dict[str, np.ndarray]:
        """The arrays that an earlier call kept of the same vectors; none if they cannot be used."""
        try:
            with open(self.folder / name, "rb") as file, np.load(file, allow_pickle=False) as kept:
                return {**kept} if str(kept["about"]) == self.about else {}
        except (OSError, ValueError, TypeError, KeyError, EOFError, BadZipFile):
            return {}

    def _found(self) -> _Found | None:
        kept = self._load("found.npz")
        kept.pop("about", None)
        if not kept or kept.keys() != set(_Found._fields):
            return None
        found = _Found(**kept)
        rows = len(self.vectors) if found.finished else len(self.slots)
        sound = found.slots.shape == found.distances.shape == (rows, self.k) and found.squares.shape == (rows,)
        return found if sound and found.slots.min() >= -1 and found.slots.max() < rows else None

    def _cells(self) -> _Cells | None:
        kept = self._load("cells.npz")
        kept.pop("about", None)
        if not kept or kept.keys() != set(_Cells._fields):
            return None
        cells = _Cells(**kept)
        sound = np.array_equal(np.sort(cells.order), self.slots) and len(cells.starts) == self.cells + 1
        return cells if sound and cells.probes.shape == cells.reach.shape == (len(self.slots), self.probes) else None

    # ---- the parts ----

    def _sort(self) -> _Cells:
        """Sort the vectors into cells."""
        count = len(self.slots)
        if self.cells == 1:
            zeros = np.zeros((count, 1), np.int32)
            return _Cells(self.slots, np.array([0, count]), zeros, zeros.astype(np.float32))
        with self._timed("finding cells"):
            random = torch.Generator().manual_seed(0)
            drawn = self.slots[torch.randperm(count, generator=random)[: self.cells * SAMPLE].sort().values.numpy()]
            few = self.vectors.take(drawn[:: -(-len(drawn) // max(1000, TOGETHER // self.width))])
            mean = few.mean(0)
            basis = _principal(few - mean, min(COMPONENTS, self.width), random)
            parts = [drawn[begin : begin + self.tile] for begin in range(0, len(drawn), self.tile)]
            sample = torch.cat([(self.vectors.take(part) - mean) @ basis for part in parts])
            centres = _k_means(sample, self.cells, random, self.screen.count("finding cells", self.cells * ROUNDS))
            groups = _k_means(centres, round(self.cells**0.5), random, lambda done: None)
            centres = centres[torch.cdist(centres, groups).argmin(1).argsort(stable=True)]  # neighbours near each other
        with self._timed("assigning"):
            probes = np.empty((count, self.probes), np.int32)
            reach = np.empty((count, self.probes), np.float32)
            more = self.screen.count("assigning", count)
            for begin in range(0, count, self.tile):
                own = slice(begin, begin + self.tile)
                points = (self.vectors.take(self.slots[own]) - mean) @ basis
                squares, near = _products(points, centres).topk(self.probes, dim=1, largest=False)
                reach[own] = (squares + points.square().sum(1, keepdim=True)).clamp(min=0).sqrt().numpy()
                probes[own] = near.numpy()
                more(len(points))
            order = np.lexsort((reach[:, 0], probes[:, 0]))
            starts = np.searchsorted(probes[order, 0], np.arange(self.cells + 1))
        return _Cells(self.slots[order], starts, probes[order], reach[order])

    def _copy(self, cells: _Cells) -> Tensor:
        """The vectors in the order of the cells, mapped into memory."""
        path, shape = self.folder / "copy", (len(self.slots), self.width)
        if not path.exists() or path.stat().st_size != 4 * shape[0] * shape[1]:
            with self._timed("copying"):
                position = np.full(len(self.vectors), -1)
                position[cells.order] = np.arange(len(self.slots))
                copy = _reserved(self.folder / "copy.part", shape)
                more = self.screen.count("copying", len(self.vectors))
                for begin, block in zip(self.vectors.ends.tolist(), self.vectors.blocks, strict=False):
                    own = position[begin : begin + len(block)]
                    copy[own[own >= 0]] = block.numpy()[own >= 0]
                    more(len(block))
                copy.flush()
                os.replace(self.folder / "copy.part", path)
        return torch.from_numpy(np.memmap(path, np.float32, "r+", shape=shape))

    def _compare(self, copy: Tensor, cells: _Cells, found: _Found | None) -> _Found:
        """Compare the vectors of each cell with all vectors that have it among the cells nearest to them."""
        count, done = len(self.slots), 0 if found is None else int(found.compared[0])
        near = torch.full((count, self.k), -1, dtype=torch.int32) if found is None else torch.from_numpy(found.slots)
        far = torch.full((count, self.k), torch.inf) if found is None else torch.from_numpy(found.distances)
        squares = torch.zeros(count) if found is None else torch.from_numpy(found.squares)
        with self._timed("comparing"):
            visits = np.argsort(cells.probes, axis=None, kind="stable")  # vectors by the cells that they are near
            ends = np.cumsum(np.bincount(cells.probes.ravel(), minlength=self.cells)).tolist()
            more, saved = self.screen.count("comparing", len(visits)), time.monotonic()
            more(ends[done - 1] if done else 0)
            for cell in range(done, self.cells):
                first, last = cells.starts[cell : cell + 2].tolist()
                mine = visits[ends[cell - 1] if cell else 0 : ends[cell]]
                squares[first:last] = copy[first:last].square().sum(1)
                for queries, begin, end in self._tiles(cells, mine, first, last):
                    _keep_nearest(near, far, copy, queries, begin, end, squares[begin:end])
                more(len(mine))
                if time.monotonic() - saved > SAVED:
                    state = np.array([cell + 1, 0]), near.numpy(), far.numpy(), squares.numpy()
                    self._save("found.npz", _Found(*state))
                    saved = time.monotonic()
        slots = np.full((len(self.vectors), self.k), -1, np.int32)
        distances = np.full((len(self.vectors), self.k), np.inf, np.float32)
        for begin in range(0, count, 1 << 15):  # in parts, which need little memory
            own = slice(begin, begin + (1 << 15))
            sorted_far, by_distance = (far[own] + squares[own, None]).clamp(min=0).sqrt().sort(1)
            positions = near[own].gather(1, by_distance).numpy()
            slots[cells.order[own]] = np.where(positions >= 0, cells.order[positions], -1)
            distances[cells.order[own]] = sorted_far.numpy()
        return _Found(np.array([self.cells, 1]), slots, distances, np.zeros(len(slots), np.float32))

    def _tiles(self, cells: _Cells, visits: np.ndarray, first: int, last: int) -> Iterator[tuple[Tensor, int, int]]:
        """Positions of queries, and the part of a cell to compare them with.

        That is all of it, unless it is huge, as of many equal images. Then it is those about as far from the centre.
        """
        if last - first > EXACT:
            own = cells.reach[first:last, 0]
            places = np.searchsorted(own, cells.reach.ravel()[visits]) + first
            by_place = places.argsort(kind="stable")
            visits, places = visits[by_place], places[by_place]
        for begin in range(0, len(visits) if last > first else 0, self.tile):
            part, window = visits[begin : begin + self.tile], (first, last)
            if last - first > EXACT:
                low, high = places[begin], places[begin + len(part) - 1]
                window = (max(first, int(low) - EXACT // 2), min(last, int(high) + EXACT // 2))
            yield torch.from_numpy(part // self.probes), *window


def _keep_nearest(
    near: Tensor, far: Tensor, copy: Tensor, queries: Tensor, begin: int, end: int, squares: Tensor
) -> None:
    """Put the vectors at begin to end into the nearest of the queries where they are nearer than those there."""
    found = torch.addmm(squares, copy[queries], copy[begin:end].T, alpha=-2)
    itself = queries - begin
    inside = ((itself >= 0) & (itself < end - begin)).nonzero()[:, 0]
    found[inside, itself[inside]] = torch.inf
    some = (found.amin(1) < far[queries].amax(1)).nonzero()[:, 0]
    queries = queries[some]
    values, indices = found[some].topk(min(far.shape[1], end - begin), dim=1, largest=False, sorted=False)
    indices = torch.where(values < torch.inf, indices + begin, -1).int()
    values, best = torch.cat([far[queries], values], 1).topk(far.shape[1], dim=1, largest=False, sorted=False)
    far[queries], near[queries] = values, torch.cat([near[queries], indices], 1).gather(1, best)


def _reserved(path: Path, shape: tuple[int, int]) -> np.memmap:
    """A new file as an array; its room on the disk is certain, since a mapped file on a full disk ends the process."""
    size = 4 * shape[0] * shape[1]
    with open(path, "wb") as file:
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            file.truncate(size)
        except OSError as error:
            path.unlink()
            reason = f"{error.strerror}: a copy of the vectors needs {size / 1e9:.1f} GB until the end"
            raise OSError(error.errno, reason, str(path)) from error
    return np.memmap(path, np.float32, "r+", shape=shape)


def _principal(sample: Tensor, count: int, random: torch.Generator) -> Tensor:
    """An orthonormal basis (dimensions, count) near that of the first principal components."""
    basis = torch.randn(sample.shape[1], count, generator=random)
    for _ in range(4):
        basis = torch.linalg.qr(sample.T @ (sample @ basis)).Q
    return basis


def _products(points: Tensor, centres: Tensor) -> Tensor:
    """Squared distances (points, centres), less the points' own squares."""
    return torch.addmm(centres.square().sum(1), points, centres.T, alpha=-2)


def _k_means(points: Tensor, count: int, random: torch.Generator, more: Callable[[int], None]) -> Tensor:
    """The centres (count, dimensions) of groups of points; an empty group begins again at a random point."""
    centres = points[torch.randperm(len(points), generator=random)[:count]]
    for _ in range(ROUNDS):
        group = torch.cat([_products(part, centres).argmin(1) for part in points.split(1024)])
        sizes = torch.bincount(group, minlength=count)
        empty = (sizes == 0).nonzero()[:, 0]
        centres = torch.zeros_like(centres).index_add_(0, group, points) / sizes.clamp(min=1)[:, None]
        centres[empty] = points[torch.randint(len(points), (len(empty),), generator=random)]
        more(count)
    return centres
