"""Photographs as if taken from several viewpoints: each gives a group of views of the same thing.

A view is a quadrilateral of the photograph, a part of it that is a little turned and bent, stretched to a rectangle, in
other light; on the whole canvas, or in the middle of it with plain grey around. Numbers are drawn apart from what is
done with them, as in `photos`.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from . import transforms
from .folders import Listing, Names
from .images import decode
from .shards import Shards

NUMBERS = 17  # uniform values that a view needs
SEED = 1  # other numbers than those that turn and shift what is seen
_CORNERS = ((-1, -1), (-1, 1), (1, 1), (1, -1))  # right and down, from the middle; in Pillow's order


class Change(NamedTuple):
    """How far views may differ.

    Args:
        least: the smallest part of a side that is seen; the largest is all of it.
        degrees: of the turn either way.
        bend: how far a corner moves either way, in parts of the side that is seen.
        light: how far the logarithm of each colour's brightness, and of the contrast's power, goes either way.
        covered: the part of the canvas's sides that shows the view; what is around it is grey.
    """

    least: float
    degrees: float
    bend: float
    light: float
    covered: float = 1.0


@dataclass(frozen=True)
class Viewpoints:
    """A source of `Photos`: views of photographs, those of one after the other; labels say of which they are.

    Args:
        source: where the photographs are.
        chosen: (n,), int64: which of the source's.
        views: how many of each.
        change: how far they differ.
    """

    source: Listing | Shards | Viewpoints
    chosen: Tensor
    views: int
    change: Change

    def __len__(self) -> int:
        return self.views * len(self.chosen)

    @cached_property
    def classes(self) -> list[str]:
        """The photographs' names."""
        names = self.source.names
        return [names[place] for place in self.chosen.tolist()]

    @cached_property
    def names(self) -> Names:
        """With what decides about a view, so that other views have other names."""
        change = ",".join(f"{value:g}" for value in self.change)
        return Names(f"{name}#{view}:{change}" for name in self.classes for view in range(self.views))

    @cached_property
    def labels(self) -> Tensor:
        return torch.arange(len(self.chosen)).repeat_interleave(self.views)

    @cached_property
    def _numbers(self) -> Tensor:
        return transforms.uniform(len(self), NUMBERS, seed=SEED, epoch=0)

    def read(self, index: int) -> bytes:
        """The bytes of a file with the view."""
        place = int(self.chosen[index // self.views])
        picture = decode(self.source.read(place), name=self.source.names[place])
        file = io.BytesIO()
        view_from(picture, self._numbers[index].tolist(), change=self.change).save(file, "PPM")
        return file.getvalue()


def view_from(picture: Image.Image, numbers: Sequence[float], *, change: Change) -> Image.Image:
    """The picture as seen from elsewhere, on a canvas of its own size.

    Args:
        picture: in colours.
        numbers: NUMBERS of them, from 0 to 1, decide how far it goes: the part that is seen, its place, the turn, the
            corners, the colours and the contrast, the grey.
        change: how far it may go.
    """
    (part, right, down, turn), bends, light, grey = numbers[:4], numbers[4:12], numbers[12:16], numbers[16]
    (width, height), side = picture.size, change.least + (1 - change.least) * part
    angle = math.radians(change.degrees * (2 * turn - 1))
    across, along = side * width / 2, side * height / 2  # halves of what is seen
    x, y = across + right * (width - 2 * across), along + down * (height - 2 * along)  # its middle
    corners: list[float] = []
    for (u, v), bent, bowed in zip(_CORNERS, bends[::2], bends[1::2], strict=True):
        i, j = u + 2 * change.bend * (2 * bent - 1), v + 2 * change.bend * (2 * bowed - 1)
        at = x + across * (math.cos(angle) * i - math.sin(angle) * j)
        to = y + along * (math.sin(angle) * i + math.cos(angle) * j)
        corners += [min(max(at, 0.0), width), min(max(to, 0.0), height)]  # nothing uncovered is seen
    size = round(change.covered * width), round(change.covered * height)
    seen = picture.transform(size, Image.Transform.QUAD, corners, Image.Resampling.BILINEAR)
    *gains, power = (math.exp(change.light * (2 * number - 1)) for number in light)
    curve = [round(min(255 * gain * (value / 255) ** power, 255)) for gain in gains for value in range(256)]
    canvas = Image.new("RGB", (width, height), (round(64 + 128 * grey),) * 3)
    canvas.paste(seen.point(curve), ((width - size[0]) // 2, (height - size[1]) // 2))
    return canvas
