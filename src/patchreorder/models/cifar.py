"""A network like AlexNet for the 32x32 images of CIFAR-10, small enough to train on a CPU, and changes of it.

Five convolutions (5x5, then 3x3) of 32, 64, 96, 96 and 64 filters with 2x2 pools after the first, second and fifth, so
that the last three have maps of 8x8; two connected layers of 256, and ten classes: 545,482 parameters, 20 million
multiply-adds an image. Images are normalised inside; initial weights are those of He et al. The other networks:

- PR has the same parameters.
- GAP pools the fifth convolution to 64 values; the width of its connected layers is chosen so that the count comes
  nearest to the CNN's. Another layer at a place of PR (`layer`) that gives other than 16 values a map: likewise.
- `filters` gives the last convolutions more filters, and the connected layers fewer parameters instead.
- ST adds a localisation network of 13,286 parameters (2.4 %).

Max-pooling comes before ReLU wherever nothing is between them: the values are the same, and it is faster.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from patchreorder.data.datasets import CIFAR10_VARIANTS

from .inserted_layer import inserted_layer_or_reorder
from .normalise import Normalise
from .spatial_transformer import Localisation, SpatialTransformer

SIZE = CIFAR10_VARIANTS["cifar10"].size
DATASETS = tuple(CIFAR10_VARIANTS)
CLASSES = 10
FILTERS = (96, 96, 64)  # of the last three convolutions
WIDTH = 256
POOLED = (1, 2, 5)  # convolutions with a pool after them
# Where to reorder -> the side of the maps.
PLACES = {"conv1": SIZE, "conv2": 16, "conv3": 8, "conv4": 8, "conv5": 8, "pool5": 4, "input": SIZE}


def create(name: str, *, dataset: str, **options: Any) -> nn.Module:
    """One of MODELS."""
    if dataset not in DATASETS:
        raise ValueError(f"dataset ({dataset!r}) must be one of {', '.join(DATASETS)} for {name}")
    try:
        return MODELS[name](**options)
    except TypeError as error:
        raise ValueError(f"options ({options}) do not fit {name}: {error}") from error


class Beside(nn.Module):
    """The outputs of several layers for the same maps, flattened and concatenated.

    >>> Beside(nn.MaxPool2d(2), nn.AvgPool2d(2))(torch.tensor([[[[1.0, 2.0], [3.0, 6.0]]]]))
    tensor([[6., 3.]])
    """

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([layer(x).flatten(1) for layer in self.layers], 1)


def cifar_cnn(*, filters: int | Sequence[int] = FILTERS, dropout: float = 0.0) -> nn.Module:
    """The CNN; `filters` as in `cifar_pr`; `dropout` is the probability at the outputs of fc6 and fc7."""
    return _network(dropout=dropout, filters=filters)


def cifar_pr(
    *,
    place: str = "conv5",
    layer: str | None = None,
    filters: int | Sequence[int] = FILTERS,
    beside: bool = False,
    dropout: float = 0.0,
    **reorder: Any,
) -> nn.Module:
    """The CNN with reordering after a convolution's ReLU ("conv1" to "conv5") or after the last pool ("pool5").

    `reorder` are options of `PatchReorder`; `levels` is 2 by default. `layer` is another layer by name instead (see
    `create_layer`), also at the normalised "input". If its output is not a map, as that of ranked, it replaces the pool
    at conv5, and the width of the connected layers follows; with `beside` the pool stays, and fc6 takes both outputs.
    `filters` is the number of filters of conv5, or of conv3, conv4 and conv5.
    """
    if place not in PLACES:
        raise ValueError(f"place ({place!r}) must be one of {', '.join(PLACES)}")
    inserted, length, _ = inserted_layer_or_reorder(
        layer,
        reorder,
        side=PLACES[place],
        place=place,
        levels=2,
        before_convolutions=place not in ("conv5", "pool5"),
    )
    if beside and (place != "conv5" or length is None):
        raise ValueError(f"beside: layer ({layer!r}) must be ranked, and place ({place!r}) conv5")
    if place == "input":
        return _network(dropout=dropout, first=inserted, filters=filters)
    number = int(place[-1])
    after: dict[str, nn.Module] = {**_pooled(5), "reorder": inserted}
    if place.startswith("conv"):
        after = {f"relu{number}": nn.ReLU(), "reorder": inserted}
        after |= {f"pool{number}": nn.MaxPool2d(2)} if number in POOLED and length is None else {}
    if beside:
        after = {"relu5": nn.ReLU(), "both": Beside(nn.MaxPool2d(2), inserted)}
        length = 16 + (length or 0)
    return _network({number: after}, of_each=16 if length is None else length, dropout=dropout, filters=filters)


def cifar_pr_fine(**options: Any) -> nn.Module:
    """The CNN with every pixel a patch, reordered after the last pool."""
    return cifar_pr(**{"grid": "pixels", "levels": 1, "place": "pool5", **options})


def cifar_st(*, transform: str = "affine", dropout: float = 0.0) -> nn.Module:
    """The CNN behind a spatial transformer, which reads the mean colour outside the image."""
    return _network(dropout=dropout, transform=transform)


def cifar_gap(*, filters: int | Sequence[int] = FILTERS, dropout: float = 0.0) -> nn.Module:
    """The CNN with global average pooling instead of its last pool; `filters` as in `cifar_pr`."""
    pooled = {"relu5": nn.ReLU(), "pool5": nn.AdaptiveAvgPool2d(1)}
    return _network({5: pooled}, of_each=1, dropout=dropout, filters=filters)


MODELS: Mapping[str, Callable[..., nn.Module]] = {
    "cifar_cnn": cifar_cnn,
    "cifar_st": cifar_st,
    "cifar_pr": cifar_pr,
    "cifar_pr_fine": cifar_pr_fine,
    "cifar_gap": cifar_gap,
}


def _network(
    changed: Mapping[int, Mapping[str, nn.Module]] | None = None,
    *,
    of_each: int = 4 * 4,
    filters: int | Sequence[int] = FILTERS,
    dropout: float = 0.0,
    transform: str | None = None,
    first: nn.Module | None = None,
) -> nn.Sequential:
    """The CNN with other layers after some of its convolutions, by their numbers, or one first.

    fc6 takes `of_each` values of each filter of the last convolution.
    """
    third, fourth, fifth = counts = _counts(filters)
    inputs, width = fifth * of_each, _nearest(counts, of_each)
    usual = {k: _pooled(k) if k in POOLED else {f"relu{k}": nn.ReLU()} for k in range(1, 6)}
    after = {**usual, **(changed or {})}
    parts: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(3, 32, 5, padding=2),
        **after[1],
        "conv2": nn.Conv2d(32, 64, 3, padding=1),
        **after[2],
        "conv3": nn.Conv2d(64, third, 3, padding=1),
        **after[3],
        "conv4": nn.Conv2d(third, fourth, 3, padding=1),
        **after[4],
        "conv5": nn.Conv2d(fourth, fifth, 3, padding=1),
        **after[5],
        "flatten": nn.Flatten(),
        "fc6": nn.Linear(inputs, width),
        "relu6": nn.ReLU(),
        "drop6": nn.Dropout(dropout),
        "fc7": nn.Linear(width, width),
        "relu7": nn.ReLU(),
        "drop7": nn.Dropout(dropout),
        "fc8": nn.Linear(width, CLASSES),
    }
    for layer in parts.values():  # with torch's own, which are smaller, the network learns much later
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    before: dict[str, nn.Module] = {"normalise": Normalise()} | ({"reorder": first} if first else {})
    if transform is not None:  # created last, so that the same seed gives the same CNN behind it
        before["transformer"] = SpatialTransformer(Localisation(3, SIZE), transform=transform)
    return nn.Sequential(OrderedDict(before | parts))


def _pooled(number: int) -> Mapping[str, nn.Module]:
    return {f"pool{number}": nn.MaxPool2d(2), f"relu{number}": nn.ReLU()}


def _counts(filters: int | Sequence[int]) -> tuple[int, int, int]:
    """The filters of conv3, conv4 and conv5; a single number is conv5's."""
    counts = (*FILTERS[:2], filters) if isinstance(filters, int) else tuple(filters)
    if len(counts) != 3 or any(type(count) is not int or count < 1 for count in counts):
        raise ValueError(f"filters ({filters!r}) must be 1 or more, of conv5, or of conv3, conv4 and conv5")
    return counts


def _nearest(filters: tuple[int, int, int], of_each: int) -> int:
    """The width of fc6 and fc7 with which they and the last convolutions have nearly as many parameters as the CNN."""

    def count(filters: tuple[int, int, int], of_each: int, width: int) -> int:
        channels = (64, *filters)
        convolutions = sum((9 * into + 1) * out for into, out in pairwise(channels))
        return convolutions + (filters[-1] * of_each + 1) * width + (width + 1) * width + (width + 1) * CLASSES

    wanted = count(FILTERS, 4 * 4, WIDTH)
    if count(filters, of_each, 1) > wanted:
        raise ValueError(f"filters {filters} have more parameters than the whole CNN: give fewer")
    return min(range(1, 1025), key=lambda width: abs(count(filters, of_each, width) - wanted))
