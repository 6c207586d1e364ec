"""AlexNet for ImageNet, the network of the paper's Table 2, and the networks it is compared with.

Two variants, chosen by `variant`:

- "caffe": Caffe's bvlc_alexnet: 96-256-384-384-256 filters, the second, fourth and fifth convolution in two groups,
  response normalisation before the first two pools, pools that round up, pixels from 0 to 255 minus their mean, and the
  paper's initial weights. A 224x224 crop gives maps of 54x54 (one less than Caffe's own 227x227), and behind the pools
  of 27x27, 13x13 and 6x6, as there. 60,965,224 parameters.
- "torchvision": the one column of torchvision: 64-192-384-256-256 filters, no groups, no response normalisation; maps
  of 55x55, 27x27, 13x13 and 6x6; the same state_dict, and the same initial weights from the same seed. 61,100,840
  parameters.

Both take images in [0, 1] and normalise them inside; the mean colour becomes zero. The forms change as little as
possible:

- SI, BlurPool and PR have the parameters of AlexNet and load its weights. With another layer at a place of PR (`layer`)
  fc6 may have other than 9,216 inputs: then they load its convolutions.
- ST adds the paper's localisation network, 160,758 parameters (0.3 %).
- The global pools (gap, gmp) replace the last pool, so that fc6 has 256 inputs and not 9,216. The other widths stay,
  which leaves 37 million parameters fewer: no width would make up for them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from patchreorder.operator.functional import PatchReorderOptions
from patchreorder.surgery.insertion import insert_after

from .blur_pool import MaxBlurPool2d
from .inserted_layer import inserted_layer, inserted_layer_or_reorder, layer_for_maps
from .joined import Joined
from .normalise import STD, Normalise
from .rotation_conv import RotationConv2d
from .spatial_transformer import SpatialTransformer

DATASETS = ("imagenet",)
PIXELS = 6 * 6  # of the map behind the last pool
# Where to reorder -> the layer before it, and the side of its maps.
PLACES = {"conv5": ("relu5", 13), "pool5": ("pool5", 6), "input": ("normalise", 224)}
PLACES |= {"conv1": ("relu1", 54), "conv2": ("relu2", 27), "conv3": ("relu3", 13), "conv4": ("relu4", 13)}
BEHIND = ("conv5", "pool5")  # places with no convolution after them
POOLED = {"conv1": 27, "conv2": 13, "conv3": 6, "conv4": 6, "conv5": 6}  # sides of maps after a pool
LAST = 256  # filters of the fifth convolution, in both variants


class Shape(NamedTuple):
    """The differences between the variants."""

    filters: tuple[int, int, int, int, int]
    groups: tuple[int, int, int, int, int]
    padding: int  # of the first convolution
    std: tuple[float, float, float]
    rounds_up: bool


VARIANTS = {
    "caffe": Shape((96, 256, 384, 384, 256), (1, 2, 1, 2, 2), 0, (1 / 255, 1 / 255, 1 / 255), True),
    "torchvision": Shape((64, 192, 384, 256, 256), (1, 1, 1, 1, 1), 2, STD, False),
}


class AlexNet(nn.Sequential):
    """AlexNet in one of its variants and forms, from `create_model`; `layers` maps the paper's names to modules.

    Its children are normalise, transformer (ST only), features, avgpool (torchvision only), flatten and classifier.

    Shape:
        images: (batch, 3, 224, 224) in [0, 1]; to (batch, classes).
    """

    variant: str
    layers: Mapping[str, str]  # conv1, relu1, norm1, pool1, ..., fc8 -> names of modules


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
    rotated: tuple[int, ...] = (),
    pool: Callable[[], nn.Module] | None = None,
    global_pool: nn.Module | None = None,
    inputs: int | None = None,
    transformed: bool = False,
) -> AlexNet:
    """AlexNet; the forms below set the last five options.

    Args:
        variant: "caffe" or "torchvision".
        classes: number of logits.
        width: of fc6 and fc7.
        dropout: probability, at the outputs of fc6 and fc7 ("torchvision": at their inputs).
        rotated: numbers of the convolutions that are a `RotationConv2d`.
        pool: creates the 3x3 pools with stride 2.
        global_pool: instead of the last of them.
        inputs: of fc6, if not maps of 6x6.
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
        kind = RotationConv2d if number in rotated else nn.Conv2d
        filters, groups = shape.filters[number - 1], shape.groups[number - 1]
        features[f"conv{number}"] = kind(channels, filters, side, stride=stride, padding=padding, groups=groups)
        # Not in place: a hook on the convolution must not see its output overwritten.
        features[f"relu{number}"] = nn.ReLU()
        if number < 3 and not numbered:
            features[f"norm{number}"] = nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0)  # alpha / 5, as in Caffe
        if number in (1, 2, 5):
            features[f"pool{number}"] = global_pool if number == 5 and global_pool else pool()
    connected = LAST * PIXELS if inputs is None else inputs
    classifier: dict[str, nn.Module] = {"fc6": nn.Linear(connected, width), "relu6": nn.ReLU()}
    classifier |= {"fc7": nn.Linear(width, width), "relu7": nn.ReLU(), "fc8": nn.Linear(width, classes)}
    order = ["drop6", "fc6", "relu6", "drop7", "fc7", "relu7", "fc8"]
    if not numbered:
        order = ["fc6", "relu6", "drop6", "fc7", "relu7", "drop7", "fc8"]
    classifier = {name: classifier.get(name) or nn.Dropout(dropout) for name in order}
    # Created last, so that the same seed gives the same AlexNet behind it.
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
        modules = {name: f"{part}.{index if numbered else name}" for index, name in enumerate(names)}
        model.layers |= {name: module for name, module in modules.items() if not name.startswith("drop")}
    if not numbered:
        _initialise(model)
        if transformer:
            transformer.reset_parameters()
    return model


def alexnet_si(**options: Any) -> AlexNet:
    """The first, second and fifth convolution with six rotated copies of each filter, their maximum everywhere."""
    return alexnet(rotated=(1, 2, 5), **options)


def alexnet_st(**options: Any) -> AlexNet:
    """AlexNet behind an affine spatial transformer, `transformer`, which warps the normalised image.

    It starts as the identity. Outside the image it reads zero, the mean colour.
    """
    return alexnet(transformed=True, **options)


def alexnet_pr(*, place: str = "conv5", layer: str | None = None, **options: Any) -> AlexNet:
    """AlexNet with reordering at its fifth convolution, after its ReLU ("conv5", the paper's) or its pool ("pool5").

    Options of `PatchReorder` are taken as well; `levels` is 2 by default. Other places are the ReLU of "conv1" to
    "conv4" and the normalised "input". `layer` is another layer by name instead (see `create_layer`). If its output is
    not a map, as that of ranked, it replaces the pool at conv5, and fc6 takes its output. Several convolutions, as in
    "conv1+conv3+conv5", are each pooled by it and joined with equal weight (see `Joined`).
    """
    reorder = {name: options.pop(name) for name in PatchReorderOptions.kinds if name in options}
    if "+" in place:
        if layer is None or reorder:
            raise ValueError(f"place ({place!r}) joins pools: give the layer by name, as in layer='ranked:quantiles=8'")
        return _joined(place, layer, **options)
    if place not in PLACES:
        raise ValueError(f"place ({place!r}) must be one of {', '.join(PLACES)}")
    before, side = PLACES[place]
    inserted, length, _ = inserted_layer_or_reorder(
        layer, reorder, side=side, place=place, levels=2, before_convolutions=place not in BEHIND
    )
    if place == "conv5" and length is not None:
        return alexnet(global_pool=inserted, inputs=LAST * length, **options)
    model = alexnet(inputs=None if length is None else LAST * length, **options)
    return insert_after(model, model.layers.get(before, before), inserted)


def convolutions(place: str) -> list[str]:
    """The convolutions in a text such as "conv1+conv3".

    Raises:
        ValueError: a name is unknown or occurs twice.

    >>> convolutions("conv1+conv3")
    ['conv1', 'conv3']
    """
    names = place.split("+")
    known = [name for name in PLACES if name.startswith("conv")]
    if len(set(names)) < len(names) or not set(names) <= set(known):
        raise ValueError(f"place ({place!r}) must join different ones of {', '.join(sorted(known))}")
    return names


def _joined(place: str, layer: str, **options: Any) -> AlexNet:
    """AlexNet whose fc6 takes pools of several convolutions, each behind its ReLU and a max-pool."""
    names, shape = convolutions(place), VARIANTS.get(options.get("variant", "caffe"), VARIANTS["caffe"])
    inputs = 0
    for name in names:
        length = inserted_layer(layer, side=POOLED[name], place=name).length
        if length is None:
            raise ValueError(f"layer ({layer!r}) gives maps: {place} needs one that gives vectors, such as ranked")
        inputs += length * shape.filters[int(name[-1]) - 1]
    model = alexnet(inputs=inputs, **options)
    model.layers = {name: module for name, module in model.layers.items() if name != "pool5"}
    features = model.get_submodule("features")
    assert isinstance(features, nn.Sequential)
    pools = {
        model.layers[PLACES[name][0]].partition(".")[2]: nn.Sequential(
            nn.MaxPool2d(3, 2, ceil_mode=shape.rounds_up), layer_for_maps(layer)
        )
        for name in names
    }
    model.features = Joined(features, pools)
    return model


def alexnet_blur(**options: Any) -> AlexNet:
    """AlexNet with pools that blur before they subsample (Zhang 2019); the maps keep their sizes."""
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
    """The front (normalise to flatten) and the classifier (fc6 to fc8 and dropout) of a model; modules are shared.

    classifier(front(images)) is model(images), so that the features of a frozen front can be computed once. Inserted
    layers stay in place.

    >>> import torch
    >>> front, classifier = split(alexnet(variant="torchvision", width=8, classes=5).eval())
    >>> front(torch.rand(1, 3, 224, 224)).shape
    torch.Size([1, 9216])
    """
    parts = OrderedDict(model.named_children())
    classifier = parts.pop("classifier")
    return nn.Sequential(parts), classifier


def cut(front: nn.Module) -> tuple[nn.Sequential, nn.Sequential]:
    """A front (see `split`) in two: up to the fifth convolution, and the rest, with any inserted layer."""
    before: OrderedDict[str, nn.Module] = OrderedDict()
    after: OrderedDict[str, nn.Module] = OrderedDict()
    reached = False
    for name, part in front.named_children():
        opened = name == "features" and not isinstance(part, Joined)
        for number, layer in part.named_children() if opened else [("", part)]:
            (after if reached else before)[f"{name}{number}"] = layer
            reached |= name == "features" and number in ("10", "conv5", "")
    return nn.Sequential(before), nn.Sequential(after)


def load_convolutions(model: nn.Module, tensors: Mapping[str, Tensor], *, connected: bool = False) -> list[str]:
    """Copy the convolutions of a dict with torchvision's names into a model of that variant; return their names.

    Args:
        model: of variant "torchvision", in any form.
        tensors: `features.0.weight` and so on, such as a whole state_dict.
        connected: also copy the weights of fully connected layers that are in `tensors` and have the right shape.

    Raises:
        ValueError: the model is of the other variant, or a convolution is missing or of another shape. Nothing is
            copied then.
    """
    variant = getattr(model, "variant", None)
    if variant != "torchvision":
        raise ValueError(f"variant ({variant!r}) must be 'torchvision' to load weights with torchvision's names")
    own = model.state_dict()  # shares the memory of the parameters
    copied = [name for name in own if name.startswith("features.")]
    for name in copied:
        if name not in tensors:
            raise ValueError(f"tensors lack {name}: they hold {', '.join(list(tensors)[:12]) or 'nothing'}")
        if tensors[name].shape != own[name].shape:
            wanted = tuple(own[name].shape)
            raise ValueError(f"{name} has shape {tuple(tensors[name].shape)}, the model's {wanted}: it does not fit")
    if connected:
        rest = [name for name in own if name.startswith("classifier.") and name in tensors]
        copied += [name for name in rest if tensors[name].shape == own[name].shape]
    for name in copied:
        own[name].copy_(tensors[name])
    return copied


def freeze_convolutions(model: nn.Module) -> None:
    """Exclude the five convolutions from training; a transformer before them is still trained."""
    model.get_submodule("features").requires_grad_(False)


def _sequence(parts: Mapping[str, nn.Module], numbered: bool) -> nn.Sequential:
    return nn.Sequential(*parts.values()) if numbered else nn.Sequential(OrderedDict(parts))


def _localisation() -> nn.Module:
    """The paper's localisation: two convolutions with pools, two fully connected layers (maps of 54, 27, 12, 6)."""
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
    """The paper's initial weights: N(0, 0.01) in convolutions, N(0, 0.005) in connected layers, biases 0.1."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.normal_(layer.weight, std=0.01 if isinstance(layer, nn.Conv2d) else 0.005)
            if layer.bias is not None:
                nn.init.constant_(layer.bias, 0.1)
