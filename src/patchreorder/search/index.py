"""An index of a folder of pictures: made, brought up to date, repaired; and asked.

`update` reads only what is new or has changed, and may be killed at any moment: finished chunks are used by the next
call, and the index stays what it was until the new manifest is there. Removed pictures are left out of answers; their
vectors are removed once they are a quarter of all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from patchreorder.data.loader import parallel_map
from patchreorder.data.poses import Pose
from patchreorder.engine.progress import Screen
from patchreorder.files import sync_folder, try_lock
from patchreorder.untrusted import clean

from .images import POSES, Descriptor, File, Reader, described, fault, listed, pose_name
from .manifest import (
    MANIFEST,
    Chunk,
    Damaged,
    Maker,
    Manifest,
    checksum,
    is_empty,
    left_over,
    read_chunk,
    read_vectors,
    verify,
    write_chunk,
)
from .stores import Graph, Qdrant, Remote, Vectors, build_graph, need_faiss

CHUNK = 500  # vectors of a chunk: what a killed process has to do again at the most
LARGE = 100_000  # pictures beyond which a graph answers
ADDED = 10_000  # vectors beside the graph, or a tenth of it, until it takes them in
MASKED = 0.25  # the part of the vectors that may be of removed pictures
LOCAL = "local"  # the store that needs no server
_SILENT = Screen()


class Hit(NamedTuple):
    """A picture that answers a query."""

    distance: float
    name: str  # in the folder of the index
    pose: str = ""  # the one of the query that found it, in words; "" is upright


class Answer(NamedTuple):
    """What is near a picture that was asked about."""

    query: str
    hits: list[Hit]


@dataclass(frozen=True, kw_only=True)
class Updated:
    """What `update` did."""

    images: int  # in the index now
    described: int  # new vectors
    removed: int  # files that were in it, and are no more
    unreadable: list[File]
    ignored: list[str]
    changed: bool


class _Store(Protocol):
    def candidates(self, queries: Tensor, k: int, alive: np.ndarray) -> list[np.ndarray]: ...


# ---- making ----------------------------------------------------------------------------------------


def update(
    folder: Path,
    out: Path,
    model: Descriptor,
    *,
    fingerprint: str,
    weights: Path | None = None,
    store: str | None = None,
    workers: int = 0,
    batch: int = 32,
    screen: Screen = _SILENT,
) -> Updated:
    """Make an index of the pictures in a folder and the folders in it, or bring it up to date.

    Args:
        folder: holds the pictures; they are only read.
        out: the folder of the index.
        model: describes pictures.
        fingerprint: of its weights.
        weights: the file they are from, noted for who asks.
        store: `local`, or where the vectors are searched (see `Qdrant`); by default as before.
        workers: processes that read and decode.
        batch: pictures that are described at a time.
        screen: shows what is done.

    Raises:
        ValueError: if the folder holds no picture; if `out` holds something else, or an index of another folder or
            another descriptor; if another process is at it.
        ImportError: if so many pictures, or the store, need a package that is not there.
    """
    root, out = folder.resolve(), out.absolute()
    maker = Maker(model.name, fingerprint, model.dimensions)
    if workers < 0:
        raise ValueError(f"workers ({workers}) must be 0 (decode in this process) or more")
    if not root.is_dir():
        raise ValueError(f"{clean(str(folder))} is no folder")
    pictures, ignored = listed(root, leave=out)
    if not pictures:
        _refuse_empty(folder, out, _read_old(out, _SILENT))
    with _alone(out):
        old = _read_old(out, screen)
        if old is not None:
            _check_same(old, out, maker=maker, root=root)
        where = store or (old.store if old else None) or LOCAL
        if len(pictures) > LARGE and where == LOCAL:
            need_faiss()  # before the work, not after it
        chunks = _sound_chunks(out, maker, old, screen)
        manifest = Manifest(
            maker=maker,
            root=str(root),
            identity=old.identity if old else blake2b(os.fsencode(f"{maker}{out}"), digest_size=16).hexdigest(),
            weights=str(weights.resolve()) if weights else old.weights if old else None,
            store=None if where == LOCAL else where,
        )
        remote = _remote(manifest)
        with contextlib.closing(remote) if remote else contextlib.nullcontext():
            same, waiting = _sorted_out(pictures, chunks, old)
            parts = [waiting[begin : begin + batch] for begin in range(0, len(waiting), batch)]
            batches = parallel_map(Reader(root), parts, workers=workers)
            others, new = _described(batches, out, model, maker, chunks, _count(screen, "describing", len(waiting)))
            files = sorted([*same, *others])
            manifest, chunks = _arranged(manifest, out, files, chunks, old, screen)
            if remote:
                _send(remote, manifest, chunks, old, screen)
            if manifest != old:
                manifest.write(out)
            final = _with_graph(manifest, out, chunks, screen) if not remote else manifest
            if remote:
                remote.keep_only({file.digest for file in files if not file.reason})
        for path in left_over(
            out, final
        ):  # last: readers of the old manifest find its files until the new one is there
            path.unlink()
    names = {name for name, _, _ in pictures}
    return Updated(
        images=sum(not file.reason for file in files),
        described=new,
        removed=sum(file.name not in names for file in old.files) if old else 0,
        unreadable=[file for file in files if file.reason],
        ignored=ignored,
        changed=final != old,
    )


def _count(screen: Screen, title: str, total: int) -> Callable[[int], None]:
    return screen.count(title, total) if total else lambda more: None  # no bar for nothing


@contextlib.contextmanager
def _alone(out: Path) -> Iterator[None]:
    if out.exists() and not out.is_dir():
        raise ValueError(f"out ({clean(str(out))}) must be a folder")
    if not (out / MANIFEST).exists() and not is_empty(out):
        raise ValueError(f"out ({clean(str(out))}) holds something else: name a new folder for the index")
    handle = try_lock(out / ".lock")
    if handle is None:
        raise ValueError(f"another process is writing {clean(str(out))}: wait until it is done, then run this again")
    try:
        yield
    finally:
        os.close(handle)


def _read_old(out: Path, screen: Screen) -> Manifest | None:
    try:
        return Manifest.read(out)
    except FileNotFoundError:
        return None
    except Damaged:
        screen.say(f"{clean(str(out / MANIFEST))} is damaged: it is made anew from the chunks")
        return None


def _check_same(old: Manifest, out: Path, *, maker: Maker, root: Path) -> None:
    if old.maker != maker:
        raise ValueError(f"{clean(str(out))} was made with {old.maker}, not with {maker}: name another --out for that")
    if old.root != str(root) and Path(old.root).is_dir():
        raise ValueError(
            f"{clean(str(out))} is an index of {clean(old.root)}, which is still there, not of {clean(str(root))}: "
            "name another --out for that"
        )


def _refuse_empty(folder: Path, out: Path, old: Manifest | None) -> None:
    held = sum(slot >= 0 for slot in old.slots) if old else 0
    if held:
        raise ValueError(
            f"{clean(str(folder))} holds no picture any more, the index {held}: is its disk there? If they are "
            f"gone for good, remove {clean(str(out))}"
        )
    raise ValueError(f"{clean(str(folder))} holds no picture, nor does a folder in it: nothing to make an index of")


def _sound_chunks(out: Path, maker: Maker, old: Manifest | None, screen: Screen) -> list[Chunk]:
    """The chunks of the index in their order, then those of a process that was stopped; damaged ones are left out."""
    named = old.chunks if old else []
    others = [path.name for path in left_over(out, old) if path.name.endswith(".safetensors")]
    chunks = []
    names = [*named, *(name for name in others if not name.startswith("."))]
    more = _count(screen, "checking", len(names))
    for name in names:
        try:
            chunks.append(read_chunk(out / name, maker=maker))
        except FileNotFoundError:
            screen.say(f"{clean(str(out / name))} is gone: its pictures are described again")
        except Damaged:
            screen.say(f"{clean(str(out / name))} is damaged: its pictures are described again")
        more(1)
    return chunks


def _sorted_out(
    pictures: Sequence[tuple[str, int, int]], chunks: Sequence[Chunk], old: Manifest | None
) -> tuple[list[File], list[str]]:
    """The files that are as they were, and the names of those that have to be read."""
    there = {digest for chunk in chunks for digest in chunk.digests}
    known = {file.known_by: file for chunk in chunks for file in chunk.files}
    known |= {file.known_by: file for file in (old.files if old else ())}
    same, waiting = [], []
    for picture in pictures:
        file = known.get(picture)
        if file is not None and (file.reason or file.digest in there):
            same.append(file)
        else:
            waiting.append(picture[0])
    return same, waiting


def _described(
    batches: Iterable[tuple[list[File], Tensor]],
    out: Path,
    model: Descriptor,
    maker: Maker,
    chunks: list[Chunk],
    more: Callable[[int], None],
) -> tuple[list[File], int]:
    """The files of these batches, and how many vectors were made of them; new chunks are appended to `chunks`."""
    there = {digest for chunk in chunks for digest in chunk.digests}
    files: list[File] = []
    new = begun = 0  # vectors made, and files that stand in chunks
    waiting: dict[str, Tensor] = {}  # vectors that stand in none yet, by digest

    def flush() -> None:
        if waiting:
            vectors, own = torch.stack([*waiting.values()]), files[begun:]
            chunks.append(write_chunk(out, maker, vectors=vectors, digests=[*waiting], files=own))

    model.eval()
    for found, images in batches:
        fresh: dict[str, int] = {}  # contents that have no vector: where their picture is
        for place, file in enumerate(file for file in found if not file.reason):
            if file.digest not in there:
                fresh.setdefault(file.digest, place)
        made = dict(zip(fresh, described(model, images[[*fresh.values()]]), strict=True))
        faults = {digest: reason for digest, vector in made.items() if (reason := fault(vector))}
        for file in found:
            if file.digest in faults:
                file = file._replace(reason=f"{clean(file.name)} is left out: {faults[file.digest]}")
            files.append(file)
        sound = {digest: vector for digest, vector in made.items() if digest not in faults}
        waiting |= sound
        there |= sound.keys()
        new += len(sound)
        if len(waiting) >= CHUNK:
            flush()
            waiting, begun = {}, len(files)
        more(len(found))
    flush()
    return files, new


def _arranged(
    manifest: Manifest, out: Path, files: list[File], chunks: list[Chunk], old: Manifest | None, screen: Screen
) -> tuple[Manifest, list[Chunk]]:
    """The manifest of these files, and its chunks: as they are, or written anew without what is not needed."""
    live = {file.digest for file in files if not file.reason}
    named = set(old.chunks) if old else set()
    place: dict[str, int] = {}
    kept: list[Chunk] = []
    end = 0
    for chunk in chunks:
        mine = [digest in live and digest not in place for digest in chunk.digests]
        if chunk.name not in named and not any(mine):
            continue  # of a process that was stopped, and of no use
        place |= {digest: end + row for row, digest in enumerate(chunk.digests) if mine[row]}
        kept.append(chunk)
        end += len(chunk.digests)
    masked, few = end - len(place), -(-len(place) // CHUNK)
    if (masked and masked >= MASKED * end) or len(kept) > 2 * few + 16:
        kept = _rewritten(manifest.maker, out, files, kept, place, screen)
        place = {digest: slot for slot, digest in enumerate(digest for chunk in kept for digest in chunk.digests)}
    names = [chunk.name for chunk in kept]
    arranged = dataclasses.replace(
        manifest,
        chunks=names,
        rows=[len(chunk.digests) for chunk in kept],
        files=files,
        slots=[-1 if file.reason else place[file.digest] for file in files],
    )
    if old and old.graph and not manifest.store and old.chunks[: old.graphed] == names[: old.graphed]:
        try:
            verify(out / old.graph)
            arranged = dataclasses.replace(arranged, graph=old.graph, graphed=old.graphed)
        except (FileNotFoundError, Damaged):
            screen.say(f"{clean(str(out / old.graph))} is damaged or gone: it is made anew")
    return arranged, kept


def _rewritten(
    maker: Maker, out: Path, files: Iterable[File], chunks: Sequence[Chunk], place: dict[str, int], screen: Screen
) -> list[Chunk]:
    """Full chunks with the vectors of these slots only."""
    by_digest: dict[str, list[File]] = {}
    for file in files:
        by_digest.setdefault(file.digest, []).append(file)
    vectors = Vectors([chunk.vectors for chunk in chunks])
    digests = sorted(place, key=place.__getitem__)
    written = []
    more = _count(screen, "removing what is gone", len(digests))
    for begin in range(0, len(digests), CHUNK):
        part = digests[begin : begin + CHUNK]
        mine = [file for digest in part for file in by_digest[digest]]
        taken = vectors.take(np.array([place[digest] for digest in part]))
        written.append(write_chunk(out, maker, vectors=taken, digests=part, files=mine))
        more(len(part))
    return written


def _with_graph(manifest: Manifest, out: Path, chunks: Sequence[Chunk], screen: Screen) -> Manifest:
    """The manifest with a graph where one is needed; until it is there, all vectors are compared."""
    images = len({slot for slot in manifest.slots if slot >= 0})
    covered = sum(manifest.rows[: manifest.graphed])
    beside = sum(manifest.rows) - covered
    if images <= LARGE:
        final = dataclasses.replace(manifest, graph=None, graphed=0)
    elif manifest.graph and beside <= max(ADDED, covered / 10):
        final = manifest
    else:
        temporary = out / f".{'0' * 32}.faiss.{os.urandom(4).hex()}"
        old = out / manifest.graph if manifest.graph else None
        more = _count(screen, "linking", beside)
        build_graph(temporary, [chunk.vectors for chunk in chunks], old=old, skip=manifest.graphed, more=more)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        name = f"{checksum(temporary)}.faiss"
        os.replace(temporary, out / name)
        sync_folder(out)
        final = dataclasses.replace(manifest, graph=name, graphed=len(chunks))
    if final != manifest:
        final.write(out)
    return final


def _remote(manifest: Manifest) -> Qdrant | None:
    if manifest.store is None:
        return None
    store = Qdrant(manifest.store, identity=manifest.identity, dimensions=manifest.maker.dimensions)
    store.count()  # a server that does not answer should say so before the work
    return store


def _send(remote: Qdrant, manifest: Manifest, chunks: Sequence[Chunk], old: Manifest | None, screen: Screen) -> None:
    """Send what the store lacks: what is new, or everything where it has not what the old manifest says."""
    sent = {file.digest for file in old.files if not file.reason} if old and old.store == manifest.store else set()
    if remote.count() < len(sent):
        sent = set()
    wanted = {file.digest for file in manifest.files if not file.reason} - sent
    more = _count(screen, "sending", len(wanted))
    for chunk in chunks:
        rows = [row for row, digest in enumerate(chunk.digests) if digest in wanted]
        if rows:
            remote.put([chunk.digests[row] for row in rows], chunk.vectors[rows])
            more(len(rows))


# ---- asking ----------------------------------------------------------------------------------------


class Index:
    """An index as it was when it was opened; later updates do not change what it answers.

    Args:
        folder: of the index.
        check: read every file and compare its checksum. Without it a damaged file gives wrong answers.

    Raises:
        ValueError: if there is no finished index.
        Damaged: if a file of it is damaged or gone.
    """

    def __init__(self, folder: Path, *, check: bool = True) -> None:
        self.folder = Path(folder)
        self.manifest = _read(self.folder)
        while True:
            try:
                self._open(check)
                break
            except FileNotFoundError as error:
                before, self.manifest = self.manifest, _read(self.folder)
                if before == self.manifest:  # else an update removed it between the two readings
                    raise Damaged(Path(error.filename or self.folder), "is gone") from None

    def _open(self, check: bool) -> None:
        manifest = self.manifest
        self.vectors = Vectors([read_vectors(self.folder / name, check=check) for name in manifest.chunks])
        slots = np.array(manifest.slots, dtype=np.int64)
        self.alive = np.zeros(len(self.vectors), dtype=bool)
        self.alive[slots[slots >= 0]] = True
        self._by_slot = np.argsort(slots, kind="stable")  # places of files: of equal slots by name
        self._sorted = slots[self._by_slot]
        self.store: _Store = self.vectors
        if manifest.store:
            remote = Qdrant(manifest.store, identity=manifest.identity, dimensions=manifest.maker.dimensions)
            self.store = Remote(
                remote,
                {file.digest: slot for file, slot in zip(manifest.files, manifest.slots, strict=True) if slot >= 0},
            )
        elif manifest.graph:
            path = self.folder / manifest.graph
            if check:
                verify(path)
            self.store = Graph(path, self.vectors, manifest.graphed)

    def __len__(self) -> int:
        """The pictures that can be found."""
        return int((self._sorted >= 0).sum())

    @property
    def root(self) -> Path:
        """The folder of the pictures."""
        return Path(self.manifest.root)

    @property
    def names(self) -> list[str]:
        """The files of the pictures, in their folder, by name; also those without a vector."""
        return [file.name for file in self.manifest.files]

    def files_of(self, slot: int) -> np.ndarray:
        """The places in `names` of the files with the picture of this slot, by name."""
        begin, end = np.searchsorted(self._sorted, [slot, slot + 1])
        return self._by_slot[begin:end]

    def search(self, queries: Tensor, k: int = 4) -> list[list[Hit]]:
        """For each query (q, dimensions) the k nearest pictures, nearest first, equally near ones by name.

        With fewer than k pictures, all of them.

        Raises:
            ValueError: if k is less than 1, or the queries are of another shape or not finite.
        """
        if k < 1:
            raise ValueError(f"k ({k}) must be 1 or more")
        if queries.dim() != 2 or queries.shape[1] != self.manifest.maker.dimensions:
            raise ValueError(
                f"queries {tuple(queries.shape)} must be (q, {self.manifest.maker.dimensions}), as the index's vectors"
            )
        if not queries.isfinite().all():
            raise ValueError("queries must be finite numbers")
        if not len(queries) or not self.alive.any():
            return [[] for _ in queries]
        queries = queries.float()
        return [
            self._nearest(query, slots, k)
            for query, slots in zip(queries, self.store.candidates(queries, k, self.alive), strict=True)
        ]

    def _nearest(self, query: Tensor, slots: np.ndarray, k: int) -> list[Hit]:
        distances = self.vectors.distances(query, slots)
        found = [
            (distance, int(place))
            for slot, distance in zip(slots, distances.tolist(), strict=True)
            for place in self.files_of(slot)
        ]
        return [Hit(distance, self.manifest.files[place].name) for distance, place in sorted(found)[:k]]

    def check_maker(self, model: Descriptor, *, fingerprint: str) -> None:
        """See that the descriptor is the one that the index was made with.

        Raises:
            ValueError: if it is not; the message names both.
        """
        asked = Maker(model.name, fingerprint, model.dimensions)
        if asked != self.manifest.maker:
            raise ValueError(
                f"{clean(str(self.folder))} was made with {self.manifest.maker}: it cannot be asked with {asked}"
            )


def _read(folder: Path) -> Manifest:
    try:
        return Manifest.read(folder)
    except (FileNotFoundError, NotADirectoryError):
        shown = clean(str(folder))
    if folder.is_dir() and left_over(folder, None):
        raise ValueError(f"{shown} is not finished: run the same `patchreorder index` again, it goes on from there")
    raise ValueError(f"{shown} is no index: `patchreorder index DIR --out {shown}` makes one of the pictures in DIR")


def ask(
    index: Index,
    model: Descriptor,
    image: Path,
    *,
    fingerprint: str,
    k: int = 4,
    poses: bool = False,
    workers: int = 0,
    batch: int = 32,
    screen: Screen = _SILENT,
) -> tuple[list[Answer], list[str]]:
    """What is near a picture, or near every picture of a folder; and why some could not be asked about.

    Args:
        index: where to look.
        model: the descriptor that the index was made with.
        image: a file or a folder.
        fingerprint: of the descriptor's weights.
        k: pictures for each query.
        poses: try the query turned and shifted too (POSES); what is nearest to any of them counts.
        workers: processes that read and decode.
        batch: pictures that are described at a time.
        screen: shows what is done.

    Raises:
        ValueError: if the descriptor is another, there is no such picture, or the folder holds none.
    """
    index.check_maker(model, fingerprint=fingerprint)
    if k < 1:
        raise ValueError(f"k ({k}) must be 1 or more")
    if image.is_dir():
        root, names = image, [name for name, _, _ in listed(image)[0]]
        if not names:
            raise ValueError(f"{clean(str(image))} holds no picture to ask about")
    else:
        root, names = image.parent, [image.name]
    tried: tuple[Pose, ...] = POSES if poses else POSES[:1]
    step = max(1, batch // len(tried))
    parts = [names[begin : begin + step] for begin in range(0, len(names), step)]
    answers, bad = [], []
    model.eval()
    more = _count(screen, "searching", len(names))
    for found, images in parallel_map(Reader(root, tried), parts, workers=workers if len(names) > step else 0):
        vectors = iter(described(model, images).split(len(tried)))
        for file in found:
            if file.reason:
                bad.append(file.reason)
                continue
            own = next(vectors)
            if reason := next(filter(None, map(fault, own)), ""):
                bad.append(f"{clean(file.name)} cannot be asked about: {reason}")
                continue
            answers.append(Answer(file.name, _best(index.search(own, k), tried, k)))
        more(len(found))
    return answers, bad


def _best(found: Sequence[Sequence[Hit]], poses: Sequence[Pose], k: int) -> list[Hit]:
    """The k nearest over all poses; for each file the first pose that comes nearest."""
    best: dict[str, Hit] = {}
    for hits, pose in zip(found, poses, strict=True):
        for hit in hits:
            if hit.name not in best or hit.distance < best[hit.name].distance:
                best[hit.name] = hit._replace(pose=pose_name(pose))
    return sorted(best.values(), key=lambda hit: (hit.distance, hit.name))[:k]
