"""Files of weights: every kind, and an unpickler that admits arrays only."""

import builtins
import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save, save_file

from patchreorder.data import backbone_weights, weights
from patchreorder.data.weights import read_weights
from tests.data.small_weights import pth, same, small


@pytest.mark.parametrize("ending", ["safetensors", "pt", "pth"])
def test_files_of_each_kind_are_read(ending, tmp_path):
    path, tensors = tmp_path / f"some.{ending}", small()
    save_file(tensors, path) if ending == "safetensors" else torch.save(tensors, path)
    assert same(read_weights(path), tensors)


@pytest.mark.parametrize("ending", ["safetensors", "pt"])
@pytest.mark.parametrize("damage", ["empty", "cut", "rubbish"])
def test_a_damaged_file_is_named(ending, damage, tmp_path):
    path = tmp_path / f"some.{ending}"
    whole = save(small()) if ending == "safetensors" else pth(small())
    path.write_bytes({"empty": b"", "cut": whole[: len(whole) // 2], "rubbish": b"no weights here" * 9}[damage])
    with pytest.raises(ValueError, match=r"some\.\w+ cannot be read as (safetensors|weights)"):
        read_weights(path)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"some\.npz must end in \.safetensors, \.pt or \.pth"):
        read_weights(tmp_path / "some.npz")
    with pytest.raises(FileNotFoundError, match=r"none\.pt"):
        read_weights(tmp_path / "none.pt")
    for number, content in enumerate(([torch.zeros(1)], {"a": 1}, {1: torch.zeros(1)}, {"state_dict": small()})):
        path = tmp_path / f"{number}.pt"
        torch.save(content, path)
        with pytest.raises(ValueError, match=r"holds no plain dict of tensors: store model\.state_dict\(\)"):
            read_weights(path)


class Calls:
    """Its pickle calls a function when it is read."""

    def __init__(self, what: Callable[..., object], *given: object) -> None:
        self.what, self.given = what, given

    def __reduce__(self) -> tuple[object, ...]:
        return self.what, self.given


ATTACKS = {  # by the function that they call
    "system": Calls(os.system, "touch {}"),
    "eval": Calls(builtins.eval, "open({!r}, 'w')"),
    "getattr": Calls(builtins.getattr, 1, "real"),
    "numpy.load": Calls(np.load, "x"),
    "numpy.frombuffer": Calls(np.frombuffer, b"12345678"),
    "Path": Path("x"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_file_can_call_anything(attack, tmp_path):
    mark = tmp_path / "mark"
    call = ATTACKS[attack]
    if isinstance(call, Calls):
        call = Calls(call.what, *(part.format(str(mark)) if isinstance(part, str) else part for part in call.given))
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        content = pickle.dumps({"AlexNet_0": call, "arrays": np.ones(2)}, protocol=protocol)
        with pytest.raises(pickle.UnpicklingError, match=rf"it refers to .*{attack}: only numpy's arrays are admitted"):
            list(backbone_weights._from_flax(content))
    if isinstance(call, Calls):
        torch.save({"features.0.weight": call}, tmp_path / "some.pt")
        with pytest.raises(ValueError, match="cannot be read as weights"):
            read_weights(tmp_path / "some.pt")
    assert not mark.exists()
    with pytest.raises(pickle.UnpicklingError, match=r"numpy.ndarray.tofile: only"):
        list(backbone_weights._from_flax(b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93."))


@pytest.mark.parametrize("module", ["numpy.core.multiarray", "numpy._core.multiarray"])
def test_arrays_are_admitted_whichever_numpy_wrote_them(module):
    content = pickle.dumps({"a": np.arange(6, dtype="<f4").reshape(2, 3)}, protocol=3)
    own = np.empty(0).__reduce__()[0].__module__.encode()
    found = weights.ArrayUnpickler(io.BytesIO(content.replace(own, module.encode()))).load()
    assert found["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
