"""Pairs of images of an index, compared: in worker processes, and each pair once.

What was found is appended to a file in the index's folder, so that a second call, or one after a kill, compares only
what is new. A pair is known by the digests of both files.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path

import torch

from patchreorder.data.images import decode, upright_size
from patchreorder.data.loader import parallel_map
from patchreorder.engine.progress import SILENT, Screen
from patchreorder.files import locked

from .images import Box, part_of
from .local_features import SIDE, Picture, need_opencv
from .relations import COPY, DETAIL, SIMILAR, Relation, is_drawn, relate, same_drawing

FORMAT = 17  # raise it when relations change
FILE = ".relations.jsonl"  # in the folder of the index
TOGETHER = 256  # pairs that a worker gets at a time, at most
KEPT = 800  # pictures that a worker keeps in memory, 0.4 MB each
Pair = tuple[str, str]  # digests, the smaller one first


def read_picture(path: Path, digest: str = "", *, box: Box | None = None, side: int = SIDE) -> Picture | None:
    """The picture of a file, or of a part of it; None if it is gone, cannot be read, or has another digest."""
    try:
        content = path.read_bytes()
        if digest and blake2b(content, digest_size=16).hexdigest() != digest:
            return None
        if box is not None:
            return Picture.of(part_of(decode(content, name=path.name), box), side=side)
        return Picture.of(decode(content, name=path.name, short=side), size=upright_size(content), side=side)
    except (OSError, ValueError):
        return None


def relate_in_detail(
    first: Picture, second: Picture, large: Callable[[], Picture | None], other: Callable[[], Picture | None]
) -> Relation:
    """What the second image is to the first; drawn images such as screenshots must be the same in all their detail.

    `large` and `other` read the first and the second image again with up to DETAIL pixels a side.
    """
    relation = relate(first, second)
    if relation.kind == COPY and is_drawn(first, second, relation):
        one, two = large(), other()
        if one is None or two is None or not same_drawing(one, two, relation):
            return replace(relation, kind=SIMILAR, moved=True)
    return relation


@dataclass(eq=False)
class Comparer:
    """Compares pairs of files; it is sent to worker processes, and keeps pictures."""

    root: Path
    names: dict[str, str]  # by digest
    kept: OrderedDict[str, Picture | None] = field(default_factory=OrderedDict)

    def __call__(self, pairs: Sequence[Pair]) -> list[tuple[Pair, Relation | None]]:
        found = []
        with _one_thread():
            for pair in pairs:
                first, second = map(self._picture, pair)
                relation = None
                if first is not None and second is not None:
                    relation = relate_in_detail(first, second, *(partial(self._large, digest) for digest in pair))
                found.append((pair, relation))
        return found

    def _large(self, digest: str) -> Picture | None:
        return read_picture(self.root / self.names[digest], digest, side=DETAIL)

    def _picture(self, digest: str) -> Picture | None:
        if digest not in self.kept:
            self.kept[digest] = read_picture(self.root / self.names[digest], digest)
            if len(self.kept) > KEPT:
                self.kept.popitem(last=False)
        self.kept.move_to_end(digest)
        return self.kept[digest]


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Compute with one thread, as workers do: products of two images' features are too small to be shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def verify_pairs(
    pairs: Iterable[Pair],
    *,
    root: Path,
    names: dict[str, str],
    folder: Path | None = None,
    workers: int = 0,
    screen: Screen = SILENT,
) -> dict[Pair, Relation]:
    """The relations of pairs of files; a pair with a file that is gone or has changed is left out.

    Args:
        pairs: digests; a pair may be there more than once.
        root: of the files.
        names: a file for each digest.
        folder: keeps what was found; of the index.
    """
    need_opencv()
    wanted = near_each_other(dict.fromkeys(pairs))
    found = {pair: relation for pair, relation in _known(folder).items() if pair in set(wanted)} if folder else {}
    missing = [pair for pair in wanted if pair not in found]
    step = max(16, min(TOGETHER, len(missing) // (8 * max(1, workers))))
    parts = [missing[begin : begin + step] for begin in range(0, len(missing), step)]
    more = screen.count("comparing", len(missing))
    compare = Comparer(root, {digest: names[digest] for pair in missing for digest in pair})
    for part in parallel_map(compare, parts, workers=workers if len(parts) > 1 else 0):
        new = {pair: relation for pair, relation in part if relation is not None}
        found |= new
        if folder:
            _append(folder, new)
        more(len(part))
    return found


def near_each_other(pairs: Iterable[Pair]) -> list[Pair]:
    """The pairs in an order in which those of one file follow soon after each other, so that few are read twice.

    >>> near_each_other([("a", "b"), ("c", "d"), ("b", "e"), ("a", "e")])
    [('a', 'b'), ('a', 'e'), ('b', 'e'), ('c', 'd')]
    """
    partners: dict[str, list[str]] = {}
    for one, other in (pairs := list(pairs)):
        partners.setdefault(one, []).append(other)
        partners.setdefault(other, []).append(one)
    rank: dict[str, int] = {}
    for start in partners:  # breadth first
        waiting = deque([start])
        while waiting:
            own = waiting.popleft()
            if own not in rank:
                rank[own] = len(rank)
                waiting.extend(other for other in partners[own] if other not in rank)
    return sorted(pairs, key=lambda pair: sorted((rank[pair[0]], rank[pair[1]])))


def _known(folder: Path) -> dict[Pair, Relation]:
    """The relations in the folder's file; lines that are cut off or of another version are left out."""
    found = {}
    with contextlib.suppress(FileNotFoundError), open(folder / FILE, encoding="utf-8") as file:
        for line in file:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                version, first, second, values = json.loads(line)
                if version == FORMAT:
                    found[first, second] = Relation.of_values(values)
    return found


def _append(folder: Path, relations: dict[Pair, Relation]) -> None:
    """Add relations to the folder's file; where it cannot be written, they are compared again the next time."""
    lines = [json.dumps([FORMAT, *pair, relation.values()]) + "\n" for pair, relation in relations.items()]
    with contextlib.suppress(OSError), open(folder / FILE, "ab") as file, locked(file.fileno()):
        file.write(b"\n" * (os.fstat(file.fileno()).st_size > 0) + "".join(lines).encode())  # after a cut-off line
