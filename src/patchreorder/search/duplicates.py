"""Copies in an index: candidates by descriptor and by hash, each pair verified, in groups with one file to keep."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from pathlib import Path

from patchreorder.engine.progress import SILENT, Screen
from patchreorder.untrusted import quoted

from .candidates import index_candidates
from .groups import joined, shows
from .hashes import negative_hash, similar_hashes
from .images import ImageFile
from .index import Index
from .keeping import KeepRule, Place
from .relations import COPY, IDENTICAL, SIMILAR, WHOLE, Relation
from .verification import Pair, verify_pairs

NEIGHBOURS, CROWDED = 32, 64  # candidates of each image, at most; in a folder of at most FOLDER images
FOLDER = 5000
FEWEST, NEAR = 24, 0.7  # so many always, and more only up to this distance, or of images that have so many within it
ALIKE = 0.55  # the distance up to which two images look alike: that of nine tenths of UK-Bench's views of one thing
SAME_HASH = 12  # images of one perceptual hash that are all compared with each other


@dataclass(frozen=True, kw_only=True)
class Member:
    """A file of a group.

    Args:
        file: as the index knows it.
        path: of it.
        keep: whether to keep it; also all files of a reference folder, and what the kept file does not show.
        relation: what it is to the file `of`; None for the file that is kept.
        of: the file that is kept, or where these two could not be compared, another one of the group.
        words: the relation in plain words.
        why: why it is kept; "" if it is not.
    """

    file: ImageFile
    path: Path
    keep: bool
    relation: Relation | None = None
    of: str = ""
    words: str = "kept"
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What `find_duplicates` found: groups of copies, and pairs that only look alike, the most alike first."""

    groups: list[list[Member]]
    similar: list[tuple[Relation, str, str]] = field(default_factory=list)
    compared: int = 0  # pairs


def find_duplicates(
    index: Index,
    *,
    keep: KeepRule | None = None,
    k: int | None = None,
    similar: bool = False,
    workers: int = 0,
    screen: Screen = SILENT,
) -> Found:
    """Groups of files that are verified copies of each other, the largest first.

    Args:
        keep: decides which file of a group is kept.
        k: candidates of each image; by default NEIGHBOURS or CROWDED.
        similar: also list pairs that are no copies: other shots of a scene, and what only looks alike.

    Raises:
        ImportError: OpenCV is not installed.
    """
    keep, k = keep or KeepRule(), k or _most(index)
    files = [file for file, slot in zip(index.manifest.files, index.manifest.slots, strict=True) if slot >= 0]
    by_digest: dict[str, list[ImageFile]] = defaultdict(list)
    for file in files:
        by_digest[file.digest].append(file)
    names = {digest: own[0].name for digest, own in by_digest.items()}

    def verified(pairs: Iterable[Pair]) -> dict[Pair, Relation]:
        return verify_pairs(pairs, root=index.root, names=names, folder=index.folder, workers=workers, screen=screen)

    pairs = set(candidate_pairs(index, by_digest, k=k, screen=screen))
    relations = verified(sorted(pairs))
    groups = [group for group in joined(by_digest, relations) if len(group) > 1 or len(by_digest[group[0]]) > 1]
    kept = [_kept(index, group, by_digest, relations, keep) for group in groups]
    # What every file is to the one that is kept, where that was no candidate.
    wanted = [_pair(own.digest, digest) for group, (own, _) in zip(groups, kept, strict=True) for digest in group]
    relations |= verified(pair for pair in wanted if pair[0] != pair[1] and pair not in relations)
    found = [
        _members(index, group, by_digest, relations, own, why, keep)
        for group, (own, why) in zip(groups, kept, strict=True)
    ]
    found.sort(key=lambda members: (-len(members), members[0].file.name))
    others: list[tuple[Relation, str, str]] = []
    if similar:
        alike = {pair for pair, distance, _ in _neighbours(index, k, screen) if distance < ALIKE}
        others = [
            (relation, names[pair[0]], names[pair[1]])
            for pair, relation in relations.items()
            if not relation.is_copy and (relation.kind != SIMILAR or pair in alike)
        ]
        others.sort(key=lambda item: (item[0].kind == SIMILAR, -item[0].features, -item[0].median, item[1:]))
    return Found(groups=found, similar=others, compared=len(pairs))


def _pair(one: str, other: str) -> Pair:
    return (one, other) if one < other else (other, one)


def candidate_pairs(
    index: Index, by_digest: dict[str, list[ImageFile]], *, k: int | None = None, screen: Screen = SILENT
) -> Iterator[Pair]:
    """Pairs of digests: near descriptors, and similar perceptual hashes."""
    looks: dict[str, list[str]] = defaultdict(list)
    for digest, own in by_digest.items():
        if own[0].look:
            looks[own[0].look].append(digest)
    for digests in looks.values():
        for one, other in combinations(digests, 2) if len(digests) <= SAME_HASH else pairwise(digests):
            yield _pair(one, other)
    for look, digests in looks.items():
        for one, other in zip(digests, looks.get(negative_hash(look), []), strict=False):
            if one != other:
                yield _pair(one, other)
    near_hashes = similar_hashes([own[0].look for own in by_digest.values()])
    digests = list(by_digest)
    for first, second in near_hashes:
        yield _pair(digests[first], digests[second])
    for pair, distance, near in _neighbours(index, k or _most(index), screen):
        if near or distance < NEAR:
            yield pair


def _most(index: Index) -> int:
    return CROWDED if len(index) <= FOLDER else NEIGHBOURS


def _neighbours(index: Index, k: int, screen: Screen) -> Iterator[tuple[Pair, float, bool]]:
    """Pairs of digests, the distance of their descriptors, and whether to compare them however far they are.

    These are the nearest few of each image, and more that lie in a crowd: among many images of one kind, the original
    of a copy that lost its detail is not among the nearest few.
    """
    files = zip(index.manifest.files, index.manifest.slots, strict=True)
    digest_of = {slot: file.digest for file, slot in files if slot >= 0}
    found = index_candidates(index, k=k, screen=screen)
    crowded = found.distances[:, FEWEST - 1 : FEWEST].max(1, initial=0) < NEAR  # in a tiny folder all are
    for slot, (near, distances) in enumerate(zip(found.slots.tolist(), found.distances.tolist(), strict=True)):
        for place, (other, distance) in enumerate(zip(near, distances, strict=True)):
            if slot in digest_of and other in digest_of and slot != other:
                yield _pair(digest_of[slot], digest_of[other]), distance, place < FEWEST or bool(crowded[other])


def _kept(
    index: Index,
    group: Sequence[str],
    by_digest: dict[str, list[ImageFile]],
    relations: dict[Pair, Relation],
    rule: KeepRule,
) -> tuple[ImageFile, str]:
    """The file of a group to keep, and why."""
    inside = dict.fromkeys(group, 1.0)  # the part of each frame that is no border
    for one, other in combinations(group, 2):
        relation = relations.get(_pair(one, other))
        if relation is None or not relation.is_copy:
            continue
        first, second = _pair(one, other)
        if relation.bordered[0] and relation.second < WHOLE:
            inside[second] = min(inside[second], relation.second)
        if relation.bordered[1] and relation.first < WHOLE:
            inside[first] = min(inside[first], relation.first)
    places = [Place.of(file, index.root, inside[digest]) for digest in group for file in by_digest[digest]]
    chosen, why = rule.choose(places, folders=[index.root / folder for folder in index.manifest.folders])
    return chosen.file, why


def _members(
    index: Index,
    group: Sequence[str],
    by_digest: dict[str, list[ImageFile]],
    relations: dict[Pair, Relation],
    kept: ImageFile,
    why: str,
    rule: KeepRule,
) -> list[Member]:
    """The members of a group, the kept one first, then by name."""
    files = sorted(file for digest in group for file in by_digest[digest])
    members = [Member(file=kept, path=index.root / kept.name, keep=True, why=why)]
    for file in files:
        if file.name == kept.name:
            continue
        of, relation = kept, Relation(kind=IDENTICAL)
        if file.digest != kept.digest:
            of, relation = _nearest(file, kept, group, by_digest, relations)
        words = relation.words(*(((of.width, of.height), (file.width, file.height)) if of.width and file.width else ()))
        if of is not kept:
            words = f"{words} (of {quoted(of.name)})"
        path = index.root / file.name
        why = ""
        if rule.is_reference(path):
            why = "in a reference folder"
        elif of is not kept and not shows(kept, file, of, relations):
            why = "the other one that is kept does not show it"
        members.append(
            Member(
                file=file,
                path=path,
                keep=bool(why),
                relation=relation,
                of=of.name,
                words=words,
                why=why,
            )
        )
    return members


def _nearest(
    file: ImageFile,
    kept: ImageFile,
    group: Sequence[str],
    by_digest: dict[str, list[ImageFile]],
    relations: dict[Pair, Relation],
) -> tuple[ImageFile, Relation]:
    """What a file is to the one that is kept, or to the first of the group that it is a verified copy of."""
    for digest in (kept.digest, *group):
        pair = _pair(digest, file.digest)
        relation = relations.get(pair)
        if digest != file.digest and relation is not None and relation.is_copy:
            of = kept if digest == kept.digest else by_digest[digest][0]
            return of, relation if pair[0] == digest else relation.reversed()
    return kept, Relation(kind=COPY)
