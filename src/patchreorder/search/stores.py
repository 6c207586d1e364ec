"""Stores find the vectors nearest to a query: by comparing all, by FAISS's graph (HNSW), or on a Qdrant server.

A store gives candidates. The index computes their exact distances and sorts them.
"""

from __future__ import annotations

import os
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import numpy as np
import torch
from torch import Tensor

from patchreorder.untrusted import clean

TOGETHER = 1 << 24  # distances in memory at a time
LINKS = 32  # of a vector in the graph
BUILD_WIDTH = 80  # HNSW's efConstruction
SEARCH_WIDTH = 128  # HNSW's efSearch
MORE = 16  # candidates beyond k: the graph rounds to half precision
SENT = 1_000_000  # numbers in a request to Qdrant, which takes 32 MB of text


class Store(Protocol):
    """Finds candidates for the nearest vectors of queries."""

    def candidates(self, queries: Tensor, k: int, alive: np.ndarray) -> list[np.ndarray]:
        """For each query (q, dimensions) the slots of candidates, of those that are alive (n,)."""


class Vectors:
    """Blocks of vectors as one table; a slot is a position in it. As a store it compares all vectors."""

    def __init__(self, blocks: Sequence[Tensor]) -> None:
        self.blocks = list(blocks)
        self.ends = np.cumsum([0, *map(len, self.blocks)])
        self.squares: list[Tensor] = []  # squared lengths

    def __len__(self) -> int:
        return int(self.ends[-1])

    def take(self, slots: np.ndarray) -> Tensor:
        """The vectors in these slots."""
        blocks = np.searchsorted(self.ends, slots, side="right") - 1
        rows = slots - self.ends[blocks]
        return torch.stack([self.blocks[block][row] for block, row in zip(blocks, rows, strict=True)])

    def distances(self, query: Tensor, slots: np.ndarray) -> np.ndarray:
        """Euclidean distances of a query to the vectors in these slots, in double precision."""
        parts = [slots[begin : begin + 1000] for begin in range(0, len(slots), 1000)]
        found = [(self.take(part).double() - query.double()).square().sum(1).sqrt().numpy() for part in parts]
        return np.concatenate(found) if found else np.empty(0)

    def slack(self, queries: Tensor) -> float:
        """The largest error that single precision makes in the difference of two squared distances."""
        if not self.squares:
            self.squares = [block.square().sum(1) for block in self.blocks]
        largest = max((float(squares.max()) for squares in self.squares if len(squares)), default=0.0)
        return 2.0**-22 * queries.shape[1] * (largest + float(queries.square().sum(1).max()))

    def candidates(self, queries: Tensor, k: int, alive: np.ndarray) -> list[np.ndarray]:
        """For each query its k nearest slots, all that are as near as the last of them, and perhaps more."""
        found: list[np.ndarray] = []
        usable = torch.from_numpy(alive)
        k = min(k, int(usable.sum()))
        if not k:
            return [np.empty(0, np.int64)] * len(queries)
        slack = self.slack(queries)
        for part in queries.split(max(1, TOGETHER // len(self))):
            squares = torch.full((len(part), len(self)), torch.inf)
            own = part.square().sum(1, keepdim=True)
            for begin, block, lengths in zip(self.ends[:-1], self.blocks, self.squares, strict=True):
                squares[:, begin : begin + len(block)] = own + lengths - 2 * (part @ block.T)
            squares[:, ~usable] = torch.inf
            last = squares.kthvalue(k, dim=1, keepdim=True).values
            found += [row.nonzero()[:, 0].numpy() for row in squares <= last + slack]
        return found


def need_faiss() -> Any:
    """FAISS, or an ImportError that says what to install."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its bindings
            import faiss
    except ImportError:
        raise ImportError("an index of this size needs faiss: pip install 'patchreorder[search]'") from None
    return faiss


class Graph:
    """FAISS's graph of the first blocks of vectors; the blocks after them are compared one by one."""

    def __init__(self, path: Path, vectors: Vectors, blocks: int) -> None:
        faiss = need_faiss()
        flags = getattr(faiss, "IO_FLAG_MMAP_IFC", 0)  # FAISS before 1.11 reads it into memory
        try:
            self.graph = faiss.read_index(str(path), flags)
        except RuntimeError as error:
            path.stat()  # FileNotFoundError if it was removed
            raise ValueError(f"{clean(str(path))} cannot be read by FAISS {faiss.__version__}: {error}") from None
        self.faiss = faiss
        self.tail = Vectors(vectors.blocks[blocks:])
        self.end = int(vectors.ends[blocks])
        if self.graph.ntotal != self.end:
            raise ValueError(f"{path} holds {self.graph.ntotal} vectors, expected {self.end}")

    def candidates(self, queries: Tensor, k: int, alive: np.ndarray) -> list[np.ndarray]:
        """For each query slots that nearly always include its k nearest."""
        self.faiss.omp_set_num_threads(torch.get_num_threads())
        bits = np.packbits(alive[: self.end], bitorder="little")
        width = min(k + MORE, self.end)
        parameters = self.faiss.SearchParametersHNSW(
            efSearch=max(SEARCH_WIDTH, 2 * width),
            **({} if alive[: self.end].all() else {"sel": self.faiss.IDSelectorBitmap(bits)}),
        )
        _, near = self.graph.search(np.ascontiguousarray(queries.numpy()), width, params=parameters)
        added = self.tail.candidates(queries, k, alive[self.end :])
        return [np.concatenate([row[row >= 0], self.end + late]) for row, late in zip(near, added, strict=True)]


def build_graph(
    path: Path, blocks: Sequence[Tensor], *, old: Path | None = None, skip: int = 0, more: Callable[[int], None]
) -> None:
    """Write a graph of these blocks of vectors, starting from an old one of the first `skip` blocks if there is one."""
    faiss = need_faiss()
    faiss.omp_set_num_threads(torch.get_num_threads())
    if old is None:
        # Half precision halves memory and disk; candidates are sorted by exact distances anyway.
        graph = faiss.IndexHNSWSQ(blocks[0].shape[1], faiss.ScalarQuantizer.QT_fp16, LINKS)
        graph.hnsw.efConstruction = BUILD_WIDTH
        skip = 0
    else:
        graph = faiss.read_index(str(old))
    for block in blocks[skip:]:
        graph.add(np.ascontiguousarray(block.numpy()))
        more(len(block))
    faiss.write_index(graph, str(path))


class Qdrant:
    """The vectors of an index in a collection of a Qdrant server, or of the client's in-process form in a folder.

    The identity of the index and the digest of the image make the id of a point. So a point that is sent twice is there
    once, and indexes can share a collection.

    Args:
        url: qdrant://HOST[:PORT]/COLLECTION, qdrants://... for TLS, or qdrant:///FOLDER for a local folder. The
            environment variable QDRANT_API_KEY is the server's key, if it needs one.
        identity, dimensions: of the index and its vectors.
        slots: of the digests in this state of the index; a search leaves out all others.
    """

    def __init__(self, url: str, *, identity: str, dimensions: int, slots: Mapping[str, int] | None = None) -> None:
        parts = urlsplit(url)
        self.url, self.identity, self.dimensions, self.slots = url, identity, dimensions, slots or {}
        self.collection = parts.path.strip("/") if parts.hostname else "patchreorder"
        if parts.scheme not in ("qdrant", "qdrants") or not parts.path.strip("/"):
            raise ValueError(
                f"store ({clean(url)}) must be qdrant://HOST[:PORT]/COLLECTION, or qdrant:///FOLDER on this machine"
            )
        try:
            from qdrant_client import QdrantClient, models
        except ImportError:
            raise ImportError(f"store ({clean(url)}) needs its client: pip install 'patchreorder[qdrant]'") from None
        self.models = models
        with self._named():
            if parts.hostname:
                self.client = QdrantClient(
                    host=parts.hostname,
                    port=parts.port or 6333,
                    https=parts.scheme == "qdrants",
                    api_key=os.environ.get("QDRANT_API_KEY"),
                    timeout=60,
                    check_compatibility=False,
                )
            else:
                self.client = QdrantClient(path=parts.path)
        self.own = models.Filter(must=[models.FieldCondition(key="index", match=models.MatchValue(value=identity))])

    def close(self) -> None:
        self.client.close()

    def count(self) -> int:
        """The number of vectors of this index; the collection is created if there is none."""
        with self._named():
            if not self.client.collection_exists(self.collection):
                shape = self.models.VectorParams(size=self.dimensions, distance=self.models.Distance.EUCLID)
                self.client.create_collection(self.collection, vectors_config=shape)
            return self.client.count(self.collection, count_filter=self.own, exact=True).count

    def put(self, digests: Sequence[str], vectors: Tensor) -> None:
        """Send vectors; those that are there already stay as they are."""
        step = max(1, SENT // self.dimensions)
        for begin in range(0, len(digests), step):
            part = slice(begin, begin + step)
            points = []
            for digest, vector in zip(digests[part], vectors[part].tolist(), strict=True):
                point, payload = (
                    uuid.uuid5(uuid.UUID(self.identity), digest),
                    {"index": self.identity, "digest": digest},
                )
                points.append(self.models.PointStruct(id=str(point), vector=vector, payload=payload))
            with self._named():
                self.client.upsert(self.collection, points=points, wait=True)

    def keep_only(self, digests: set[str]) -> None:
        """Remove all other vectors of this index."""
        if self.count() <= len(digests):
            return
        offset, others = None, []
        with self._named():
            while True:
                points, offset = self.client.scroll(
                    self.collection, scroll_filter=self.own, limit=1000, offset=offset, with_payload=["digest"]
                )
                others += [point.id for point in points if (point.payload or {}).get("digest") not in digests]
                if offset is None:
                    break
            for begin in range(0, len(others), 1000):
                self.client.delete(self.collection, points_selector=others[begin : begin + 1000], wait=True)

    def candidates(self, queries: Tensor, k: int, alive: np.ndarray) -> list[np.ndarray]:
        """For each query slots that nearly always include its k nearest; raises OSError if the store lacks vectors."""
        wanted, width = min(k, int(alive.sum())), k + MORE
        while True:
            requests = [
                self.models.QueryRequest(query=query, filter=self.own, limit=width, with_payload=["digest"])
                for query in queries.tolist()
            ]
            with self._named():
                answers = self.client.query_batch_points(self.collection, requests=requests)
            digests = [[str((point.payload or {}).get("digest")) for point in answer.points] for answer in answers]
            found = [[self.slots[digest] for digest in near if digest in self.slots] for near in digests]
            if all(len(slots) >= wanted for slots in found):
                return [np.array(slots, np.int64) for slots in found]
            if all(len(near) < width for near in digests):
                raise OSError(
                    f"the store {clean(self.url)} lacks vectors of this index: run `patchreorder index` again"
                )
            width *= 4

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Turn the many kinds of errors of the client into an OSError that names the store."""
        try:
            yield
        except Exception as error:
            reason = " ".join(clean(str(error)).split())[:240] or type(error).__name__
            raise OSError(
                f"the store {clean(self.url)} failed ({reason}): is it running, and is the name right?"
            ) from error
