"""Photographs of any size as batches: turned, shifted, scaled and cropped, each as (seed, epoch, index) decide.

Numbers are drawn apart from what is done with them: `VIEWS` say how many a picture needs and what pose and crop they
stand for; `show` and `show_crop` do it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor
from torch.nn import functional as F

from . import folders, shards, transforms
from .datasets import TEST_SEED
from .folders import Listing
from .images import MEAN_COLOUR, BadImage, decode, pixels
from .loader import ahead
from .shards import Shards
from .viewpoints import Viewpoints

PARTS = ("train", "val", "fit", "validation")
CHECKED = 32  # pictures that a worker checks at a time


class Pose(NamedTuple):
    """How a picture lies on its canvas: turned counter-clockwise about the centre, then moved."""

    degrees: float = 0.0
    down: float = 0.0  # of the height
    right: float = 0.0  # of the width


UPRIGHT = Pose()


class Crop(NamedTuple):
    """Where the crop is in the room that it has, from 0 to 1, and whether it is mirrored."""

    down: float
    right: float
    flip: bool


class View(NamedTuple):
    """How pictures are shown: `numbers` uniform values for each decide; without a crop it is that of the centre."""

    numbers: int = 0
    pose: Callable[[Sequence[float]], Pose] = lambda numbers: UPRIGHT
    crop: Callable[[Sequence[float]], Crop] | None = None


def _turned(numbers: Sequence[float]) -> Pose:
    return Pose(degrees=numbers[0] * 90 - 45)


def _shifted(numbers: Sequence[float]) -> Pose:
    return Pose(down=numbers[0] * 0.4 - 0.2, right=numbers[1] * 0.4 - 0.2)


def _one_of_three(numbers: Sequence[float]) -> Pose:
    turn, shift = numbers[0] < 1 / 3, numbers[0] >= 2 / 3
    return _turned(numbers[1:]) if turn else _shifted(numbers[1:]) if shift else UPRIGHT


def _anywhere(numbers: Sequence[float]) -> Crop:
    return Crop(numbers[-3], numbers[-2], numbers[-1] < 0.5)


VIEWS = {
    "train": View(3, crop=_anywhere),
    "train-aug": View(6, pose=_one_of_three, crop=_anywhere),
    "aug": View(3, pose=_one_of_three),  # as "train-aug", but the crop of the centre
    "Ori": View(),
    "R": View(1, pose=_turned),
    "T": View(2, pose=_shifted),
    "plain": View(),  # Ori by another name: training on what is tested on
    "posed": View(),
}


def show(image: Image.Image, *, pose: Pose, size: int, short: int) -> Tensor:
    """The centre, `size` pixels a side, of the posed picture scaled to a short side of `short`: for tests.

    The pose is that of the picture on a canvas of its own size; uncovered places show the mean colour. Only what the
    crop sees is computed; it is what the whole would give.

    Shape:
        (size, size, 3), uint8.
    """
    width, height = image.size
    scale = short / min(width, height)
    columns, rows = round(width * scale), round(height * scale)
    left, top = (columns - size) // 2, (rows - size) // 2
    x, y = width / columns, height / rows  # pixels of the picture for one of the scaled
    box = (left * x, top * y, min((left + size) * x, width), min((top + size) * y, height))
    if pose != UPRIGHT:
        over, under = math.ceil(max(y, 1)) + 1, math.ceil(max(x, 1)) + 1  # what the filter reads around the box
        place = (
            max(0, math.floor(box[0]) - under),
            max(0, math.floor(box[1]) - over),
            min(width, math.ceil(box[2]) + under),
            min(height, math.ceil(box[3]) + over),
        )
        image = _part(image, pose, place)
        box = (box[0] - place[0], box[1] - place[1], box[2] - place[0], box[3] - place[1])
    return torch.from_numpy(np.array(image.resize((size, size), Image.Resampling.BILINEAR, box=box)))


def show_crop(picture: Image.Image | np.ndarray, *, crop: Crop, size: int, short: int, pose: Pose = UPRIGHT) -> Tensor:
    """A crop of the posed picture, as large as `size` is in a picture of short side `short`, scaled: for training.

    The crop begins at a whole pixel of the picture and is scaled on its own, by torch: it takes half the time.

    Args:
        picture: pixels (height, width, 3) only if the pose is upright.
        crop, pose: of the picture that is shown.
        size, short: see Photos.

    Shape:
        (size, size, 3), uint8.
    """
    height, width = picture.shape[:2] if isinstance(picture, np.ndarray) else picture.size[::-1]
    side = max(1, round(size * min(width, height) / short))
    left, top = int(crop.right * (width - side + 1)), int(crop.down * (height - side + 1))
    if isinstance(picture, np.ndarray):
        part = np.ascontiguousarray(picture[top : top + side, left : left + side])
    else:
        part = np.array(_part(picture, pose, (left, top, left + side, top + side)))
    whole = torch.from_numpy(part)[None].permute(0, 3, 1, 2)  # channels last, which is three times faster
    shown = F.interpolate(whole, size=(size, size), mode="bilinear", antialias=True)[0].permute(1, 2, 0)
    return shown.flip(1) if crop.flip else shown


def _part(image: Image.Image, pose: Pose, place: tuple[int, int, int, int]) -> Image.Image:
    """A part (left, top, right, bottom) of the canvas with the posed picture."""
    if pose == UPRIGHT:
        return image.crop(place)
    (width, height), (left, top, right, bottom) = image.size, place
    angle = math.radians(pose.degrees)
    cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)  # so that a quarter turn is exact
    # From the centre and y downwards, the canvas's (x, y) shows the picture's [[cos, -sin], [sin, cos]] (x, y).
    x, y = left - width / 2 - pose.right * width, top - height / 2 - pose.down * height
    return image.transform(
        (right - left, bottom - top),
        Image.Transform.AFFINE,
        (cos, -sin, cos * x - sin * y + width / 2, sin, cos, sin * x + cos * y + height / 2),
        Image.Resampling.BILINEAR,
        fillcolor=MEAN_COLOUR,
    )


@dataclass(frozen=True)
class Photos:
    """Labelled photographs, and the view that batches show of them.

    Args:
        source: where they are: class folders, shards, or views of the photographs of either.
        chosen: (n,), int64: which of the source's; a picture's parameters are those of its place in the source, so
            that they stay what they are whatever others are left out.
        view: a name in VIEWS.
        seed: of the random parameters; leave it for tests, that every model sees the same images.
        size: pixels a side of the images.
        short: the short side that pictures are scaled to before the crop.
        workers: processes that `find_bad` uses, and whoever calls `loader.stream`.
        pose: of all pictures, in the view `posed`.
    """

    source: Listing | Shards | Viewpoints
    chosen: Tensor
    view: str
    seed: int = TEST_SEED
    size: int = 224
    short: int = 256
    workers: int = 0
    pose: Pose = UPRIGHT
    _drawn: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.view not in VIEWS:
            raise ValueError(f"view ({self.view!r}) must be one of {', '.join(VIEWS)}")
        if self.view != "posed" and self.pose != UPRIGHT:
            raise ValueError(f"degrees, down and right ({self.pose}) are for the view posed, not for {self.view}")
        if not 1 <= self.size <= self.short:
            raise ValueError(f"size ({self.size}) must be from 1 to short ({self.short})")
        if self.workers < 0:
            raise ValueError(f"workers ({self.workers}) must be 0 (none) or more")

    @classmethod
    def open(
        cls,
        root: Path,
        part: str,
        *,
        view: str,
        seed: int = TEST_SEED,
        size: int = 224,
        short: int = 256,
        workers: int = 0,
        degrees: float = 0.0,
        down: float = 0.0,
        right: float = 0.0,
    ) -> Photos:
        """The pictures of a folder with train/ and val/, or of one that is divided into them; class folders or shards.

        Args:
            root: the folder.
            part: `train` and `val`, or `fit` and `validation`, a division of `train`.
            view: a name in VIEWS.
            seed, size, short, workers: see Photos.
            degrees, down, right: of the view `posed`: a turn, then a shift in parts of the height and the width.

        Raises:
            ValueError: if the folder is none of these, or is damaged.
        """
        if part not in PARTS:
            raise ValueError(f"part ({part!r}) must be one of {', '.join(PARTS)}")
        source, chosen = _find(Path(root), "val" if part == "val" else "train")
        if part in ("fit", "validation"):
            kept = _draw(source, chosen, "validation")
            chosen = chosen[kept if part == "validation" else ~kept]
        return cls(source, chosen, view, seed, size, short, workers, Pose(degrees, down, right))

    def __len__(self) -> int:
        return len(self.chosen)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_drawn": {}}

    @property
    def classes(self) -> list[str]:
        return self.source.classes

    @property
    def labels(self) -> Tensor:
        return self.source.labels[self.chosen]

    @property
    def names(self) -> list[str]:
        """The pictures' file names, relative to their folder."""
        names = self.source.names
        return [names[index] for index in self.chosen.tolist()]

    def batch(self, indices: Tensor, *, epoch: int = 0) -> tuple[Tensor, Tensor]:
        """Images (b, 3, size, size), uint8, channels last, and labels (b,).

        Raises:
            BadImage: if a picture cannot be read; the message names it.
        """
        places = self.chosen[indices]
        numbers = self._numbers(epoch)[places].tolist()
        images = torch.empty(len(places), self.size, self.size, 3, dtype=torch.uint8)
        for image, place, own in zip(images, places.tolist(), numbers, strict=True):
            image.copy_(self._show(place, own))
        return images.permute(0, 3, 1, 2), self.source.labels[places]

    def order(self, seed: int, epoch: int) -> Tensor | None:
        """An order of one pass that reads shards nearly one after the other; None where any order is as good."""
        if not isinstance(self.source, Shards):
            return None
        position = torch.full((len(self.source),), -1)
        position[self.chosen] = torch.arange(len(self))
        order = position[self.source.order(seed=seed, epoch=epoch)]
        return order[order >= 0]

    def seen(
        self, view: str, *, seed: int | None = None, degrees: float = 0.0, down: float = 0.0, right: float = 0.0
    ) -> Photos:
        """The same pictures in another view, without another look at the folder."""
        return replace(self, view=view, seed=self.seed if seed is None else seed, pose=Pose(degrees, down, right))

    def first(self, count: int) -> Photos:
        """The first `count` pictures; their parameters stay what they were."""
        return replace(self, chosen=self.chosen[:count])

    def without(self, indices: Iterable[int]) -> Photos:
        """All but these pictures; the parameters of the others stay what they were."""
        kept = torch.ones(len(self), dtype=torch.bool)
        kept[torch.tensor(list(indices), dtype=torch.int64)] = False
        return replace(self, chosen=self.chosen[kept])

    def find_bad(
        self,
        say: Callable[[str], None] = lambda text: None,
        *,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[tuple[int, str]]:
        """Decode every picture; the indices of those that cannot be read, and why.

        Args:
            say: gets a line about each of them.
            progress: gets the number of pictures that were read, and of all.
        """
        bad = []
        parts = [range(begin, min(begin + CHECKED, len(self))) for begin in range(0, len(self), CHECKED)]
        for part, found in zip(parts, ahead(self._check, parts, workers=self.workers), strict=True):
            for index, reason in found:
                say(reason)
                bad.append((index, reason))
            progress(part.stop, len(self))
        return bad

    def _check(self, indices: Sequence[int]) -> list[tuple[int, str]]:
        bad = []
        for index in indices:
            place = int(self.chosen[index])
            try:
                decode(self.source.read(place), name=self.source.names[place])
            except (ValueError, OSError) as error:
                bad.append((index, str(error)))
        return bad

    def _numbers(self, epoch: int) -> Tensor:
        if epoch not in self._drawn:
            self._drawn.clear()
            count = int(self.chosen.max()) + 1 if len(self) else 0
            self._drawn[epoch] = transforms.uniform(count, VIEWS[self.view].numbers, seed=self.seed, epoch=epoch)
        return self._drawn[epoch]

    def _show(self, place: int, numbers: Sequence[float]) -> Tensor:
        view = VIEWS[self.view]
        pose = self.pose if self.view == "posed" else view.pose(numbers)
        content, name = self.source.read(place), self.source.names[place]
        try:
            if view.crop is None:
                return show(decode(content, name=name), pose=pose, size=self.size, short=self.short)
            # A draft differs a little from the whole: not in tests, and with room for a proper reduction after it.
            picture = (pixels if pose == UPRIGHT else decode)(content, name=name, short=2 * self.short)
        except BadImage as error:
            raise BadImage(f"{error}: remove it; `patchreorder shard` finds all such files at once") from None
        return show_crop(picture, pose=pose, crop=view.crop(numbers), size=self.size, short=self.short)


def _find(root: Path, part: str) -> tuple[Listing | Shards, Tensor]:
    """The source that holds a part, and which of its pictures are that part's."""
    for name in ("train", "val"):
        shards.are_in(root / name)  # before anything else is said of a folder that is not finished
    apart = folders.has_parts(root)
    place = root / part if apart else root
    source: Listing | Shards
    if shards.are_in(place):
        source = Shards(place)
        if apart and part == "val":
            names = _classes(root / "train")
            if source.classes != names[: len(source.classes)]:  # those that only have numbers end where they end
                raise ValueError(f"{root / 'val'} has other classes than {root / 'train'}: make both anew, together")
            source.classes = names
    else:
        source = folders.list_images(place, classes=_classes(root / "train") if apart and part == "val" else None)
    every = torch.arange(len(source))
    if apart:
        return source, every
    kept = _draw(source, every, "val")
    return source, every[kept if part == "val" else ~kept]


def _classes(folder: Path) -> list[str]:
    return Shards(folder).classes if shards.are_in(folder) else folders.class_names(folder)


def _draw(source: Listing | Shards, chosen: Tensor, purpose: str) -> Tensor:
    names = source.names
    picked: Iterable[str] = names if len(chosen) == len(names) else (names[index] for index in chosen.tolist())
    return folders.drawn(picked, source.labels[chosen], classes=source.classes, purpose=purpose)


def as_seen(content: bytes, *, name: str, size: int = 224, short: int = 256) -> Tensor:
    """A picture's bytes as a network sees it in the view `Ori`: (3, size, size), uint8.

    Raises:
        BadImage: if it cannot be read; the message names it.
    """
    return show(decode(content, name=name), pose=UPRIGHT, size=size, short=short).permute(2, 0, 1)


def generated(
    folder: Path, *, classes: int, images: int, seed: int = 0, size: tuple[int, int] = (64, 48), quality: int = 85
) -> Path:
    """Write class folders with drawn JPEG pictures, `images` in each: enough to see that a network can learn.

    A class is a pattern of coloured squares on grey; place and size of it, and the grey, are another in every picture.

    Args:
        folder: holds the class folders afterwards.
        classes, images: how many classes, and pictures of each.
        seed: another one draws other pictures of the same classes.
        size: width and height.
        quality: of the JPEG files.
    """
    width, height = size
    for label in range(classes):
        place = folder / f"class-{label:04d}"
        place.mkdir(parents=True, exist_ok=True)
        pattern = np.random.Generator(np.random.Philox(label))
        squares = np.argwhere(pattern.random((4, 4)) < 0.5).tolist() or [[1, 1]]
        colour = tuple(pattern.integers(0, 256, 3).tolist())
        numbers = transforms.uniform(images, 4, seed=seed, epoch=label).tolist()
        for number, (down, right, large, light) in enumerate(numbers):
            image = Image.new("RGB", size, (int(96 + 64 * light),) * 3)
            draw = ImageDraw.Draw(image)
            side = min(size) * (0.5 + 0.4 * large) / 4
            top, left = down * (height - 4 * side), right * (width - 4 * side)
            for row, column in squares:
                x, y = left + column * side, top + row * side
                draw.rectangle((x, y, x + side - 1, y + side - 1), fill=colour)
            image.save(place / f"{number:04d}.jpg", quality=quality)
    return folder
