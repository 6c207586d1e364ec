"""The files of an index: every kind of damage is noticed and repaired, files of other versions are refused."""

import json
import re
import shutil

import pytest

from patchreorder.engine.progress import Screen
from patchreorder.search import update as update_module
from patchreorder.search.descriptors import fingerprint
from patchreorder.search.index import Index
from patchreorder.search.manifest import MANIFEST, Damaged, Maker, Manifest, read_chunk

from .samples import Colours, files, made, noise, state


def test_the_manifest_names_its_maker_and_files(photos, tmp_path):
    made(photos, tmp_path / "out")
    values = json.loads((tmp_path / "out" / MANIFEST).read_bytes())
    assert values["maker"] == ["colours", fingerprint(Colours()), 48, {"size": 224, "short": 256, "view": "Ori"}]
    assert values["root"] == str(photos)
    name, size, mtime, digest, reason, width, height, look = values["files"][0]
    stat = (photos / name).stat()
    assert (name, size, mtime, reason) == ("class-0000/0000.jpg", stat.st_size, stat.st_mtime_ns, "")
    assert re.fullmatch("[0-9a-f]{32}", digest)
    assert (width, height) == (24, 16)
    assert re.fullmatch("[0-9a-f]{10}", look)


def test_another_version_is_refused(photos, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("patchreorder.search.manifest.FORMAT", 2)
        made(photos, tmp_path / "out")
    with pytest.raises(ValueError, match="has format 2, expected 1"):
        Index(tmp_path / "out")
    with pytest.raises(ValueError, match="has format 2, expected 1"):
        made(photos, tmp_path / "out")


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


DAMAGES = {
    "flipped": flip,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "emptied": lambda path: path.write_bytes(b""),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("which", ["chunk", "manifest", "graph"])
def test_damage_is_named_and_repaired(photos, tmp_path, monkeypatch, damage, which):
    out, lines = tmp_path / "out", []
    if which == "graph":
        pytest.importorskip("faiss")
        monkeypatch.setattr(update_module, "LARGE", 3)
    monkeypatch.setattr(update_module, "CHUNK", 5)
    made(photos, out, batch=5)
    before, names = state(out), files(out)
    manifest = Manifest.read(out)
    target = {"chunk": manifest.chunks[1], "manifest": MANIFEST, "graph": manifest.graph}[which]
    DAMAGES[damage](out / target)
    reason = "out is not finished" if (which, damage) == ("manifest", "gone") else rf"{target} is (damaged|missing)"
    with pytest.raises(ValueError, match=rf"{reason}.*: run .*`patchreorder index` again"):
        Index(out)
    model, screen = Colours(), Screen()
    screen.say = lines.append
    made(photos, out, model, screen=screen, batch=5)
    assert model.seen == (5 if which == "chunk" else 0)  # only the lost vectors
    assert state(out) == before
    assert bool(lines) == ((which, damage) != ("manifest", "gone"))
    if which != "chunk":
        assert files(out) == names
    assert not made(photos, out).changed


def test_a_change_of_any_byte_of_a_chunk_is_noticed(tmp_path):
    made(noise(tmp_path / "in", 1), tmp_path / "out")
    path = next((tmp_path / "out").glob("*.safetensors"))
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(Damaged):
            Index(tmp_path / "out")
    path.write_bytes(whole)
    Index(tmp_path / "out")


def test_a_chunk_of_another_index_is_not_used(photos, tmp_path):
    made(photos, tmp_path / "other")
    (tmp_path / "out").mkdir()
    (path,) = (tmp_path / "other").glob("*.safetensors")
    shutil.copy(path, tmp_path / "out")
    model = Colours(weight=2.0)
    made(photos, tmp_path / "out", model)
    assert model.seen == 12
    with pytest.raises(Damaged, match="is of another index"):
        read_chunk(path, maker=Maker("colours", fingerprint(model), 48))
