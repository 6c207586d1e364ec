"""Shift alignment: roll every image so that the centroid of its energy comes to the middle.

The arrangement is kept, only the place is forgotten. The shift is chosen by exact arithmetic (`cycles.py`), so a rolled
image gives the same result to the last bit.
"""

from __future__ import annotations

from typing import Literal, overload

import torch
import torch.fx
from torch import Tensor, nn

from patchreorder.operator.dispatch import permute_patches
from patchreorder.operator.functional import Energy, check_maps
from patchreorder.operator.torch_form import is_exporting

from .cycles import nearest_to_centroid, whole_energy, wrapped


@overload
def align_shift(
    x: Tensor, *, energy: Energy = ..., per_channel: bool = ..., return_order: Literal[False] = ...
) -> Tensor: ...


@overload
def align_shift(
    x: Tensor, *, energy: Energy = ..., per_channel: bool = ..., return_order: Literal[True]
) -> tuple[Tensor, Tensor]: ...


def align_shift(
    x: Tensor, *, energy: Energy = "l2", per_channel: bool = False, return_order: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """Roll every image, rows and columns, so that the circular centroid of its energy comes to the middle.

    Rolling x by whole pixels, and moving what stands on a background of zeros without cutting it, changes nothing in
    the result, bit for bit, unless the energies of the rows (or of the columns) repeat themselves around the cycle
    while the image does not: then no row is the first, and the uppermost is taken. The middle is row h // 2, column
    w // 2. A centroid half-way between two rows counts as the upper one. The gradient is rolled back; the choice has
    none. If an energy is NaN or infinite, the pixels with such energies decide alone.

    Shape:
        x: (batch, channels, height, width) or (channels, height, width); the result has its shape, type and layout.
        order: (batch, channels or 1, height, width).

    Args:
        energy: of a pixel, "l2" for its square, "l1" for its magnitude.
        per_channel: align every channel by itself; False sums energies over channels, and all move together.
        return_order: also return the source pixel (raster index) of each place, uint8 up to 256 pixels and int32 above,
            for `undo_reorder`.

    Raises:
        ValueError: x has no pixels, or an argument is out of range.
        TypeError: an argument, or the tensor, is of the wrong type.

    >>> x = torch.tensor([[[[7.0, 0.0, 0.0, 2.0], [0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]]]])
    >>> align_shift(x)
    tensor([[[[0., 0., 0., 0.],
              [0., 2., 7., 0.],
              [0., 1., 0., 0.]]]])
    >>> torch.equal(align_shift(x.roll((2, 1), (2, 3))), align_shift(x))
    True
    """
    z, order = _align(x, energy, per_channel)
    return (z, order) if return_order else z


def _align(x: Tensor, energy: Energy, per_channel: bool, *, jitter: int = 0) -> tuple[Tensor, Tensor]:
    """The aligned maps, and the order; with `jitter` each image ends up to so many pixels from the middle."""
    check_maps("x", x)
    _check(energy, per_channel, jitter)
    if x.shape[-2] < 1 or x.shape[-1] < 1:
        raise ValueError(f"x has no pixels to align: its maps are {x.shape[-2]}x{x.shape[-1]}")
    maps = x.unsqueeze(0) if x.dim() == 3 else x
    order = _order(maps, energy, per_channel, jitter)
    z = permute_patches(maps, order)
    if x.dim() == 3:
        z, order = z.squeeze(0), order.squeeze(0)
    return z, order


def middle(x: Tensor, size: int) -> Tensor:
    """The middle size x size pixels of maps: row h // 2 comes to row size // 2, columns likewise.

    Raises:
        ValueError: the maps are smaller.
    """
    height, width = x.shape[-2:]
    if size > min(height, width):
        raise ValueError(f"size ({size}) is more than the maps have, {height}x{width}: give a smaller one, or none")
    top, left = height // 2 - size // 2, width // 2 - size // 2
    return x[..., top : top + size, left : left + size].clone()  # what was cut off need not be kept


def check_size(size: int | None) -> None:
    """Raise an error where the size that is to be left makes no sense."""
    if size is not None and type(size) is not int:
        raise TypeError(f"size ({size!r}) must be a whole number of pixels, or None for all")
    if size is not None and size < 1:
        raise ValueError(f"size ({size}) must be 1 or more")


def _check(energy: str, per_channel: bool, jitter: int = 0) -> None:
    if not isinstance(per_channel, bool):
        raise TypeError(f"per_channel ({per_channel!r}) must be True or False")
    check_shift(energy, jitter)


def check_shift(energy: str, jitter: int) -> None:
    """Raise an error where the energy, or the pixels to roll on by, make no sense."""
    if energy not in ("l1", "l2"):
        raise ValueError(f"energy ({energy!r}) must be 'l1' or 'l2'")
    if type(jitter) is not int:
        raise TypeError(f"jitter ({jitter!r}) must be a whole number of pixels")
    if jitter < 0:
        raise ValueError(f"jitter ({jitter}) must be 0 (none) or more")


def _order(x: Tensor, energy: Energy, per_channel: bool, jitter: int) -> Tensor:
    height, width = x.shape[2:]
    small = not is_exporting() and height * width <= 256  # an exported size may change
    e = whole_energy(x, energy=energy, per_channel=per_channel)
    down, right = nearest_to_centroid(e.sum(3, dtype=torch.float64)), nearest_to_centroid(e.sum(2, dtype=torch.float64))
    if jitter:
        # One shift for all channels of an image, cut where the map ends: a roll by more would come round again.
        moved = torch.randint(-jitter, jitter + 1, (2, len(x), 1), device=x.device)
        down = down + moved[0].clamp(-(height // 2), height // 2)
        right = right + moved[1].clamp(-(width // 2), width // 2)
    row, column = _sources(down, height), _sources(right, width)  # b c h, b c w
    row, column = (place.to(torch.uint8 if small else torch.int32) for place in (row, column))
    return row.unsqueeze(3) * width + column.unsqueeze(2)


def _sources(centre: Tensor, size: int) -> Tensor:
    """Which row (or column) comes to each place, so that the centre comes to the middle."""
    return wrapped(torch.arange(size, device=centre.device) + (centre - size // 2).unsqueeze(2), size)


torch.fx.wrap("_align")
torch.fx.wrap("middle")
torch.fx.wrap("align_shift")  # one node in a symbolic trace, which cannot look at sizes


class ShiftAlign(nn.Module):
    """Roll every image so that the centroid of its energy comes to the middle; no parameters (see `align_shift`).

    Shape:
        Input and output: (batch, channels, height, width) or (channels, height, width); with `size` the output is
        (..., size, size).

    Args:
        energy: "l2" (squares) or "l1" (magnitudes).
        per_channel: align every channel by itself; False moves all channels together.
        jitter: in training mode every image is rolled on by up to so many pixels, at random (torch's generator), down
            and right, so that what follows learns the small shifts that noise leaves. In eval mode nothing is random.
        size: leave the middle size x size pixels only. What was anywhere on a large background then costs what follows
            no more than a small image; what is larger than this, or further from the centroid, is cut off.

    Raises:
        ValueError: an argument is out of range; when called, the maps have no pixels, or fewer than `size`.

    >>> ShiftAlign()(torch.tensor([[[[9.0, 0.0, 0.0]]]]))
    tensor([[[[0., 9., 0.]]]])
    >>> ShiftAlign()
    ShiftAlign(energy='l2', per_channel=False)
    """

    def __init__(
        self, energy: Energy = "l2", per_channel: bool = False, jitter: int = 0, size: int | None = None
    ) -> None:
        super().__init__()
        _check(energy, per_channel, jitter)
        check_size(size)
        self.energy: Energy = energy
        self.per_channel = per_channel
        self.jitter = jitter
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.jitter:
            z = _align(x, self.energy, self.per_channel, jitter=self.jitter)[0]
        else:
            z = align_shift(x, energy=self.energy, per_channel=self.per_channel)
        return z if self.size is None else middle(z, self.size)

    def extra_repr(self) -> str:
        jitter = f", jitter={self.jitter}" if self.jitter else ""
        size = f", size={self.size}" if self.size is not None else ""
        return f"energy={self.energy!r}, per_channel={self.per_channel}{jitter}{size}"
