"""Group convolutions over quarter turns: their maps rotate with the image (Cohen and Welling, 2016).

`GroupLift2d` turns plain maps into maps of four orientations, one for each orientation of the same kernel;
`GroupConv2d` convolves over positions and orientations; the maximum over orientations gives a plain map again. Rotating
the image by 90 degrees rotates the maps and moves each orientation on by one. Maps are (batch, 4 * channels, height,
width) with the orientation outside: channel c in orientation r, whose kernel is rotated r times counter-clockwise, is
channel r * channels + c.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .rotation_conv import block_conv, block_max

ORIENTATIONS = 4  # the rotations that move pixels onto pixels


def lift_kernels(weight: Tensor) -> Tensor:
    """The weight of the ordinary convolution from plain maps to maps of four orientations.

    Shape:
        weight: (out, in, side, side) to (4 * out, in, side, side).

    >>> lift_kernels(torch.tensor([[[[1, 2], [3, 4]]]]))[1]
    tensor([[[2, 4],
             [1, 3]]])
    """
    return torch.cat([torch.rot90(weight, r, (-2, -1)) for r in range(ORIENTATIONS)])


def regular_kernels(weight: Tensor) -> Tensor:
    """The weight of the ordinary convolution from maps of four orientations to such maps.

    `weight` holds the kernels of output orientation 0. Those of orientation r are rotated r times, and their part for
    input orientation s reads orientation s + r.

    Shape:
        weight: (out, 4 * in, side, side), with input channels as in the maps, to (4 * out, 4 * in, side, side).

    Raises:
        ValueError: the number of input channels is not a multiple of 4.

    >>> regular_kernels(torch.arange(4).view(1, 4, 1, 1)).view(4, 4)
    tensor([[0, 1, 2, 3],
            [3, 0, 1, 2],
            [2, 3, 0, 1],
            [1, 2, 3, 0]])
    """
    if weight.shape[1] % ORIENTATIONS:
        raise ValueError(f"weight of shape {tuple(weight.shape)} must have a multiple of 4 input channels")
    channels = weight.shape[1] // ORIENTATIONS
    return torch.cat([torch.rot90(weight.roll(r * channels, 1), r, (-2, -1)) for r in range(ORIENTATIONS)])


class OrientationMax(nn.Module):
    """Maximum over the orientations: a plain map that rotates with the image; no parameters.

    Ties give the whole gradient to the first orientation.

    Shape:
        x: (batch, 4 * channels, height, width) to (batch, channels, height, width).

    Raises:
        ValueError: when called, the number of channels is not a multiple of 4.

    >>> OrientationMax()(torch.tensor([3.0, 0.0, 1.0, 0.0, 2.0, 0.0, 9.0, 7.0]).view(1, 8, 1, 1)).flatten()
    tensor([9., 7.])
    """

    def forward(self, x: Tensor) -> Tensor:
        return block_max(x, blocks=ORIENTATIONS)


class _GroupLayer(nn.Module):
    """A bias for each channel, shared by its orientations, and the initial values of `nn.Conv2d`."""

    orientations = ORIENTATIONS  # `advise` recognises a group convolution by this attribute

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, *, inputs: int, padding: int, bias: bool
    ) -> None:
        super().__init__()
        for name, value in (("in_channels", in_channels), ("out_channels", out_channels), ("kernel_size", kernel_size)):
            if value < 1:
                raise ValueError(f"{name} ({value}) must be 1 or more")
        if padding < 0:
            raise ValueError(f"padding ({padding}) must be 0 or more")
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.padding = kernel_size, padding
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        # Four dimensions: Module.to(memory_format=torch.channels_last) refuses five.
        self.weight = nn.Parameter(torch.empty(out_channels, inputs, kernel_size, kernel_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias uniformly, up to 1 / sqrt(number of inputs to a sum)."""
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


class GroupLift2d(_GroupLayer):
    """From plain maps to maps of four orientations: a convolution with each kernel in each orientation.

    Shape:
        x: (batch, in_channels, height, width) to (batch, 4 * out_channels, height - side + 1, width - side + 1)
        without padding.

    Args:
        in_channels: of the plain maps.
        out_channels: each of four orientations.
        kernel_size: side of the square kernel; weight is (out_channels, in_channels, side, side).
        padding: zeros on every side.
        bias: learn one for each channel, shared by its orientations.

    Raises:
        ValueError: an argument is out of range.

    >>> layer, x = GroupLift2d(1, 2, 3), torch.rand(1, 1, 5, 5)
    >>> rotated = torch.rot90(layer(x), 1, (2, 3)).roll(2, 1)  # each orientation becomes the next: two channels on
    >>> torch.allclose(layer(torch.rot90(x, 1, (2, 3))), rotated, atol=1e-6)
    True
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, *, padding: int = 0, bias: bool = True
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, inputs=in_channels, padding=padding, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self._convolve(x, lift_kernels(self.weight))


class GroupConv2d(_GroupLayer):
    """From maps of four orientations to such maps: a convolution over positions and orientations.

    Shape:
        x: (batch, 4 * in_channels, height, width) to (batch, 4 * out_channels, height - side + 1, width - side + 1)
        without padding.

    Args:
        in_channels, out_channels: each of four orientations.
        kernel_size: side of the square kernel; weight is (out_channels, 4 * in_channels, side, side).
        padding: zeros on every side.
        bias: learn one for each channel, shared by its orientations.

    Raises:
        ValueError: an argument is out of range.

    >>> layer, x = GroupConv2d(3, 2, 3), torch.rand(1, 12, 5, 5)
    >>> rotated = torch.rot90(x, 1, (2, 3)).roll(3, 1)
    >>> torch.allclose(layer(rotated), torch.rot90(layer(x), 1, (2, 3)).roll(2, 1), atol=1e-6)
    True
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, *, padding: int = 0, bias: bool = True
    ) -> None:
        inputs = ORIENTATIONS * in_channels
        super().__init__(in_channels, out_channels, kernel_size, inputs=inputs, padding=padding, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self._convolve(x, regular_kernels(self.weight))
