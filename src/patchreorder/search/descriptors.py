"""Networks that end in a descriptor: one vector for an image, near that of the same thing in another pose.

`create_descriptor("alexnet/ranked")` is a backbone, which gives maps (b, c, h, w), and a pool, which makes vectors of
them; the signed square root of every dimension and unit length come after it. A pool may also be a layer of the family
by name (`create_layer`), on the maps themselves: "alexnet/ranked:smooth=3,stride=2,weights=-0.5" is alexnet/weighted.
"alexnet@conv1+conv3+conv5/gap" pools several layers and joins their vectors; every layer counts the same (`Layers`).

- alexnet: torchvision's variant, what its fifth convolution says after ReLU: 256 maps of 13x13.
- efficientnet: EfficientNet-lite0, its last 1280 maps of 7x7.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from patchreorder.layers.patch_reorder import PatchReorder
from patchreorder.layers.registry import MEMBERS
from patchreorder.models.alexnet import alexnet
from patchreorder.models.efficientnet import EfficientNetLite0
from patchreorder.models.placing import layer_for_maps, place_layer

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


def listen(model: nn.Module, images: Tensor, *, names: Collection[str], given: bool = False) -> list[Tensor]:
    """What modules of a network say when it sees images, or what they are given.

    Of a module that is called more than once the last time counts.

    Args:
        model: the network.
        images: what it gets.
        names: of the modules, as `named_modules` has them.
        given: what goes into them instead of what comes out.

    Raises:
        ValueError: a module is not called.

    >>> listen(nn.Sequential(nn.ReLU(), nn.Flatten()), torch.tensor([[[-1.0, 2.0]]]), names=["0"])
    [tensor([[[0., 2.]]])]
    """
    heard: dict[str, Tensor] = {}

    def keep_as(name: str) -> Callable[..., None]:
        def keep(layer: nn.Module, inputs: tuple[Tensor, ...], answer: Tensor | None = None) -> None:
            said = inputs[0] if answer is None else answer
            heard[name] = said.clone()  # what follows may write over it

        return keep

    layers = {name: model.get_submodule(name) for name in names}
    hooks = [
        layer.register_forward_pre_hook(keep_as(name)) if given else layer.register_forward_hook(keep_as(name))
        for name, layer in layers.items()
    ]
    try:
        model(images)
    finally:
        for hook in hooks:
            hook.remove()
    for name in layers:
        if name not in heard:
            raise ValueError(f"layer ({name!r}) is not called when {type(model).__name__} sees images")
    return [heard[name] for name in names]


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
        _check_module(model, name)
        self.model, self.name, self.given = model, name, given

    def forward(self, images: Tensor) -> Tensor:
        (said,) = listen(self.model, images, names=[self.name], given=self.given)
        return said

    def extra_repr(self) -> str:
        return f"name={self.name!r}" + (", given=True" if self.given else "")


class Layers(nn.Module):
    """What several modules of a network say, each pooled by itself, as one vector in which every layer counts the same.

    The pooled values of a layer are divided by the sum of their magnitudes, and the vectors are joined in the order of
    the layers. The signed square root of a `Descriptor` then gives every layer unit length, however many values it has
    and however large they are; a layer of nothing but zeros stays zero.

    Shape:
        images: what the network takes; to (batch, dimensions), float32. The maps may differ in size.

    Args:
        model: the network; it is kept, not copied.
        layers: what to call the layers, and their modules' names, as `named_modules` has them.
        pool: one of POOLS, or a layer of the family by name; for each of the layers.

    Raises:
        ValueError: the network has no such module, or there is no such pool; when called, the pool does not fit.

    >>> network = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    >>> Layers(network, {"all": "0", "largest": "1"}, pool="flatten")(torch.tensor([[[[1.0, 3.0], [-5.0, 0.0]]]]))
    tensor([[0.2500, 0.7500, 0.0000, 0.0000, 1.0000]])
    """

    def __init__(self, model: nn.Module, layers: Mapping[str, str], *, pool: str) -> None:
        super().__init__()
        for name in layers.values():
            _check_module(model, name)
        if not pool:
            joined = "+".join(layers)
            raise ValueError(f"layers ({joined!r}) need a pool: name it behind them, as in {joined}/gap")
        self.model, self.layers, self.pool = model, dict(layers), pool
        self.pools = nn.ModuleList(_create_pool(pool) for _ in layers)

    def forward(self, images: Tensor) -> Tensor:
        parts = []
        for name, maps, made in zip(
            self.layers, listen(self.model, images, names=self.layers.values()), self.pools, strict=True
        ):
            _check_maps(self.pool, maps, name)
            try:
                pooled = made(maps)
            except ValueError as error:
                raise ValueError(f"pool ({self.pool!r}) does not fit {name}: {error}") from None
            parts.append(F.normalize(pooled.float(), p=1))
        return torch.cat(parts, 1)

    def extra_repr(self) -> str:
        return f"layers={'+'.join(self.layers.values())!r}, pool={self.pool!r}"


def _check_module(model: nn.Module, name: str) -> None:
    names = [name for name, _ in model.named_modules() if name]
    if name not in names:
        raise ValueError(f"layer ({name!r}) must be a module of {type(model).__name__}: {', '.join(names)}")


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
        backbone = self.maps.model if isinstance(self.maps, Layers) else self.maps
        own = backbone.state_dict()  # the parameters themselves, not copies
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
    """What gives maps, how many of which side, the pools that are made for them, and layers that have names.

    A name stands for an entry of the backbone's `features`: what comes after it is not needed.
    """

    create: Callable[[], nn.Module]
    channels: int
    side: int
    pools: Mapping[str, Callable[[], nn.Module]]
    layers: Mapping[str, int] = MappingProxyType({})


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


def _create_pool(pool: str) -> nn.Module:
    if pool not in POOLS and pool.partition(":")[0] not in MEMBERS:
        raise ValueError(f"pool ({pool!r}) must be one of {', '.join(POOLS)}, or a layer such as ranked:quantiles=16")
    return POOLS[pool]() if pool in POOLS else _chain(layer_for_maps(pool))


def _check_maps(pool: str, maps: Tensor, name: str) -> None:
    if maps.ndim != 4 and pool != "flatten":
        raise ValueError(f"pool ({pool!r}) needs maps (b, c, h, w), {name} gives {tuple(maps.shape)}: use flatten")


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
        {"conv1": 1, "conv2": 4, "conv3": 7, "conv4": 9, "conv5": 11},  # behind their ReLU, before any pool
    ),
    "efficientnet": Backbone(
        EfficientNetLite0,
        1280,
        7,
        {name: POOLS[name] for name in ("flatten", "ranked", "gap")},
    ),
}
LAYERS_BY_NAME = (
    "BACKBONE/LAYER, a layer by name such as ranked:quantiles=16, reorder:grid=2 or align, "
    "or a pool of several layers, such as alexnet@conv1+conv3+conv5/gap"
)
DESCRIPTORS = tuple(f"{name}/{pool}" for name, backbone in BACKBONES.items() for pool in backbone.pools)


def backbone_of(name: str) -> str:
    """The backbone that a descriptor's name begins with.

    >>> backbone_of("alexnet/ranked:quantiles=16"), backbone_of("alexnet@conv1+conv5/gap")
    ('alexnet', 'alexnet')
    """
    return name.partition("/")[0].partition("@")[0]


def layer_names(text: str) -> list[str]:
    """The layers that a text joins by +.

    Raises:
        ValueError: one is there twice.

    >>> layer_names("conv1+conv3")
    ['conv1', 'conv3']
    """
    names = text.split("+")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"layers ({text!r}) must differ: {name!r} is there {names.count(name)} times")
    return names


def is_descriptor(name: str) -> bool:
    """Whether `create_descriptor` may know the name: one of `DESCRIPTORS`, or a backbone and layers by name.

    >>> is_descriptor("alexnet/ranked:quantiles=16"), is_descriptor("alexnet@conv1/gap"), is_descriptor("resnet/gap")
    (True, True, False)
    """
    front, _, pool = name.partition("/")
    return name in DESCRIPTORS or (
        backbone_of(name) in BACKBONES and ("@" in front or pool.partition(":")[0] in MEMBERS)
    )


def create_descriptor(name: str) -> Descriptor:
    """One of `DESCRIPTORS`, with new weights from torch's generator; `patchreorder.engine.describe` has trained ones.

    Or a backbone and a layer of the family by name, such as "alexnet/ranked:quantiles=16". Or a backbone, some of its
    layers and a pool for each of them, such as "alexnet@conv1+conv3+conv5/gap": conv1 is what the first convolution
    says after its ReLU, before any pool, and pools are those of POOLS or layers of the family by name; see `Layers`.

    Raises:
        ValueError: for an unknown name, or a layer that does not fit the maps.

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
        return layer_descriptor(name, _named_layers(name, kind, layers, pool))
    backbone = BACKBONES[kind]
    if pool in backbone.pools:
        made = backbone.pools[pool]()
    else:
        made = _chain(place_layer(pool, side=backbone.side, place=f"the maps of {kind}").layer)
    with torch.device("cpu"), torch.no_grad():
        dimensions = made(torch.zeros(1, backbone.channels, backbone.side, backbone.side)).shape[1]
    return Descriptor(name, backbone.create(), made, dimensions=dimensions).eval()


def _named_layers(name: str, kind: str, layers: str, pool: str) -> Layers:
    """Layers of a backbone, which is cut off behind the last of them."""
    there = BACKBONES[kind].layers
    if not there:
        known = ", ".join(
            f"{kind} ({', '.join(backbone.layers)})" for kind, backbone in BACKBONES.items() if backbone.layers
        )
        raise ValueError(f"name ({name!r}): {kind} has no layers by name; backbones that have some: {known}")
    names = layer_names(layers)
    for layer in names:
        if layer not in there:
            raise ValueError(f"layer ({layer!r}) of {name} must be one of {', '.join(there)}")
    model = BACKBONES[kind].create()
    features = model.get_submodule("features")
    assert isinstance(features, nn.Sequential)
    del features[max(there[layer] for layer in names) + 1 :]
    return Layers(model, {layer: f"features.{there[layer]}" for layer in names}, pool=pool)


def layer_descriptor(name: str, maps: nn.Module, *, pool: str = "flatten") -> Descriptor:
    """Any network's maps or features as a descriptor.

    Args:
        name: what to call it.
        maps: images (b, 3, 224, 224) in [0, 1] to maps (b, c, h, w) or features (b, d); see `Layer`
            and `Layers`.
        pool: one of POOLS, or a layer of the family by name; features can only be left as they are (flatten).

    Raises:
        ValueError: for an unknown pool, or one that does not fit.
    """
    made = _create_pool(pool)
    with torch.no_grad():
        seen = maps.eval()(torch.zeros(1, 3, SIZE, SIZE))
        _check_maps(pool, seen, name)
        dimensions = made(seen).shape[1]
    return Descriptor(name, maps, made, dimensions=dimensions).eval()
