"""Group convolutions over quarter turns: maps that turn with the image, exactly (Cohen and Welling, 2016).

A plain map is lifted to four, one for each orientation of the same kernel; further layers convolve over places and
orientations; the maximum over orientations ends with a plain map. Turning the image turns the maps and moves each
orientation to the next. The layout of C4 maps is (batch, 4 * channels, height, width) with the orientation outside:
channel c in orientation r, its kernel turned r times counter-clockwise, is channel r * channels + c.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .rotation_conv import block_conv, block_max

ORIENTATIONS = 4  # quarter turns: the ones that move pixels onto pixels


def lift_kernels(weight: Tensor) -> Tensor:
    """The weight of the ordinary convolution that lifts a plain map to C4 maps.

    Shape:
        weight: (out, in, side, side) to (4 * out, in, side, side).

    >>> lift_kernels(torch.tensor([[[[1, 2], [3, 4]]]]))[1]
    tensor([[[2, 4],
             [1, 3]]])
    """
    return torch.cat([torch.rot90(weight, turns, (-2, -1)) for turns in range(ORIENTATIONS)])


def regular_kernels(weight: Tensor) -> Tensor:
    """The weight of the ordinary convolution from C4 maps to C4 maps.

    Weight is what output orientation 0 uses. The kernels of orientation r are turned r times, and read with their part
    for orientation s what stands in orientation s + r.

    Shape:
        weight: (out, 4 * in, side, side), with input channels laid out as in C4 maps; the result is
        (4 * out, 4 * in, side, side).

    Raises:
        ValueError: the number of input channels is no multiple of four.

    >>> regular_kernels(torch.arange(4).view(1, 4, 1, 1)).view(4, 4)
    tensor([[0, 1, 2, 3],
            [3, 0, 1, 2],
            [2, 3, 0, 1],
            [1, 2, 3, 0]])
    """
    if weight.shape[1] % ORIENTATIONS:
        raise ValueError(f"weight of shape {tuple(weight.shape)} must have a multiple of {ORIENTATIONS} input channels")
    fields = weight.shape[1] // ORIENTATIONS
    turned = [torch.rot90(weight.roll(turns * fields, 1), turns, (-2, -1)) for turns in range(ORIENTATIONS)]
    return torch.cat(turned)


def orientation_max(x: Tensor) -> Tensor:
    """Maximum over the four orientations of C4 maps: a plain map that turns with the image.

    Ties give the whole gradient to the first orientation.

    Shape:
        x: (batch, 4 * channels, height, width) to (batch, channels, height, width).

    Raises:
        ValueError: the number of channels is no multiple of four.

    >>> orientation_max(torch.tensor([3.0, 0.0, 1.0, 0.0, 2.0, 0.0, 9.0, 7.0]).view(1, 8, 1, 1)).flatten()
    tensor([9., 7.])
    """
    return block_max(x, blocks=ORIENTATIONS)


class OrientationMax(nn.Module):
    """Maximum over the orientations of C4 maps; no parameters (see `orientation_max`).

    Shape:
        x: (batch, 4 * channels, height, width) to (batch, channels, height, width).

    Raises:
        ValueError: when called, the number of channels is no multiple of four.

    >>> OrientationMax()(torch.rand(1, 8, 5, 5)).shape
    torch.Size([1, 2, 5, 5])
    """

    def forward(self, x: Tensor) -> Tensor:
        return orientation_max(x)


class _C4Layer(nn.Module):
    """What both layers share: the bias, one for all orientations, and the first values of `nn.Conv2d`."""

    weight: nn.Parameter
    orientations = ORIENTATIONS  # by this `advise` knows a group convolution

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, padding: int, bias: bool) -> None:
        super().__init__()
        for name, value in (("in_channels", in_channels), ("out_channels", out_channels), ("kernel_size", kernel_size)):
            if value < 1:
                raise ValueError(f"{name} ({value}) must be 1 or more")
        if padding < 0:
            raise ValueError(f"padding ({padding}) must be 0 or more")
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.padding = kernel_size, padding
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None

    def reset_parameters(self) -> None:
        """Draw weight and bias uniformly, within one over the root of the number of inputs to a sum."""
        bound = 1 / math.sqrt(self.weight[0].numel())
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def _convolve(self, x: Tensor, kernels: Tensor) -> Tensor:
        return block_conv(x, kernels, self.bias, blocks=ORIENTATIONS, padding=self.padding)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, padding={self.padding}, "
            f"bias={self.bias is not None}"
        )


class C4Lift2d(_C4Layer):
    """From a plain map to C4 maps: one convolution with each kernel in four orientations.

    Shape:
        x: (batch, in_channels, height, width) to (batch, 4 * out_channels, height - side + 1, width - side + 1)
        without padding.

    Args:
        in_channels: of the plain map.
        out_channels: fields, each of four orientations; a quarter of the channels that come out.
        kernel_size: side of the square kernel; weight is (out_channels, in_channels, side, side).
        padding: zeros on every side.
        bias: learn one number for each field, the same for its orientations.

    Raises:
        ValueError: an argument is out of range.

    >>> layer, x = C4Lift2d(1, 2, 3), torch.rand(1, 1, 5, 5)
    >>> turned = torch.rot90(layer(x), 1, (2, 3)).roll(2, 1)  # each orientation becomes the next: two channels on
    >>> torch.allclose(layer(torch.rot90(x, 1, (2, 3))), turned, atol=1e-6)
    True
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, *, padding: int = 0, bias: bool = True
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, padding, bias)
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, kernel_size, kernel_size))
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        return self._convolve(x, lift_kernels(self.weight))


class C4Conv2d(_C4Layer):
    """From C4 maps to C4 maps: a convolution over places and orientations.

    Shape:
        x: (batch, 4 * in_channels, height, width) to (batch, 4 * out_channels, height - side + 1, width - side + 1)
        without padding.

    Args:
        in_channels: fields that come in, each of four orientations.
        out_channels: fields that go out.
        kernel_size: side of the square kernel; weight is (out_channels, 4 * in_channels, side, side), of four
            dimensions because `Module.to(memory_format=torch.channels_last)` refuses five.
        padding: zeros on every side.
        bias: learn one number for each field, the same for its orientations.

    Raises:
        ValueError: an argument is out of range.

    >>> layer, x = C4Conv2d(3, 2, 3), torch.rand(1, 12, 5, 5)
    >>> turned = torch.rot90(x, 1, (2, 3)).roll(3, 1)
    >>> torch.allclose(layer(turned), torch.rot90(layer(x), 1, (2, 3)).roll(2, 1), atol=1e-6)
    True
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, *, padding: int = 0, bias: bool = True
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, padding, bias)
        self.weight = nn.Parameter(torch.empty(out_channels, ORIENTATIONS * in_channels, kernel_size, kernel_size))
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        return self._convolve(x, regular_kernels(self.weight))
