"""UK-Bench (Nister and Stewenius, 2006): photographs of objects in groups of four, by the numbers of their files."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from .folders import Listing, Names
from .photos import Photos

GROUP = 4
MIXED = ("Ori", "R", "T", "Ori")  # the views of a group's four images in the view `mixed`
VIEWS = ("Ori", "R", "T", "mixed")
_NAME = re.compile(r"ukbench(\d{5})\.jpg")


@dataclass(frozen=True)
class UKBench:
    """The complete groups of a folder, and the view that batches show.

    Batches are images (b, 3, 224, 224), uint8, and the numbers of their groups (b,). The views Ori, R and T are those
    of `views.VIEWS`. In `mixed`, the first and fourth image of a group are as in Ori, the second as in R, the third as
    in T.

    Args:
        photos: the images of complete groups.
        view: one of VIEWS.
        incomplete: the files that each incomplete group lacks.
        foreign: names of other files in the folder.
    """

    photos: Photos
    view: str = "Ori"
    incomplete: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.view not in VIEWS:
            raise ValueError(f"view ({self.view!r}) must be one of {', '.join(VIEWS)}")

    @classmethod
    def open(cls, root: Path, *, view: str = "Ori", workers: int = 0) -> UKBench:
        """Open a folder with files ukbench00000.jpg, ukbench00001.jpg and so on.

        Args:
            root: the folder.
            view: one of VIEWS.
            workers: processes for callers of `loader.stream`.

        Raises:
            ValueError: if it holds no complete group.
        """
        root = Path(root)
        expected = "expected files ukbenchNNNNN.jpg, numbered from 00000, four of each object in succession"
        try:
            names = sorted(entry.name for entry in os.scandir(root))
        except (FileNotFoundError, NotADirectoryError):
            raise ValueError(f"{root} is not a folder; {expected}") from None
        numbers = {int(found[1]): found[0] for name in names if (found := _NAME.fullmatch(name))}
        foreign = [_printable(name) for name in names if not _NAME.fullmatch(name)]
        groups = sorted({number // GROUP for number in numbers})
        lacking = {
            group: [number for number in range(GROUP * group, GROUP * (group + 1)) if number not in numbers]
            for group in groups
        }
        files = sorted(numbers)
        labels = torch.tensor(files, dtype=torch.int64) // GROUP
        complete = [index for index, number in enumerate(files) if not lacking[number // GROUP]]
        if not complete:
            held = f"{len(numbers)} such files but no complete group" if numbers else "no such file"
            raise ValueError(f"{root} holds {held}; {expected}")
        # Groups are the classes: their numbers stay the same when a group is left out.
        classes = [f"{group:05d}" for group in range(groups[-1] + 1)]
        listing = Listing(root, classes, Names(numbers[number] for number in files), labels)
        incomplete = [
            f"group {group} lacks {', '.join(f'ukbench{number:05d}.jpg' for number in missing)}"
            for group, missing in lacking.items()
            if missing
        ]
        photos = Photos(listing, torch.tensor(complete), "Ori", workers=workers)
        return cls(photos, view, tuple(incomplete), tuple(foreign))

    @classmethod
    def galleries(cls, root: Path, *, most: int, workers: int = 0) -> list[UKBench]:
        """Class folders as groups of four, to choose settings on; no class is in a gallery twice.

        The first gallery has the first four training images of every class, by name, the second gallery the next four,
        and so on. A class with too few images for a gallery is not in it.

        Args:
            root: class folders, see `Photos.open`.
            most: the largest number of galleries.
            workers: see `open`.

        Raises:
            ValueError: if no class has four images.
        """
        photos = Photos.open(root, "train", view="Ori", workers=workers)
        names, classes = photos.names, range(len(photos.classes))
        own = [(photos.labels == label).nonzero()[:, 0].tolist() for label in classes]
        by_name = [sorted(indices, key=names.__getitem__) for indices in own]
        found = []
        for first in range(0, GROUP * most, GROUP):
            groups = [indices[first : first + GROUP] for indices in by_name if len(indices) >= first + GROUP]
            if groups:
                found.append(cls(replace(photos, chosen=photos.chosen[torch.tensor(groups).flatten()])))
        if not found:
            raise ValueError(f"{root} has no class with {GROUP} training images")
        return found

    def __len__(self) -> int:
        return len(self.photos)

    @property
    def workers(self) -> int:
        return self.photos.workers

    @property
    def groups(self) -> Tensor:
        """The group of each image, (n,)."""
        return self.photos.labels

    @property
    def names(self) -> list[str]:
        return self.photos.names

    def batch(self, indices: Tensor, *, epoch: int = 0) -> tuple[Tensor, Tensor]:
        """Images (b, 3, 224, 224), uint8, channels last, and groups (b,).

        Raises:
            BadImage: if an image cannot be read; the message names it.
        """
        if self.view != "mixed":
            return self.photos.with_view(self.view).batch(indices)
        images = torch.empty(len(indices), self.photos.size, self.photos.size, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
        for view in dict.fromkeys(MIXED):
            own = torch.tensor([MIXED[index % GROUP] == view for index in indices.tolist()], dtype=torch.bool)
            images[own] = self.photos.with_view(view).batch(indices[own])[0]
        return images, self.groups[indices]

    def with_view(self, view: str) -> UKBench:
        """The same images in another view."""
        return replace(self, view=view)

    def first(self, groups: int) -> UKBench:
        """The first groups, with the same parameters."""
        if not 1 <= groups <= len(self) // GROUP:
            raise ValueError(f"groups ({groups}) must be from 1 to {len(self) // GROUP}, the number in the folder")
        return replace(self, photos=self.photos.first(GROUP * groups))

    def remarks(self) -> list[str]:
        """A line about each group that is left out, and one about other files."""
        lines = [f"left out: {reason}" for reason in self.incomplete]
        if self.foreign:
            shown = ", ".join(self.foreign[:5]) + (", ..." if len(self.foreign) > 5 else "")
            lines.append(f"not of UK-Bench, left out: {len(self.foreign)} files ({shown})")
        return lines


def _printable(name: str) -> str:
    """A file name as text that any terminal can show."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
