"""EfficientNet-lite0 (Tan and Le, 2019; lite: Liu, 2020) up to its last feature map.

Batch normalisation is folded into the convolutions: the weights of `patchreorder.data.weights` contain it. So the maps
of an image do not depend on the rest of the batch, and it is faster.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn
from torch.nn import functional as F

from .normalise import Normalise

# Of each stage: blocks, side of the kernel, stride of the first block, expansion, filters.
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
STEM, HEAD = 32, 1280  # filters of the first and of the last convolution
GREY, RANGE = 127 / 255, 128 / 255  # its normalisation: (bytes - 127) / 128


class SameConv2d(nn.Conv2d):
    """A convolution with zero padding for an output of ceil(size / stride) pixels; an odd zero is at the end."""

    def forward(self, x: Tensor) -> Tensor:
        side, stride = self.kernel_size[0], self.stride[0]
        missing = [max((-(-size // stride) - 1) * stride + side - size, 0) for size in x.shape[2:]]
        if all(rows % 2 == 0 for rows in missing):  # the convolution pads faster by itself
            return F.conv2d(x, self.weight, self.bias, stride, [rows // 2 for rows in missing], 1, self.groups)
        above, left = (rows // 2 for rows in missing)
        x = F.pad(x, (left, missing[1] - left, above, missing[0] - above))
        return F.conv2d(x, self.weight, self.bias, stride, 0, 1, self.groups)


class Block(nn.Sequential):
    """Inverted residual block: expand, depthwise convolution, project; plus the input where that has the same shape.

    Shape:
        x: (batch, inputs, height, width) to (batch, outputs, ceil(height / stride), ceil(width / stride)).
    """

    def __init__(self, inputs: int, outputs: int, *, side: int, stride: int, expansion: int) -> None:
        inside = inputs * expansion
        parts: dict[str, nn.Module] = {}
        if expansion > 1:
            parts |= {"expand": nn.Conv2d(inputs, inside, 1), "relu": nn.ReLU6(inplace=True)}
        parts |= {
            "depthwise": SameConv2d(inside, inside, side, stride=stride, groups=inside),
            "relu2": nn.ReLU6(inplace=True),
            "project": nn.Conv2d(inside, outputs, 1),
        }
        super().__init__(OrderedDict(parts))
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x if self.adds else super().forward(x)


class EfficientNetLite0(nn.Sequential):
    """EfficientNet-lite0 without its classifier; 3.4 million parameters.

    Shape:
        images: (batch, 3, 224, 224) in [0, 1]; to (batch, 1280, 7, 7), from 0 to 6.
    """

    def __init__(self) -> None:
        blocks: list[nn.Module] = []
        inputs = STEM
        for count, side, stride, expansion, filters in STAGES:
            for number in range(count):
                first = number == 0
                blocks.append(Block(inputs, filters, side=side, stride=stride if first else 1, expansion=expansion))
                inputs = filters
        parts: dict[str, nn.Module] = {
            "normalise": Normalise((GREY,) * 3, (RANGE,) * 3),
            "stem": SameConv2d(3, STEM, 3, stride=2),
            "relu": nn.ReLU6(inplace=True),
            "blocks": nn.Sequential(*blocks),
            "head": nn.Conv2d(inputs, HEAD, 1),
            "relu2": nn.ReLU6(inplace=True),
        }
        super().__init__(OrderedDict(parts))
