"""Queries by image: the nearest images of an index, for one image or for a folder of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from patchreorder.data.loader import parallel_map
from patchreorder.data.poses import UPRIGHT, Pose
from patchreorder.engine.progress import SILENT, Screen
from patchreorder.untrusted import clean

from .descriptors import BATCH, Descriptor, describe_batch, fault
from .images import Box, Reader, scan
from .index import Hit, Index
from .manifest import Maker
from .relations import DETAIL, IDENTICAL
from .verification import read_picture, relate_in_detail

# The poses of a query with --poses, in words; "" is upright.
POSES = {
    "": UPRIGHT,
    **{f"rotated by {degrees}°": Pose(degrees=float(degrees)) for degrees in range(45, 360, 45)},
    "shifted up by 20 %": Pose(down=-0.2),
    "shifted down by 20 %": Pose(down=0.2),
    "shifted left by 20 %": Pose(right=-0.2),
    "shifted right by 20 %": Pose(right=0.2),
}


class Answer(NamedTuple):
    """The nearest images of a query image."""

    query: str
    hits: list[Hit]


def search_images(
    index: Index,
    model: Descriptor,
    image: Path,
    *,
    k: int = 4,
    poses: bool = False,
    box: Box | None = None,
    relations: int = 0,
    workers: int = 0,
    batch: int = BATCH,
    screen: Screen = SILENT,
) -> tuple[list[Answer], list[str]]:
    """The k nearest images of an image, or of every image in a folder; and why some queries have no answer.

    Args:
        box: the part of the query to search for.
        relations: of how many hits to say what they are to the query; needs OpenCV.

    With `poses`, the query is also rotated and shifted (POSES), and a hit has its distance to the nearest of them.

    Raises:
        ValueError: it is another descriptor, there is no such image, or the folder holds none.
    """
    maker, other = index.manifest.maker, Maker.of(model)
    if maker != other:
        raise ValueError(f"{clean(str(index.folder))} was made with {maker}: it cannot be searched with {other}")
    if image.is_dir():
        root, names = image, [name for name, _, _ in scan(image)[0]]
        if not names:
            raise ValueError(f"{clean(str(image))} holds no image to search for")
    else:
        root, names = image.parent, [image.name]
    tried = tuple(POSES.values()) if poses else (UPRIGHT,)
    step = max(1, batch // len(tried))
    parts = [names[begin : begin + step] for begin in range(0, len(names), step)]
    answers, bad = [], []
    more = screen.count("searching", len(names))
    for files, images in parallel_map(
        Reader(root, other.preprocessing, tried, box), parts, workers=workers if len(parts) > 1 else 0
    ):
        vectors = iter(describe_batch(model, images).split(len(tried)))
        for file in files:
            if file.reason:
                bad.append(file.reason)
                continue
            own = next(vectors)
            if reason := next(filter(None, map(fault, own)), ""):
                bad.append(f"{clean(file.name)} cannot be searched for: {reason}")
                continue
            hits = _nearest(index.search(own, k), k)
            if relations:
                hits = [*_related(index.root, root / file.name, box, hits[:relations]), *hits[relations:]]
            answers.append(Answer(file.name, hits))
        more(len(files))
    return answers, bad


def parse_box(text: str) -> Box:
    """Left, top, width and height in pixels.

    >>> parse_box("10,20,300,200")
    (10, 20, 300, 200)
    """
    if not re.fullmatch(r"\d{1,6}(,\d{1,6}){3}", text, re.ASCII):
        raise ValueError(f"crop ({clean(text)}) must be left,top,width,height in pixels, such as 10,20,300,200")
    left, top, width, height = map(int, text.split(","))
    return left, top, width, height


def _related(root: Path, query: Path, box: Box | None, hits: Sequence[Hit]) -> Iterator[Hit]:
    """The hits with what they are to the query, where both can be read."""
    own = read_picture(query, box=box)
    for hit in hits:
        path = root / hit.name
        other = None if own is None else read_picture(path)
        if own is None or other is None:
            yield hit
        elif box is None and path.read_bytes() == query.read_bytes():
            yield hit._replace(relation=IDENTICAL)
        else:
            sizes = (own.width, own.height), (other.width, other.height)
            large = partial(read_picture, query, box=box, side=DETAIL), partial(read_picture, path, side=DETAIL)
            yield hit._replace(relation=relate_in_detail(own, other, *large).words(*sizes))


def _nearest(found: Iterable[Sequence[Hit]], k: int) -> list[Hit]:
    """The k nearest over all poses; each file once, with the first of its nearest poses."""
    best: dict[str, Hit] = {}
    for hits, pose in zip(found, POSES, strict=False):
        for hit in hits:
            if hit.name not in best or hit.distance < best[hit.name].distance:
                best[hit.name] = hit._replace(pose=pose)
    return sorted(best.values())[:k]
