"""The index of other people's WebDataset tars."""

import io
import tarfile

import pytest

from patchreorder.data.photos import Photos
from patchreorder.data.shards import INDEX, Shards
from patchreorder.data.webdataset import index_tars


def write_tar(path, *members, form=tarfile.GNU_FORMAT) -> None:
    with tarfile.open(path, "w", format=form) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def test_tars_get_an_index(photos, tmp_path):
    image = (photos / "class-0000/0000.jpg").read_bytes()
    long = "deep/" * 40 + "key"
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        pairs = [("../a.jpg", b"1" + image), ("../a.cls", b"2\n"), ("b.v2.JPG", b"?"), ("b.json", b"{}")]
        write_tar(tmp_path / "x.tar", *pairs, (f"{long}.cls", b"0"), (f"{long}.png", b"2" + image), form=form)
        write_tar(tmp_path / "y.tar", ("dir/a.cls", b"1"), ("dir/a.JPEG", b"3" + image), ("._a.jpg", b"mac"), form=form)
        with pytest.raises(ValueError, match=r"holds tars without an index: `patchreorder shard"):
            Photos.open(tmp_path, "train", view="Ori")
        index_tars(tmp_path)
        found = Shards(tmp_path)
        assert (found.classes, found.labels.tolist()) == (["0", "1", "2"], [2, 0, 1])
        assert [found.read(index)[:1] for index in range(3)] == [b"1", b"2", b"3"]
        assert found.names[2] == "y.tar/dir/a.JPEG"
        (tmp_path / INDEX).unlink()
    assert not (tmp_path.parent / "a.jpg").exists()


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([("a.jpg", b"1")], r"x.tar holds no label \(.cls\) for a"),
        ([("a.cls", b"1")], r"x.tar holds no image for a"),
        ([("a.jpg", b"1"), ("a.cls", b"cat")], r"x.tar holds 'cat' in a.cls, which must be a class number"),
        ([("a.jpg", b"1"), ("a.cls", b"-1")], r"holds '-1' in a.cls"),
        ([("a.jpg", b"1"), ("a.png", b"1"), ("a.cls", b"1")], r"x.tar holds a twice"),
        ([("a.txt", b"1")], r"holds no image .* in its 1 tars"),
    ],
)
def test_wrong_tars_are_refused(tmp_path, members, reason):
    write_tar(tmp_path / "x.tar", *members)
    with pytest.raises(ValueError, match=reason):
        index_tars(tmp_path)
    assert not (tmp_path / INDEX).exists()


def test_truncated_tars_are_refused(tmp_path):
    write_tar(tmp_path / "x.tar", *((f"{n}.{end}", b"11") for n in range(3) for end in ("jpg", "cls")))
    whole = (tmp_path / "x.tar").read_bytes()
    ends = 6 * 1024  # of the last member
    for cut in (0, 100, 1024 + 512, 2048, 4096, ends - 600, ends):
        (tmp_path / "x.tar").write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=r"x.tar is .*truncated.* get it again"):
            index_tars(tmp_path)
    (tmp_path / "x.tar").write_bytes(whole[:2048] + b"x" * 512 + whole[2560:])
    with pytest.raises(ValueError, match=r"x.tar is .*damaged.* get it again"):
        index_tars(tmp_path)
