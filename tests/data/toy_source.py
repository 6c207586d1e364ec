"""A source of two small files, and origins for it that need no network."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from patchreorder.data.sources import File, Source

CONTENTS = {"images": b"many pixels " * 50, "labels": b"few labels"}
FILES = tuple(File(name, len(content), sha256(content).hexdigest()) for name, content in CONTENTS.items())


@dataclass(frozen=True)
class Shelf:
    """An origin that yields its contents and counts how often it is read."""

    contents: dict[str, bytes] = field(default_factory=lambda: dict(CONTENTS))
    asked: list[list[str]] = field(default_factory=list)

    def __str__(self) -> str:
        return "the shelf"

    def read(self, source: Source, files: list[File]) -> Iterator[tuple[str, bytes]]:
        self.asked.append([file.name for file in files])
        yield from self.contents.items()


def toy(*origins) -> Source:
    return Source("toy", FILES, origins)


def fill(folder: Path, contents: dict[str, bytes] = CONTENTS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


def files_in(folder: Path) -> dict[str, bytes]:
    """Every file in a folder, with hidden ones."""
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}
