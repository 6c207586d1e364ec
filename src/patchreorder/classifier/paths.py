"""The image files that a command is given: files, folders, and paths from standard input."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

from patchreorder.data.folders import list_unlabelled


def listed(paths: Sequence[str], stream: TextIO | None) -> list[str]:
    """The files that are named, those in folders, and for "-" those that the stream names, one a line.

    Folders without an image and names that no file can have are among them: reading says what is wrong.

    Raises:
        ValueError: nothing is named, or a name is empty, or the stream is closed.
    """
    found: list[str] = []
    for path in paths:
        if not path:
            raise ValueError("the name of an image is empty")
        found += _from(stream) if path == "-" else _files(path)
    if not found:
        raise ValueError("no image is named: give files, folders, or - with paths on standard input")
    return found


def _from(stream: TextIO | None) -> Iterable[str]:
    if stream is None:
        raise ValueError("standard input is closed: give files or folders")
    return [file for line in stream if (path := line.rstrip("\r\n")) for file in _files(path)]


def _files(path: str) -> list[str]:
    if not os.path.isdir(path):
        return [path]
    try:
        listing = list_unlabelled(Path(path))
    except (ValueError, OSError):  # no image, or not allowed
        return [path]
    return [str(listing.root / name) for name in listing.names]
