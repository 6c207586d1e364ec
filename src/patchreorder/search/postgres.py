"""A store of vectors in a PostgreSQL database with pgvector."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import numpy as np
import torch
from torch import Tensor

from patchreorder.untrusted import clean

from .stores import BUILD_WIDTH, LINKS, MORE, SEARCH_WIDTH, Files, received, sendable, without_password

INDEXED = 10_000  # vectors above which the server builds a graph (HNSW)
WIDEST = 1000  # pgvector's largest hnsw.ef_search
LONGEST, LONGEST_INDEXED = 16_000, 2000  # dimensions that pgvector takes, and that it builds a graph of
SENT = 4_000_000  # numbers in a transaction
PATIENCE = 120.0  # seconds to wait for a server that restarts
_PASSING = {"08", "40", "57"}  # classes of errors that pass: connection lost, deadlock, shutdown
T = TypeVar("T")


class Postgres:
    """The vectors of an index in a table of a PostgreSQL database with the extension pgvector.

    The table is the index's own, named by its identity. A server that is restarted is waited for.

    Args:
        url: postgresql://[USER@]HOST[:PORT]/DATABASE, as libpq takes it. Give the password by PGPASSWORD or ~/.pgpass.
        identity, dimensions: of the index and its vectors.
        slots: of the digests in this state of the index; a search leaves out all others.
        say: told when the server does not respond.
    """

    def __init__(
        self,
        url: str,
        *,
        identity: str,
        dimensions: int,
        slots: Mapping[str, int] | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        shown, self.secrets = without_password(url)
        self.url, self.shown, self.dimensions, self.slots, self.say = url, clean(shown), dimensions, slots or {}, say
        if not urlsplit(url).path.strip("/"):
            raise ValueError(f"store ({self.shown}) must be postgresql://[USER@]HOST[:PORT]/DATABASE")
        if dimensions > LONGEST:
            raise ValueError(
                f"store ({self.shown}) takes vectors of at most {LONGEST} dimensions, not {dimensions}: "
                "choose a shorter --model or another --store"
            )
        try:
            import psycopg
            from pgvector.psycopg import register_vector
            from psycopg.types.json import Jsonb
        except ImportError:
            raise ImportError(f"store ({self.shown}) needs its client: pip install 'patchreorder[postgres]'") from None
        self.psycopg, self.register, self.json = psycopg, register_vector, Jsonb
        self.table = f"patchreorder_{identity}"  # 32 hexadecimal digits
        self.connection: Any = None
        try:
            self._connect()
        except psycopg.Error as error:
            self._fail(error)

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()

    def count(self) -> int:
        """The number of vectors; the table is made if there is none."""
        return int(self._run(self._rows, f"SELECT count(*) FROM {self.table}", ())[0][0])

    def put(self, digests: Sequence[str], vectors: Tensor, files: Sequence[Files]) -> None:
        """Add vectors in few transactions; those that are there stay, and get these files too."""
        rows = sorted(zip(digests, vectors.numpy(), map(sendable, files), strict=True), key=lambda row: row[0])
        step = max(1, SENT // self.dimensions)
        for begin in range(0, len(rows), step):
            self._run(self._put, rows[begin : begin + step])

    def _put(self, connection: Any, rows: Sequence[tuple[str, np.ndarray, Files]]) -> None:
        with connection.transaction():
            connection.execute(
                "CREATE TEMP TABLE IF NOT EXISTS sent (digest text, vector vector, files jsonb) ON COMMIT DELETE ROWS"
            )
            with connection.cursor().copy("COPY sent FROM STDIN (FORMAT BINARY)") as copy:
                copy.set_types(["text", "vector", "jsonb"])
                for digest, vector, files in rows:
                    copy.write_row((digest, vector, self.json(files)))
            # Sorted, so that several writers wait for each other instead of blocking each other.
            connection.execute(
                f"INSERT INTO {self.table} AS held SELECT DISTINCT ON (digest) * FROM sent ORDER BY digest "
                "ON CONFLICT (digest) DO UPDATE SET files = held.files || excluded.files "
                "WHERE NOT held.files @> excluded.files"
            )

    def listed(self) -> Iterator[tuple[str, Files]]:
        """All digests, and the files of each."""
        last = ""
        query = f"SELECT digest, files FROM {self.table} WHERE digest > %s ORDER BY digest LIMIT 10000"
        while True:
            rows = self._run(self._rows, query, (last,))
            yield from ((digest, received(files)) for digest, files in rows)
            if not rows:
                return
            last = rows[-1][0]

    def fetch(self, digests: Sequence[str]) -> dict[str, Tensor]:
        """The vectors of these digests; those that are not there are left out."""
        found: dict[str, Tensor] = {}
        query = f"SELECT digest, vector FROM {self.table} WHERE digest = ANY(%s)"
        step = max(1, SENT // self.dimensions)
        for begin in range(0, len(digests), step):
            rows = self._run(self._rows, query, ([*digests[begin : begin + step]],))
            found |= {digest: torch.tensor(vector.to_numpy(), dtype=torch.float32) for digest, vector in rows}
        return found

    def keep_only(self, digests: set[str]) -> None:
        """Remove all other vectors of this index."""
        if self.count() > len(digests):
            self._run(self._keep_only, digests)

    def _keep_only(self, connection: Any, digests: set[str]) -> None:
        with connection.transaction():
            connection.execute("CREATE TEMP TABLE kept (digest text PRIMARY KEY) ON COMMIT DROP")
            with connection.cursor().copy("COPY kept FROM STDIN") as copy:
                for digest in digests:
                    copy.write_row((digest,))
            connection.execute(
                f"DELETE FROM {self.table} AS held WHERE NOT EXISTS (SELECT FROM kept WHERE kept.digest = held.digest)"
            )

    def finish(self) -> None:
        """Build the graph (HNSW) if there are many vectors; later ones are added to it as they come."""
        if self.dimensions <= LONGEST_INDEXED and self.count() > INDEXED:
            self._run(self._build)

    def _build(self, connection: Any) -> None:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (self.table,))
            connection.execute(
                f"CREATE INDEX IF NOT EXISTS {self.table}_near ON {self.table} USING hnsw (vector vector_l2_ops) "
                f"WITH (m = {LINKS}, ef_construction = {BUILD_WIDTH})"
            )
        connection.execute(f"ANALYZE {self.table}")

    def candidates(self, queries: Tensor, k: int, alive: np.ndarray) -> list[np.ndarray]:
        """For each query slots that nearly always include its k nearest; raises OSError if the store lacks vectors."""
        wanted, width, exact = min(k, int(alive.sum())), k + MORE, False
        while True:
            digests = self._run(self._near, queries, width, exact)
            found = [[self.slots[digest] for digest in near if digest in self.slots] for near in digests]
            if all(len(slots) >= wanted for slots in found):
                return [np.array(slots, np.int64) for slots in found]
            if exact and all(len(near) < width for near in digests):
                raise OSError(f"the store {self.shown} lacks vectors of this index: run `patchreorder index` again")
            exact = exact or any(len(near) < width for near in digests)  # the graph found no more
            width *= 4

    def _near(self, connection: Any, queries: Tensor, width: int, exact: bool) -> list[list[str]]:
        """The digests of the nearest vectors of each query, in one round trip."""
        with connection.transaction(), connection.pipeline():
            if exact or 2 * width > WIDEST:
                connection.execute("SET LOCAL enable_indexscan = off")
            else:
                connection.execute(f"SET LOCAL hnsw.ef_search = {max(SEARCH_WIDTH, 2 * width)}")
            query = f"SELECT digest FROM {self.table} ORDER BY vector <-> %b LIMIT {width}"
            cursors = [connection.execute(query, (vector,)) for vector in queries.numpy()]
            return [[digest for (digest,) in cursor.fetchall()] for cursor in cursors]

    # ---- the connection ----

    def _connect(self) -> None:
        """Connect, and make what is needed in the database."""
        self.close()
        self.connection = self.psycopg.connect(
            self.url, autocommit=True, connect_timeout=10, fallback_application_name="patchreorder"
        )
        with self.connection.transaction():
            self.connection.execute(
                "SELECT pg_advisory_xact_lock(hashtext('patchreorder'))"
            )  # several may begin at once
            self.connection.execute("SET LOCAL client_min_messages = warning")
            self.connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            self.connection.execute(
                f"CREATE TABLE IF NOT EXISTS {self.table} "
                f"(digest text PRIMARY KEY, vector vector({self.dimensions}) NOT NULL, files jsonb NOT NULL)"
            )
        self.register(self.connection)

    def _rows(self, connection: Any, query: str, values: Sequence[Any]) -> list[Any]:
        return connection.execute(query, values, binary=True).fetchall()

    def _run(self, work: Callable[..., T], *given: Any) -> T:
        """Do something that can be repeated; if the server is restarted meanwhile, wait and do it again."""
        deadline, pause = None, 0.1
        while True:
            try:
                if self.connection.closed:
                    self._connect()
                return work(self.connection, *given)
            except self.psycopg.Error as error:
                passing = (error.sqlstate or "08")[:2] in _PASSING and isinstance(error, self.psycopg.OperationalError)
                now = time.monotonic()
                if deadline is None:
                    deadline = now + PATIENCE
                    if passing:
                        self.say(f"the store {self.shown} does not respond ({self._reason(error)}): trying again")
                if not passing or now > deadline:
                    self._fail(error)
                time.sleep(pause)
                pause = min(5.0, 2 * pause)

    def _reason(self, error: Exception) -> str:
        """The error's message, on one line and without a password."""
        text = str(error)
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return " ".join(clean(text).split())[:240] or type(error).__name__

    def _fail(self, error: Exception) -> NoReturn:
        reason = self._reason(error)
        advice = "is it running, and is the name right?"
        if getattr(error, "sqlstate", None) == "53100" or "No space left" in reason:
            advice = "its disk is full; make room, then run the same command again: what is finished is kept"
        elif "password" in reason or "authentication" in reason:
            advice = "set PGPASSWORD, or add a line to ~/.pgpass"
        raise OSError(f"the store {self.shown} failed ({reason}): {advice}") from None
