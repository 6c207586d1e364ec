"""An index on the disk, opened to search for vectors."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from patchreorder.untrusted import clean

from .manifest import Damaged, Manifest, left_over, read_vectors, verify
from .stores import Graph, Store, Vectors, open_store


class Hit(NamedTuple):
    """An image and its distance, from a query or from the nearest other image."""

    distance: float
    name: str  # in the folder of the images
    pose: str = ""  # of the query that found it, in words; "" is upright
    relation: str = ""  # what it is to the query, in words; "" if they were not compared


class Index:
    """An index as it is when it is opened; later updates do not change its results.

    Raises:
        ValueError: the folder holds no finished index.
        Damaged: a file of it is damaged (its checksum is wrong) or missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.manifest = _read_manifest(self.folder)
        while True:
            try:
                self._open()
                break
            except FileNotFoundError as error:
                before, self.manifest = self.manifest, _read_manifest(self.folder)
                if before == self.manifest:  # else an update removed the file after the manifest was read
                    raise Damaged(Path(error.filename or self.folder), "is missing") from None

    def _open(self) -> None:
        manifest = self.manifest
        self.vectors = Vectors([read_vectors(self.folder / name) for name in manifest.chunks])
        slots = np.array(manifest.slots, dtype=np.int64)
        self.alive = np.zeros(len(self.vectors), dtype=bool)  # slots that files have; the others are of removed images
        self.alive[slots[slots >= 0]] = True
        self._by_slot = np.argsort(slots, kind="stable")  # files in the order of their slots, then by name
        self._sorted = slots[self._by_slot]
        self._graph: Graph | None = None
        if manifest.graph and not manifest.store:
            verify(self.folder / manifest.graph)
            self._graph = Graph(self.folder / manifest.graph, self.vectors, manifest.graphed)

    @cached_property
    def store(self) -> Store:
        """Finds candidates; a server is connected to when it is first needed."""
        manifest = self.manifest
        if not manifest.store:
            return self._graph or self.vectors
        files = zip(manifest.files, manifest.slots, strict=True)
        return open_store(
            manifest.store,
            identity=manifest.identity,
            dimensions=manifest.maker.dimensions,
            slots={file.digest: slot for file, slot in files if slot >= 0},
        )

    def close(self) -> None:
        """End the connection to a server; the next search makes a new one."""
        store = vars(self).pop("store", None)
        if self.manifest.store and store is not None:
            store.close()

    def __len__(self) -> int:
        """The number of images that can be found."""
        return int((self._sorted >= 0).sum())

    @property
    def root(self) -> Path:
        """The folder of the images."""
        return Path(self.manifest.root)

    def names_of(self, slot: int) -> list[str]:
        """The files with the image of this slot, by name."""
        begin, end = np.searchsorted(self._sorted, [slot, slot + 1])
        return [self.manifest.files[file].name for file in self._by_slot[begin:end]]

    def search(self, queries: Tensor, k: int = 4) -> list[list[Hit]]:
        """The k nearest images of each query (q, dimensions), nearest first, at equal distances by name.

        With fewer than k images, all of them.

        Raises:
            ValueError: k is less than 1, or the queries have another shape or are not finite.
        """
        if k < 1:
            raise ValueError(f"k ({k}) must be 1 or more")
        dimensions = self.manifest.maker.dimensions
        if queries.dim() != 2 or queries.shape[1] != dimensions:
            raise ValueError(f"queries {tuple(queries.shape)} must be (q, {dimensions}), as the index's vectors")
        if not queries.isfinite().all():
            raise ValueError("queries must be finite numbers")
        if not len(queries) or not self.alive.any():
            return [[] for _ in queries]
        found = []
        queries = queries.float()
        for query, slots in zip(queries, self.store.candidates(queries, k, self.alive), strict=True):
            near = zip(slots, self.vectors.distances(query, slots).tolist(), strict=True)
            found.append(sorted(Hit(distance, name) for slot, distance in near for name in self.names_of(slot))[:k])
        return found


def _read_manifest(folder: Path) -> Manifest:
    try:
        return Manifest.read(folder)
    except (FileNotFoundError, NotADirectoryError):
        shown = clean(str(folder))
    if folder.is_dir() and left_over(folder, None):
        raise ValueError(f"{shown} is not finished: run the same `patchreorder index` again, it continues from there")
    raise ValueError(f"{shown} is not an index: `patchreorder index DIR --out {shown}` makes one of the images in DIR")
