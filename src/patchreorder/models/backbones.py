"""Backbones by name: networks that make feature maps of images, without classifiers, and their trained weights."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor, nn

from patchreorder.data import weights

from .alexnet import alexnet
from .efficientnet import EfficientNetLite0

SIZE = 224  # pixels a side of the images that backbones take


class Backbone(NamedTuple):
    """A network from images (b, 3, SIZE, SIZE) in [0, 1] to feature maps (b, channels, side, side).

    Args:
        create: makes it, with new weights from torch's generator.
        weights: its trained weights by its own names; `file=` and `say=` as in `patchreorder.data.weights`.
        channels, side: of its feature maps.
        layers: names of inner layers -> modules, as in `named_modules`.
    """

    create: Callable[[], nn.Sequential]
    weights: Callable[..., Mapping[str, Tensor]]
    channels: int
    side: int
    layers: Mapping[str, str] = {}


def _alexnet() -> nn.Sequential:
    """torchvision's variant up to the ReLU of its fifth convolution."""
    whole = alexnet(variant="torchvision", width=1, classes=1)
    layers = list(whole.get_submodule("features").children())[:-1]  # without the last pool
    return nn.Sequential(OrderedDict(normalise=whole.get_submodule("normalise"), features=nn.Sequential(*layers)))


BACKBONES: Mapping[str, Backbone] = {
    "alexnet": Backbone(
        create=_alexnet,
        weights=weights.alexnet_convolutions,
        channels=256,
        side=13,
        layers={  # the ReLU of each convolution, before any pool
            "conv1": "features.1",
            "conv2": "features.4",
            "conv3": "features.7",
            "conv4": "features.9",
            "conv5": "features.11",
        },
    ),
    "efficientnet": Backbone(create=EfficientNetLite0, weights=weights.efficientnet_lite0, channels=1280, side=7),
}


def truncated(backbone: str, layers: Sequence[str]) -> tuple[nn.Sequential, dict[str, str]]:
    """A new backbone that ends with the last of some of its layers, and the modules of these layers.

    Raises:
        ValueError: the backbone has no such layer.

    >>> len(truncated("alexnet", ["conv1", "conv2"])[0].get_submodule("features"))
    5
    """
    known = BACKBONES[backbone].layers
    if not known:
        others = ", ".join(f"{name} ({', '.join(each.layers)})" for name, each in BACKBONES.items() if each.layers)
        raise ValueError(f"{backbone} has no layers by name; backbones that have some: {others}")
    for layer in layers:
        if layer not in known:
            raise ValueError(f"layer ({layer!r}) of {backbone} must be one of {', '.join(known)}")
    model = BACKBONES[backbone].create()
    modules = {layer: known[layer] for layer in layers}
    last = max(modules.values(), key=[name for name, _ in model.named_modules()].index)
    part: nn.Module = model
    for name in last.split("."):
        children = [child for child, _ in part.named_children()]
        for child in children[children.index(name) + 1 :]:
            delattr(part, child)
        part = part.get_submodule(name)
    return model, modules
