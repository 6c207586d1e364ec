"""Group convolutions over turns: maps that turn with the image, exactly by quarters (Cohen and Welling, 2016).

A plain map is lifted to four, or eight, one for each orientation of the same kernel; further layers convolve over
places and orientations; the maximum over orientations ends with a plain map. Turning the image turns the maps and moves
each orientation on. The layout of the maps is (batch, orientations * channels, height, width) with the orientation
outside: channel c in orientation r, its kernel turned r times counter-clockwise, is channel r * channels + c.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .rotation_conv import block_conv, block_max, kernel_rotations, rotate_kernels

QUARTERS = 4  # the turns that move pixels onto pixels


def first_quarter(kernel_size: int, orientations: int) -> Tensor | None:
    """What turns kernels to the orientations of the first quarter; None for four, where the kernel itself is the first.

    Eight orientations stand at 22.5, 67.5, ... degrees and not at 0, 45, ...: a turned kernel is interpolated, which
    takes some of its energy, and so all of them lose alike. With one left as it is the strongest would mostly be that.

    Shape:
        result: (orientations / 4, side * side, side * side), as `kernel_rotations` gives them.

    >>> first_quarter(3, 8).shape
    torch.Size([2, 9, 9])
    """
    if orientations == QUARTERS:
        return None
    return kernel_rotations(kernel_size, angles=[(r + 0.5) * 360 / orientations for r in range(orientations // 4)])


def lift_kernels(weight: Tensor, *, rotations: Tensor | None = None) -> Tensor:
    """The weight of the ordinary convolution that lifts a plain map to maps of all orientations.

    Shape:
        weight: (out, in, side, side) to (orientations * out, in, side, side).
        rotations: from `first_quarter`, of weight's type.

    >>> lift_kernels(torch.tensor([[[[1, 2], [3, 4]]]]))[1]
    tensor([[[2, 4],
             [1, 3]]])
    """
    first = _first(weight, rotations)
    return torch.cat([torch.rot90(kernels, turns, (-2, -1)) for turns in range(QUARTERS) for kernels in first])


def regular_kernels(weight: Tensor, *, rotations: Tensor | None = None) -> Tensor:
    """The weight of the ordinary convolution from maps of all orientations to such maps.

    Weight is what output orientation 0 uses. The kernels of orientation r are turned r times, and read with their part
    for orientation s what stands in orientation s + r.

    Shape:
        weight: (out, orientations * in, side, side), with input channels laid out as in the maps; the result is
        (orientations * out, orientations * in, side, side).
        rotations: from `first_quarter`, of weight's type.

    Raises:
        ValueError: the number of input channels is no multiple of the orientations.

    >>> regular_kernels(torch.arange(4).view(1, 4, 1, 1)).view(4, 4)
    tensor([[0, 1, 2, 3],
            [3, 0, 1, 2],
            [2, 3, 0, 1],
            [1, 2, 3, 0]])
    """
    first = _first(weight, rotations)
    orientations = QUARTERS * len(first)
    if weight.shape[1] % orientations:
        raise ValueError(f"weight of shape {tuple(weight.shape)} must have a multiple of {orientations} input channels")
    fields = weight.shape[1] // orientations
    turned = [
        torch.rot90(kernels.roll((turns * len(first) + r) * fields, 1), turns, (-2, -1))
        for turns in range(QUARTERS)
        for r, kernels in enumerate(first)
    ]
    return torch.cat(turned)


def _first(weight: Tensor, rotations: Tensor | None) -> tuple[Tensor, ...]:
    """The kernels in each orientation of the first quarter."""
    if rotations is None:
        return (weight,)
    return rotate_kernels(weight, rotations=rotations).chunk(len(rotations))


def orientation_max(x: Tensor, *, orientations: int = QUARTERS) -> Tensor:
    """Maximum over the orientations: a plain map that turns with the image.

    Ties give the whole gradient to the first orientation.

    Shape:
        x: (batch, orientations * channels, height, width) to (batch, channels, height, width).

    Raises:
        ValueError: the number of channels is no multiple of the orientations.

    >>> orientation_max(torch.tensor([3.0, 0.0, 1.0, 0.0, 2.0, 0.0, 9.0, 7.0]).view(1, 8, 1, 1)).flatten()
    tensor([9., 7.])
    """
    return block_max(x, blocks=orientations)


class OrientationMax(nn.Module):
    """Maximum over the orientations; no parameters (see `orientation_max`).

    Shape:
        x: (batch, orientations * channels, height, width) to (batch, channels, height, width).

    Args:
        orientations: how many, a multiple of 4.

    Raises:
        ValueError: an argument is out of range; when called, the number of channels is no multiple of it.

    >>> OrientationMax()(torch.rand(1, 8, 5, 5)).shape
    torch.Size([1, 2, 5, 5])
    """

    def __init__(self, orientations: int = QUARTERS) -> None:
        super().__init__()
        self._over = _check(orientations)  # its answer has none, so `advise` must not find them

    def forward(self, x: Tensor) -> Tensor:
        return orientation_max(x, orientations=self._over)

    def extra_repr(self) -> str:
        return f"orientations={self._over}"


def _check(orientations: int) -> int:
    if orientations < QUARTERS or orientations % QUARTERS:
        raise ValueError(f"orientations ({orientations}) must be a multiple of {QUARTERS}, such as 4 or 8")
    return orientations


class _GroupLayer(nn.Module):
    """What both layers share: the bias, one for all orientations, and the first values of `nn.Conv2d`."""

    weight: nn.Parameter
    rotations: Tensor | None

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, orientations: int, padding: int, bias: bool
    ) -> None:
        super().__init__()
        for name, value in (("in_channels", in_channels), ("out_channels", out_channels), ("kernel_size", kernel_size)):
            if value < 1:
                raise ValueError(f"{name} ({value}) must be 1 or more")
        if padding < 0:
            raise ValueError(f"padding ({padding}) must be 0 or more")
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.padding = kernel_size, padding
        self.orientations = _check(orientations)  # by this `advise` knows a group convolution
        rotations = first_quarter(kernel_size, orientations)
        rotations = None if rotations is None else rotations.to(torch.get_default_dtype())
        self.register_buffer("rotations", rotations, persistent=False)
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None

    def reset_parameters(self) -> None:
        """Draw weight and bias uniformly, within one over the root of the number of inputs to a sum."""
        bound = 1 / math.sqrt(self.weight[0].numel())
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def _convolve(self, x: Tensor, kernels: Tensor) -> Tensor:
        return block_conv(x, kernels, self.bias, blocks=self.orientations, padding=self.padding)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"orientations={self.orientations}, padding={self.padding}, bias={self.bias is not None}"
        )


class GroupLift2d(_GroupLayer):
    """From a plain map to maps of all orientations: one convolution with each kernel turned to each of them.

    Shape:
        x: (batch, in_channels, height, width) to (batch, orientations * out_channels, height - side + 1,
        width - side + 1) without padding.

    Args:
        in_channels: of the plain map.
        out_channels: fields, each of all orientations.
        kernel_size: side of the square kernel; weight is (out_channels, in_channels, side, side).
        orientations: 4, or another multiple of 4; quarter turns are exact with all of them, turns by less up to what
            interpolating the kernels costs.
        padding: zeros on every side.
        bias: learn one number for each field, the same for its orientations.

    Raises:
        ValueError: an argument is out of range.

    >>> layer, x = GroupLift2d(1, 2, 3), torch.rand(1, 1, 5, 5)
    >>> turned = torch.rot90(layer(x), 1, (2, 3)).roll(2, 1)  # each orientation becomes the next: two channels on
    >>> torch.allclose(layer(torch.rot90(x, 1, (2, 3))), turned, atol=1e-6)
    True
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        orientations: int = QUARTERS,
        padding: int = 0,
        bias: bool = True,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, orientations, padding, bias)
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, kernel_size, kernel_size))
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        return self._convolve(x, lift_kernels(self.weight, rotations=self.rotations))


class GroupConv2d(_GroupLayer):
    """From maps of all orientations to such maps: a convolution over places and orientations.

    Shape:
        x: (batch, orientations * in_channels, height, width) to (batch, orientations * out_channels,
        height - side + 1, width - side + 1) without padding.

    Args:
        in_channels: fields that come in, each of all orientations.
        out_channels: fields that go out.
        kernel_size: side of the square kernel; weight is (out_channels, orientations * in_channels, side, side), of
            four dimensions because `Module.to(memory_format=torch.channels_last)` refuses five.
        orientations: as many as the maps have.
        padding: zeros on every side.
        bias: learn one number for each field, the same for its orientations.

    Raises:
        ValueError: an argument is out of range.

    >>> layer, x = GroupConv2d(3, 2, 3), torch.rand(1, 12, 5, 5)
    >>> turned = torch.rot90(x, 1, (2, 3)).roll(3, 1)
    >>> torch.allclose(layer(turned), torch.rot90(layer(x), 1, (2, 3)).roll(2, 1), atol=1e-6)
    True
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        orientations: int = QUARTERS,
        padding: int = 0,
        bias: bool = True,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, orientations, padding, bias)
        self.weight = nn.Parameter(torch.empty(out_channels, orientations * in_channels, kernel_size, kernel_size))
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        return self._convolve(x, regular_kernels(self.weight, rotations=self.rotations))
