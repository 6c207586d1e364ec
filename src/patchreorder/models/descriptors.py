"""Networks that end in a descriptor: one vector for an image, near that of the same thing in another pose.

`create_descriptor("alexnet/ranked")` is a backbone, which gives maps (b, c, h, w), and a pool, which makes vectors of
them; the signed square root of every dimension and unit length come after it. A pool may also be a layer of the family
by name (`create_layer`), on the maps themselves: "alexnet/ranked:smooth=3,stride=2,weights=-0.5" is alexnet/weighted.

- alexnet: torchvision's variant, what its fifth convolution says after ReLU: 256 maps of 13x13.
- efficientnet: EfficientNet-lite0, its last 1280 maps of 7x7.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from patchreorder.module import PatchReorder
from patchreorder.named import MEMBERS

from .alexnet import alexnet
from .efficientnet import EfficientNetLite0
from .placing import layer_for_maps, place_layer

SIZE = 224  # pixels of the images a side


def gem(maps: Tensor, *, power: float = 3.0) -> Tensor:
    """Generalised mean over all places (Radenovic et al., 2018): the average for 1, nearer to the maximum above.

    Shape:
        maps: (b, c, h, w), to (b, c); what is below 0 counts as 0.

    >>> gem(torch.tensor([[[[2.0, 0.0]]]]), power=1), gem(torch.tensor([[[[2.0, 2.0]]]]))
    (tensor([[1.]]), tensor([[2.]]))
    """
    if not power > 0:
        raise ValueError(f"power ({power}) must be more than 0")
    return maps.clamp(min=0).pow(power).mean((2, 3)).pow(1 / power)


def regions(side: int, *, levels: int = 3) -> list[tuple[int, int, int]]:
    """Top, left and side of the squares of R-MAC on a square map: l x l at level l, each 2 side / (l + 1) wide.

    >>> regions(13, levels=2)
    [(0, 0, 13), (0, 0, 8), (0, 5, 8), (5, 0, 8), (5, 5, 8)]
    """
    found = []
    for level in range(1, levels + 1):
        width = max(1, 2 * side // (level + 1))
        starts = [place * (side - width) // max(level - 1, 1) for place in range(level)]
        found += [(top, left, width) for top in starts for left in starts]
    return found


def rmac(maps: Tensor, *, levels: int = 3) -> Tensor:
    """The sum of the maxima of many regions, each brought to unit length first (Tolias et al., 2016; no whitening).

    Shape:
        maps: (b, c, s, s), to (b, c).

    Raises:
        ValueError: the maps are not square.
    """
    if maps.ndim != 4 or maps.shape[2] != maps.shape[3]:
        raise ValueError(f"maps must have shape (batch, channels, side, side), got {tuple(maps.shape)}")
    places = regions(maps.shape[2], levels=levels)
    largest = [maps[:, :, y : y + side, x : x + side].amax((2, 3)) for y, x, side in places]
    return sum((F.normalize(region) for region in largest), torch.zeros_like(largest[0]))


class GlobalAverage(nn.Module):
    """The mean over all places: (b, c, h, w) to (b, c)."""

    def forward(self, maps: Tensor) -> Tensor:
        return maps.mean((2, 3))


class GeM(nn.Module):
    """See `gem`."""

    def __init__(self, *, power: float = 3.0) -> None:
        super().__init__()
        self.power = power

    def forward(self, maps: Tensor) -> Tensor:
        return gem(maps, power=self.power)

    def extra_repr(self) -> str:
        return f"power={self.power}"


class RMAC(nn.Module):
    """See `rmac`."""

    def __init__(self, *, levels: int = 3) -> None:
        super().__init__()
        self.levels = levels

    def forward(self, maps: Tensor) -> Tensor:
        return rmac(maps, levels=self.levels)

    def extra_repr(self) -> str:
        return f"levels={self.levels}"


class RankWeights(nn.Module):
    """Multiply the places of sorted maps by rank ** power, the first of them being rank 1; the shape stays.

    >>> RankWeights()(torch.ones(1, 1, 2, 2))
    tensor([[[[1.0000, 0.7071],
              [0.5774, 0.5000]]]])
    """

    def __init__(self, *, power: float = -0.5) -> None:
        super().__init__()
        self.power = power

    def forward(self, maps: Tensor) -> Tensor:
        ranks = torch.arange(1, maps.shape[2] * maps.shape[3] + 1, dtype=maps.dtype, device=maps.device)
        return maps * ranks.pow(self.power).view(maps.shape[2:])

    def extra_repr(self) -> str:
        return f"power={self.power}"


class Layer(nn.Module):
    """What a module of a network says, or what it is given.

    Args:
        model: the network; it is kept, not copied.
        name: of the module, as `named_modules` has it.
        given: what goes into it instead of what comes out.

    Raises:
        ValueError: the network has no such module.

    >>> Layer(nn.Sequential(nn.Flatten(), nn.Linear(2, 3)), "0")(torch.ones(1, 2, 1)).shape
    torch.Size([1, 2])
    """

    def __init__(self, model: nn.Module, name: str, *, given: bool = False) -> None:
        super().__init__()
        names = [name for name, _ in model.named_modules() if name]
        if name not in names:
            raise ValueError(f"layer ({name!r}) must be a module of {type(model).__name__}: {', '.join(names)}")
        self.model, self.name = model, name
        self._seen: list[Tensor] = []
        layer = model.get_submodule(name)
        # Copied: what follows may write over it.
        if given:
            layer.register_forward_pre_hook(lambda layer, inputs: self._seen.append(inputs[0].clone()))
        else:
            layer.register_forward_hook(lambda layer, inputs, answer: self._seen.append(answer.clone()))

    def forward(self, images: Tensor) -> Tensor:
        self._seen.clear()
        self.model(images)
        if not self._seen:
            raise ValueError(f"layer ({self.name!r}) is not called when {type(self.model).__name__} sees images")
        return self._seen.pop()

    def extra_repr(self) -> str:
        return f"name={self.name!r}"


class Descriptor(nn.Module):
    """A network whose answer is a descriptor.

    Shape:
        images: (batch, 3, 224, 224) in [0, 1]; to (batch, dimensions), float32, of unit length; zero where the pool
        found nothing but zeros.

    Args:
        name: what it is called, in manifests and tables.
        maps: images to maps, or to features.
        pool: those to vectors.
        dimensions: of a vector.
    """

    def __init__(self, name: str, maps: nn.Module, pool: nn.Module, *, dimensions: int) -> None:
        super().__init__()
        self.name, self.dimensions = name, dimensions
        self.maps, self.pool = maps, pool

    def forward(self, images: Tensor) -> Tensor:
        return self.pooled(self.maps(images))

    def pooled(self, maps: Tensor) -> Tensor:
        """The descriptors of images whose maps are there."""
        vectors = self.pool(maps).float()
        return F.normalize(vectors.sign() * vectors.abs().sqrt())

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy the backbone's weights out of a dict by its own names (AlexNet: torchvision's); others are left alone.

        Raises:
            ValueError: one is missing or of another shape; nothing was copied then.
        """
        own = self.maps.state_dict()  # the parameters themselves, not copies
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


class Backbone(NamedTuple):
    """What gives maps, how many of which side, and the pools that are made for them."""

    create: Callable[[], nn.Module]
    channels: int
    side: int
    pools: Mapping[str, Callable[[], nn.Module]]


def _alexnet_maps() -> nn.Module:
    whole = alexnet(variant="torchvision", width=1, classes=1)  # of its classifier nothing is needed
    layers = list(whole.get_submodule("features").children())[:-1]  # without the last pool
    return nn.Sequential(OrderedDict(normalise=whole.get_submodule("normalise"), features=nn.Sequential(*layers)))


def _chain(*parts: nn.Module) -> nn.Module:
    return nn.Sequential(*parts, nn.Flatten())


# For maps of any network. These rank by energy, while ranked:... is `RankedPool` and ranks by value: without negative
# values it is the same.
POOLS: Mapping[str, Callable[[], nn.Module]] = {
    "flatten": _chain,
    "ranked": lambda: _chain(PatchReorder(grid="pixels")),
    "gap": GlobalAverage,
    "gem": GeM,
    "rmac": RMAC,
    "weighted": lambda: _chain(nn.AvgPool2d(3, 2), PatchReorder(grid="pixels"), RankWeights()),
}


def _max() -> nn.Module:
    return nn.MaxPool2d(3, 2)


BACKBONES: Mapping[str, Backbone] = {
    "alexnet": Backbone(
        _alexnet_maps,
        256,
        13,
        {
            "flatten": lambda: _chain(_max()),
            "pr": lambda: _chain(PatchReorder(grid=2, levels=2), _max()),
            "pr_grid4": lambda: _chain(PatchReorder(grid=4), _max()),
            "pr_joint": lambda: _chain(PatchReorder(grid=2, levels=2, per_channel=False), _max()),
            "ranked": lambda: _chain(_max(), PatchReorder(grid="pixels")),
            **{name: POOLS[name] for name in ("gap", "gem", "rmac", "weighted")},
        },
    ),
    "efficientnet": Backbone(
        EfficientNetLite0,
        1280,
        7,
        {name: POOLS[name] for name in ("flatten", "ranked", "gap")},
    ),
}
LAYERS_BY_NAME = "BACKBONE/LAYER, a layer by name such as ranked:quantiles=16, reorder:grid=2 or align"
DESCRIPTORS = tuple(f"{name}/{pool}" for name, backbone in BACKBONES.items() for pool in backbone.pools)


def is_descriptor(name: str) -> bool:
    """Whether `create_descriptor` may know the name: one of `DESCRIPTORS`, or a backbone and a layer by name.

    >>> is_descriptor("alexnet/ranked:quantiles=16"), is_descriptor("resnet/gap")
    (True, False)
    """
    backbone, _, pool = name.partition("/")
    return name in DESCRIPTORS or (backbone in BACKBONES and pool.partition(":")[0] in MEMBERS)


def create_descriptor(name: str) -> Descriptor:
    """One of `DESCRIPTORS`, with new weights from torch's generator; `patchreorder.engine.describe` has trained ones.

    Or a backbone and a layer of the family by name, such as "alexnet/ranked:quantiles=16".

    Raises:
        ValueError: for an unknown name, or a layer that does not fit the maps.

    >>> create_descriptor("alexnet/gap").dimensions, create_descriptor("alexnet/ranked:quantiles=4").dimensions
    (256, 1024)
    """
    if not is_descriptor(name):
        raise ValueError(f"name ({name!r}) must be one of {', '.join(DESCRIPTORS)}, or {LAYERS_BY_NAME}")
    kind, _, pool = name.partition("/")
    backbone = BACKBONES[kind]
    if pool in backbone.pools:
        made = backbone.pools[pool]()
    else:
        made = _chain(place_layer(pool, side=backbone.side, place=f"the maps of {kind}").layer)
    with torch.device("cpu"), torch.no_grad():
        dimensions = made(torch.zeros(1, backbone.channels, backbone.side, backbone.side)).shape[1]
    return Descriptor(name, backbone.create(), made, dimensions=dimensions).eval()


def layer_descriptor(name: str, maps: nn.Module, *, pool: str = "flatten") -> Descriptor:
    """Any network's maps or features as a descriptor.

    Args:
        name: what to call it.
        maps: images (b, 3, 224, 224) in [0, 1] to maps (b, c, h, w) or features (b, d); see `Layer`.
        pool: one of POOLS, or a layer of the family by name; features can only be left as they are (flatten).

    Raises:
        ValueError: for an unknown pool, or one that does not fit.
    """
    if pool not in POOLS and pool.partition(":")[0] not in MEMBERS:
        raise ValueError(f"pool ({pool!r}) must be one of {', '.join(POOLS)}, or a layer such as ranked:quantiles=16")
    made = POOLS[pool]() if pool in POOLS else _chain(layer_for_maps(pool))
    with torch.no_grad():
        seen = maps.eval()(torch.zeros(1, 3, SIZE, SIZE))
        if seen.ndim != 4 and pool != "flatten":
            raise ValueError(f"pool ({pool!r}) needs maps (b, c, h, w), {name} gives {tuple(seen.shape)}: use flatten")
        dimensions = made(seen).shape[1]
    return Descriptor(name, maps, made, dimensions=dimensions).eval()
