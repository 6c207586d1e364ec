"""A store of vectors on a Qdrant server or cluster, or in the client's own process."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch
from torch import Tensor

from patchreorder.untrusted import clean

from .stores import MORE, Files, received, sendable, without_password

SENT = 1_000_000  # numbers in a request to Qdrant, which takes 32 MB of text


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
        self.shown = clean(without_password(url)[0])
        self.identity, self.dimensions, self.slots = identity, dimensions, slots or {}
        self.collection = parts.path.strip("/") if parts.hostname else "patchreorder"
        if parts.scheme not in ("qdrant", "qdrants") or not parts.path.strip("/"):
            raise ValueError(
                f"store ({self.shown}) must be qdrant://HOST[:PORT]/COLLECTION, or qdrant:///FOLDER on this machine"
            )
        try:
            from qdrant_client import QdrantClient, models
        except ImportError:
            raise ImportError(f"store ({self.shown}) needs its client: pip install 'patchreorder[qdrant]'") from None
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
                try:
                    self.client.create_collection(self.collection, vectors_config=shape)
                except Exception:
                    if not self.client.collection_exists(self.collection):  # another machine was faster
                        raise
            return self.client.count(self.collection, count_filter=self.own, exact=True).count

    def put(self, digests: Sequence[str], vectors: Tensor, files: Sequence[Files]) -> None:
        """Send vectors; those that are there get these files."""
        step = max(1, SENT // self.dimensions)
        for begin in range(0, len(digests), step):
            part = slice(begin, begin + step)
            points = []
            for digest, vector, held in zip(digests[part], vectors[part].tolist(), files[part], strict=True):
                payload = {"index": self.identity, "digest": digest, "files": sendable(held)}
                points.append(self.models.PointStruct(id=self._id(digest), vector=vector, payload=payload))
            with self._named():
                self.client.upsert(self.collection, points=points, wait=True)

    def listed(self) -> Iterator[tuple[str, Files]]:
        """All digests, and the files of each."""
        offset = None
        while True:
            with self._named():
                points, offset = self.client.scroll(
                    self.collection, scroll_filter=self.own, limit=1000, offset=offset, with_payload=["digest", "files"]
                )
            for point in points:
                payload = point.payload or {}
                yield str(payload.get("digest")), received(payload.get("files"))
            if offset is None:
                return

    def fetch(self, digests: Sequence[str]) -> dict[str, Tensor]:
        """The vectors of these digests; those that are not there are left out."""
        found: dict[str, Tensor] = {}
        step = max(1, SENT // self.dimensions)
        for begin in range(0, len(digests), step):
            ids = {self._id(digest): digest for digest in digests[begin : begin + step]}
            with self._named():
                points = self.client.retrieve(self.collection, ids=[*ids], with_vectors=True, with_payload=False)
            found |= {ids[str(point.id)]: torch.tensor(point.vector, dtype=torch.float32) for point in points}
        return found

    def finish(self) -> None:
        """Nothing to do: the server builds its graph by itself."""

    def _id(self, digest: str) -> str:
        return str(uuid.uuid5(uuid.UUID(self.identity), digest))

    def keep_only(self, digests: set[str]) -> None:
        """Remove all other vectors of this index."""
        if self.count() <= len(digests):
            return
        others: list[Any] = [self._id(digest) for digest, _ in self.listed() if digest not in digests]
        with self._named():
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
                raise OSError(f"the store {self.shown} lacks vectors of this index: run `patchreorder index` again")
            width *= 4

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Turn the many kinds of errors of the client into an OSError that names the store."""
        try:
            yield
        except Exception as error:
            reason = " ".join(clean(str(error)).split())[:240] or type(error).__name__
            raise OSError(f"the store {self.shown} failed ({reason}): is it running, and is the name right?") from error
