"""AlexNet for ImageNet, the network of the paper's Table 2, and what it is compared with.

Two variants, chosen by `variant`:

- "caffe": what Caffe trains (bvlc_alexnet): 96-256-384-384-256 filters, the second, fourth and fifth convolution in two
  groups, response normalisation before the first two pools, pools that round up, pixels from 0 to 255 minus their mean,
  and the paper's first weights. A 224x224 crop gives maps of 54x54 (one less than Caffe's own 227x227 would), and
  behind the pools of 27x27, 13x13 and 6x6, as there. 60,965,224 parameters.
- "torchvision": the one column of torchvision: 64-192-384-256-256 filters, no groups, no response normalisation; maps
  of 55x55, 27x27, 13x13 and 6x6; the same state_dict, and the same first weights from the same seed. 61,100,840
  parameters.

Both take images in [0, 1] and normalise them inside; mean colour becomes zero. The forms change only what they have to:

- SI and BlurPool have the parameters of AlexNet, PR as well: reordering has none. All load its weights. Other layers of
  the family at a place of PR (`layer`) may leave fc6 other than 9,216 numbers: then they load its convolutions.
- ST adds the paper's localisation network, 160,758 parameters (0.3 %).
- The global pools (gap, gmp) stand in place of the last pool, so that fc6 gets 256 numbers and not 9,216. The widths of
  the other layers are kept, which leaves 37 million parameters fewer: there is no width that would make up for them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from patchreorder.operator.functional import PatchReorderOptions
from patchreorder.surgery.insertion import insert_after

from .blur_pool import MaxBlurPool2d
from .placing import chosen, layer_for_maps, place_layer
from .rotation_conv import RotationConv2d
from .spatial_transformer import SpatialTransformer

DATASETS = ("imagenet",)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's colours, red first
PIXELS = 6 * 6  # of the map behind the last pool
TURNED = (1, 2, 5)  # the convolutions that SI-CNN replaces
# Where to reorder -> the layer it comes after, and the side of its maps.
PLACES = {"conv5": ("relu5", 13), "pool5": ("pool5", 6), "input": ("normalise", 224)}
PLACES |= {"conv1": ("relu1", 54), "conv2": ("relu2", 27), "conv3": ("relu3", 13), "conv4": ("relu4", 13)}
BEHIND = ("conv5", "pool5")  # no convolution comes after these
POOLED = {"conv1": 27, "conv2": 13, "conv3": 6, "conv4": 6, "conv5": 6}  # sides of maps behind a pool
LAST = 256  # filters of the fifth convolution, in both variants


class Shape(NamedTuple):
    """What the variants differ in."""

    filters: tuple[int, int, int, int, int]
    groups: tuple[int, int, int, int, int]
    padding: int  # of the first convolution
    std: tuple[float, float, float]
    rounds_up: bool


VARIANTS = {
    "caffe": Shape((96, 256, 384, 384, 256), (1, 2, 1, 2, 2), 0, (1 / 255, 1 / 255, 1 / 255), True),
    "torchvision": Shape((64, 192, 384, 256, 256), (1, 1, 1, 1, 1), 2, STD, False),
}


class Normalise(nn.Module):
    """Subtract the mean colour and divide by a deviation; not in the state_dict, so that its names stay the usual ones.

    Shape:
        images: (batch, 3, height, width).
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: tuple[float, float, float] = MEAN, std: tuple[float, float, float] = STD) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std


class AlexNet(nn.Sequential):
    """AlexNet in one of its variants and forms, from `create_model`; `layers` gives names of the paper their modules.

    Its parts are normalise, transformer (ST only), features, avgpool (torchvision only), flatten and classifier.

    Shape:
        images: (batch, 3, 224, 224) in [0, 1]; to (batch, classes).
    """

    variant: str
    layers: Mapping[str, str]  # conv1, relu1, norm1, pool1, ..., fc8 -> names of modules


class Joined(nn.Module):
    """Layers one after the other; what some of them say is pooled and joined, every one of them counting the same.

    The values that a pool leaves are scaled to the root mean square of the last one's, image by image.

    Shape:
        x: what the first layer takes; to (batch, numbers of all pools).

    Args:
        layers: they keep their names; what comes behind the last that is listened to is left out.
        pools: for the names of layers, what pools their maps.

    >>> both = Joined(nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)), {"0": nn.AvgPool2d(2), "1": nn.Identity()})
    >>> both(torch.tensor([[[[1.0, 3.0], [-5.0, 0.0]], [[7.0, 1.0], [0.0, 0.0]]]])).round(decimals=2)
    tensor([[3.4100, 6.8100, 3.0000, 7.0000]])
    """

    def __init__(self, layers: nn.Sequential, pools: Mapping[str, nn.Module]) -> None:
        super().__init__()
        names = [name for name, _ in layers.named_children()]
        strange = [name for name in pools if name not in names]
        if strange or not pools:
            raise ValueError(f"pools ({', '.join(strange) or 'none'}) must be for layers: {', '.join(names)}")
        self.order = names[: max(names.index(name) for name in pools) + 1]
        for name in self.order:
            self.add_module(name, layers.get_submodule(name))
        self.pools = nn.ModuleDict(pools)

    def forward(self, x: Tensor) -> Tensor:
        parts = []
        for name in self.order:
            x = self.get_submodule(name)(x)
            if name in self.pools:
                parts.append(self.pools[name](x).flatten(1))
        last = parts[-1].norm(dim=1, keepdim=True) / parts[-1].shape[1] ** 0.5
        scaled = [F.normalize(part, dim=1) * (last * part.shape[1] ** 0.5) for part in parts[:-1]]
        return torch.cat([*scaled, parts[-1]], 1)


def create(name: str, *, dataset: str, **options: Any) -> AlexNet:
    """One of MODELS."""
    if dataset not in DATASETS:
        raise ValueError(f"dataset ({dataset!r}) must be {' or '.join(DATASETS)} for {name}")
    try:
        return MODELS[name](**options)
    except TypeError as error:
        raise ValueError(f"options ({options}) do not fit {name}: {error}") from error


def alexnet(
    *,
    variant: str = "caffe",
    classes: int = 1000,
    width: int = 4096,
    dropout: float = 0.5,
    turned: tuple[int, ...] = (),
    pool: Callable[[], nn.Module] | None = None,
    global_pool: nn.Module | None = None,
    inputs: int | None = None,
    transformed: bool = False,
) -> AlexNet:
    """AlexNet; the forms below give the last five options.

    Args:
        variant: "caffe" or "torchvision".
        classes: how many logits.
        width: of fc6 and fc7.
        dropout: the share of fc6 and fc7 that is dropped in training ("torchvision": of what goes into them).
        turned: numbers of the convolutions to be replaced by `RotationConv2d`.
        pool: makes the 3x3 pools with stride 2.
        global_pool: instead of the last of them.
        inputs: how many numbers go to fc6, if not maps of 6x6.
        transformed: put a spatial transformer before the network.
    """
    if variant not in VARIANTS:
        raise ValueError(f"variant ({variant!r}) must be one of {', '.join(VARIANTS)}")
    for option, value in (("classes", classes), ("width", width)):
        if value < 1:
            raise ValueError(f"{option} ({value}) must be 1 or more")
    shape, numbered = VARIANTS[variant], variant == "torchvision"
    pool = pool or (lambda: nn.MaxPool2d(3, 2, ceil_mode=shape.rounds_up))
    sizes = [(3, 11, 4, shape.padding), *((filters, 3, 1, 1) for filters in shape.filters[:4])]
    sizes[1] = (shape.filters[0], 5, 1, 2)
    features: dict[str, nn.Module] = {}
    for number, (channels, side, stride, padding) in enumerate(sizes, 1):
        kind = RotationConv2d if number in turned else nn.Conv2d
        filters, groups = shape.filters[number - 1], shape.groups[number - 1]
        features[f"conv{number}"] = kind(channels, filters, side, stride=stride, padding=padding, groups=groups)
        # ReLU does not work in place: whoever looks at a convolution's answer shall not see it overwritten.
        features[f"relu{number}"] = nn.ReLU()
        if number < 3 and not numbered:
            features[f"norm{number}"] = nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0)  # alpha / 5, as in Caffe
        if number in (1, 2, 5):
            features[f"pool{number}"] = global_pool if number == 5 and global_pool else pool()
    numbers = LAST * PIXELS if inputs is None else inputs
    classifier: dict[str, nn.Module] = {"fc6": nn.Linear(numbers, width), "relu6": nn.ReLU()}
    classifier |= {"fc7": nn.Linear(width, width), "relu7": nn.ReLU(), "fc8": nn.Linear(width, classes)}
    order = ["drop6", "fc6", "relu6", "drop7", "fc7", "relu7", "fc8"]
    if not numbered:
        order = ["fc6", "relu6", "drop6", "fc7", "relu7", "drop7", "fc8"]
    classifier = {name: classifier.get(name) or nn.Dropout(dropout) for name in order}
    # After the rest, that the same seed gives the same AlexNet behind it.
    transformer = SpatialTransformer(_localisation(), features=48) if transformed else None
    parts = {
        "normalise": Normalise(std=shape.std),
        "transformer": transformer,
        "features": _sequence(features, numbered),
        "avgpool": nn.AdaptiveAvgPool2d((6, 6)) if numbered and inputs is None else None,
        "flatten": nn.Flatten(),
        "classifier": _sequence(classifier, numbered),
    }
    model = AlexNet(OrderedDict((name, part) for name, part in parts.items() if part is not None))
    model.variant, model.layers = variant, {}
    for part, names in (("features", features), ("classifier", classifier)):
        places = {name: f"{part}.{place if numbered else name}" for place, name in enumerate(names)}
        model.layers |= {name: place for name, place in places.items() if not name.startswith("drop")}
    if not numbered:
        _initialise(model)
        if transformer:
            transformer.reset_parameters()
    return model


def alexnet_si(**options: Any) -> AlexNet:
    """The first, second and fifth convolution with six turned copies of each filter, the strongest at every place."""
    return alexnet(turned=TURNED, **options)


def alexnet_st(**options: Any) -> AlexNet:
    """AlexNet behind an affine spatial transformer, called `transformer`, which sees and warps the normalised image.

    It starts as the identity. Outside the image it reads zero, which is the mean colour.
    """
    return alexnet(transformed=True, **options)


def alexnet_pr(*, place: str = "conv5", layer: str | None = None, **options: Any) -> AlexNet:
    """AlexNet with reordering at its fifth convolution, after its ReLU ("conv5", the paper's) or its pool ("pool5").

    It takes the options of `PatchReorder`, with two levels by default. Other places: after the ReLU of "conv1" to
    "conv4", and the "input", normalised. `layer` puts another of
    the family there, by name (see `create_layer`). Where it leaves less than maps, as ranked does, it stands at conv5
    instead of the pool, and fc6 gets what it leaves. Several convolutions, as in "conv1+conv3+conv5", are pooled by it
    and joined, every one counting the same (see `Joined`).
    """
    usual = PatchReorderOptions(levels=2)
    given = {name: options.pop(name) for name in usual.kinds if name in options}
    reorder = replace(usual, **given)
    if "+" in place:
        if layer is None or reorder != usual:
            raise ValueError(f"place ({place!r}) joins pools: give the layer by name, as in layer='ranked:quantiles=8'")
        return _joined(place, layer, **options)
    if place not in PLACES:
        raise ValueError(f"place ({place!r}) must be one of {', '.join(PLACES)}")
    name, side = PLACES[place]
    made, length, _ = chosen(layer, reorder, usual, side=side, place=place, before_convolutions=place not in BEHIND)
    if place == "conv5" and length is not None:
        return alexnet(global_pool=made, inputs=LAST * length, **options)
    model = alexnet(inputs=None if length is None else LAST * length, **options)
    return insert_after(model, model.layers.get(name, name), made)


def convolutions(place: str) -> list[str]:
    """The convolutions that a text such as "conv1+conv3" joins.

    Raises:
        ValueError: one is none of the five, or there twice.

    >>> convolutions("conv1+conv3")
    ['conv1', 'conv3']
    """
    names = place.split("+")
    known = [name for name in PLACES if name.startswith("conv")]
    if len(set(names)) < len(names) or not set(names) <= set(known):
        raise ValueError(f"place ({place!r}) must join different ones of {', '.join(sorted(known))}")
    return names


def _joined(place: str, layer: str, **options: Any) -> AlexNet:
    """AlexNet whose fc6 gets pools of several convolutions, each behind its ReLU and a pool such as the network's."""
    names, plain = convolutions(place), VARIANTS.get(options.get("variant", "caffe"), VARIANTS["caffe"])
    lengths = [place_layer(layer, side=POOLED[name], place=name, before_convolutions=False).length for name in names]
    if None in lengths:
        raise ValueError(f"layer ({layer!r}) leaves maps: {place} needs one that leaves numbers, such as ranked")
    filters = [plain.filters[int(name[-1]) - 1] for name in names]
    model = alexnet(inputs=sum(f * (n or 0) for f, n in zip(filters, lengths, strict=True)), **options)
    model.layers = {name: there for name, there in model.layers.items() if name != "pool5"}
    places = [model.layers[PLACES[name][0]].partition(".")[2] for name in names]
    features = model.get_submodule("features")
    assert isinstance(features, nn.Sequential)
    pools = {
        there: nn.Sequential(nn.MaxPool2d(3, 2, ceil_mode=plain.rounds_up), layer_for_maps(layer)) for there in places
    }
    model.features = Joined(features, pools)
    return model


def alexnet_blur(**options: Any) -> AlexNet:
    """AlexNet with pools that blur before they skip pixels (Zhang 2019); the maps keep their sizes."""
    return alexnet(pool=lambda: MaxBlurPool2d(window=3), **options)


def alexnet_gap(**options: Any) -> AlexNet:
    """AlexNet with global average pooling instead of its last pool."""
    return alexnet(global_pool=nn.AdaptiveAvgPool2d(1), inputs=LAST, **options)


def alexnet_gmp(**options: Any) -> AlexNet:
    """AlexNet with global max pooling instead of its last pool."""
    return alexnet(global_pool=nn.AdaptiveMaxPool2d(1), inputs=LAST, **options)


MODELS: Mapping[str, Callable[..., AlexNet]] = {
    "alexnet": alexnet,
    "alexnet_si": alexnet_si,
    "alexnet_st": alexnet_st,
    "alexnet_pr": alexnet_pr,
    "alexnet_blur": alexnet_blur,
    "alexnet_gap": alexnet_gap,
    "alexnet_gmp": alexnet_gmp,
}


def split(model: nn.Module) -> tuple[nn.Sequential, nn.Module]:
    """The front (normalise to flatten) and the classifier (fc6 to fc8, with all dropout), made of the model's modules.

    The features of a frozen front can be computed once and kept: classifier(front(images)) is model(images). Layers
    that were inserted stay where they are.

    >>> front, classifier = split(alexnet(variant="torchvision", width=8, classes=5).eval())
    >>> front(torch.rand(1, 3, 224, 224)).shape
    torch.Size([1, 9216])
    """
    parts = OrderedDict(model.named_children())
    classifier = parts.pop("classifier")
    return nn.Sequential(parts), classifier


def cut(front: nn.Module) -> tuple[nn.Sequential, nn.Sequential]:
    """A front (see `split`) in two: up to the fifth convolution, and what comes behind it, reordering included."""
    before: OrderedDict[str, nn.Module] = OrderedDict()
    behind: OrderedDict[str, nn.Module] = OrderedDict()
    reached = False
    for name, part in front.named_children():
        apart = name == "features" and not isinstance(part, Joined)
        for number, piece in part.named_children() if apart else [("", part)]:
            (behind if reached else before)[f"{name}{number}"] = piece
            reached |= name == "features" and number in ("10", "conv5", "")
    return nn.Sequential(before), nn.Sequential(behind)


def load_convolutions(model: nn.Module, tensors: Mapping[str, Tensor], *, connected: bool = False) -> list[str]:
    """Copy the convolutions of a dict with torchvision's names into a model of that variant.

    Args:
        model: of variant "torchvision", in any form.
        tensors: `features.0.weight` and so on; a whole state_dict will do.
        connected: copy those of the fully connected layers as well that are there and fit.

    Returns:
        The names that were copied.

    Raises:
        ValueError: the model is of the other variant, or a convolution is missing or of another shape; nothing was
            copied then.
    """
    variant = getattr(model, "variant", None)
    if variant != "torchvision":
        raise ValueError(f"variant ({variant!r}) must be 'torchvision' to load weights with torchvision's names")
    own = model.state_dict()  # the parameters themselves, not copies
    taken = [name for name in own if name.startswith("features.")]
    for name in taken:
        if name not in tensors:
            raise ValueError(f"tensors lack {name}: they hold {', '.join(list(tensors)[:12]) or 'nothing'}")
        if tensors[name].shape != own[name].shape:
            wanted = tuple(own[name].shape)
            raise ValueError(f"{name} has shape {tuple(tensors[name].shape)}, the model's {wanted}: it does not fit")
    if connected:
        rest = [name for name in own if name.startswith("classifier.") and name in tensors]
        taken += [name for name in rest if tensors[name].shape == own[name].shape]
    for name in taken:
        own[name].copy_(tensors[name])
    return taken


def freeze_convolutions(model: nn.Module) -> None:
    """Have training leave the five convolutions as they are; a transformer before them stays free."""
    model.get_submodule("features").requires_grad_(False)


def _sequence(parts: Mapping[str, nn.Module], numbered: bool) -> nn.Sequential:
    return nn.Sequential(*parts.values()) if numbered else nn.Sequential(OrderedDict(parts))


def _localisation() -> nn.Module:
    """The paper's: two convolutions with pools, two fully connected layers; pools round up (54, 27, 12, 6)."""
    return nn.Sequential(
        nn.Conv2d(3, 48, 11, stride=4),
        nn.MaxPool2d(3, 2, ceil_mode=True),  # before ReLU: the same values, and faster
        nn.ReLU(),
        nn.Conv2d(48, 48, 5, stride=2),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(48 * PIXELS, 48),
        nn.ReLU(),
        nn.Linear(48, 48),
        nn.ReLU(),
    )


def _initialise(model: nn.Module) -> None:
    """The paper's first weights: N(0, 0.01) in convolutions, N(0, 0.005) in connected layers, biases 0.1."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.normal_(layer.weight, std=0.01 if isinstance(layer, nn.Conv2d) else 0.005)
            if layer.bias is not None:
                nn.init.constant_(layer.bias, 0.1)
