"""Image files of a folder: subfolders, links and other files."""

import shutil

import pytest

from patchreorder.search.images import scan


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
