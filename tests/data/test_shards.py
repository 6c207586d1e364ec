"""Reading shards: never a wrong image or label, and few files open."""

import multiprocessing
import os
import pickle

import pytest
import torch

from patchreorder.data import shards
from patchreorder.data.folders import list_images
from patchreorder.data.shard_writer import write
from patchreorder.data.shards import INDEX, WINDOW, Shards


def test_a_missing_or_truncated_shard_is_named(sharded_copy):
    content = (sharded_copy / "00002.tar").read_bytes()
    (sharded_copy / "00002.tar").write_bytes(content[:-512])
    advice = r"remove the folder, then run `patchreorder shard` again"
    with pytest.raises(ValueError, match=rf"00002.tar has \d+ bytes, expected {len(content)}: {advice}"):
        Shards(sharded_copy)
    (sharded_copy / "00002.tar").unlink()
    with pytest.raises(ValueError, match=rf"00002.tar is missing: {advice}"):
        Shards(sharded_copy)


def test_a_replaced_shard_is_noticed_when_an_image_is_read(sharded_copy):
    found = Shards(sharded_copy)
    index = int((found.shard == 1).nonzero()[0])
    path = sharded_copy / found.files[1]
    begin = int(found.offset[index]) - 512
    content = bytearray(path.read_bytes())
    for place, change in ((begin + 3, b"9"), (begin + 130, b"7"), (begin, bytes(512))):
        damaged = content.copy()
        damaged[place : place + len(change)] = change
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"00001.tar does not hold {found.members[index]} where the index says"):
            Shards(sharded_copy).read(index)
    path.write_bytes(content[: begin + 600])  # truncated while it is open
    with pytest.raises(ValueError, match="does not hold"):
        found.read(index)


@pytest.mark.parametrize(("old", "new"), [(b'"members":', b'"mxmbers":'), (b'"dtype":"I64"', b'"dtype":"F64"')])
def test_an_index_with_other_columns_is_refused(sharded_copy, old, new):
    content = (sharded_copy / INDEX).read_bytes()
    assert old in content
    (sharded_copy / INDEX).write_bytes(content.replace(old, new))
    with pytest.raises(ValueError, match=r"index.safetensors is no index of ours or is damaged .*: remove it"):
        Shards(sharded_copy)


@pytest.mark.parametrize("place", [20, -40, -2000])
def test_a_damaged_index_is_refused(sharded_copy, place):
    content = bytearray((sharded_copy / INDEX).read_bytes())
    content[place] ^= 1
    (sharded_copy / INDEX).write_bytes(content)
    with pytest.raises(ValueError, match=r"index.safetensors is no index of ours or is damaged .*: remove it"):
        Shards(sharded_copy)


def test_an_order_is_a_permutation_of_windows(tmp_path, photos):
    found = Shards(write(list_images(photos), tmp_path / "out", size=1).folder)  # 28 shards
    order = found.order(seed=3, epoch=1)
    assert sorted(order.tolist()) == [*range(28)]
    assert torch.equal(order, found.order(seed=3, epoch=1))
    for other in ({"seed": 3, "epoch": 2}, {"seed": 4, "epoch": 1}):
        assert not torch.equal(order, found.order(**other))
    wide = Shards(write(list_images(photos), tmp_path / "wide", size=2).folder)  # 14 shards, two windows
    first = wide.order(seed=0, epoch=0)[: 2 * WINDOW]
    assert len(wide.shard[first].unique()) == WINDOW
    assert (wide.shard[first[::2]] != wide.shard[first[1::2]]).any()  # mixed, not one after the other
    assert {*wide.shard[first].tolist()} != {*wide.shard[wide.order(seed=0, epoch=1)[: 2 * WINDOW]].tolist()}


def read_all(found, end) -> None:
    end.send([found.read(index) for index in range(len(found))])


def test_other_processes_can_read(sharded):
    found = Shards(sharded)
    expected = [found.read(index) for index in range(28)]
    assert [pickle.loads(pickle.dumps(found)).read(index) for index in range(28)] == expected
    end, other = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=read_all, args=(found, other))
    child.start()
    assert end.recv() == expected
    child.join()
    assert found.read(3) == expected[3]


def test_few_files_are_open_at_a_time(sharded, monkeypatch):
    monkeypatch.setattr(shards, "OPEN_FILES", 2)
    found = Shards(sharded)
    before = len(os.listdir("/proc/self/fd"))
    contents = [found.read(index) for index in range(28)]
    assert len(os.listdir("/proc/self/fd")) - before <= 2
    assert [found.read(index) for index in range(28)] == contents
    del found
    assert len(os.listdir("/proc/self/fd")) == before
