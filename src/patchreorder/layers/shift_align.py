"""Shift alignment: roll every image so that the centroid of its energy comes to the middle.

The layer keeps the arrangement of the pixels and removes the translation. The shift is chosen by exact arithmetic
(`cycles.py`), so a rolled image gives the same result to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from patchreorder.operator.dispatch import permute_patches
from patchreorder.operator.functional import Energy, check_maps
from patchreorder.operator.options import Count, Options, constructor, takes_and_returns_order
from patchreorder.operator.torch_form import is_exporting

from .cycles import nearest_to_centroid, whole_energy, wrapped
from .layer import Layer


@dataclass(frozen=True)
class ShiftAlignOptions(Options):
    """Options of `align_shift` and `ShiftAlign`.

    Args:
        energy: of a pixel, "l2" for its square, "l1" for its magnitude.
        per_channel: align every channel by itself; False sums energies over channels, and all move together.
        size: return the middle size x size pixels only. An object anywhere on a large background then costs the rest of
            the network no more than a small image. What is farther from the centroid is cut off.
    """

    energy: Energy = "l2"
    per_channel: bool = False
    size: Count | None = None


@takes_and_returns_order(ShiftAlignOptions)
def align_shift(x: Tensor, options: ShiftAlignOptions) -> tuple[Tensor, Tensor]:
    """Roll every image, rows and columns, so that the circular centroid of its energy comes to the middle.

    Rolling x by whole pixels, or moving an object on a background of zeros without cutting it, changes nothing in the
    result, bit for bit, unless the energies of the rows (or of the columns) repeat themselves around the cycle while
    the image does not: then no row is the first, and the uppermost is taken. The middle is row h // 2, column w // 2. A
    centroid half-way between two rows counts as the upper one. The gradient is rolled back; the choice has none. If an
    energy is NaN or infinite, only the pixels with such energies decide.

    Shape:
        x: (batch, channels, height, width) or (channels, height, width); the result has its shape, type and layout,
        with `size` (..., size, size).
        order: (batch, channels or 1, height, width), with `size` (..., size, size).

    Args:
        return_order: also return the source pixel (raster index) of each place, uint8 up to 256 pixels and int32 above.
            Without `size` it is a permutation for `undo_reorder`.

    Raises:
        ValueError: x has no pixels, or fewer than `size`, or an argument is out of range.
        TypeError: an argument, or the tensor, is of the wrong type.

    >>> x = torch.tensor([[[[7.0, 0.0, 0.0, 2.0], [0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]]]])
    >>> align_shift(x)
    tensor([[[[0., 0., 0., 0.],
              [0., 2., 7., 0.],
              [0., 1., 0., 0.]]]])
    >>> torch.equal(align_shift(x.roll((2, 1), (2, 3))), align_shift(x))
    True
    """
    check_maps("x", x)
    if x.shape[-2] < 1 or x.shape[-1] < 1:
        raise ValueError(f"x has no pixels to align: its maps are {x.shape[-2]}x{x.shape[-1]}")
    maps = x.unsqueeze(0) if x.dim() == 3 else x
    order = _order(maps, options.energy, options.per_channel)
    z = permute_patches(maps, order)
    if x.dim() == 3:
        z, order = z.squeeze(0), order.squeeze(0)
    return (z, order) if options.size is None else (middle(z, options.size), middle(order, options.size))


def middle(x: Tensor, size: int) -> Tensor:
    """The middle size x size pixels of maps: row h // 2 comes to row size // 2, columns likewise.

    Raises:
        ValueError: the maps are smaller.
    """
    height, width = x.shape[-2:]
    if size > min(height, width):
        raise ValueError(f"size ({size}) is more than the {height}x{width} pixels of the maps: give a smaller one")
    top, left = height // 2 - size // 2, width // 2 - size // 2
    return x[..., top : top + size, left : left + size].clone()  # a copy: the pixels that are cut off are freed


def _order(x: Tensor, energy: Energy, per_channel: bool) -> Tensor:
    height, width = x.shape[2:]
    small = not is_exporting() and height * width <= 256  # an exported size may change
    e = whole_energy(x, energy=energy, per_channel=per_channel)
    down, right = nearest_to_centroid(e.sum(3, dtype=torch.float64)), nearest_to_centroid(e.sum(2, dtype=torch.float64))
    row, column = _sources(down, height), _sources(right, width)  # b c h, b c w
    row, column = (source.to(torch.uint8 if small else torch.int32) for source in (row, column))
    return row.unsqueeze(3) * width + column.unsqueeze(2)


def _sources(centre: Tensor, size: int) -> Tensor:
    """For each row (or column) of the result the one of x that it comes from, so that the centre is in the middle."""
    return wrapped(torch.arange(size, device=centre.device) + (centre - size // 2).unsqueeze(2), size)


class ShiftAlign(Layer[ShiftAlignOptions]):
    """Roll every image so that the centroid of its energy comes to the middle; no parameters (see `align_shift`).

    Shape:
        Input and output: (batch, channels, height, width) or (channels, height, width); with `size` the output is
        (..., size, size).

    Raises:
        ValueError: an argument is out of range; when called, the maps have no pixels, or fewer than `size`.

    >>> ShiftAlign()(torch.tensor([[[[9.0, 0.0, 0.0]]]]))
    tensor([[[[0., 9., 0.]]]])
    >>> ShiftAlign(size=28)
    ShiftAlign(size=28)
    """

    function = staticmethod(align_shift)

    @constructor(ShiftAlignOptions)
    def __init__(self, options: ShiftAlignOptions) -> None:
        super().__init__(options)
