"""Folders of images, one for each class: DIR/train/CLASS/*.jpg and DIR/val/CLASS/*.jpg, or DIR/CLASS/*.jpg."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor

ENDINGS = ("jpg", "jpeg", "png", "gif", "webp", "bmp", "tif", "tiff", "ppm", "pgm", "pbm", "pnm") + (
    "heic",
    "heif",
    "avif",
)
_DOTTED = tuple(f".{ending}" for ending in ENDINGS)
LAYOUT = "expected one folder of images for each class: DIR/train/CLASS/*.jpg and DIR/val/CLASS/*.jpg"
MAX_BYTES = 1 << 30  # of a file
HELD_OUT = 0.2  # about this fraction of every class is for validation


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
        """Names from their two tensors."""
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
    """The images of a folder, sorted by name.

    Args:
        root: the folder.
        classes: their names.
        names: the images' paths, relative to `root`, with / as separator.
        labels: (n,), int64: indices into `classes`.
        ignored: files without an image's ending, hidden files, and links that are broken or lead back.
        missing: classes without an image in this folder.
    """

    root: Path
    classes: list[str]
    names: Names
    labels: Tensor
    ignored: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, index: int) -> bytes:
        """The bytes of an image's file.

        Raises:
            ValueError: it is larger than `MAX_BYTES`: no image.
            OSError: it cannot be read.
        """
        with open(f"{self.root}/{self.names[index]}", "rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_size > MAX_BYTES:
                raise ValueError(f"{self.names[index]} has more than {MAX_BYTES >> 30} GB: it is no image")
            return file.readall()


def class_names(root: Path) -> list[str]:
    """The names of the class folders in a folder, sorted, without hidden ones."""
    with _scan(root) as entries:
        return sorted(entry.name for entry in entries if _is(entry.is_dir) and not entry.name.startswith("."))


def list_images(root: Path, *, classes: Sequence[str] | None = None) -> Listing:
    """List all images in the class folders of `root` and in folders within them.

    Args:
        root: holds a folder for each class.
        classes: those of the training images, in their order, which determine the labels here.

    Raises:
        ValueError: if there is no class, a class without an image, or a folder that is none of `classes`.
    """
    root = Path(root)
    own = class_names(root)
    with _scan(root) as entries:
        ignored = [entry.name for entry in entries if not _is(entry.is_dir) or entry.name.startswith(".")]
    if not own:
        loose = " but images: move those of each class into a folder of its own" if has_images(root) else ""
        raise ValueError(f"{root} holds no class folder{loose}; {LAYOUT}")
    if foreign := set(own) - set(own if classes is None else classes):
        raise ValueError(
            f"{root} holds {', '.join(sorted(foreign))}, not among the {len(classes or ())} classes of the training "
            "images: remove such folders, or add the classes there"
        )
    label_of = {name: label for label, name in enumerate(own if classes is None else classes)}
    labelled = sorted((file, label_of[name]) for name in own for file in _walk(root, name, ignored))
    labels = torch.tensor([label for _, label in labelled], dtype=torch.int64)
    counts = torch.bincount(labels, minlength=len(label_of)).tolist()
    missing = [name for name, label in label_of.items() if not counts[label]]
    if not labelled:
        raise ValueError(f"{root} holds no image ({', '.join(ENDINGS)}) in its {len(own)} folders; {LAYOUT}")
    if missing and classes is None:
        raise ValueError(f"{root} holds no image in {', '.join(missing)}: add some, or remove folders without a class")
    return Listing(root, list(label_of), Names(file for file, _ in labelled), labels, sorted(ignored), missing)


def list_unlabelled(root: Path) -> Listing:
    """List all images in a folder and in folders within it; their label is -1, unknown.

    Raises:
        ValueError: if there is none.
    """
    root = Path(root)
    ignored: list[str] = []
    files = _top(root, ignored)
    for name in class_names(root):
        files += _walk(root, name, ignored)
    if not files:
        raise ValueError(f"{root} holds no image ({', '.join(ENDINGS)}): name a folder with some")
    files.sort()
    return Listing(root, [], Names(files), torch.full((len(files),), -1), sorted(ignored))


def has_images(root: Path) -> bool:
    """Whether images are in the folder itself, not only in folders within it."""
    return bool(_top(root, []))


def has_splits(root: Path) -> bool:
    """Whether a folder has train/ and val/.

    Raises:
        ValueError: if it has one without the other.
    """
    train, val = ((Path(root) / split).is_dir() for split in ("train", "val"))
    if train != val:
        there, absent = ("train", "val") if train else ("val", "train")
        raise ValueError(f"{root} holds {there}/ but no {absent}/; {LAYOUT}")
    return train


def held_out(names: Iterable[str], labels: Tensor, *, classes: Sequence[str], purpose: str) -> Tensor:
    """Draw the images to hold out, (n,) bool: about a fifth of every class, at least one, never all.

    An image's name alone decides, so it stays in its split when others are added or removed. Another `purpose` draws
    independently: what one draw leaves can be divided by another.

    Raises:
        ValueError: if a class has a single image.
    """
    chance = torch.tensor(
        [
            int.from_bytes(blake2b(os.fsencode(name), digest_size=6, person=purpose.encode()).digest(), "big") / 2**48
            for name in names
        ],
        dtype=torch.float64,
    )
    drawn = chance < HELD_OUT
    by_chance = torch.argsort(chance, stable=True)
    by_class = by_chance[torch.argsort(labels[by_chance], stable=True)]  # the smallest chance of a class comes first
    counts = torch.bincount(labels, minlength=len(classes))
    single = [classes[label] for label in (counts == 1).nonzero()[:, 0].tolist()]
    if single:
        raise ValueError(f"the class {', '.join(single)} has a single image: it needs two or more to be split")
    ends = counts.cumsum(0)
    there = counts > 0
    drawn[by_class[(ends - counts)[there]]] = True
    drawn[by_class[(ends - 1)[there]]] = False
    return drawn


def _scan(folder: Path) -> os._ScandirIterator[str]:
    try:
        return os.scandir(folder)
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{folder} is not a folder; {LAYOUT}") from None


def _top(root: Path, ignored: list[str]) -> list[str]:
    """The images in the folder itself; other files are added to `ignored`."""
    with _scan(root) as entries:
        listed = sorted((entry.name, _is(entry.is_file)) for entry in entries if not _is(entry.is_dir))
    ignored += [name for name, file in listed if name.startswith(".") or not file or not name.lower().endswith(_DOTTED)]
    left = set(ignored)
    return [name for name, _ in listed if name not in left]


def _is(question: Callable[[], bool]) -> bool:
    """The answer of a folder's entry; a link that leads to itself is nothing."""
    try:
        return question()
    except OSError:
        return False


def _walk(root: Path, name: str, ignored: list[str]) -> Iterator[str]:
    """The images under root/name; other files are added to `ignored`. Only links and folders cost a call of stat."""
    seen = set()
    waiting = [name]
    while waiting:
        folder = waiting.pop()
        try:
            found, listed = os.stat(root / folder), os.scandir(root / folder)
        except OSError:  # deleted since it was listed, or not ours to read
            ignored.append(folder)
            continue
        if (found.st_dev, found.st_ino) in seen:  # a link leads back, or to the target of another link
            listed.close()
            ignored.append(folder)
            continue
        seen.add((found.st_dev, found.st_ino))
        with listed as entries:
            for entry in entries:
                path = f"{folder}/{entry.name}"
                if entry.name.startswith("."):
                    ignored.append(path)
                elif _is(entry.is_dir):
                    waiting.append(path)
                elif entry.name.lower().endswith(_DOTTED) and _is(entry.is_file):
                    yield path
                else:
                    ignored.append(path)
