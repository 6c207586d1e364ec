"""An index for existing WebDataset tars, so that they are read as `Shards`."""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .folders import ENDINGS
from .shards import INDEX, PLAN, UNFINISHED, parse_header, write_index

MAX_CLASSES = 1_000_000


def index_tars(folder: Path, *, progress: Callable[[int, int], None] = lambda done, total: None) -> Path:
    """Read the headers of all tars in a folder once and write our index beside them; the classes are numbers.

    Args:
        folder: holds *.tar with members KEY.jpg (or another image) and KEY.cls; other members are ignored.
        progress: receives the number of tars done, and of all.

    Raises:
        ValueError: if a tar is truncated, an image has no label, or a label no image.
    """
    paths = sorted(Path(folder).glob("*.tar"))
    if not paths:
        raise ValueError(f"{folder} holds no *.tar")
    if (folder / PLAN).is_file():
        raise ValueError(f"{folder} {UNFINISHED}")
    rows: list[tuple[int, int, int, int]] = []
    names: list[str] = []
    members: list[str] = []
    for shard, path in enumerate(paths):
        with open(path, "rb") as file:
            images, labels = _pairs(path, file)
            for key, (member, stored) in images.items():
                rows.append((shard, member.offset_data, member.size, labels[key]))
                names.append(f"{path.name}/{member.name}")
                members.append(stored)
        progress(shard + 1, len(paths))
    if not rows:
        raise ValueError(f"{folder} holds no image ({', '.join(ENDINGS)}) in its {len(paths)} tars")
    write_index(
        folder,
        rows,
        names=names,
        members=members,
        classes=[str(number) for number in range(max(label for *_, label in rows) + 1)],
        shards=[(path.name, path.stat().st_size, None) for path in paths],
    )
    return folder / INDEX


def _pairs(path: Path, file: Any) -> tuple[dict[str, tuple[tarfile.TarInfo, str]], dict[str, int]]:
    """For every key of a tar, the image's member with its name in the header, and the label."""
    images: dict[str, tuple[tarfile.TarInfo, str]] = {}
    labels: dict[str, int] = {}
    end, size, block = 0, os.fstat(file.fileno()).st_size, tarfile.BLOCKSIZE
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                end = member.offset_data + -(-member.size // block) * block
                if end > size:
                    break
                found = re.fullmatch(r"((?:.*/)?[^./][^./]*)\.([^/]*)", member.name)
                if not member.isreg() or not found:
                    continue
                key, ending = found[1], found[2].lower()
                if ending != "cls" and ending not in ENDINGS:
                    continue
                if key in (labels if ending == "cls" else images):
                    raise ValueError(f"{path} holds {key} twice: its members must be KEY.jpg and KEY.cls, once each")
                if ending == "cls":
                    labels[key] = _label(path, member, os.pread(file.fileno(), 20, member.offset_data))
                else:
                    header = os.pread(file.fileno(), block, member.offset_data - block)
                    images[key] = member, parse_header(header).name
    except tarfile.TarError as error:
        raise ValueError(f"{path} is no tar, or truncated ({error}): get it again") from None
    if os.pread(file.fileno(), block, end) != bytes(block):  # tarfile accepts a truncated or damaged end
        raise ValueError(
            f"{path} is truncated or damaged: it does not end after {end} bytes as a tar does; get it again"
        )
    for key in images.keys() ^ labels.keys():
        absent = "label (.cls)" if key in images else "image"
        raise ValueError(f"{path} holds no {absent} for {key}: its members must be KEY.jpg and KEY.cls")
    return images, labels


def _label(path: Path, member: tarfile.TarInfo, content: bytes) -> int:
    text = content[: member.size].decode("ascii", "replace").strip()
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) >= MAX_CLASSES:
        raise ValueError(f"{path} holds {text!r} in {member.name}, which must be a class number")
    return int(text)
