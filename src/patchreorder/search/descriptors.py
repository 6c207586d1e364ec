"""Descriptors: one vector for an image, near the vectors of other images of the same thing in other poses.

A descriptor is a network up to a layer, a pool that makes vectors of its feature maps, the signed square root of every
value and unit length. `create_descriptor` makes one by name:

- "alexnet/gap": a backbone and one of the pools that it has.
- "alexnet/ranked:quantiles=16": a backbone and a layer of the family by name (`create_layer`).
- "alexnet@conv1+conv3+conv5/gap": inner layers of a backbone, each pooled, and their vectors joined (`PooledLayers`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from patchreorder.layers.patch_reorder import PatchReorder
from patchreorder.layers.registry import LAYER_TYPES
from patchreorder.models.backbones import BACKBONES, SIZE, truncated
from patchreorder.models.features import PooledLayers
from patchreorder.models.inserted_layer import inserted_layer
from patchreorder.models.pools import POOLS, check_pool_fits, create_pool, flattened


class Descriptor(nn.Module):
    """A network that describes images.

    Shape:
        images: (batch, 3, 224, 224) in [0, 1]; to (batch, dimensions), float32, of unit length. An image whose pooled
        values are all zero has the vector zero.

    Args:
        name: in manifests and tables.
        maps: images to feature maps, or to features.
        pool: feature maps to vectors.
    """

    def __init__(self, name: str, maps: nn.Module, pool: nn.Module, *, dimensions: int) -> None:
        super().__init__()
        self.name, self.dimensions = name, dimensions
        self.maps, self.pool = maps, pool

    def forward(self, images: Tensor) -> Tensor:
        return self.pooled(self.maps(images))

    def pooled(self, maps: Tensor) -> Tensor:
        """Descriptors of feature maps."""
        vectors = self.pool(maps).float()
        return F.normalize(vectors.sign() * vectors.abs().sqrt())

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy the backbone's weights from a dict that holds them all by name; raises ValueError before any copy."""
        backbone = self.maps.model if isinstance(self.maps, PooledLayers) else self.maps
        own = backbone.state_dict()  # shares memory with the parameters
        for name, value in own.items():
            if name not in tensors:
                raise ValueError(f"tensors lack {name} of {self.name}: they hold {', '.join(list(tensors)[:6])}, ...")
            if tensors[name].shape != value.shape:
                shapes = f"{tuple(tensors[name].shape)}, that of {self.name} {tuple(value.shape)}"
                raise ValueError(f"{name} has shape {shapes}: it does not fit")
        for name, value in own.items():
            value.copy_(tensors[name])

    def extra_repr(self) -> str:
        return f"name={self.name!r}, dimensions={self.dimensions}"


def _max() -> nn.Module:
    return nn.MaxPool2d(3, 2)  # AlexNet's last pool


# The pools of each backbone. AlexNet's flatten, pr... and ranked are those of Table 3, with its last pool.
BACKBONE_POOLS: Mapping[str, Mapping[str, Callable[[], nn.Module]]] = {
    "alexnet": {
        "flatten": lambda: flattened(_max()),
        "pr": lambda: flattened(PatchReorder(grid=2, levels=2), _max()),
        "pr_grid4": lambda: flattened(PatchReorder(grid=4), _max()),
        "pr_joint": lambda: flattened(PatchReorder(grid=2, levels=2, per_channel=False), _max()),
        "ranked": lambda: flattened(_max(), PatchReorder(grid="pixels")),
        **{name: POOLS[name] for name in ("gap", "gem", "rmac", "weighted")},
    },
    "efficientnet": {name: POOLS[name] for name in ("flatten", "ranked", "gap")},
}
DESCRIPTORS = tuple(f"{backbone}/{pool}" for backbone, pools in BACKBONE_POOLS.items() for pool in pools)
LAYERS_BY_NAME = (
    "BACKBONE/LAYER, a layer by name such as ranked:quantiles=16, reorder:grid=2 or align, "
    "or a pool of several layers, such as alexnet@conv1+conv3+conv5/gap"
)


def backbone_of(name: str) -> str:
    """The backbone in a descriptor's name."""
    return name.partition("/")[0].partition("@")[0]


def layer_names(text: str) -> list[str]:
    """The layers that + joins in a text; raises ValueError if one is there twice."""
    names = text.split("+")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"layers ({text!r}) must differ: {name!r} is there {names.count(name)} times")
    return names


def is_descriptor(name: str) -> bool:
    """Whether a name has the form of those that `create_descriptor` takes; its layers may still be unknown."""
    front, _, pool = name.partition("/")
    return name in DESCRIPTORS or (
        backbone_of(name) in BACKBONES and ("@" in front or pool.partition(":")[0] in LAYER_TYPES)
    )


def create_descriptor(name: str) -> Descriptor:
    """A descriptor by name (see this module), with new weights; `open_descriptor` gives it trained weights.

    Raises:
        ValueError: for an unknown name, or a layer that does not fit the feature maps.

    >>> create_descriptor("alexnet/gap").dimensions, create_descriptor("alexnet/ranked:quantiles=4").dimensions
    (256, 1024)
    >>> create_descriptor("alexnet@conv1+conv5/gap").dimensions
    320
    """
    if not is_descriptor(name):
        raise ValueError(f"name ({name!r}) must be one of {', '.join(DESCRIPTORS)}, or {LAYERS_BY_NAME}")
    front, _, pool = name.partition("/")
    kind, at, layers = front.partition("@")
    if at:
        model, modules = truncated(kind, layer_names(layers))
        return layer_descriptor(name, PooledLayers(model, modules, pool=pool))
    backbone = BACKBONES[kind]
    if pool in BACKBONE_POOLS[kind]:
        made = BACKBONE_POOLS[kind][pool]()
    else:
        made = flattened(inserted_layer(pool, side=backbone.side, place=f"the maps of {kind}").layer)
    with torch.device("cpu"), torch.no_grad():
        dimensions = made(torch.zeros(1, backbone.channels, backbone.side, backbone.side)).shape[1]
    return Descriptor(name, backbone.create(), made, dimensions=dimensions).eval()


def layer_descriptor(name: str, maps: nn.Module, *, pool: str = "flatten") -> Descriptor:
    """Feature maps or features of any network as a descriptor.

    Args:
        name: of the descriptor.
        maps: images (b, 3, 224, 224) in [0, 1] to feature maps (b, c, h, w) or features (b, d), such as
            `LayerActivation` or `PooledLayers`.
        pool: see `create_pool`, which raises ValueError for an unknown one; features (b, d) need "flatten".
    """
    made = create_pool(pool)
    with torch.no_grad():
        seen = maps.eval()(torch.zeros(1, 3, SIZE, SIZE))
        check_pool_fits(pool, seen, source=name)
        dimensions = made(seen).shape[1]
    return Descriptor(name, maps, made, dimensions=dimensions).eval()
