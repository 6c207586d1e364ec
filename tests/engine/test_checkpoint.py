"""Files of checkpoints: any tensor, damage, hostile files, full disks."""

import errno
import json
import os
import pickle
import random
import re
import resource

import pytest
import safetensors.torch
import torch
from torch import nn

from patchreorder.engine import checkpoint
from tests.engine.toy import bits, network

STATE = {"step": 3, "curve": [[0.1, 1 / 3]], "none": None, "text": "\N{SNOWMAN}"}


@pytest.fixture
def file(tmp_path):
    checkpoint.write(tmp_path / "c", network("noisy").state_dict(), STATE)
    return tmp_path / "c"


def test_any_tensor_can_be_saved(tmp_path):
    shared = torch.rand(2, 3, 4, 4)
    tensors = {
        "shared": shared,
        "again": shared,
        "part": shared[:, :1],
        "channels last": shared.to(memory_format=torch.channels_last),
        "transposed": torch.rand(3, 4).T,
        "half": torch.rand(3).bfloat16(),
        "count": torch.tensor(7),
        "flags": torch.tensor([True, False]),
        "empty": torch.zeros(0, 3),
        "double": nn.Parameter(torch.rand(2, dtype=torch.float64)),
    }
    file = tmp_path / "deep" / "folder" / "c"
    checkpoint.write(file, tensors, STATE)
    found, state = checkpoint.read(file)
    assert state == STATE
    assert found.keys() == tensors.keys()
    for name, value in tensors.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value)
    with safetensors.safe_open(file, framework="pt") as opened:
        assert json.loads(opened.metadata()["state"]) == STATE  # safetensors alone reads it


def test_the_fingerprint_is_a_crc32_of_everything():
    assert checkpoint.fingerprint({}, "123456789") == "cbf43926"  # the check value of CRC-32
    tensors = {"a": torch.zeros(2, 3), "b": torch.zeros(1)}
    others = [
        {"a": torch.zeros(3, 2), "b": torch.zeros(1)},
        {"a": torch.zeros(2, 3), "c": torch.zeros(1)},
        {"a": torch.zeros(2, 3), "b": torch.zeros(1).int()},
        {"a": torch.zeros(2, 3), "b": torch.ones(1)},
    ]
    assert len({checkpoint.fingerprint(each) for each in (tensors, *others)}) == 5
    assert checkpoint.fingerprint(dict(reversed(tensors.items()))) == checkpoint.fingerprint(tensors)


def test_a_damaged_file_is_refused(file):
    """Truncated anywhere, or with any bit flipped: an error that names it, or the same content."""

    def content():
        tensors, state = checkpoint.read(file)
        return bits(tensors), state

    data, whole = file.read_bytes(), content()
    chance = random.Random(0)
    header = 8 + int.from_bytes(data[:8], "little")
    positions = [*range(16), *chance.sample(range(16, header), 60), *chance.sample(range(header, len(data)), 60)]
    damaged = []
    for position in positions:
        flipped = bytearray(data)
        flipped[position] ^= 1 << chance.randrange(8)
        damaged.append(bytes(flipped))
    damaged += [data[:length] for length in (0, 1, 7, 8, 100, header, len(data) // 2, len(data) - 1)]
    damaged += [data + b"x", b"\0" * len(data), data[header:]]
    unharmed = 0
    for wrong in damaged:
        file.write_bytes(wrong)
        try:
            found = content()
        except ValueError as error:
            found = str(error)
        if isinstance(found, str):
            assert re.fullmatch(rf"{file} is .*: remove it to train from the start", found, re.DOTALL)
        else:
            assert found == whole
            unharmed += 1
    assert unharmed < 3  # for example a flipped bit in the name of the checksum


class Bomb:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("kind", ["pickle", "torch", "state"])
def test_a_checkpoint_cannot_run_code(tmp_path, kind):
    file, target = tmp_path / "c", tmp_path / "hit"
    bomb = pickle.dumps(Bomb(target))
    if kind == "pickle":
        file.write_bytes(bomb)
    elif kind == "torch":
        torch.save({"state": Bomb(target)}, file)
    else:
        safetensors.torch.save_file({"a": torch.zeros(1)}, file, metadata={"state": bomb.decode("latin1")})
    with pytest.raises(ValueError, match="is not a checkpoint or is damaged"):
        checkpoint.read(file)
    assert not target.exists()
    pickle.loads(bomb)  # the bomb works
    assert target.exists()


@pytest.mark.parametrize("metadata", [None, *({"state": text} for text in ("[]", "3", '"run"', "[" * 100_000))])
def test_a_state_that_is_not_an_object_is_refused(tmp_path, metadata):
    safetensors.torch.save_file({"a": torch.zeros(1)}, tmp_path / "c", metadata=metadata)
    with pytest.raises(ValueError, match=f"{tmp_path / 'c'}.*remove it"):
        checkpoint.read(tmp_path / "c")


@pytest.mark.parametrize("call", ["fsync", "replace", "write"])
def test_a_full_disk_leaves_the_old_checkpoint(file, monkeypatch, call):
    content = file.read_bytes()

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if call == "write":  # the system itself refuses the second half
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(content) // 2, limits[1]))
    else:
        monkeypatch.setattr(os, call, full)
    try:
        with pytest.raises(OSError, match=str(file)) as error:
            checkpoint.write(file, network("noisy").state_dict(), {"step": 4})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    monkeypatch.undo()
    assert error.value.errno == (errno.EFBIG if call == "write" else errno.ENOSPC)
    assert file.read_bytes() == content
    assert [entry.name for entry in file.parent.iterdir()] == ["c"]
