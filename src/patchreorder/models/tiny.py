"""A network like AlexNet for the 64x64 photographs of Tiny-ImageNet, small enough to train on a CPU, and changes of it.

Five convolutions of 48, 96, 160, 160 and 128 filters (5x5 with stride 2, then 3x3) with 2x2 pools after the first,
second and fifth, so that the last three have maps of 8x8, as AlexNet's have 13x13; two connected layers of 512, and 200
classes. Batch normalisation, which AlexNet's authors did not have, stands where theirs normalised responses, and after
the other convolutions: without it so few epochs are too few. Images are normalised inside; initial weights are those of
He et al. The other networks:

- PR and SI have the same parameters.
- GAP pools the fifth convolution to one value for each filter; the width of its connected layers is chosen so that the
  count comes nearest to the CNN's. Another layer at a place of PR (`layer`) that gives other than 16 values a map, and
  several places: likewise.
- `filters` gives the last convolutions more filters, and the connected layers fewer parameters instead.
- ST adds a localisation network of 51,686 parameters.

Max-pooling comes before ReLU wherever nothing is between them: the values are the same, and it is faster.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from torch import nn

from patchreorder.data.tiny_imagenet import SIDE, TINY_VARIANTS

from .inserted_layer import inserted_layer, inserted_layer_or_reorder, layer_for_maps
from .joined import Joined
from .normalise import Normalise
from .rotation_conv import ANGLES_WITH_IDENTITY, RotationConv2d
from .spatial_transformer import Localisation, SpatialTransformer

DATASETS = tuple(TINY_VARIANTS)
CLASSES = 200
FIRST = (48, 96)  # filters of the first two convolutions
FILTERS = (160, 160, 128)  # of the last three
WIDTH = 512
POOLED = (1, 2, 5)  # convolutions with a pool after them
PIXELS = 4 * 4  # of the maps behind the last pool
ROTATED = (1, 2, 5)  # convolutions of SI with rotated filters, as in the paper
PLACES = {"conv3": 8, "conv4": 8, "conv5": 8, "pool5": 4}  # where to reorder -> the side of the maps
Filters = Sequence[int]


def create(name: str, *, dataset: str, **options: Any) -> nn.Module:
    """One of MODELS."""
    if dataset not in DATASETS:
        raise ValueError(f"dataset ({dataset!r}) must be one of {', '.join(DATASETS)} for {name}")
    try:
        return MODELS[name](**options)
    except TypeError as error:
        raise ValueError(f"options ({options}) do not fit {name}: {error}") from error


def tiny_cnn(*, filters: Filters = FILTERS, dropout: float = 0.0) -> nn.Module:
    """The CNN; `filters` are those of conv3, conv4 and conv5, `dropout` the probability after fc6 and fc7."""
    return _network(filters=filters, dropout=dropout)


def tiny_si(*, angles: Sequence[float] = ANGLES_WITH_IDENTITY, dropout: float = 0.0) -> nn.Module:
    """The first, second and fifth convolution with rotated copies of each filter, their maximum everywhere."""
    return _network(rotated=partial(RotationConv2d, angles=angles), dropout=dropout)


def tiny_st(*, dropout: float = 0.0) -> nn.Module:
    """The CNN behind an affine spatial transformer, which reads the mean colour outside the image."""
    return _network(transformed=True, dropout=dropout)


def tiny_gap(*, filters: Filters = FILTERS, dropout: float = 0.0) -> nn.Module:
    """The CNN with global average pooling instead of its last pool; `filters` as in `tiny_cnn`."""
    pooled = {"relu5": nn.ReLU(), "pool5": nn.AdaptiveAvgPool2d(1)}
    return _network({5: pooled}, inputs=filters[-1], filters=filters, dropout=dropout)


def tiny_pr(
    *,
    place: str = "conv5",
    layer: str | None = None,
    filters: Filters = FILTERS,
    dropout: float = 0.0,
    **reorder: Any,
) -> nn.Module:
    """The CNN with reordering after a convolution's ReLU ("conv3" to "conv5") or after the last pool ("pool5").

    `reorder` are options of `PatchReorder`; `levels` is 2 by default. `layer` is another layer by name instead (see
    `create_layer`). If its output is not a map, as that of ranked, it replaces the pool at conv5. Several convolutions,
    as in "conv3+conv4+conv5", are each pooled by it and joined (see `Joined`). `filters` as in `tiny_cnn`.
    """
    if "+" in place:
        if layer is None or reorder:
            raise ValueError(f"place ({place!r}) joins pools: give the layer by name, as in layer='ranked:quantiles=4'")
        return _joined(place.split("+"), layer, filters=filters, dropout=dropout)
    if place not in PLACES:
        raise ValueError(f"place ({place!r}) must be one of {', '.join(PLACES)}")
    inserted, length, _ = inserted_layer_or_reorder(
        layer, reorder, side=PLACES[place], place=place, levels=2, before_convolutions=place in ("conv3", "conv4")
    )
    number = int(place[-1])
    after: dict[str, nn.Module] = {f"relu{number}": nn.ReLU(), "reorder": inserted}
    if place == "pool5":
        after = {**_pooled(5), "reorder": inserted}
    elif number == 5 and length is None:
        after["pool5"] = nn.MaxPool2d(2)
    inputs = filters[-1] * (PIXELS if length is None else length)
    return _network({number: after}, inputs=inputs, filters=filters, dropout=dropout)


def tiny_pr_fine(**options: Any) -> nn.Module:
    """The CNN with every pixel a patch, reordered after the last pool."""
    return tiny_pr(**{"grid": "pixels", "levels": 1, "place": "pool5", **options})


MODELS: Mapping[str, Callable[..., nn.Module]] = {
    "tiny_cnn": tiny_cnn,
    "tiny_si": tiny_si,
    "tiny_st": tiny_st,
    "tiny_pr": tiny_pr,
    "tiny_pr_fine": tiny_pr_fine,
    "tiny_gap": tiny_gap,
}


def _joined(places: Sequence[str], layer: str, *, filters: Filters, dropout: float) -> nn.Module:
    """The CNN whose fc6 takes pools of several of its last convolutions, each behind its ReLU."""
    known = [place for place in PLACES if place.startswith("conv")]
    if len(set(places)) < len(places) or not set(places) <= set(known):
        raise ValueError(f"place ({'+'.join(places)!r}) must join different ones of {', '.join(known)}")
    inputs = 0
    for place in places:
        length = inserted_layer(layer, side=PLACES[place], place=place).length
        if length is None:
            raise ValueError(f"layer ({layer!r}) gives maps: several places need one that gives vectors, as ranked")
        inputs += length * filters[int(place[-1]) - 3]
    whole = _network({5: {"relu5": nn.ReLU()}}, inputs=inputs, filters=filters, dropout=dropout)
    parts = dict(whole.named_children())
    names = list(parts)
    cut = names.index("flatten")
    convolutions = nn.Sequential(OrderedDict((name, parts[name]) for name in names[1:cut]))
    pools = {f"relu{place[-1]}": layer_for_maps(layer) for place in places}
    rest = {name: parts[name] for name in names[cut + 1 :]}
    return nn.Sequential(
        OrderedDict({"normalise": parts["normalise"], "features": Joined(convolutions, pools), **rest})
    )


def _network(
    changed: Mapping[int, Mapping[str, nn.Module]] | None = None,
    *,
    inputs: int | None = None,
    filters: Filters = FILTERS,
    dropout: float = 0.0,
    rotated: Callable[..., nn.Conv2d] | None = None,
    transformed: bool = False,
) -> nn.Sequential:
    """The CNN with other layers after some of its convolutions, by their numbers; fc6 takes `inputs` values."""
    if len(filters) != 3 or any(type(count) is not int or count < 1 for count in filters):
        raise ValueError(f"filters ({filters!r}) must be 1 or more, of conv3, conv4 and conv5")
    inputs = filters[-1] * PIXELS if inputs is None else inputs
    width = _nearest(filters, inputs)
    parts: dict[str, nn.Module] = {}
    for number, (into, out) in enumerate(pairwise((3, *FIRST, *filters)), 1):
        make = rotated if rotated and number in ROTATED else nn.Conv2d
        side, stride = (5, 2) if number == 1 else (3, 1)
        parts[f"conv{number}"] = make(into, out, side, stride=stride, padding=side // 2, bias=False)
        parts[f"norm{number}"] = nn.BatchNorm2d(out)
        usual = _pooled(number) if number in POOLED else {f"relu{number}": nn.ReLU()}
        parts |= (changed or {}).get(number, usual)
    parts |= {
        "flatten": nn.Flatten(),
        "fc6": nn.Linear(inputs, width),
        "relu6": nn.ReLU(),
        "drop6": nn.Dropout(dropout),
        "fc7": nn.Linear(width, width),
        "relu7": nn.ReLU(),
        "drop7": nn.Dropout(dropout),
        "fc8": nn.Linear(width, CLASSES),
    }
    for layer in parts.values():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    before: dict[str, nn.Module] = {"normalise": Normalise()}
    if transformed:  # created last, so that the same seed gives the same CNN behind it
        before["transformer"] = SpatialTransformer(Localisation(3, SIDE))
    return nn.Sequential(OrderedDict(before | parts))


def _pooled(number: int) -> Mapping[str, nn.Module]:
    return {f"pool{number}": nn.MaxPool2d(2), f"relu{number}": nn.ReLU()}


def _nearest(filters: Filters, inputs: int) -> int:
    """The width of fc6 and fc7 with which they and the last convolutions have nearly as many parameters as the CNN."""

    def count(filters: Filters, inputs: int, width: int) -> int:
        convolutions = sum(9 * into * out + 2 * out for into, out in pairwise((FIRST[-1], *filters)))
        return convolutions + (inputs + 1) * width + (width + 1) * width + (width + 1) * CLASSES

    wanted = count(FILTERS, FILTERS[-1] * PIXELS, WIDTH)
    if count(filters, inputs, 1) > wanted:
        raise ValueError(f"filters {tuple(filters)} have more parameters than the whole CNN: give fewer")
    return min(range(1, 2049), key=lambda width: abs(count(filters, inputs, width) - wanted))
