"""The layer of SI-CNN: a convolution with its kernels at several angles, and the maximum over the angles.

Kanazawa, Sharma and Jacobs, "Locally scale-invariant convolutional neural networks" (2014), with rotations instead of
scales, as the paper compares it (section MNIST). The layer has the parameters of an ordinary convolution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ANGLES = (-90.0, -54.0, -18.0, 18.0, 54.0, 90.0)  # the paper's six, evenly spaced; 0 is not among them
ANGLES_WITH_IDENTITY = (-72.0, -36.0, 0.0, 36.0, 72.0, 108.0)  # six as far apart, 0 among them: moved by 18 degrees
CACHE = 1 << 20  # bytes of kernels that fit the cache of a processor's core
VECTOR = 16  # output channels that it computes together


def kernel_rotations(kernel_size: int, *, angles: Sequence[float] = ANGLES) -> Tensor:
    """Matrices that rotate a flattened square kernel about its centre, counter-clockwise as it is displayed.

    Interpolation is bilinear, with zeros outside the square, so that rotated kernels lose their corners. A constant
    kernel of side 7 or 9 loses 12 % of its sum at 18 degrees and 17 % at 54; one of independent random numbers, which
    interpolation also smooths, 60 % of its energy at either. Quarter turns are exact permutations.

    Shape:
        result: (angles, side * side, side * side), float64; rows are pixels of the rotated kernel.

    Args:
        kernel_size: side of the kernel.
        angles: in degrees; +90 is `torch.rot90`.

    Raises:
        ValueError: there is no angle, an angle is not finite, or the side is below 1.

    >>> kernel_rotations(2, angles=[90]) @ torch.tensor([1.0, 2.0, 3.0, 4.0]).double()
    tensor([[2., 4., 1., 3.]], dtype=torch.float64)
    """
    if kernel_size < 1:
        raise ValueError(f"kernel_size ({kernel_size}) must be 1 or more")
    if len(angles) == 0 or not all(math.isfinite(angle) for angle in angles):
        raise ValueError(f"angles ({angles!r}) must be one or more finite numbers, in degrees")
    radians = torch.tensor(angles, dtype=torch.float64).deg2rad().view(-1, 1, 1)
    pixels = torch.arange(kernel_size, dtype=torch.float64) - (kernel_size - 1) / 2
    y, x = pixels.view(-1, 1), pixels  # y points down
    # The source of each pixel; rounded, since cos(90 degrees) = 6e-17 would blur quarter turns.
    from_x = (x * radians.cos() - y * radians.sin()).round(decimals=12)  # angles k k
    from_y = (x * radians.sin() + y * radians.cos()).round(decimals=12)
    near_x = (1 - (from_x.unsqueeze(-1) - pixels).abs()).clamp(min=0)  # angles k k k: bilinear, along each axis
    near_y = (1 - (from_y.unsqueeze(-1) - pixels).abs()).clamp(min=0)
    return (near_y.unsqueeze(-1) * near_x.unsqueeze(-2)).reshape(len(angles), kernel_size**2, kernel_size**2)


def rotate_kernels(weight: Tensor, *, rotations: Tensor) -> Tensor:
    """All kernels rotated by all angles, as the weight of one convolution; angle by angle, output channels inside.

    Shape:
        weight: (out, in, side, side), in being that of one group; the result is (angles * out, in, side, side),
        channels_last if weight is.
        rotations: (angles, side * side, side * side), from `kernel_rotations`, of weight's type.

    Raises:
        ValueError: the rotations are not for kernels of this shape.

    >>> weight = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    >>> rotate_kernels(weight, rotations=kernel_rotations(2, angles=[0, 90]).float())
    tensor([[[[1., 2.],
              [3., 4.]]],
    <BLANKLINE>
    <BLANKLINE>
            [[[2., 4.],
              [1., 3.]]]])
    """
    outputs, inputs, height, width = weight.shape
    if rotations.dim() != 3 or height != width or rotations.shape[1:] != (height * width, height * width):
        raise ValueError(f"rotations of shape {tuple(rotations.shape)} do not fit weight of {tuple(weight.shape)}")
    rotated = torch.matmul(weight.reshape(outputs * inputs, -1), rotations.transpose(1, 2))  # angles out*in k*k
    rotated = rotated.view(-1, inputs, height, width)
    # One channel has both layouts: the strides of the weight decide.
    return rotated.to(memory_format=torch.channels_last) if weight.stride(1) == 1 else rotated


def block_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    blocks: int,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] | str = 0,
    groups: int = 1,
) -> Tensor:
    """Convolve with blocks of kernels that share one bias.

    One convolution, or one for each block if there are groups or, on a CPU, if the kernels exceed its cache and no
    block is cut in the middle of a vector. Kernels of side 7 from 64 to 6 x 64 channels then take 20 to 27 % less time
    in training; those of side 9 from 1 to 6 x 64 would take 30 % more, and so would 4 x 33 or 4 x 36 channels.

    Shape:
        x: (batch, in, height, width); the result has blocks * out channels.
        weight: (blocks * out, in / groups, side, side).
        bias: (out,).

    Args:
        blocks: number of blocks.
        stride, padding, groups: of the convolution; every block has all groups.

    >>> block_conv(torch.ones(1, 1, 1, 1), torch.tensor([1.0, 2.0]).view(2, 1, 1, 1), torch.ones(1), blocks=2).flatten()
    tensor([2., 3.])
    """
    large = weight.numel() * weight.element_size() > CACHE
    apart = large and weight.device.type == "cpu" and weight.shape[0] % (blocks * VECTOR) == 0
    if apart or groups > 1:
        parts = [F.conv2d(x, part, bias, stride, padding, 1, groups) for part in weight.chunk(blocks)]
        return torch.cat(parts, dim=1)
    return F.conv2d(x, weight, None if bias is None else bias.repeat(blocks), stride, padding)


def block_max(x: Tensor, *, blocks: int) -> Tensor:
    """Maximum over equal blocks of channels: channel c of the result is the maximum of c, c + C, c + 2 C, ...

    Ties give the whole gradient to the first block (`Tensor.amax` would divide it). Both memory layouts are read in
    place as rows of `blocks` vectors, for which torch's channels_last pooling is vectorised.

    Shape:
        x: (batch, blocks * channels, height, width); the result has its type and layout, and `channels` channels.

    Raises:
        ValueError: the channels cannot be divided into that many blocks.

    >>> block_max(torch.tensor([1.0, 5.0, 2.0, 4.0]).view(1, 4, 1, 1), blocks=2).flatten()
    tensor([2., 5.])
    """
    if x.dim() != 4 or blocks < 1 or x.shape[1] % blocks:
        raise ValueError(
            f"x of shape {tuple(x.shape)} is not (batch, blocks * channels, height, width), {blocks} blocks"
        )
    batch, channels, height, width = x.shape[0], x.shape[1] // blocks, x.shape[2], x.shape[3]
    if x.is_contiguous():
        rows = x.view(batch, blocks, 1, channels * height * width).permute(0, 3, 1, 2)
        return F.max_pool2d(rows, (blocks, 1)).view(batch, channels, height, width)
    rows = x.permute(0, 2, 3, 1).reshape(batch, height * width, blocks, channels).permute(0, 3, 1, 2)
    return F.max_pool2d(rows, (1, blocks)).view(batch, channels, height, width)


class RotationConv2d(nn.Conv2d):
    """Convolve with the kernels rotated by each angle and take the maximum over the angles at every position.

    Kanazawa et al. transform the image, convolve, transform the maps back, take the maximum and leave out pixels from
    outside the image. Rotating the kernels is the same up to interpolation, and cheaper, and no pixel of the result is
    invalid; rotated kernels lose their corners instead (see `kernel_rotations`). Where angles tie, as on an empty
    background, the first one gets the gradient.

    Shape:
        x: (batch, in_channels, height, width) to (batch, out_channels, height - side + 1, width - side + 1) with the
        default stride and padding.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, groups, bias: as in `nn.Conv2d`, with the same names
            and initial values of the parameters; the kernel must be square.
        angles: of the kernels, in degrees, counter-clockwise.

    Raises:
        ValueError: see `kernel_rotations`.

    >>> layer = RotationConv2d(1, 64, 9)
    >>> layer(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 64, 20, 20])
    >>> sum(p.numel() for p in layer.parameters()) == sum(p.numel() for p in nn.Conv2d(1, 64, 9).parameters())
    True
    """

    rotations: Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        angles: Sequence[float] = ANGLES,
        stride: int = 1,
        padding: int = 0,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        rotations = kernel_rotations(kernel_size, angles=angles)
        super().__init__(
            in_channels, out_channels, kernel_size, stride=stride, padding=padding, groups=groups, bias=bias
        )
        self.angles = tuple(float(angle) for angle in angles)
        self.register_buffer("rotations", rotations.to(self.weight), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        weight, blocks = rotate_kernels(self.weight, rotations=self.rotations), len(self.angles)
        maps = block_conv(
            x, weight, self.bias, blocks=blocks, stride=self.stride, padding=self.padding, groups=self.groups
        )
        return block_max(maps, blocks=blocks)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, angles={self.angles}"
