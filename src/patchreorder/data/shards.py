"""Many pictures in few files: tars as WebDataset reads them, with an index by which any picture is one read away.

A member KEY.jpg holds a picture's file as it was, KEY.cls its label in decimal. `index.safetensors` says where each is
and is written last: a folder without it is not finished. In it stand, for every picture in the order of the listing it
was made from: shard, offset and size of its bytes, label, member and name; and as JSON the classes and the shards.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from patchreorder.files import try_lock, write_whole

from .folders import ENDINGS, Listing, Names, class_names
from .images import decode
from .loader import parallel_map

INDEX = "index.safetensors"
PLAN = "plan.json"  # of shards that are being written
WINDOW = 8  # shards whose pictures are mixed with each other in one pass
BLOCK = 512  # bytes of a tar's header; contents fill whole blocks
RECORD = 20 * BLOCK  # a tar fills whole records
OPEN_FILES = 64
MAX_CLASSES = 1_000_000


class Unreadable(ValueError):
    """Pictures that cannot be read; the message names all of them."""


@dataclass(frozen=True)
class Written:
    """What `write` made, or found made."""

    folder: Path
    shards: int
    images: int
    skipped: list[tuple[str, str]]  # names, and why
    there_before: bool


def are_in(folder: Path) -> bool:
    """Whether a folder holds shards with our index.

    Raises:
        ValueError: if it holds shards that are not finished, or not indexed yet.
    """
    if (folder / INDEX).is_file():
        return True
    if (folder / PLAN).is_file():
        raise ValueError(f"{folder} is not finished: run the same `patchreorder shard` again, it goes on from there")
    if folder.is_dir() and next(folder.glob("*.tar"), None) and not class_names(folder):
        raise ValueError(f"{folder} holds tars without an index: `patchreorder shard {folder} {folder}` makes it once")
    return False


# ---- writing ---------------------------------------------------------------------------------------


def write(
    listing: Listing,
    out: Path,
    *,
    size: int = 1000,
    workers: int = 0,
    skip_unreadable: bool = False,
    say: Callable[[str], None] = lambda text: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Written:
    """Write the pictures of class folders into shards, mixed; each is decoded once to see that it can be read.

    A shard is there whole or not at all. Stopped and called again with the same arguments it goes on, and the files are
    bit for bit those of a single call.

    Args:
        listing: the pictures.
        out: a new or empty folder, or one that was begun.
        size: pictures in a shard; 1000 of ImageNet are 110 MB.
        workers: processes that read and write.
        skip_unreadable: leave out pictures that cannot be read, and list them in skipped.txt.
        say: gets a line about what was found there.
        progress: gets the number of pictures done, and of all.

    Raises:
        Unreadable: if some cannot be read; all the others are in the shards already, only the index is missing.
        ValueError: if `out` holds something else, or another process is writing there.
    """
    if size < 1:
        raise ValueError(f"size ({size}) must be 1 or more pictures in a shard")
    out = Path(out)
    plan = {"format": 1, "images": len(listing), "size": size, "made_of": _fingerprint(listing)}
    if (out / INDEX).is_file():
        there = Shards(out)
        if there.plan != plan:
            raise ValueError(f"{out} was made from other pictures or in another way: remove it or choose another")
        say(f"{out} is finished: there is nothing to do")
        return Written(out, len(there.files), len(there), there.skipped, there_before=True)
    if out.is_dir() and not (out / PLAN).is_file() and any(path.name != ".lock" for path in out.iterdir()):
        raise ValueError(f"{out} holds files that are not ours: choose a new or empty folder")
    lock = try_lock(out / ".lock")
    if lock is None:
        raise ValueError(f"another process is writing to {out}: let it end, or choose another folder")
    try:
        _begin(out, plan)
        return _write(listing, out, plan, workers, skip_unreadable, say, progress)
    finally:
        os.close(lock)


def _fingerprint(listing: Listing) -> str:
    """Changes with classes, names, labels and the sizes of files."""
    sizes = torch.tensor([os.stat(listing.root / name).st_size for name in listing.names])
    found = sha256(json.dumps(listing.classes).encode())
    for tensor in (listing.names.text, listing.names.ends, listing.labels, sizes):
        found.update(tensor.numpy().tobytes())
    return found.hexdigest()


def _begin(out: Path, plan: dict[str, Any]) -> None:
    if not (out / PLAN).is_file():
        write_whole(out / PLAN, json.dumps(plan).encode())
    elif json.loads((out / PLAN).read_bytes()) != plan:
        raise ValueError(f"{out} was begun with other pictures or another size: remove it or choose another")
    for left in out.glob(".*.part"):  # by a process that was killed
        left.unlink()


def _write(
    listing: Listing,
    out: Path,
    plan: dict[str, Any],
    workers: int,
    skip_unreadable: bool,
    say: Callable[[str], None],
    progress: Callable[[int, int], None],
) -> Written:
    mixed = np.random.Generator(np.random.Philox(0)).permutation(len(listing))
    writer = _Writer(listing, out, torch.from_numpy(mixed), plan["size"])
    parts = [_finished(out, shard) for shard in range(writer.count())]
    missing = [shard for shard, part in enumerate(parts) if part is None]
    done = sum(len(part["images"]) + len(part["skipped"]) for part in parts if part)
    if done:
        say(f"{done} of {len(listing)} pictures are in {out} already: going on")
    with contextlib.closing(parallel_map(writer, missing, workers=workers)) as made:
        for shard, part in zip(missing, made, strict=True):
            parts[shard] = part
            done += len(part["images"]) + len(part["skipped"])
            progress(done, len(listing))
    finished = [part for part in parts if part]
    skipped = sorted((name, reason) for part in finished for name, reason in part["skipped"])
    if skipped and not skip_unreadable:
        reasons = "; ".join(reason for _, reason in skipped)
        raise Unreadable(
            f"{len(skipped)} of {len(listing)} pictures cannot be read. {reasons}. Replace them and start anew, or go "
            "on with --skip-unreadable, which leaves them out"
        )
    images = [(*image, shard) for shard, part in enumerate(finished) for image in part["images"]]
    if not images:
        raise ValueError(f"{listing.root} holds no picture that can be read")
    place, offset, length, shard_of = torch.tensor(sorted(images)).T.contiguous()
    if empty := set(listing.labels.tolist()) - set(listing.labels[place].tolist()):
        lost = ", ".join(listing.classes[label] for label in sorted(empty))
        raise ValueError(f"no picture of {lost} can be read: remove the class or replace its pictures")
    names = [listing.names[index] for index in place.tolist()]
    members = [_member(index, name) for index, name in zip(place.tolist(), names, strict=True)]
    write_whole(out / "classes.json", json.dumps(listing.classes, indent=0).encode())
    if skipped:
        lines = "".join(f"{name}\t{reason}\n" for name, reason in skipped)
        write_whole(out / "skipped.txt", os.fsencode(lines))
    _write_index(
        out,
        {"shard": shard_of, "offset": offset, "size": length, "label": listing.labels[place]},
        names=Names(names),
        members=Names(members),
        about={
            "classes": listing.classes,
            "shards": [[part["shard"], part["bytes"], part["sha256"]] for part in finished],
            "plan": plan,
            "skipped": skipped,
        },
    )
    for shard in range(len(finished)):
        _part_file(out, shard).unlink()
    (out / PLAN).unlink()
    return Written(out, len(finished), len(images), skipped, there_before=False)


def _part_file(out: Path, shard: int) -> Path:
    return out / f".{shard:05d}.json"


def _finished(out: Path, shard: int) -> dict[str, Any] | None:
    """What stands in a shard that an earlier call wrote."""
    try:
        part = json.loads(_part_file(out, shard).read_bytes())
        return part if (out / part["shard"]).stat().st_size == part["bytes"] else None
    except FileNotFoundError:
        return None


def _member(index: int, name: str) -> str:
    ending = name.rpartition(".")[2].lower()
    return f"{index:08d}.{'jpg' if ending == 'jpeg' else ending}"


@dataclass(frozen=True)
class _Writer:
    """Writes the shard of a number, and beside it what the index has to know of it."""

    listing: Listing
    out: Path
    order: Tensor
    size: int

    def count(self) -> int:
        return -(-len(self.order) // self.size)

    def __call__(self, shard: int) -> dict[str, Any]:
        images, skipped = [], []
        path = self.out / f"{shard:05d}.tar"
        with _tar(path) as tar:
            for index in self.order[shard * self.size : (shard + 1) * self.size].tolist():
                name = self.listing.names[index]
                try:
                    content = self.listing.read(index)
                    decode(content, name=name)
                except (ValueError, OSError) as error:
                    skipped.append((name, str(error)))
                    continue
                images.append((index, tar.add(_member(index, name), content), len(content)))
                tar.add(f"{index:08d}.cls", str(int(self.listing.labels[index])).encode())
        part = {"shard": path.name, "bytes": tar.bytes, "sha256": tar.sha256.hexdigest()}
        part |= {"images": images, "skipped": skipped}
        write_whole(_part_file(self.out, shard), json.dumps(part).encode())
        return part


class _Tar:
    """A tar that depends on nothing but names and contents: no owner, no date."""

    def __init__(self, file: Any) -> None:
        self.file, self.bytes, self.sha256 = file, 0, sha256()

    def add(self, name: str, content: bytes) -> int:
        """Where the content begins."""
        member = tarfile.TarInfo(name)
        member.size = len(content)
        self.put(member.tobuf(tarfile.USTAR_FORMAT))
        begin = self.bytes
        self.put(content)
        self.put(bytes(-len(content) % BLOCK))
        return begin

    def put(self, content: bytes) -> None:
        self.file.write(content)
        self.sha256.update(content)
        self.bytes += len(content)


@contextlib.contextmanager
def _tar(path: Path) -> Iterator[_Tar]:
    """A tar that is there when all of it is on the disk."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        with open(temporary, "wb") as file:
            tar = _Tar(file)
            yield tar
            tar.put(bytes(2 * BLOCK))
            tar.put(bytes(-tar.bytes % RECORD))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def _write_index(
    folder: Path, columns: dict[str, Tensor], *, names: Names, members: Names, about: dict[str, Any]
) -> None:
    columns = {name: column.contiguous() for name, column in columns.items()} | {
        "names": names.text,
        "name_ends": names.ends,
        "members": members.text,
        "member_ends": members.ends,
    }
    # One entry: safetensors writes several in any order, and the file would not be the same bit for bit.
    text = json.dumps(about | {"sha256": _checksum(columns, about)})
    write_whole(folder / INDEX, save(columns, metadata={"index": text}))


def _checksum(columns: dict[str, Tensor], about: dict[str, Any]) -> str:
    found = sha256(json.dumps(about, sort_keys=True).encode())
    for name in sorted(columns):
        found.update(columns[name].numpy().tobytes())
    return found.hexdigest()


# ---- other people's shards -------------------------------------------------------------------------


def index_foreign(folder: Path, *, progress: Callable[[int, int], None] = lambda done, total: None) -> Path:
    """Read the headers of WebDataset tars once and write our index beside them; the classes are numbers.

    Args:
        folder: holds *.tar with members KEY.jpg (or another picture) and KEY.cls; other members do not matter.
        progress: gets the number of tars done, and of all.

    Raises:
        ValueError: if a tar is cut, or a picture has no label, or a label no picture.
    """
    paths = sorted(Path(folder).glob("*.tar"))
    if not paths:
        raise ValueError(f"{folder} holds no *.tar")
    if (folder / PLAN).is_file():
        raise ValueError(f"{folder} is not finished: run the same `patchreorder shard` again, it goes on from there")
    rows: list[tuple[int, int, int, int]] = []
    names: list[str] = []
    members: list[str] = []
    for shard, path in enumerate(paths):
        with open(path, "rb") as file:
            pictures, labels = _pairs(path, file)
            for key, (member, stored) in pictures.items():
                rows.append((shard, member.offset_data, member.size, labels[key]))
                names.append(f"{path.name}/{member.name}")
                members.append(stored)
        progress(shard + 1, len(paths))
    if not rows:
        raise ValueError(f"{folder} holds no picture ({', '.join(ENDINGS)}) in its {len(paths)} tars")
    shard_of, offset, length, label = torch.tensor(rows).T.contiguous()
    _write_index(
        folder,
        {"shard": shard_of, "offset": offset, "size": length, "label": label},
        names=Names(names),
        members=Names(members),
        about={
            "classes": [str(number) for number in range(int(label.max()) + 1)],
            "shards": [[path.name, path.stat().st_size, None] for path in paths],
            "plan": None,
            "skipped": [],
        },
    )
    return folder / INDEX


def _pairs(path: Path, file: Any) -> tuple[dict[str, tuple[tarfile.TarInfo, str]], dict[str, int]]:
    """Of every key of a tar: the picture's member and its name in the header, and the label."""
    pictures: dict[str, tuple[tarfile.TarInfo, str]] = {}
    labels: dict[str, int] = {}
    end, size = 0, os.fstat(file.fileno()).st_size
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                end = member.offset_data + -(-member.size // BLOCK) * BLOCK
                if end > size:
                    break
                found = re.fullmatch(r"((?:.*/)?[^./][^./]*)\.([^/]*)", member.name)
                if not member.isreg() or not found:
                    continue
                key, ending = found[1], found[2].lower()
                if ending != "cls" and ending not in ENDINGS:
                    continue
                if key in (labels if ending == "cls" else pictures):
                    raise ValueError(f"{path} holds {key} twice: its members must be KEY.jpg and KEY.cls, once each")
                if ending == "cls":
                    labels[key] = _label(path, member, os.pread(file.fileno(), 20, member.offset_data))
                else:
                    header = os.pread(file.fileno(), BLOCK, member.offset_data - BLOCK)
                    pictures[key] = member, _header(header).name
    except tarfile.TarError as error:
        raise ValueError(f"{path} is no tar, or cut ({error}): get it again") from None
    if os.pread(file.fileno(), BLOCK, end) != bytes(BLOCK):  # tarfile takes any of these for the end
        raise ValueError(f"{path} is cut or damaged: it does not end after {end} bytes as a tar does; get it again")
    for key in pictures.keys() ^ labels.keys():
        absent = "label (.cls)" if key in pictures else "picture"
        raise ValueError(f"{path} holds no {absent} for {key}: its members must be KEY.jpg and KEY.cls")
    return pictures, labels


def _label(path: Path, member: tarfile.TarInfo, content: bytes) -> int:
    text = content[: member.size].decode("ascii", "replace").strip()
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) >= MAX_CLASSES:
        raise ValueError(f"{path} holds {text!r} in {member.name}, which must be a class number")
    return int(text)


def _header(block: bytes) -> tarfile.TarInfo:
    return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")


# ---- reading ---------------------------------------------------------------------------------------


class Shards:
    """The pictures of a folder that `write` or `index_foreign` finished, any of them one read away.

    Raises:
        ValueError: if the index is damaged, or a shard is missing or not of the size that the index says.
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
        """The bytes of a picture's file.

        Raises:
            ValueError: if the shard does not hold this picture where the index says.
        """
        name, member = self.files[int(self.shard[index])], self.members[index]
        begin, size = int(self.offset[index]) - BLOCK, int(self.size[index])
        with self._lock:  # none may close what another thread reads
            block = os.pread(self._handle(name), BLOCK + size, begin)
        try:
            header = _header(block[:BLOCK])
            right = (header.name, header.size, len(block)) == (member, size, BLOCK + size)
        except tarfile.TarError:
            right = False
        if not right:
            raise ValueError(f"{self.folder / name} does not hold {member} where the index says: {self._advice()}")
        return block[BLOCK:]

    def order(self, *, seed: int, epoch: int) -> Tensor:
        """All pictures in an order that depends on (seed, epoch) only and reads few shards at a time.

        The shards are shuffled, and the pictures within every WINDOW of them.
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
                os.close(self._open.pop(next(iter(self._open))))  # the one that was used longest ago
        self._open[name] = handle
        return handle

    def _advice(self) -> str:
        again = f"get it again and remove {INDEX}" if self.plan is None else "remove the folder"
        return f"{again}, then run `patchreorder shard` again"


def _read_index(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["index"])
            columns = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if about.pop("sha256") != _checksum(columns, about):
            raise ValueError("its checksum does not fit")
        return columns, about
    except FileNotFoundError:
        raise ValueError(f"{path} is missing: `patchreorder shard` makes it") from None
    except (SafetensorError, KeyError, ValueError) as error:
        advice = "remove it and run `patchreorder shard` again"
        raise ValueError(f"{path} is no index of ours or is damaged ({error}): {advice}") from None
