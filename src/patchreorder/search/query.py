"""Queries by image: the nearest images of an index, for one image or for a folder of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from patchreorder.data.loader import parallel_map
from patchreorder.data.poses import Pose
from patchreorder.engine.progress import SILENT, Screen
from patchreorder.untrusted import clean

from .describe import BATCH, describe_batch, fault
from .descriptors import Descriptor
from .images import Reader, scan
from .index import Hit, Index

# The poses of a query with --poses, the upright one first.
POSES = (
    *(Pose(degrees=float(degrees)) for degrees in range(0, 360, 45)),
    *(Pose(down=down, right=right) for down, right in ((-0.2, 0.0), (0.2, 0.0), (0.0, -0.2), (0.0, 0.2))),
)


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
    workers: int = 0,
    batch: int = BATCH,
    screen: Screen = SILENT,
) -> tuple[list[Answer], list[str]]:
    """The nearest images of an image, or of every image in a folder; and why some queries have no answer.

    Args:
        index: to search in.
        model: the descriptor that the index was made with.
        image: a file or a folder.
        k: hits for each query.
        poses: also rotate and shift the query (POSES); a hit has its distance to the nearest of them.
        workers: processes that decode images.
        batch: images in a forward pass.
        screen: shows progress.

    Raises:
        ValueError: it is another descriptor, there is no such image, or the folder holds none.
    """
    index.check_maker(model)
    if k < 1:
        raise ValueError(f"k ({k}) must be 1 or more")
    if image.is_dir():
        root, names = image, [name for name, _, _ in scan(image)[0]]
        if not names:
            raise ValueError(f"{clean(str(image))} holds no image to search for")
    else:
        root, names = image.parent, [image.name]
    tried = POSES if poses else POSES[:1]
    step = max(1, batch // len(tried))
    parts = [names[begin : begin + step] for begin in range(0, len(names), step)]
    answers, bad = [], []
    more = screen.count("searching", len(names))
    for files, images in parallel_map(Reader(root, tried), parts, workers=workers if len(parts) > 1 else 0):
        vectors = iter(describe_batch(model, images).split(len(tried)))
        for file in files:
            if file.reason:
                bad.append(file.reason)
                continue
            own = next(vectors)
            if reason := next(filter(None, map(fault, own)), ""):
                bad.append(f"{clean(file.name)} cannot be searched for: {reason}")
                continue
            answers.append(Answer(file.name, _nearest(index.search(own, k), tried, k)))
        more(len(files))
    return answers, bad


def _nearest(found: Sequence[Sequence[Hit]], poses: Sequence[Pose], k: int) -> list[Hit]:
    """The k nearest over all poses; each file once, with the first of its nearest poses."""
    best: dict[str, Hit] = {}
    for hits, pose in zip(found, poses, strict=True):
        for hit in hits:
            if hit.name not in best or hit.distance < best[hit.name].distance:
                best[hit.name] = hit._replace(pose=pose_name(pose))
    return sorted(best.values(), key=lambda hit: (hit.distance, hit.name))[:k]


def pose_name(pose: Pose) -> str:
    """A pose in words; "" for the upright one.

    >>> pose_name(Pose(degrees=45.0)), pose_name(Pose(right=-0.2))
    ('rotated by 45°', 'shifted left by 20 %')
    """
    if pose.degrees:
        return f"rotated by {pose.degrees:.0f}°"
    for part, (towards, away) in ((pose.down, ("down", "up")), (pose.right, ("right", "left"))):
        if part:
            return f"shifted {towards if part > 0 else away} by {abs(part):.0%}".replace("%", " %")
    return ""
