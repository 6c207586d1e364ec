"""Orientation reordering: roll the orientations of a group convolution so that the strongest comes first.

The maps turn back by the same angle, as far as that is whole quarter turns. So a turned image, whose features are the
turned maps of the next orientations, gives the same result. The choice is made by exact arithmetic (`cycles.py`).
"""

from __future__ import annotations

import torch
import torch.fx
from torch import Tensor, nn

from patchreorder.operator.dispatch import permute_patches
from patchreorder.operator.functional import FLOATS, Energy, whole_number
from patchreorder.operator.torch_form import is_exporting

from .cycles import strongest, whole_energy


def reorder_orientations(
    x: Tensor, *, orientations: int = 4, energy: Energy = "l2", per_channel: bool = False, turn: bool = True
) -> Tensor:
    """Roll the orientations so that the one with the most energy comes first, and turn the maps back by its angle.

    Orientation r is the answer of filters turned r times by 360 / orientations degrees, counter-clockwise. If the image
    turns by 90 degrees, maps turn by 90 degrees and answers move on by orientations / 4. Such a turn changes nothing in
    the result, bit for bit, unless the energies of the orientations repeat themselves around the cycle while the
    features do not: then no orientation is the first, and the lowest is taken. With 8 orientations, a turn by 45
    degrees rolls the orientations, but maps of pixels cannot turn by it: they stay turned by 45 degrees. The gradient
    goes back the way the pixels came; the choice has none. If an energy is NaN or infinite, the pixels with such
    energies decide alone.

    Shape:
        x: (batch, channels, orientations, height, width), or (batch, orientations * channels, height, width) with the
        orientation outside, as `models/group_conv.py` lays it out; the result has its shape, type and layout.

    Args:
        orientations: how many, a multiple of 4.
        energy: of a pixel, "l2" for its square, "l1" for its magnitude.
        per_channel: choose for every channel by itself; False sums energies over channels, and all roll together.
        turn: turn the maps back too, which must be square; False rolls the orientations only.

    Raises:
        ValueError: the shape does not fit, or an argument is out of range.
        TypeError: an argument, or the tensor, is of the wrong type.

    >>> x = torch.zeros(1, 1, 4, 2, 2)
    >>> x[0, 0, 1] = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> reorder_orientations(x)[0, 0, 0]
    tensor([[3., 1.],
            [4., 2.]])
    >>> turned = x.rot90(1, (3, 4)).roll(1, 2)  # the features of the image turned by 90 degrees
    >>> torch.equal(reorder_orientations(turned), reorder_orientations(x))
    True
    """
    orientations = _check(orientations, energy, per_channel, turn)
    _check_features(x, orientations, turn)
    if x.dim() == 5:
        return _reorder(x, energy, per_channel, turn)
    fields = x.unflatten(1, (orientations, -1)).transpose(1, 2)  # b c r h w
    z = _reorder(fields, energy, per_channel, turn).transpose(1, 2).flatten(1, 2)
    last = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    return z.contiguous(memory_format=torch.channels_last) if last else z


def _check(orientations: int, energy: str, per_channel: bool, turn: bool) -> int:
    orientations = whole_number("orientations", orientations)
    if orientations < 4 or orientations % 4:
        raise ValueError(f"orientations ({orientations}) must be a multiple of 4, such as 4 or 8")
    if energy not in ("l1", "l2"):
        raise ValueError(f"energy ({energy!r}) must be 'l1' or 'l2'")
    for name, value in (("per_channel", per_channel), ("turn", turn)):
        if not isinstance(value, bool):
            raise TypeError(f"{name} ({value!r}) must be True or False")
    return orientations


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
        raise ValueError(f"maps of {x.shape[-2]}x{x.shape[-1]} cannot turn: make them square, or use turn=False")


def _reorder(x: Tensor, energy: Energy, per_channel: bool, turn: bool) -> Tensor:
    """The same for (b, c, r, h, w): one permutation of the pixels of all orientations of a channel."""
    orientations, height, width = x.shape[2:]
    maps = x.flatten(2, 3)  # b c r*h w
    e = whole_energy(maps, energy=energy, per_channel=per_channel)
    first = strongest(e.unflatten(2, (orientations, height)).sum((3, 4), dtype=torch.float64)).unsqueeze(2)  # b c 1
    pixel = torch.arange(height * width, device=x.device).view(height, width)
    if turn:
        turned = torch.stack([pixel.rot90(-quarter, (0, 1)) for quarter in range(4)])
        pixel = turned[first.squeeze(2) // (orientations // 4)].unsqueeze(2)  # b c 1 h w
    source = (torch.arange(orientations, device=x.device) + first) % orientations  # b c r
    order = (source[..., None, None] * (height * width) + pixel).flatten(2, 3)
    small = not is_exporting() and orientations * height * width <= 256  # an exported size may change
    return permute_patches(maps, order.to(torch.uint8 if small else torch.int32)).unflatten(2, (orientations, height))


torch.fx.wrap("reorder_orientations")  # one node in a symbolic trace, which cannot look at sizes


class OrientationReorder(nn.Module):
    """Roll the orientations so that the strongest comes first; no parameters (see `reorder_orientations`).

    Shape:
        Input and output: (batch, channels, orientations, height, width), or
        (batch, orientations * channels, height, width) with the orientation outside.

    Args:
        orientations: how many, a multiple of 4.
        energy: "l2" (squares) or "l1" (magnitudes).
        per_channel: choose for every channel by itself; False rolls all channels together.
        turn: turn the maps back too, which must be square.

    Raises:
        ValueError: an argument is out of range; when called, the shape does not fit.

    >>> OrientationReorder()(torch.tensor([1.0, 5.0, 2.0, 0.0]).view(1, 4, 1, 1)).flatten()
    tensor([5., 2., 0., 1.])
    >>> OrientationReorder()
    OrientationReorder(orientations=4, energy='l2', per_channel=False, turn=True)
    """

    def __init__(
        self, orientations: int = 4, energy: Energy = "l2", per_channel: bool = False, turn: bool = True
    ) -> None:
        super().__init__()
        self.orientations = _check(orientations, energy, per_channel, turn)
        self.energy: Energy = energy
        self.per_channel, self.turn = per_channel, turn

    def forward(self, x: Tensor) -> Tensor:
        return reorder_orientations(
            x, orientations=self.orientations, energy=self.energy, per_channel=self.per_channel, turn=self.turn
        )

    def extra_repr(self) -> str:
        return (
            f"orientations={self.orientations}, energy={self.energy!r}, per_channel={self.per_channel}, "
            f"turn={self.turn}"
        )
