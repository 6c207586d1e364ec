"""Stores find the vectors nearest to a query: by comparing all, by FAISS's graph (HNSW), or on a server.

A store gives candidates. The index computes their exact distances and sorts them. A shared store also takes vectors
from many machines (postgres.py, qdrant.py).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit, urlunsplit

import numpy as np
import torch
from torch import Tensor

from patchreorder.untrusted import clean, is_count

TOGETHER = 1 << 24  # distances in memory at a time
LINKS = 32  # of a vector in the graph
BUILD_WIDTH = 80  # HNSW's efConstruction
SEARCH_WIDTH = 128  # HNSW's efSearch
MORE = 16  # candidates beyond k: the graph rounds to half precision
Files = dict[str, tuple[int, int]]  # names -> size and modification time


class Store(Protocol):
    """Finds candidates for the nearest vectors of queries."""

    def candidates(self, queries: Tensor, k: int, alive: np.ndarray) -> list[np.ndarray]:
        """For each query (q, dimensions) the slots of candidates, of those that are alive (n,)."""


class SharedStore(Store, Protocol):
    """A server that holds vectors of an index by the digest of their images, for any number of machines.

    All methods raise OSError if it does not respond or refuses; the message names it, without a password. A vector that
    is put twice is there once. Beside each are the files that hold the image, as far as the store knows: their names,
    with size and modification time.
    """

    def count(self) -> int:
        """The number of vectors; what is needed on the server is made first."""

    def put(self, digests: Sequence[str], vectors: Tensor, files: Sequence[Files]) -> None:
        """Add vectors (n, dimensions); those that are there stay. What this returns from is on the server's disk."""

    def listed(self) -> Iterator[tuple[str, Files]]:
        """All digests, and the files of each."""

    def fetch(self, digests: Sequence[str]) -> dict[str, Tensor]:
        """The vectors of these digests, as they were put; those that are not there are left out."""

    def keep_only(self, digests: set[str]) -> None:
        """Remove all other vectors of this index."""

    def finish(self) -> None:
        """Prepare searches, after many vectors were put."""

    def close(self) -> None:
        """End the connection."""


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


def without_password(url: str) -> tuple[str, list[str]]:
    """The URL of a store without its password, and what must not be shown; raises ValueError if that is not certain.

    >>> without_password("postgresql://me:s%20cret@host/db?password=other&sslmode=require")
    ('postgresql://me@host/db?sslmode=require', ['s%20cret', 's cret', 'other'])
    """
    parts = urlsplit(url)
    if "@" not in parts.netloc and ":" in parts.netloc and "@" in url:  # a password with one of these letters
        raise ValueError(
            f"store ({clean(parts.scheme)}://...) must have %40, %2F, %3F and %23 for @, /, ? and # in names"
        )
    user, _, host = parts.netloc.rpartition("@")
    name, _, password = user.partition(":")
    options = [option.partition("=") for option in parts.query.split("&") if option]
    secrets = [password, *(value for key, _, value in options if key.lower().endswith("password"))]
    kept = "&".join("".join(option) for option in options if not option[0].lower().endswith("password"))
    shown = urlunsplit((parts.scheme, f"{name}@{host}" if name else host, parts.path, kept, ""))
    if parts.path.startswith("/") and not parts.netloc:
        shown = f"{parts.scheme}://{parts.path}{'?' if kept else ''}{kept}"  # which urlunsplit shortens
    return shown, [*dict.fromkeys(each for secret in secrets for each in (secret, unquote(secret)) if each)]


def sendable(files: Files) -> Files:
    """Those files whose names are valid text; a server takes no others. They are read again where they are needed."""
    return {name: stat for name, stat in files.items() if not any("\ud800" <= letter <= "\udfff" for letter in name)}


def received(files: Any) -> Files:
    """Files as a server gave them, without what cannot be one."""
    if not isinstance(files, dict):
        return {}
    return {
        name: (stat[0], stat[1])
        for name, stat in files.items()
        if isinstance(stat, list | tuple) and len(stat) == 2 and all(map(is_count, stat))
    }


def open_store(
    url: str,
    *,
    identity: str,
    dimensions: int,
    slots: Mapping[str, int] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> SharedStore:
    """The store with this URL.

    Args:
        url: postgresql://[USER@]HOST[:PORT]/DATABASE, qdrant://HOST[:PORT]/COLLECTION (see `Postgres` and `Qdrant`).
        identity, dimensions: of the index and its vectors.
        slots: of the digests in this state of the index; a search leaves out all others.
        say: told when a server does not respond for a while.

    Raises:
        ValueError: no kind of store has such a URL.
        ImportError: its client is not installed.
        OSError: it does not respond, or refuses.
    """
    scheme = urlsplit(url).scheme
    if scheme in ("postgresql", "postgres"):
        from .postgres import Postgres

        return Postgres(url, identity=identity, dimensions=dimensions, slots=slots, say=say)
    if scheme in ("qdrant", "qdrants"):
        from .qdrant import Qdrant

        return Qdrant(url, identity=identity, dimensions=dimensions, slots=slots)
    shown = clean(without_password(url)[0])
    raise ValueError(
        f"store ({shown}) must be postgresql://[USER@]HOST[:PORT]/DATABASE, qdrant://HOST[:PORT]/COLLECTION, "
        "qdrant:///FOLDER on this machine, or local"
    )
