"""A convolution of an image of one to three channels whose gradient with respect to the image is fast on CPUs.

A first convolution needs that gradient only behind a spatial transformer. torch's CPU library takes about ten times as
long for it as a matrix product and a fold.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ThinConv2d(nn.Conv2d):
    """`nn.Conv2d(in_channels, out_channels, kernel_size)` with the same parameters; no padding, stride or groups.

    Shape:
        x: (b, in_channels, h, w) to (b, out_channels, h - side + 1, w - side + 1).

    >>> x = torch.rand(2, 1, 6, 6)
    >>> layer = ThinConv2d(1, 4, 3)
    >>> torch.equal(layer(x), nn.functional.conv2d(x, layer.weight, layer.bias))
    True
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__(in_channels, out_channels, kernel_size)

    def forward(self, x: Tensor) -> Tensor:
        plain = x.device.type != "cpu" or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling()
        if plain or not (torch.is_grad_enabled() and x.requires_grad):
            return super().forward(x)
        return _ThinConv.apply(x, self.weight, self.bias)


class _ThinConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.conv2d(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        (gradient,) = gradients
        parts = torch.matmul(weight.flatten(1).t(), gradient.flatten(2))  # b channels*side*side positions
        to_x = F.fold(parts, x.shape[2:], weight.shape[2:])
        _, to_weight, to_bias = torch.ops.aten.convolution_backward(
            gradient, x, weight, [len(weight)], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, True]
        )
        return to_x, to_weight, to_bias
