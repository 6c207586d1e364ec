"""Every kind of file that we read is damaged at random: it is read as it was, or refused by name, in time and memory.

Files with a checksum must not be read as anything else. The others may hold other values afterwards, but nothing that
fails their readers.
"""

import dataclasses
import random
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from patchreorder.classifier import features
from patchreorder.classifier.fit import FitOptions, fit
from patchreorder.data.folders import list_images
from patchreorder.data.formats import read_idx, read_labels, read_png_batch
from patchreorder.data.generated import write_photos
from patchreorder.data.images import decode, pixels
from patchreorder.data.shard_writer import write as write_shards
from patchreorder.data.shards import Shards
from patchreorder.data.weights import read_weights
from patchreorder.engine import checkpoint
from patchreorder.laboratory import rows
from patchreorder.models.saved import read_classifier
from patchreorder.search.index import Index
from tests.classifier.photographs import use_small_backbone, write_photographs
from tests.defences.chance import cases
from tests.defences.damage import damaged
from tests.laboratory.test_rows import result
from tests.search.samples import made, noise, state

LONGEST = 20.0  # seconds of one reading, on a busy machine
MOST_MEMORY = 1 << 30  # bytes that reading damaged files may add to the memory at its peak


class Kind(NamedTuple):
    """A folder with files of one kind, how it is read, and whether damage must be noticed."""

    folder: Path
    pattern: str
    read: Callable[[Path], Any]
    exact: bool = True


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[name], b[name]) for name in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


def read_part(folder: Path) -> Any:
    """Features of photographs: damaged ones are computed again."""
    found = features._read(folder / "part.safetensors", range(3))
    if found is None:
        raise ValueError("computed again")
    return found.kept, found.digests, found.faults, found.values


def read_image(folder: Path) -> None:
    (file,) = folder.iterdir()
    content = file.read_bytes()
    shown = decode(content, name=file.name)
    assert shown.mode == "RGB"
    assert pixels(content, name=file.name).shape == (shown.height, shown.width, 3)


def read_network(folder: Path) -> None:
    from patchreorder.measuring.onnx_network import OnnxNetwork

    network = OnnxNetwork(folder / "network.onnx")
    with network.record_activations(torch.zeros(1, 1, 8, 8)):
        pass


def read_index(folder: Path) -> Any:
    index = Index(folder / "index")
    return state(folder / "index"), [hit[:2] for hit in index.search(torch.eye(48)[:2], 5)[0]]


def read_rows(folder: Path) -> None:
    found = rows.read(folder / "table1.jsonl")
    assert all(rows._is_sound(row) for row in found.results)
    for row in found.results:  # what was taken can be written again
        rows.append(folder / "again", dataclasses.replace(row, recipe="again"))


def read_shards(folder: Path) -> Any:
    shards = Shards(folder / "shards")
    for number in range(len(shards)):
        shards.read(number)
    return shards.classes, shards.files, shards.labels, [shards.names[number] for number in range(len(shards))]


@pytest.fixture(scope="module")
def kinds(tmp_path_factory) -> dict[str, Kind]:
    folder = tmp_path_factory.mktemp("kinds")

    def new(name: str) -> Path:
        (folder / name).mkdir()
        return folder / name

    torch.manual_seed(0)
    tensors = {"weight": torch.randn(5, 7), "bias": torch.randn(3).half(), "steps": torch.tensor(3)}
    found = {}
    at = new("checkpoint")
    checkpoint.write(at / "c.safetensors", tensors, {"epoch": 3, "loss": [0.5, 0.25], "name": "cnn"})
    found["checkpoint"] = Kind(at, "*", lambda at: checkpoint.read(at / "c.safetensors"))
    at = new("classifier")
    with pytest.MonkeyPatch.context() as patch:
        use_small_backbone(patch)
        fit(write_photographs(folder / "photographs", count=5), folder / "fitted", FitOptions(workers=0))
    shutil.copy(folder / "fitted" / "classifier.safetensors", at)
    found["classifier"] = Kind(at, "*", lambda at: read_classifier(at / "classifier.safetensors"), exact=False)
    at = new("features")
    part = features._Part([0, 2], ["a" * 64, "b" * 64], {"1.png": "it is empty"}, torch.randn(2, 4, 9).half())
    features._write(at / "part.safetensors", part)
    found["features"] = Kind(at, "*", read_part)
    at = new("index")
    made(noise(folder / "images", 12), at / "index")
    found["index"] = Kind(at, "index/*", read_index)
    at = new("rows")
    for number in range(4):
        rows.append(at, result(seed=number))
    found["rows"] = Kind(at, "*", read_rows, exact=False)
    at = new("shards")
    photos = write_photos(folder / "photos", classes=3, images=4, size=(24, 16))
    write_shards(list_images(photos), at / "shards", size=5)
    found["shards"] = Kind(at, "shards/*", read_shards)
    at = new("safetensors")
    save_file(tensors, at / "w.safetensors")
    found["safetensors"] = Kind(at, "*", lambda at: read_weights(at / "w.safetensors"), exact=False)
    at = new("pickled")
    torch.save(tensors, at / "w.pth")
    found["pickled"] = Kind(at, "*", lambda at: read_weights(at / "w.pth"), exact=False)
    random_ = np.random.default_rng(0)
    shown = Image.fromarray(random_.integers(0, 255, (21, 34, 3), np.uint8))
    for name in ("jpeg", "png", "webp", "gif", "bmp", "tiff"):
        at = new(name)
        shown.save(at / f"image.{name}")
        found[name] = Kind(at, "*", read_image, exact=False)
    at = new("idx")
    (at / "digits").write_bytes(bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4]) + bytes(range(24)))
    found["idx"] = Kind(at, "*", lambda at: read_idx(at / "digits"), exact=False)
    at = new("batch")
    Image.fromarray(random_.integers(0, 255, (6, 16, 3), np.uint8)).save(at / "batch.png")
    found["batch"] = Kind(at, "*", lambda at: read_png_batch(at / "batch.png", count=6, side=4), exact=False)
    at = new("labels")
    (at / "labels.json").write_text(str([1, 2, 0, 1]))
    found["labels"] = Kind(at, "*", lambda at: read_labels(at / "labels.json", count=4, classes=3), exact=False)
    _add_onnx(found, new)
    return found


def _add_onnx(found: dict[str, Kind], new: Callable[[str], Path]) -> None:
    try:
        import onnx
        import onnxruntime  # noqa: F401
    except ImportError:
        return
    at = new("onnx")
    weight = onnx.numpy_helper.from_array(np.ones((2, 1, 3, 3), np.float32), "weight")
    nodes = [
        onnx.helper.make_node("Conv", ["images", "weight"], ["conv"]),
        onnx.helper.make_node("Relu", ["conv"], ["relu"]),
        onnx.helper.make_node("GlobalAveragePool", ["relu"], ["pool"]),
        onnx.helper.make_node("Flatten", ["pool"], ["logits"]),
    ]
    ends = [
        onnx.helper.make_tensor_value_info(end, onnx.TensorProto.FLOAT, ["b", *shape])
        for end, shape in (("images", (1, 8, 8)), ("logits", (2,)))
    ]
    graph = onnx.helper.make_graph(nodes, "cnn", ends[:1], ends[1:], [weight])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, at / "network.onnx")
    found["onnx"] = Kind(at, "*", read_network, exact=False)


def test_damaged_files_are_refused_or_read_as_they_were(kinds, tmp_path, monkeypatch):
    use_small_backbone(monkeypatch)
    whole = {name: kind.read(_copy(kind, tmp_path / "whole" / name)) for name, kind in kinds.items()}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seen: dict[str, list[int]] = {name: [0, 0] for name in kinds}
    for number, chance in enumerate(cases("damage")):
        name = chance.choice(sorted(kinds))
        refused = _damage(chance, kinds[name], name, whole[name], tmp_path / str(number))
        seen[name][refused] += 1
        shutil.rmtree(tmp_path / str(number))
    print("read, refused:", seen)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MOST_MEMORY


def _damage(chance: random.Random, kind: Kind, name: str, whole: Any, folder: Path) -> bool:
    """Damage one file of a copy and read it; return whether it was refused."""
    _copy(kind, folder)
    file = chance.choice(sorted(path for path in folder.glob(kind.pattern) if path.is_file()))
    content, how = damaged(chance, file.read_bytes())
    print(f"{name}: {file.name} {how}")
    file.write_bytes(content)
    began = time.process_time()
    try:
        found = kind.read(folder)
        assert not kind.exact or equal(found, whole), f"{name} was read as something else"
        return False
    except ValueError:
        return True
    finally:
        assert time.process_time() - began < LONGEST


def _copy(kind: Kind, folder: Path) -> Path:
    return shutil.copytree(kind.folder, folder)
