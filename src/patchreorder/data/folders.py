"""Folders of pictures, one for each class: DIR/train/CLASS/*.jpg and DIR/val/CLASS/*.jpg, or DIR/CLASS/*.jpg."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor

ENDINGS = ("jpg", "jpeg", "png", "gif", "webp", "bmp", "tif", "tiff", "ppm", "pgm", "pbm", "pnm")
_DOTTED = tuple(f".{ending}" for ending in ENDINGS)
LAYOUT = "expected are folders with pictures, one for each class: DIR/train/CLASS/*.jpg and DIR/val/CLASS/*.jpg"
HELD_OUT = 0.2  # about this part of every class's pictures is for validation


class Names(Sequence[str]):
    """Millions of names in two tensors, which worker processes share instead of copying.

    Example:
        >>> Names(["cat/1.jpg", "dog/1.jpg"])[1]
        'dog/1.jpg'
    """

    def __init__(self, names: Iterable[str]) -> None:
        encoded = [os.fsencode(name) for name in names]
        self.text = torch.frombuffer(bytearray(b"".join(encoded) or b"\0"), dtype=torch.uint8)
        self.ends = torch.tensor([0, *map(len, encoded)]).cumsum(0)  # of name i: ends[i] to ends[i + 1]

    @classmethod
    def stored(cls, text: Tensor, ends: Tensor) -> Names:
        """Names whose two tensors are there already."""
        names = cls.__new__(cls)
        names.text, names.ends = text, ends
        return names

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, index):  # type: ignore[no-untyped-def]  # the two forms of a sequence
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        ends = self.ends.numpy()  # a new view each time: torch moves a tensor that it shares with a process
        return os.fsdecode(self.text.numpy()[ends[index] : ends[index + 1]].tobytes())

    def __iter__(self) -> Iterator[str]:
        text, ends = self.text.numpy().tobytes(), self.ends.tolist()
        return (os.fsdecode(text[begin:end]) for begin, end in itertools.pairwise(ends))


@dataclass(frozen=True)
class Listing:
    """The pictures of a folder, sorted by name, and their labels: places in `classes`.

    `ignored` are files that are no pictures by their name and links that lead nowhere or back; `missing` are classes
    without a picture here.
    """

    root: Path
    classes: list[str]
    files: Names  # relative to root, with / between the parts
    labels: Tensor
    ignored: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def names(self) -> Names:
        return self.files

    def read(self, index: int) -> bytes:
        """The bytes of a picture's file."""
        with open(f"{self.root}/{self.files[index]}", "rb", buffering=0) as file:
            return file.readall()


def class_names(root: Path) -> list[str]:
    """The names of the class folders in a folder, sorted; hidden ones do not count."""
    with _scan(root) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def list_images(root: Path, *, classes: Sequence[str] | None = None) -> Listing:
    """All pictures in the class folders of `root`, also those in folders within them.

    Args:
        root: holds a folder for each class.
        classes: those of the training pictures, in their order, which decides about the labels of others.

    Raises:
        ValueError: if there is no class, a class without a picture, or a folder that is none of `classes`.
    """
    root = Path(root)
    own = class_names(root)
    with _scan(root) as entries:
        ignored = [entry.name for entry in entries if not entry.is_dir() or entry.name.startswith(".")]
    if not own:
        raise ValueError(f"{root} holds no class folder; {LAYOUT}")
    if foreign := set(own) - set(own if classes is None else classes):
        raise ValueError(
            f"{root} holds {', '.join(sorted(foreign))}, not among the {len(classes or ())} classes of the training "
            "pictures: remove such folders, or add the classes there"
        )
    labelled: list[tuple[str, int]] = []
    number = {name: label for label, name in enumerate(own if classes is None else classes)}
    for name in own:
        files = _walk(root, name, ignored)
        labelled += [(file, number[name]) for file in files]
    labelled.sort()
    labels = torch.tensor([label for _, label in labelled], dtype=torch.int64)
    counts = torch.bincount(labels, minlength=len(number)).tolist()
    missing = [name for name, label in number.items() if not counts[label]]
    if not labelled:
        raise ValueError(f"{root} holds no picture ({', '.join(ENDINGS)}) in its {len(own)} folders; {LAYOUT}")
    if missing and classes is None:
        raise ValueError(
            f"{root} holds no picture in {', '.join(missing)}: a class needs some, remove folders that are no class"
        )
    return Listing(root, list(number), Names(file for file, _ in labelled), labels, sorted(ignored), missing)


def list_unlabelled(root: Path) -> Listing:
    """All pictures in a folder and the folders within it, labelled -1: not known.

    Raises:
        ValueError: if there is none.
    """
    root = Path(root)
    ignored: list[str] = []
    files = _top(root, ignored)
    for name in class_names(root):
        files += _walk(root, name, ignored)
    if not files:
        raise ValueError(f"{root} holds no picture ({', '.join(ENDINGS)}): name a folder with some")
    files.sort()
    return Listing(root, [], Names(files), torch.full((len(files),), -1), sorted(ignored))


def holds_pictures(root: Path) -> bool:
    """Whether pictures are in the folder itself, not in folders within it alone."""
    return bool(_top(root, []))


def _top(root: Path, ignored: list[str]) -> list[str]:
    with _scan(root) as entries:
        names = sorted(entry.name for entry in entries if not entry.is_dir())
    ignored += [name for name in names if name.startswith(".") or not name.lower().endswith(_DOTTED)]
    return [name for name in names if name not in set(ignored)]


def has_parts(root: Path) -> bool:
    """Whether a folder has train/ and val/; one without the other is an error."""
    train, val = ((Path(root) / part).is_dir() for part in ("train", "val"))
    if train != val:
        there, absent = ("train", "val") if train else ("val", "train")
        raise ValueError(f"{root} holds {there}/ but no {absent}/; {LAYOUT}")
    return train


def split(root: Path) -> tuple[Listing, Listing]:
    """The pictures for training and those for validation, as train/ and val/ have them; else every class is divided.

    Raises:
        ValueError: as `list_images`, and if a class that is to be divided has a single picture.
    """
    root = Path(root)
    if has_parts(root):
        train = list_images(root / "train")
        return train, list_images(root / "val", classes=train.classes)
    listing = list_images(root)
    kept = drawn(listing.files, listing.labels, classes=listing.classes, purpose="val")
    return _part(listing, ~kept), _part(listing, kept)


def held_out(listing: Listing, part: str) -> Listing:
    """A part of the training pictures: `fit`, or `validation`, about a fifth, on which settings are chosen."""
    if part not in ("fit", "validation"):
        raise ValueError(f"part ({part!r}) must be fit or validation")
    kept = drawn(listing.files, listing.labels, classes=listing.classes, purpose="validation")
    return _part(listing, kept if part == "validation" else ~kept)


def drawn(names: Iterable[str], labels: Tensor, *, classes: Sequence[str], purpose: str) -> Tensor:
    """Which pictures are kept back, (n,) bool: about a fifth of every class, at least one, never all.

    A picture's name alone decides, so that it stays where it is when others come or go. Another `purpose` draws others:
    what is left of one draw can be drawn from again.
    """
    chance = [
        int.from_bytes(blake2b(os.fsencode(name), digest_size=6, person=purpose.encode()).digest(), "big") / 2**48
        for name in names
    ]
    kept = torch.tensor(chance, dtype=torch.float64)
    chosen = kept < HELD_OUT
    by_chance = torch.argsort(kept, stable=True)
    by_class = by_chance[torch.argsort(labels[by_chance], stable=True)]  # the smallest chance of a class comes first
    counts = torch.bincount(labels, minlength=len(classes))
    single = [classes[label] for label in (counts == 1).nonzero()[:, 0].tolist()]
    if single:
        raise ValueError(f"the class {', '.join(single)} has a single picture: to be divided it needs two or more")
    ends = counts.cumsum(0)
    there = counts > 0
    chosen[by_class[(ends - counts)[there]]] = True
    chosen[by_class[(ends - 1)[there]]] = False
    return chosen


def _part(listing: Listing, chosen: Tensor) -> Listing:
    files = Names(name for name, taken in zip(listing.files, chosen.tolist(), strict=True) if taken)
    return replace(listing, files=files, labels=listing.labels[chosen])


def _scan(folder: Path) -> os._ScandirIterator[str]:
    try:
        return os.scandir(folder)
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{folder} is no folder; {LAYOUT}") from None


def _walk(root: Path, name: str, ignored: list[str]) -> Iterator[str]:
    """The pictures under root/name; what is none goes to `ignored`. Only links and folders cost a call of stat."""
    seen = set()
    waiting = [name]
    while waiting:
        folder = waiting.pop()
        place = os.stat(root / folder)
        if (place.st_dev, place.st_ino) in seen:  # a link leads back, or to what another one led to
            ignored.append(folder)
            continue
        seen.add((place.st_dev, place.st_ino))
        with os.scandir(root / folder) as entries:
            for entry in entries:
                path = f"{folder}/{entry.name}"
                if entry.name.startswith("."):
                    ignored.append(path)
                elif entry.is_dir():
                    waiting.append(path)
                elif entry.name.lower().endswith(_DOTTED) and entry.is_file():
                    yield path
                else:
                    ignored.append(path)
