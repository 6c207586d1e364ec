"""Which file of a group of copies to keep: a rule that can be chosen, and the reason in words."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from patchreorder.data.images import FORMATS, decode, has_camera_data, upright_size
from patchreorder.untrusted import clean

from .images import ImageFile

LOSSLESS = ("PNG", "TIFF", "BMP", "PPM")  # not GIF, which has 256 colours
GREY = 1.0  # of 255: the mean distance of red, green and blue from grey below which an image has no colour
BORDERED = 0.97  # what pixels within a border count: they were moved there by somebody
CRITERIA = {
    "pixels": "it has the most pixels",
    "colours": "it has colours",
    "camera": "it has the data of the camera",
    "quality": "it is encoded with the best quality",
    "oldest": "it is the oldest file",
    "newest": "it is the newest file",
    "folder": "its folder was named first",
    "name": "its path is the shortest",
}
DEFAULT = "pixels,colours,camera,quality,oldest,folder,name"


class Place(NamedTuple):
    """A file that may be kept.

    Args:
        path, file: of it.
        pixels: of it, without a border of one colour; a little fewer if it has one.
        modified: seconds since 1970; 0 if it is gone.
        link: whether it is a symbolic link.
    """

    path: Path
    file: ImageFile
    pixels: int
    modified: float
    link: bool

    @classmethod
    def of(cls, file: ImageFile, root: Path, inside: float = 1.0) -> Place:
        path = root / file.name
        try:
            modified = os.stat(path).st_mtime
        except OSError:
            modified = 0.0
        width, height = (file.width, file.height) if file.width else _size(path)
        return cls(
            path, file, round(width * height * inside * (BORDERED if inside < 1 else 1)), modified, path.is_symlink()
        )


@dataclass(frozen=True)
class KeepRule:
    """Criteria that decide in turn, separated by commas; a reference folder comes before all of them.

    Raises:
        ValueError: a criterion is unknown.

    >>> KeepRule("newest").criteria
    ('newest', 'name')
    """

    text: str = DEFAULT
    reference: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        for name in self.text.split(","):
            if name not in CRITERIA:
                raise ValueError(
                    f"keep ({clean(self.text)}) must be some of {', '.join(CRITERIA)}, separated by commas"
                )

    @property
    def criteria(self) -> tuple[str, ...]:
        given = tuple(self.text.split(","))
        return given if "name" in given else (*given, "name")

    def is_reference(self, path: Path) -> bool:
        """Whether a file lies in a reference folder."""
        return any(path.is_relative_to(folder) for folder in self.reference)

    def choose(self, places: Sequence[Place], *, folders: Sequence[Path] = ()) -> tuple[Place, str]:
        """The file to keep, and why: by the first criterion that leaves no other one."""
        left = list(places)
        for key, why in [
            (lambda place: not self.is_reference(place.path), "it is in a reference folder"),
            (lambda place: place.link, "the others are links"),
            *((_key(name, folders, places), CRITERIA[name]) for name in self.criteria),
        ]:
            best = min(key(place) for place in left)
            fewer = [place for place in left if key(place) <= best]
            if len(fewer) < len(left):
                said, left = why, fewer
            if len(left) == 1:
                return left[0], said if len(places) > 1 else ""
        return min(left, key=lambda place: place.path), "its name comes first"


def _key(name: str, folders: Sequence[Path], places: Sequence[Place]) -> Callable[[Place], float]:
    """The smaller the better."""
    keys: dict[str, Callable[[Place], float]] = {
        "pixels": lambda place: -round(200 * math.log2(max(1, place.pixels))),  # equal within a third of a percent
        "colours": lambda place: is_grey(place.path),
        "camera": lambda place: not _from_camera(place.path),
        "oldest": lambda place: place.modified or float("inf"),
        "newest": lambda place: -place.modified,
        "folder": lambda place: next(
            (number for number, folder in enumerate(folders) if place.path.is_relative_to(folder)), len(folders)
        ),
        "name": lambda place: len(str(place.path)),
    }
    if name == "quality":
        steps = {place: coarseness(place.path) for place in places}
        # A format that does not tell is as good as the best JPEG: another criterion must decide.
        least = min((step for step in steps.values() if step), default=0)
        return lambda place: least if (step := steps[place]) is None else step
    return keys[name]


def is_grey(path: Path) -> bool:
    """Whether an image has no colours; a file that cannot be read has none."""
    try:
        small = decode(path.read_bytes(), name=path.name, short=64).resize((64, 64), Image.Resampling.BOX)
    except (OSError, ValueError):
        return True
    pixels = np.asarray(small, np.float32)
    return float(np.abs(pixels - pixels.mean(2, keepdims=True)).mean()) < GREY


def _from_camera(path: Path) -> bool:
    try:
        return has_camera_data(path.read_bytes())
    except (OSError, ValueError):
        return False


def _size(path: Path) -> tuple[int, int]:
    """Width and height of a file that the index does not know them of."""
    try:
        return upright_size(path.read_bytes())
    except (OSError, ValueError):
        return 0, 0


def coarseness(path: Path) -> int | None:
    """How coarsely a file is encoded: the mean step of a JPEG's brightness; 0 without loss, None if it is not known."""
    try:
        with warnings.catch_warnings(), Image.open(path, formats=FORMATS) as image:
            warnings.simplefilter("ignore")
            if image.format in LOSSLESS:  # what is transparent is lost, however well the rest is encoded
                transparent = image.has_transparency_data and image.convert("RGBA").getextrema()[3][0] < 255
                return None if transparent else 0
            tables = getattr(image, "quantization", None) or {}
            return round(sum(tables[0]) / len(tables[0])) if tables.get(0) else None
    except Exception:  # Pillow raises errors of every kind for damaged files
        return None
