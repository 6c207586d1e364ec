"""Orientation reordering: roll the orientations of a group convolution so that the strongest comes first.

The maps are rotated back by the same angle, in whole quarter turns. A rotated image, whose features are the rotated
maps of the next orientations, then gives the same result. The choice is made by exact arithmetic (`cycles.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from patchreorder.operator.dispatch import permute_patches
from patchreorder.operator.functional import FLOATS, Energy
from patchreorder.operator.options import Must, Options, constructor, takes
from patchreorder.operator.torch_form import is_exporting

from .cycles import strongest, whole_energy
from .layer import Layer


@dataclass(frozen=True)
class OrientationReorderOptions(Options):
    """Options of `reorder_orientations` and `OrientationReorder`.

    Args:
        orientations: how many, a multiple of 4.
        energy: of a pixel, "l2" for its square, "l1" for its magnitude.
        per_channel: choose for every channel by itself; False sums energies over channels, and all roll together.
        turn: rotate the maps back too, which must be square; False rolls the orientations only.
    """

    orientations: Annotated[
        int, Must("a multiple of 4, such as 4 or 8", lambda value: value >= 4 and not value % 4)
    ] = 4
    energy: Energy = "l2"
    per_channel: bool = False
    turn: bool = True


@takes(OrientationReorderOptions)
def reorder_orientations(x: Tensor, options: OrientationReorderOptions) -> Tensor:
    """Roll the orientations so that the one with the most energy comes first, and rotate the maps back by its angle.

    Orientation r is the response of filters rotated r times by 360 / orientations degrees, counter-clockwise. If the
    image is rotated by 90 degrees, the maps rotate by 90 degrees and the responses move on by orientations / 4. Such a
    rotation changes nothing in the result, bit for bit, unless the energies of the orientations repeat themselves
    around the cycle while the features do not: then no orientation is the first, and the lowest is taken. With 8
    orientations, a rotation by 45 degrees rolls the orientations, but the maps stay rotated by 45 degrees, since
    pixels have only quarter turns. The gradient goes back the way the pixels came; the choice has none. If an energy is
    NaN or infinite, only the pixels with such energies decide.

    Shape:
        x: (batch, channels, orientations, height, width), or (batch, orientations * channels, height, width) with the
        orientation outside, as in `models/group_conv.py`; the result has its shape, type and layout.

    Raises:
        ValueError: the shape does not fit, or an argument is out of range.
        TypeError: an argument, or the tensor, is of the wrong type.

    >>> x = torch.zeros(1, 1, 4, 2, 2)
    >>> x[0, 0, 1] = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> reorder_orientations(x)[0, 0, 0]
    tensor([[3., 1.],
            [4., 2.]])
    >>> rotated = x.rot90(1, (3, 4)).roll(1, 2)  # the features of the image rotated by 90 degrees
    >>> torch.equal(reorder_orientations(rotated), reorder_orientations(x))
    True
    """
    _check_features(x, options.orientations, options.turn)
    if x.dim() == 5:
        return _reorder(x, options)
    fields = x.unflatten(1, (options.orientations, -1)).transpose(1, 2)  # b c r h w
    z = _reorder(fields, options).transpose(1, 2).flatten(1, 2)
    last = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    return z.contiguous(memory_format=torch.channels_last) if last else z


def _check_features(x: Tensor, orientations: int, turn: bool) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a torch.Tensor, got {type(x).__name__}")
    if x.layout is not torch.strided:
        raise TypeError(f"x must be a dense (strided) tensor, got {x.layout}")
    if x.dtype not in FLOATS:
        raise TypeError(f"x must be float16, bfloat16, float32 or float64, got {x.dtype}")
    fits = x.shape[2] == orientations if x.dim() == 5 else x.dim() == 4 and x.shape[1] % orientations == 0
    if not fits:
        raise ValueError(
            f"x must have shape (batch, channels, {orientations}, height, width) or "
            f"(batch, {orientations} * channels, height, width), got {tuple(x.shape)}"
        )
    if x.shape[-2] < 1 or x.shape[-1] < 1:
        raise ValueError(f"x has no pixels: its maps are {x.shape[-2]}x{x.shape[-1]}")
    if turn and x.shape[-2] != x.shape[-1]:
        raise ValueError(f"maps of {x.shape[-2]}x{x.shape[-1]} cannot be rotated: make them square, or use turn=False")


def _reorder(x: Tensor, options: OrientationReorderOptions) -> Tensor:
    """The same for (b, c, r, h, w): one permutation of the pixels of all orientations of a channel."""
    orientations, height, width = x.shape[2:]
    maps = x.flatten(2, 3)  # b c r*h w
    e = whole_energy(maps, energy=options.energy, per_channel=options.per_channel)
    first = strongest(e.unflatten(2, (orientations, height)).sum((3, 4), dtype=torch.float64)).unsqueeze(2)  # b c 1
    pixel = torch.arange(height * width, device=x.device).view(height, width)
    if options.turn:
        rotated = torch.stack([pixel.rot90(-quarter, (0, 1)) for quarter in range(4)])
        pixel = rotated[first.squeeze(2) // (orientations // 4)].unsqueeze(2)  # b c 1 h w
    source = (torch.arange(orientations, device=x.device) + first) % orientations  # b c r
    order = (source[..., None, None] * (height * width) + pixel).flatten(2, 3)
    small = not is_exporting() and orientations * height * width <= 256  # an exported size may change
    return permute_patches(maps, order.to(torch.uint8 if small else torch.int32)).unflatten(2, (orientations, height))


class OrientationReorder(Layer[OrientationReorderOptions]):
    """Roll the orientations so that the strongest comes first; no parameters (see `reorder_orientations`).

    Shape:
        Input and output: (batch, channels, orientations, height, width), or
        (batch, orientations * channels, height, width) with the orientation outside.

    Raises:
        ValueError: an argument is out of range; when called, the shape does not fit.

    >>> OrientationReorder()(torch.tensor([1.0, 5.0, 2.0, 0.0]).view(1, 4, 1, 1)).flatten()
    tensor([5., 2., 0., 1.])
    >>> OrientationReorder(orientations=8)
    OrientationReorder(orientations=8)
    """

    function = staticmethod(reorder_orientations)

    @constructor(OrientationReorderOptions)
    def __init__(self, options: OrientationReorderOptions) -> None:
        super().__init__(options)
