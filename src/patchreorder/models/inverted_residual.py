"""Networks of inverted residual blocks: EfficientNet-lite (Tan and Le, 2019; Liu, 2020) and MobileNetV2 (2018).

Batch normalisation is folded into the convolutions: the weights of `patchreorder.data.backbone_weights` contain it. So
the maps of an image do not depend on the rest of the batch, and it is faster.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from .blur_pool import blur_pool
from .normalise import Normalise

STEM, HEAD = 32, 1280  # filters of the first and of the last convolution
GREY, RANGE = 127 / 255, 128 / 255  # EfficientNet-lite's normalisation: (bytes - 127) / 128


class Stage(NamedTuple):
    """Blocks in a row."""

    blocks: int
    side: int  # of the depthwise kernels
    stride: int  # of the first block
    expansion: int
    filters: int


LITE0 = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(2, 5, 2, 6, 40),
    Stage(3, 3, 2, 6, 80),
    Stage(3, 5, 1, 6, 112),
    Stage(4, 5, 2, 6, 192),
    Stage(1, 3, 1, 6, 320),
)
LITE1 = tuple(stage._replace(blocks=blocks) for stage, blocks in zip(LITE0, (1, 3, 3, 4, 4, 5, 1), strict=True))
LITE2 = tuple(
    stage._replace(blocks=blocks, filters=filters)
    for stage, blocks, filters in zip(LITE0, (1, 3, 3, 4, 4, 5, 1), (16, 24, 48, 88, 120, 208, 352), strict=True)
)
MOBILENET_V2 = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(3, 3, 2, 6, 32),
    Stage(4, 3, 2, 6, 64),
    Stage(3, 3, 1, 6, 96),
    Stage(3, 3, 2, 6, 160),
    Stage(1, 3, 1, 6, 320),
)


class SameConv2d(nn.Conv2d):
    """A convolution with zero padding for an output of ceil(size / stride) pixels; an odd zero is at the end."""

    def forward(self, x: Tensor) -> Tensor:
        return self.strided(x, self.stride[0])

    def strided(self, x: Tensor, step: int) -> Tensor:
        """The convolution with the padding of its own stride, at every `step`-th pixel."""
        side, stride = self.kernel_size[0], self.stride[0]
        missing = [max((-(-size // stride) - 1) * stride + side - size, 0) for size in x.shape[2:]]
        # A kernel with a row or column of zeros before it takes less time than a copy of the maps with a border.
        above, left = (rows % 2 for rows in missing)
        weight = F.pad(self.weight, (left, 0, above, 0)) if above or left else self.weight
        return F.conv2d(x, weight, self.bias, step, [(rows + 1) // 2 for rows in missing], 1, self.groups)


class SmoothConv2d(nn.Module):
    """A convolution of stride 2 and its ReLU6 at every pixel, blurred before every other pixel is taken (Zhang, 2019).

    Where neighbours are alike its output is that of the convolution and ReLU6. It shares the parameters.

    Shape:
        as the convolution.
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor) -> Tensor:
        conv = self.conv
        if isinstance(conv, SameConv2d):
            return blur_pool(F.relu6(conv.strided(x, 1)))
        return blur_pool(F.relu6(F.conv2d(x, conv.weight, conv.bias, 1, conv.padding, 1, conv.groups)))


def smooth_strides(model: nn.Module) -> nn.Module:
    """Replace, in place, every convolution of stride 2 in front of a ReLU6 by a `SmoothConv2d`.

    Raises:
        ValueError: there is none.

    >>> model = smooth_strides(InvertedResidualNet(MOBILENET_V2, same=False))
    >>> sum(isinstance(module, SmoothConv2d) for module in model.modules())
    5
    """
    strided = [name for name, part in model.named_modules() if isinstance(part, nn.Conv2d) and part.stride == (2, 2)]
    if not strided:
        raise ValueError("the model has no convolution of stride 2")
    for name in strided:
        conv = model.get_submodule(name)
        assert isinstance(conv, nn.Conv2d)
        model.set_submodule(name, SmoothConv2d(conv))
    return model


def _conv(inputs: int, outputs: int, side: int, *, stride: int, groups: int = 1, same: bool) -> nn.Conv2d:
    """Padded as in TensorFlow (`same`), or by (side - 1) / 2 zeros on all sides, as in torchvision."""
    if same:
        return SameConv2d(inputs, outputs, side, stride=stride, groups=groups)
    return nn.Conv2d(inputs, outputs, side, stride=stride, padding=side // 2, groups=groups)


class Block(nn.Sequential):
    """Inverted residual block: expand, depthwise convolution, project; plus the input where that has the same shape.

    Shape:
        x: (batch, inputs, height, width) to (batch, outputs, ceil(height / stride), ceil(width / stride)).
    """

    def __init__(self, inputs: int, outputs: int, *, side: int, stride: int, expansion: int, same: bool = True) -> None:
        inside = inputs * expansion
        parts: dict[str, nn.Module] = {}
        if expansion > 1:
            parts |= {"expand": nn.Conv2d(inputs, inside, 1), "relu": nn.ReLU6(inplace=True)}
        parts |= {
            "depthwise": _conv(inside, inside, side, stride=stride, groups=inside, same=same),
            "relu2": nn.ReLU6(inplace=True),
            "project": nn.Conv2d(inside, outputs, 1),
        }
        super().__init__(OrderedDict(parts))
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x if self.adds else super().forward(x)


class InvertedResidualNet(nn.Sequential):
    """Stages of inverted residual blocks between two convolutions, without a classifier.

    Shape:
        images: (batch, 3, height, width) in [0, 1]; to (batch, 1280, height / 32, width / 32), from 0 to 6.

    Args:
        stages: such as LITE0.
        same: padding and normalisation as in EfficientNet-lite; without it as in torchvision's MobileNetV2.
    """

    def __init__(self, stages: Sequence[Stage], *, same: bool = True) -> None:
        blocks: list[nn.Module] = []
        inputs = STEM
        for count, side, stride, expansion, filters in stages:
            for number in range(count):
                step = 1 if number else stride
                blocks.append(Block(inputs, filters, side=side, stride=step, expansion=expansion, same=same))
                inputs = filters
        parts: dict[str, nn.Module] = {
            "normalise": Normalise((GREY,) * 3, (RANGE,) * 3) if same else Normalise(),
            "stem": _conv(3, STEM, 3, stride=2, same=same),
            "relu": nn.ReLU6(inplace=True),
            "blocks": nn.Sequential(*blocks),
            "head": nn.Conv2d(inputs, HEAD, 1),
            "relu2": nn.ReLU6(inplace=True),
        }
        super().__init__(OrderedDict(parts))


def stage_layers(stages: Sequence[Stage]) -> dict[str, str]:
    """Names of the layers of an `InvertedResidualNet` -> modules: the last block of each stage, and the last map.

    >>> stage_layers(LITE0)["stage2"], stage_layers(LITE0)["head"]
    ('blocks.2', 'relu2')
    """
    layers, last = {}, -1
    for number, stage in enumerate(stages, 1):
        last += stage.blocks
        layers[f"stage{number}"] = f"blocks.{last}"
    return {**layers, "head": "relu2"}
