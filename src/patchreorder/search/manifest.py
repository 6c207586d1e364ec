"""The files of an index: a manifest, and the chunks of vectors that it names.

A chunk never changes, and its name is its checksum. The manifest is replaced whole, as the last step of an update: a
reader sees the state before or after it. A chunk also holds the names of its image files, so that chunks can be used
again after a process was killed or the manifest was damaged.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from patchreorder.files import write_whole
from patchreorder.untrusted import clean

from .descriptors import fingerprint
from .images import PREPROCESSING, ImageFile, common_root

FORMAT = 1
MANIFEST = "manifest.json"
BESIDE = (".lock", ".parts", ".candidates", ".relations.jsonl", ".actions")  # other files in the folder of an index
PARTS = ".parts"  # locked by processes that describe parts
_OURS = re.compile(r"\.?[0-9a-f]{32}\.(safetensors|faiss)(\.[0-9a-f]{8})?|\.manifest\.json\.[0-9a-f]{8}")


class Damaged(ValueError):
    """A file of an index is damaged or missing; the message names it and says what to do."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{clean(str(path))} {reason}: run `patchreorder index` again, it repairs the index")


class Maker(NamedTuple):
    """What vectors depend on: vectors of different makers are never compared."""

    model: str
    fingerprint: str  # of the weights
    dimensions: int
    preprocessing: dict[str, Any] = PREPROCESSING

    @classmethod
    def of(cls, model: Any) -> Maker:
        """The maker of a descriptor's vectors."""
        shown = getattr(model, "preprocessing", PREPROCESSING)
        return cls(model.name, fingerprint(model), model.dimensions, dict(shown))

    def __str__(self) -> str:
        seen = ", ".join(f"{name} {value}" for name, value in self.preprocessing.items())
        return f"{clean(self.model)} (weights {clean(self.fingerprint)}, {self.dimensions} dimensions, {seen})"


class Chunk(NamedTuple):
    """A file of vectors, mapped into memory, with the digests of their images and the files that hold these images."""

    name: str
    vectors: Tensor
    digests: list[str]
    files: list[ImageFile]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The state of an index. A slot is the position of a vector in all chunks in sequence."""

    maker: Maker
    root: str
    folders: list[str] = field(default_factory=lambda: [""])  # those of the root that are read
    identity: str = ""  # of the index in a store that several indexes share
    weights: str | None = None
    store: str | None = None
    chunks: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)  # vectors of each chunk
    graph: str | None = None  # FAISS's file
    graphed: int = 0  # the number of chunks in it
    files: list[ImageFile] = field(default_factory=list)  # by name
    slots: list[int] = field(default_factory=list)  # of each file; -1 without a vector

    def write(self, folder: Path) -> None:
        body = json.dumps({"format": FORMAT, **vars(self)}, separators=(",", ":")).encode()
        first = b'{"sha256":"%s",\n' % sha256(body[1:]).hexdigest().encode()
        write_whole(folder / MANIFEST, first + body[1:])

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of a folder; raises FileNotFoundError, Damaged, or ValueError if another version wrote it."""
        path = folder / MANIFEST
        first, _, body = path.read_bytes().partition(b"\n")
        if first != b'{"sha256":"%s",' % sha256(body).hexdigest().encode():
            raise Damaged(path, "is damaged (its checksum is wrong)")
        values = json.loads(b"{" + body)
        if (found := values.pop("format")) != FORMAT:
            raise ValueError(
                f"{clean(str(path))} has format {found}, expected {FORMAT}: another version of patchreorder made it; "
                "make a new index in another folder"
            )
        values["maker"] = Maker(*values["maker"])
        values["files"] = [ImageFile(*file) for file in values["files"]]
        return cls(**values)


def empty_manifest(folders: Sequence[Path], out: Path, model: Any) -> Manifest:
    """The manifest of a new index. Its identity in a store is that of its descriptor and its path."""
    maker = Maker.of(model)
    identity = blake2b(os.fsencode(f"{maker}{out}"), digest_size=16).hexdigest()
    root, within = common_root(folders)
    return Manifest(maker=maker, root=str(root), folders=within, identity=identity)


def write_chunk(
    folder: Path, maker: Maker, *, vectors: Tensor, digests: Sequence[str], files: Sequence[ImageFile]
) -> Chunk:
    """Write a chunk, whole or not at all; it is on the disk when this returns."""
    about = json.dumps({"format": FORMAT, "maker": maker, "digests": digests, "files": files})
    content = save({"vectors": vectors.contiguous()}, metadata={"chunk": about})
    name = f"{sha256(content).hexdigest()[:32]}.safetensors"
    write_whole(folder / name, content)
    return read_chunk(folder / name, check=False)


def read_chunk(path: Path, *, check: bool = True, maker: Maker | None = None) -> Chunk:
    """A chunk, its vectors mapped into memory; raises Damaged also if it is of another maker."""
    vectors, metadata = _read(path, check=check)
    about = json.loads(metadata.get("chunk", '{"format": null}'))
    if about["format"] != FORMAT or maker not in (None, Maker(*about["maker"])):
        raise Damaged(path, "is of another index")
    return Chunk(path.name, vectors, about["digests"], [ImageFile(*file) for file in about["files"]])


def read_vectors(path: Path, *, check: bool = True) -> Tensor:
    """The vectors of a chunk, mapped into memory; they stay readable when the file is removed."""
    return _read(path, check=check)[0]


def _read(path: Path, *, check: bool) -> tuple[Tensor, dict[str, str]]:
    """Vectors and metadata of a chunk; raises FileNotFoundError also if it is removed meanwhile."""
    if check:
        verify(path)
    try:
        with safe_open(path, framework="pt") as file:
            return file.get_tensor("vectors"), file.metadata() or {}
    except (SafetensorError, RuntimeError) as error:  # RuntimeError: torch opens the file a second time to map it
        path.stat()  # FileNotFoundError if it was removed
        raise Damaged(path, f"is damaged ({error})") from None


def verify(path: Path) -> None:
    """Raise `Damaged` if the checksum of a file is not its name."""
    if checksum(path) != path.name.partition(".")[0]:
        raise Damaged(path, "is damaged (its checksum is wrong)")


def checksum(path: Path) -> str:
    """The first half of a file's SHA-256."""
    found, buffer = sha256(), bytearray(1 << 20)
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            found.update(memoryview(buffer)[:count])
    return found.hexdigest()[:32]


def left_over(folder: Path, manifest: Manifest | None) -> list[Path]:
    """Files of an index in the folder that the manifest does not name."""
    named = set() if manifest is None else {*manifest.chunks, manifest.graph}
    return [folder / name for name in sorted(os.listdir(folder)) if _OURS.fullmatch(name) and name not in named]


def check_folder(out: Path) -> None:
    """Raise ValueError if this can be no folder of an index."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"out ({clean(str(out))}) must be a folder")
    names = set(os.listdir(out)) if out.exists() else set()
    ours = (
        {".lock", PARTS, ".candidates", ".relations.jsonl", ".actions", *(path.name for path in left_over(out, None))}
        if names
        else set()
    )
    if names and MANIFEST not in names and names - ours:
        raise ValueError(f"out ({clean(str(out))}) holds other files: name a new folder for the index")
