"""The image files that a command is given: files, folders, and paths from standard input."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

from patchreorder.data.folders import list_unlabelled


def listed(paths: Sequence[str], stream: TextIO) -> list[str]:
    """The files that are named, those in folders, and for "-" those that the stream names, one a line.

    Raises:
        ValueError: a folder holds no image, or nothing is named.
    """
    found: list[str] = []
    for path in paths:
        found += _from(stream) if path == "-" else _files(path)
    if not found:
        raise ValueError("no image is named: give files, folders, or - with paths on standard input")
    return found


def _from(stream: TextIO) -> Iterable[str]:
    return [file for line in stream if (path := line.rstrip("\r\n")) for file in _files(path)]


def _files(path: str) -> list[str]:
    if not Path(path).is_dir():
        return [path]
    listing = list_unlabelled(Path(path))
    return [str(listing.root / name) for name in listing.names]
