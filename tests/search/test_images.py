"""Image files of a folder: subfolders, links and other files."""

import os
import shutil
from types import SimpleNamespace

import pytest

from patchreorder.search import images
from patchreorder.search.images import UNKNOWN, Reader, scan
from tests.allocations import most_memory


def test_subfolders_links_and_other_files(photos):
    (photos / "a/b/c").mkdir(parents=True)
    shutil.copy(photos / "class-0000/0000.jpg", photos / "a/b/c/DEEP.JPG")
    (photos / "a/notes.txt").touch()
    (photos / ".hidden.jpg").touch()
    (photos / "a/back").symlink_to(photos)
    (photos / "a/nowhere.jpg").symlink_to(photos / "nothing")
    found, ignored = scan(photos)
    assert len(found) == 13
    name, size, mtime = found[0]
    stat = (photos / "a/b/c/DEEP.JPG").stat()
    assert (name, size, mtime) == ("a/b/c/DEEP.JPG", stat.st_size, stat.st_mtime_ns)
    assert ignored == [".hidden.jpg", "a/notes.txt", "a/nowhere.jpg"]
    assert len(scan(photos, leave=photos / "class-0001")[0]) == 9


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(ValueError, match="nothing is not a folder"):
        scan(tmp_path / "nothing")


def test_what_a_link_leads_to_is_listed_by_its_own_name(tmp_path):
    for name in ("one/a.jpg", "two/b.jpg"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "one" / "up").symlink_to(tmp_path)
    found, _ = scan(tmp_path, folders=["one", "two"])
    assert [name for name, *_ in found] == ["one/a.jpg", "two/b.jpg"]


def test_a_link_to_itself_is_ignored(photos):
    (photos / "loop.jpg").symlink_to("loop.jpg")
    (photos / "ring").symlink_to("ring")
    found, ignored = scan(photos)
    assert len(found) == 12
    assert ignored == ["loop.jpg", "ring"]


class Entry:
    """An entry of a folder that is deleted, or on a bad disk, when it is asked about."""

    def __init__(self, entry, error):
        self.entry, self.error, self.name = entry, error, entry.name

    def is_dir(self):
        return self.entry.is_dir()

    def is_file(self):
        return self.entry.is_file()

    def stat(self):
        raise self.error


class Entries(list):
    def __enter__(self):
        return self

    def __exit__(self, *given):
        pass


@pytest.mark.parametrize(
    ("error", "left"), [(FileNotFoundError(2, "No such file"), []), (OSError(5, "I/O error"), [(UNKNOWN, UNKNOWN)])]
)
def test_a_file_that_is_deleted_during_the_listing_is_not_there(photos, monkeypatch, error, left):
    real = os.scandir

    def late(path):
        with real(path) as entries:
            return Entries(Entry(entry, error) if entry.name == "0001.jpg" else entry for entry in entries)

    monkeypatch.setattr(images.os, "scandir", late)
    found, ignored = scan(photos)
    assert [stat[1:] for stat in found if stat[0].endswith("0001.jpg")] == 3 * left
    assert len(found) == 9 + 3 * len(left)
    assert ignored == []


def test_a_folder_that_is_deleted_during_the_listing_is_not_there(photos, monkeypatch):
    real = os.scandir

    def late(path):
        if path == photos / "class-0001/":
            path.rename(photos.parent / "elsewhere")
        return real(path)

    monkeypatch.setattr(images.os, "scandir", late)
    assert {name.split("/")[0] for name, _, _ in scan(photos)[0]} == {"class-0000", "class-0002"}


def test_a_folder_that_cannot_be_read_is_an_error(photos, monkeypatch):
    real = os.scandir

    def refuse(path):
        if path.name == "class-0001":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(images.os, "scandir", refuse)
    with pytest.raises(PermissionError, match="class-0001"):
        scan(photos)


def test_a_huge_file_is_not_read(photos):
    with open(photos / "huge.jpg", "wb") as file:
        file.truncate(40 << 30)  # sparse
    with most_memory() as memory:
        (file,), pixels = Reader(photos)(["huge.jpg"])
    assert memory() < 10_000_000
    assert file.reason == "huge.jpg has 42.9 GB: no image file is larger than 1.0 GB"
    assert (file.size, len(pixels)) == (40 << 30, 0)


def test_a_file_that_grows_while_it_is_read_is_not_read_whole(photos, monkeypatch):
    monkeypatch.setattr(images, "LARGEST", 100)
    with open(photos / "grown.jpg", "wb") as opened:
        opened.truncate(100_000_000)
    with monkeypatch.context() as patch, most_memory() as memory:
        patch.setattr(images.os, "fstat", lambda handle: SimpleNamespace(st_size=50, st_mtime_ns=0))
        (file,), _ = Reader(photos)(["grown.jpg"])
    assert memory() < 10_000_000
    assert "no image file is larger than" in file.reason
