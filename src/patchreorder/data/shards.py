"""Many images in few files: tars as WebDataset reads them, with an index by which any image is one read away.

A member KEY.jpg holds an image's file unchanged, KEY.cls its label in decimal. `index.safetensors` is written last: a
folder without it is not finished. It holds for every image the shard, the offset and size of its bytes, the label, the
member and the name, in the order of the listing that the shards were made from; and as JSON the classes and shards.
`shard_writer` writes shards from class folders, `webdataset` writes the index of existing tars.
"""

from __future__ import annotations

import json
import os
import tarfile
import threading
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from patchreorder.files import write_whole

from .folders import Names, class_names

INDEX = "index.safetensors"
PLAN = "plan.json"  # in a folder whose shards are being written
UNFINISHED = "is not finished: run the same `patchreorder shard` again to continue"
WINDOW = 8  # shards whose images are mixed with each other in an epoch
OPEN_FILES = 64
COLUMNS = {
    **dict.fromkeys(("shard", "offset", "size", "label", "name_ends", "member_ends"), (torch.int64, 1)),
    **dict.fromkeys(("names", "members"), (torch.uint8, 1)),
}  # of the index: type and dimensions


def are_in(folder: Path) -> bool:
    """Whether a folder holds shards with our index.

    Raises:
        ValueError: if it holds shards that are not finished, or have no index yet.
    """
    if (folder / INDEX).is_file():
        return True
    if (folder / PLAN).is_file():
        raise ValueError(f"{folder} {UNFINISHED}")
    if folder.is_dir() and next(folder.glob("*.tar"), None) and not class_names(folder):
        raise ValueError(f"{folder} holds tars without an index: `patchreorder shard {folder} {folder}` makes it once")
    return False


class Shards:
    """The images of a finished folder of shards.

    Raises:
        ValueError: if the index is damaged, or a shard is missing or has another size than in the index.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        columns, about = _read_index(self.folder / INDEX)
        self.classes: list[str] = about["classes"]
        self.files: list[str] = [name for name, _, _ in about["shards"]]
        self.plan: dict[str, Any] | None = about["plan"]
        self.skipped: list[tuple[str, str]] = [(name, reason) for name, reason in about["skipped"]]
        self.shard, self.offset, self.size = columns["shard"], columns["offset"], columns["size"]
        self.labels = columns["label"]
        self.names = Names.stored(columns["names"], columns["name_ends"])
        self.members = Names.stored(columns["members"], columns["member_ends"])
        for name, size, _ in about["shards"]:
            try:
                found = (self.folder / name).stat().st_size
            except FileNotFoundError:
                raise ValueError(f"{self.folder / name} is missing: {self._advice()}") from None
            if found != size:
                raise ValueError(f"{self.folder / name} has {found} bytes, expected {size}: {self._advice()}")
        self._open: dict[str, int] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.labels)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": {}, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_lock": threading.Lock()}

    def __del__(self) -> None:
        for handle in getattr(self, "_open", {}).values():
            os.close(handle)

    def read(self, index: int) -> bytes:
        """The bytes of an image's file.

        Raises:
            ValueError: if the shard does not hold this image at the offset in the index.
        """
        name, member = self.files[int(self.shard[index])], self.members[index]
        begin, size = int(self.offset[index]) - tarfile.BLOCKSIZE, int(self.size[index])
        with self._lock:  # no thread may close a file that another one reads
            block = os.pread(self._handle(name), tarfile.BLOCKSIZE + size, begin)
        try:
            header = parse_header(block[: tarfile.BLOCKSIZE])
            right = (header.name, header.size, len(block)) == (member, size, tarfile.BLOCKSIZE + size)
        except tarfile.TarError:
            right = False
        if not right:
            raise ValueError(f"{self.folder / name} does not hold {member} where the index says: {self._advice()}")
        return block[tarfile.BLOCKSIZE :]

    def order(self, *, seed: int, epoch: int) -> Tensor:
        """All images in an order that depends on (seed, epoch) only and reads few shards at a time.

        The shards are shuffled, and the images within every WINDOW of them.
        """
        stream = np.random.Philox(np.random.SeedSequence([seed, epoch, 2]))  # 1 is the engine's order
        random = np.random.Generator(stream)
        window = random.permutation(len(self.files))[self.shard.numpy()] // WINDOW
        return torch.from_numpy(np.lexsort((random.permutation(len(self)), window)))

    def _handle(self, name: str) -> int:
        handle = self._open.pop(name, None)
        if handle is None:
            handle = os.open(self.folder / name, os.O_RDONLY)
            if len(self._open) == OPEN_FILES:
                os.close(self._open.pop(next(iter(self._open))))  # the least recently used
        self._open[name] = handle
        return handle

    def _advice(self) -> str:
        again = f"get it again and remove {INDEX}" if self.plan is None else "remove the folder"
        return f"{again}, then run `patchreorder shard` again"


def parse_header(block: bytes) -> tarfile.TarInfo:
    return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")


# ---- the index -------------------------------------------------------------------------------------


def write_index(
    folder: Path,
    images: Sequence[tuple[int, int, int, int]],
    *,
    names: Sequence[str],
    members: Sequence[str],
    classes: Sequence[str],
    shards: Sequence[tuple[str, int, str | None]],
    plan: dict[str, Any] | None = None,
    skipped: Sequence[tuple[str, str]] = (),
) -> None:
    """Write the index of a folder.

    Args:
        folder: holds the shards.
        images: of each image the shard's number, the offset and size of its bytes, and the label.
        names: of the images, for their users.
        members: their names in the tars.
        classes: their names.
        shards: file names, sizes in bytes, and SHA-256 if known.
        plan: what the shards were made from; None for other people's tars.
        skipped: names of images that were left out, and why.
    """
    shard, offset, size, label = (column.contiguous() for column in torch.tensor(images).T)
    stored_names, stored_members = Names(names), Names(members)
    columns = {
        "shard": shard,
        "offset": offset,
        "size": size,
        "label": label,
        "names": stored_names.text,
        "name_ends": stored_names.ends,
        "members": stored_members.text,
        "member_ends": stored_members.ends,
    }
    about = {"classes": list(classes), "shards": list(shards), "plan": plan, "skipped": list(skipped)}
    # One entry: safetensors writes several in any order, and equal shards would have different indices.
    text = json.dumps(about | {"sha256": _checksum(columns, about)})
    write_whole(folder / INDEX, save(columns, metadata={"index": text}))


def _read_index(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["index"])
            columns = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if about.pop("sha256") != _checksum(columns, about):
            raise ValueError("its checksum does not fit")
        if {name: (column.dtype, column.dim()) for name, column in columns.items()} != COLUMNS:
            raise ValueError(f"it does not hold {', '.join(COLUMNS)}, or not as whole numbers")  # no part of the sum
        return columns, about
    except FileNotFoundError:
        raise ValueError(f"{path} is missing: `patchreorder shard` makes it") from None
    except (SafetensorError, KeyError, ValueError) as error:
        advice = "remove it and run `patchreorder shard` again"
        raise ValueError(f"{path} is no index of ours or is damaged ({error}): {advice}") from None


def _checksum(columns: dict[str, Tensor], about: dict[str, Any]) -> str:
    found = sha256(json.dumps(about, sort_keys=True).encode())
    for name in sorted(columns):
        found.update(columns[name].numpy().tobytes())
    return found.hexdigest()
