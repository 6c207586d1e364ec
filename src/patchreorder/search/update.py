"""An index of a folder of images: made, updated, repaired.

`update` reads only new and changed images. It may be killed at any moment: the index stays what it was until the new
manifest is written, and the next call uses all finished chunks. Removed images are masked; their vectors are removed
once they are a quarter of all.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from patchreorder.data.loader import parallel_map
from patchreorder.engine.progress import SILENT, Screen
from patchreorder.files import sync_folder, try_lock
from patchreorder.untrusted import clean

from .descriptors import BATCH, Descriptor, describe_batch, fault
from .images import ImageFile, Reader, Stat, scan
from .manifest import (
    MANIFEST,
    PARTS,
    Chunk,
    Damaged,
    Maker,
    Manifest,
    check_folder,
    checksum,
    empty_manifest,
    left_over,
    read_chunk,
    verify,
    write_chunk,
)
from .stores import Files, SharedStore, Vectors, build_graph, need_faiss, open_store, without_password

CHUNK = 500  # vectors of a chunk: the most that a killed process has to compute again
LARGE = 100_000  # images above which a graph is built
ADDED = 10_000  # new vectors beside the graph, or a tenth of it, before they are added to it
MASKED = 0.25  # the largest share of vectors of removed images
LOCAL = "local"  # the store without a server
Batches = Iterable[tuple[list[ImageFile], Tensor]]


@dataclass(frozen=True, kw_only=True)
class Updated:
    """What `update` did."""

    images: int  # in the index now
    described: int  # new vectors
    removed: int  # files that are no longer there
    unreadable: list[ImageFile]
    ignored: list[str]
    changed: bool


def update(
    folders: Path | Sequence[Path],
    out: Path,
    model: Descriptor,
    *,
    weights: Path | None = None,
    store: str | None = None,
    workers: int = 0,
    batch: int = BATCH,
    screen: Screen = SILENT,
) -> Updated:
    """Make an index of the images in folders and their subfolders, or update it.

    Args:
        folders: of the images, one or several; they are only read.
        out: the folder of the index.
        model: describes the images, `batch` at a time; `workers` processes decode them.
        weights: the file of its weights; the manifest holds it for later searches.
        store: `local`, or the URL of a store (see `open_store`); None for the store of the last update. Its password is
            not kept.

    Raises:
        ValueError: the folder holds no image; `out` holds something else, or an index of another folder or another
            descriptor; another process updates it.
        ImportError: the store, or the number of images, needs a package that is not installed.
    """
    given = [folders] if isinstance(folders, Path) else list(folders)
    out = out.absolute()
    nothing = empty_manifest(given, out, model)
    root, maker = Path(nothing.root), nothing.maker
    images, ignored = scan(root, folders=nothing.folders, leave=out)
    _check_not_empty(images, out, nothing)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, _lock(out))
        before = {path.name for path in left_over(out, None)}
        old = old_manifest(out, nothing, screen)
        where = store or old.store or LOCAL
        if len(images) > LARGE and where == LOCAL:
            need_faiss()  # fail before the work
        chunks = sound_chunks(out, old, screen)
        manifest = replace(
            nothing,
            identity=old.identity,
            weights=str(weights.resolve()) if weights else old.weights,
            store=None if where == LOCAL else without_password(where)[0],
        )
        remote = None
        if manifest.store:
            remote = open_store(where, identity=old.identity, dimensions=maker.dimensions, say=screen.say)
            stack.callback(remote.close)
            sent = {file.digest for file in old.files if not file.reason} if old.store == manifest.store else set()
            if remote.count() > len(sent):  # also fails before the work if the server does not respond
                _gather(remote, out, maker, chunks, screen)
        same, names = compare(images, chunks, old)
        parts = [names[begin : begin + batch] for begin in range(0, len(names), batch)]
        batches = parallel_map(Reader(root, maker.preprocessing), parts, workers=workers)
        others, new = describe(batches, out, model, maker, chunks, screen.count("describing", len(names)))
        files = sorted([*same, *others])
        before |= {chunk.name for chunk in chunks}
        manifest, chunks = _arrange(manifest, out, files, chunks, old, screen)
        if remote:
            _send(remote, manifest, chunks, old, screen)
        if manifest != old:
            manifest.write(out)
        if remote:
            remote.keep_only({file.digest for file in files if not file.reason})
            remote.finish()
        else:
            manifest = _with_graph(manifest, out, chunks, screen)
        _remove_unused(out, manifest, before)  # last: readers of the old manifest need its files until then
    there = {name for name, _, _ in images}
    return Updated(
        images=sum(not file.reason for file in files),
        described=new,
        removed=sum(file.name not in there for file in old.files),
        unreadable=[file for file in files if file.reason],
        ignored=ignored,
        changed=manifest != old,
    )


def _check_not_empty(images: Sequence[Stat], out: Path, nothing: Manifest) -> None:
    """Raise if a folder holds no image: its disk may be missing."""
    for name in nothing.folders:
        start = f"{name}/" if name else ""
        if any(stat[0].startswith(start) for stat in images):
            continue
        shown = clean(str(Path(nothing.root, name)))
        old = old_manifest(out, nothing, SILENT)
        ours = os.path.relpath(Path(nothing.root, name), old.root)
        start = "" if ours == "." else f"{ours}/"
        if held := sum(not file.reason and file.name.startswith(start) for file in old.files):
            raise ValueError(
                f"{shown} holds no images any more, the index {held}: is its disk mounted? If they are "
                f"deleted for good, delete {clean(str(out))}"
            )
        raise ValueError(f"{shown} and its subfolders hold no images")


def _lock(out: Path) -> int:
    """The handle of the lock, which is free again when it is closed."""
    check_folder(out)
    handle = try_lock(out / ".lock")
    if handle is None:
        raise ValueError(f"another process is writing {clean(str(out))}: wait until it ends, then run this again")
    return handle


def _remove_unused(out: Path, manifest: Manifest, known: set[str]) -> None:
    """Remove known files that this state of the index does not need; other chunks are new ones of parts."""
    described = (out / PARTS).exists()  # by parts, which may be at it, and then write temporary files
    handle = try_lock(out / PARTS) if described else None
    for path in left_over(out, manifest):
        temporary = path.name.startswith(".")
        if path.name in known if not temporary else handle is not None or not described:
            path.unlink()
    if handle is not None:
        os.close(handle)


def old_manifest(out: Path, nothing: Manifest, screen: Screen) -> Manifest:
    """The manifest of the last update, or `nothing`; raises if it is of another descriptor or folder."""
    try:
        old = Manifest.read(out)
    except FileNotFoundError:
        return nothing
    except Damaged:
        screen.say(f"{clean(str(out / MANIFEST))} is damaged: it is made again from the chunks")
        return nothing
    shown = clean(str(out))
    if old.maker != nothing.maker:
        raise ValueError(f"{shown} was made with {old.maker}, not with {nothing.maker}: name another --out for that")
    now = [Path(nothing.root, folder) for folder in nothing.folders]
    for folder in (Path(old.root, name) for name in old.folders):
        if folder.is_dir() and not any(folder.is_relative_to(other) for other in now):
            raise ValueError(
                f"{shown} is an index of {clean(str(folder))}, which still exists, not of "
                f"{clean(', '.join(map(str, now)))}: name that folder too, or another --out"
            )
    return old


def sound_chunks(out: Path, old: Manifest, screen: Screen) -> list[Chunk]:
    """The chunks of the index in their order, then those of a process that was killed, without damaged ones."""
    others = [path.name for path in left_over(out, old) if path.name.endswith(".safetensors")]
    names = [*old.chunks, *(name for name in others if not name.startswith("."))]
    chunks = []
    more = screen.count("checking", len(names))
    for name in names:
        try:
            chunks.append(read_chunk(out / name, maker=old.maker))
        except (FileNotFoundError, Damaged) as error:
            state = "damaged" if isinstance(error, Damaged) else "missing"
            screen.say(f"{clean(str(out / name))} is {state}: its images are described again")
        more(1)
    return chunks


def compare(images: list[Stat], chunks: list[Chunk], old: Manifest) -> tuple[list[ImageFile], list[str]]:
    """The files that have not changed, and the names of those to read."""
    described = {digest for chunk in chunks for digest in chunk.digests}
    files = [*(file for chunk in chunks for file in chunk.files), *old.files]
    known = {file.stat: file for file in files if file.reason or file.digest in described}
    same = [known[stat] for stat in images if stat in known]
    return same, [stat[0] for stat in images if stat not in known]


def describe(
    batches: Batches,
    out: Path,
    model: Descriptor,
    maker: Maker,
    chunks: list[Chunk],
    more: Callable[[int], None],
    *,
    known: Iterable[str] = (),
    written: Callable[[Chunk], None] = lambda chunk: None,
) -> tuple[list[ImageFile], int]:
    """The files of these batches, and the number of new vectors; new chunks are appended to `chunks`.

    Images in chunks, and those with a known digest, are not described again. `written` is told of each new chunk.
    """
    known = {*known, *(digest for chunk in chunks for digest in chunk.digests)}
    files: list[ImageFile] = []
    new = kept = 0  # vectors, and files that are in chunks
    waiting: dict[str, Tensor] = {}  # vectors that are in no chunk yet, by digest

    def flush() -> None:
        if waiting:
            vectors, own = torch.stack([*waiting.values()]), files[kept:]
            chunks.append(write_chunk(out, maker, vectors=vectors, digests=[*waiting], files=own))
            written(chunks[-1])

    for found, images in batches:
        fresh: dict[str, int] = {}  # digests without a vector -> position of the image in the batch
        for position, file in enumerate(file for file in found if not file.reason):
            if file.digest not in known:
                fresh.setdefault(file.digest, position)
        made = dict(zip(fresh, describe_batch(model, images[[*fresh.values()]]), strict=True))
        faults = {digest: reason for digest, vector in made.items() if (reason := fault(vector))}
        for file in found:
            reason = f"{clean(file.name)} is left out: {faults[file.digest]}" if file.digest in faults else file.reason
            files.append(file._replace(reason=reason))
        sound = {digest: vector for digest, vector in made.items() if digest not in faults}
        waiting |= sound
        known |= sound.keys()
        new += len(sound)
        if len(waiting) >= CHUNK:
            flush()
            waiting, kept = {}, len(files)
        more(len(found))
    flush()
    return files, new


def _arrange(
    manifest: Manifest, out: Path, files: list[ImageFile], chunks: list[Chunk], old: Manifest, screen: Screen
) -> tuple[Manifest, list[Chunk]]:
    """The manifest of these files and its chunks, which are rewritten if too many vectors are masked."""
    live = {file.digest for file in files if not file.reason}
    slots: dict[str, int] = {}
    used: list[Chunk] = []
    end = 0
    for chunk in chunks:
        mine = [digest in live and digest not in slots for digest in chunk.digests]
        if chunk.name not in old.chunks and not any(mine):
            continue  # of a killed process, and not needed
        slots |= {digest: end + row for row, digest in enumerate(chunk.digests) if mine[row]}
        used.append(chunk)
        end += len(chunk.digests)
    masked, full = end - len(slots), -(-len(slots) // CHUNK)
    if (masked and masked >= MASKED * end) or len(used) > 2 * full + 16:
        used = _rewrite(manifest.maker, out, files, used, slots, screen)
        slots = {digest: slot for slot, digest in enumerate(digest for chunk in used for digest in chunk.digests)}
    names = [chunk.name for chunk in used]
    manifest = replace(
        manifest,
        chunks=names,
        rows=[len(chunk.digests) for chunk in used],
        files=files,
        slots=[-1 if file.reason else slots[file.digest] for file in files],
    )
    if old.graph and not manifest.store and old.chunks[: old.graphed] == names[: old.graphed]:
        try:
            verify(out / old.graph)
            manifest = replace(manifest, graph=old.graph, graphed=old.graphed)
        except (FileNotFoundError, Damaged):
            screen.say(f"{clean(str(out / old.graph))} is damaged or missing: it is built again")
    return manifest, used


def _rewrite(
    maker: Maker, out: Path, files: Iterable[ImageFile], chunks: Sequence[Chunk], slots: dict[str, int], screen: Screen
) -> list[Chunk]:
    """Full chunks with the vectors of these slots only."""
    by_digest: dict[str, list[ImageFile]] = {}
    for file in files:
        by_digest.setdefault(file.digest, []).append(file)
    vectors = Vectors([chunk.vectors for chunk in chunks])
    digests = sorted(slots, key=slots.__getitem__)
    written = []
    more = screen.count("rewriting", len(digests))
    for begin in range(0, len(digests), CHUNK):
        part = digests[begin : begin + CHUNK]
        mine = [file for digest in part for file in by_digest[digest]]
        taken = vectors.take(np.array([slots[digest] for digest in part]))
        written.append(write_chunk(out, maker, vectors=taken, digests=part, files=mine))
        more(len(part))
    return written


def _with_graph(manifest: Manifest, out: Path, chunks: Sequence[Chunk], screen: Screen) -> Manifest:
    """The manifest with a graph where one is needed; until it is built, all vectors are compared."""
    images = len({slot for slot in manifest.slots if slot >= 0})
    covered = sum(manifest.rows[: manifest.graphed])
    beside = sum(manifest.rows) - covered
    if images <= LARGE:
        final = replace(manifest, graph=None, graphed=0)
    elif manifest.graph and beside <= max(ADDED, covered / 10):
        final = manifest
    else:
        temporary = out / f".{'0' * 32}.faiss.{os.urandom(4).hex()}"
        old = out / manifest.graph if manifest.graph else None
        more = screen.count("building the graph", beside)
        build_graph(temporary, [chunk.vectors for chunk in chunks], old=old, skip=manifest.graphed, more=more)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        name = f"{checksum(temporary)}.faiss"
        os.replace(temporary, out / name)
        sync_folder(out)
        final = replace(manifest, graph=name, graphed=len(chunks))
    if final != manifest:
        final.write(out)
    return final


def _gather(remote: SharedStore, out: Path, maker: Maker, chunks: list[Chunk], screen: Screen) -> None:
    """Append chunks of the vectors that other machines put into the store."""
    known = {digest for chunk in chunks for digest in chunk.digests}
    wanted = {digest: files for digest, files in remote.listed() if digest not in known}
    digests = [*wanted]
    more = screen.count("gathering", len(digests))
    for begin in range(0, len(digests), CHUNK):
        part = digests[begin : begin + CHUNK]
        sound = {digest: vector for digest, vector in remote.fetch(part).items() if not fault(vector)}
        files = [ImageFile(name, *stat, digest) for digest in sound for name, stat in wanted[digest].items()]
        if sound:
            vectors = torch.stack([*sound.values()])
            chunks.append(write_chunk(out, maker, vectors=vectors, digests=[*sound], files=files))
        more(len(part))


def _send(remote: SharedStore, manifest: Manifest, chunks: Sequence[Chunk], old: Manifest, screen: Screen) -> None:
    """Send new vectors to the store, or all of them if it holds fewer than the old manifest says."""
    sent = {file.digest for file in old.files if not file.reason} if old.store == manifest.store else set()
    held = remote.count()
    if held < len(sent):
        sent = set()
    elif held > len(sent):
        sent |= {digest for digest, _ in remote.listed()}
    wanted = {file.digest for file in manifest.files if not file.reason} - sent
    more = screen.count("sending", len(wanted))
    for chunk in chunks:
        more(send_chunk(remote, chunk, manifest.files, wanted))


def send_chunk(remote: SharedStore, chunk: Chunk, files: Iterable[ImageFile], wanted: Container[str]) -> int:
    """Put those vectors of a chunk into a store that are wanted, with their files; return how many."""
    rows = [row for row, digest in enumerate(chunk.digests) if digest in wanted]
    if rows:
        digests = [chunk.digests[row] for row in rows]
        held: dict[str, Files] = {digest: {} for digest in digests}
        for file in files:
            if file.digest in held and not file.reason and file.mtime >= 0:
                held[file.digest][file.name] = (file.size, file.mtime)
        remote.put(digests, chunk.vectors[rows], [held[digest] for digest in digests])
    return len(rows)
