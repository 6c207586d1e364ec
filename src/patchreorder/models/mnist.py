"""The networks of Table 1 and networks of today, all with nearly the same number of parameters.

The paper's CNN: 9x9 convolution, 2x2 pool, 7x7 convolution, 2x2 pool, classifier; 64 filters each, no padding, pools
round up as Caffe's do (42x42 ends in 6x6). All others are changes of it:

- SI-CNN, BlurPool and PR-CNN have exactly its parameters.
- ST-CNN adds a localisation network of about 11,000 parameters (5 %) before it.
- FCN, the global pools and the C4 network have another shape: the width of their last hidden layers is chosen so that
  the count comes nearest to the CNN's on the same images.
- The unrolled CNN has the same filters on rings; its classifier sees as many directions as are left (2.5 % more
  parameters on R, 6 % without the second pool).
- Another layer at a place of PR-CNN (`layer`) keeps the convolutions; the classifier takes its output, so that
  `ranked:quantiles=16` after the pool has 12,800 parameters fewer on 42x42. In the C4 network the width follows.

Max-pooling comes before ReLU wherever nothing is between them: the values are the same, and it is faster.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

from patchreorder.data.augmentation import Augment, read_augmentation
from patchreorder.data.datasets import MNIST_VARIANTS
from patchreorder.layers.layer import Layer
from patchreorder.layers.orientation_reorder import OrientationReorder
from patchreorder.layers.registry import create_layer
from patchreorder.layers.unroll import Unroll

from .blur_pool import MaxBlurPool2d
from .group_conv import ORIENTATIONS, GroupConv2d, GroupLift2d, OrientationMax
from .inserted_layer import inserted_layer, inserted_layer_or_reorder
from .rotation_classifier import CircularPad, RotationClassifier
from .rotation_conv import ANGLES_WITH_IDENTITY, RotationConv2d
from .spatial_transformer import Localisation, SpatialTransformer
from .thin_conv import ThinConv2d

SIZES = {name: variant.size for name, variant in MNIST_VARIANTS.items()}
CLASSES = 10
SMALLEST = 21  # side of an image: the second convolution then has one output
FILTERS = 64
PLACES = ("conv", "relu", "pool", "input", "conv1")
UNROLLED = "unroll:radii=22,angles=48,reach=13"
GROUP_PLACES = ("orientation", "pool", "input")


def create(name: str, *, dataset: str, augment: str | None = None, **options: Any) -> nn.Module:
    """One of MODELS for one of SIZES.

    `augment` is an augmentation such as "jitter=2,tilt=12,zoom=0.12" (see `Augmentation`) of the images that enter the
    network, in training mode only. It comes behind a layer at the input, but before `Unroll`.
    """
    if dataset not in SIZES:
        raise ValueError(f"dataset ({dataset!r}) must be one of {', '.join(SIZES)}")
    try:
        model = MODELS[name](SIZES[dataset], **options)
    except TypeError as error:
        raise ValueError(f"options ({options}) do not fit {name}: {error}") from error
    return model if augment is None else _augmented(model, augment)


def _augmented(model: nn.Module, augment: str) -> nn.Module:
    layers = list(model.named_children())
    enters = next(i for i, (_, layer) in enumerate(layers) if isinstance(layer, Unroll) or not isinstance(layer, Layer))
    layers.insert(enters, ("augment", Augment(**read_augmentation(augment))))
    return nn.Sequential(OrderedDict(layers))


def fcn(size: int) -> nn.Module:
    """Two fully connected hidden layers of the same width."""

    def count(width: int) -> int:
        return (size * size + 1) * width + (width + 1) * width + (width + 1) * CLASSES

    width = _nearest(count, size)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(size * size, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, CLASSES),
    )


def cnn(size: int) -> nn.Module:
    """The paper's CNN."""
    return _network(size)


def pr_cnn(
    size: int, *, place: str = "relu", layer: str | None = None, halve: bool = True, **reorder: Any
) -> nn.Module:
    """The CNN with reordering at its second convolution: after the convolution, its ReLU, or the pool (`place`).

    At "conv1" it comes after the ReLU of the first convolution, at "input" before it. `reorder` are options of
    `PatchReorder`. `layer` is another layer by name instead (see `create_layer`). Behind an input that is cut, as by
    `align:size=28`, the CNN is made for the smaller image. If the output of the layer is not a map, as that of ranked,
    the layer replaces the second pool, and the classifier takes its output. With halve=False, at the input only, there
    is no second pool.
    """
    first, end = _sides(size)
    sides = {"conv": first - 6, "relu": first - 6, "pool": end, "input": size, "conv1": size - 8}
    if place not in PLACES:
        raise ValueError(f"place ({place!r}) must be one of {', '.join(PLACES)}")
    inserted, length, side = inserted_layer_or_reorder(
        layer,
        reorder,
        side=sides[place],
        place=place,
        before_convolutions=place in ("input", "conv1"),
        any_side=place == "input",
    )
    if place == "input":
        _check_size(layer, side)
        fine = (_sides(side)[0] - 6) ** 2
        network = _network(side) if halve else _network(side, after={"relu2": nn.ReLU()}, length=fine)
        return nn.Sequential(OrderedDict([("reorder", inserted), *network.named_children()]))
    if not halve:
        raise ValueError(f"halve (False) needs place 'input', not {place!r}")
    if place == "conv1":
        first_pool = {"relu1": nn.ReLU(), "reorder": inserted, "pool1": _pool()}
        return _network(size, pooled=lambda number: first_pool if number == 1 else _pooled(number))
    after: dict[str, dict[str, nn.Module]] = {
        "conv": {"reorder": inserted, "pool2": _pool(), "relu2": nn.ReLU()},
        # The second ReLU changes no value. Without it the pool would get the classifier's gradient in another memory
        # layout than its maps have, and copy the maps' gradient twice: 2 % of a training step.
        "relu": {"relu2": nn.ReLU(), "reorder": inserted, "pool2": _pool(), "relu3": nn.ReLU()},
        "pool": {"pool2": _pool(), "relu2": nn.ReLU(), "reorder": inserted},
    }
    if length is not None:
        after["conv"] = {"reorder": inserted, "relu2": nn.ReLU()}
        after["relu"] = {"relu2": nn.ReLU(), "reorder": inserted}
    return _network(size, after=after[place], length=length)


def pr_cnn_fine(size: int, **options: Any) -> nn.Module:
    """The CNN with every pixel a patch, reordered after the second pool."""
    return pr_cnn(size, **{"grid": "pixels", "place": "pool", **options})


def si_cnn(size: int, *, identity: bool = False) -> nn.Module:
    """The CNN with six rotated copies of each filter and their maximum at every position.

    With `identity` the filter as it is is among them: the angles are 18 degrees further (`ANGLES_WITH_IDENTITY`).
    """
    kind = partial(RotationConv2d, angles=ANGLES_WITH_IDENTITY) if identity else RotationConv2d
    return _network(size, first=kind, second=kind)


def st_cnn(size: int, *, transform: str = "projective") -> nn.Module:
    """The CNN behind a spatial transformer, by default the projective one that the paper compares with."""
    transformer = SpatialTransformer(Localisation(1, size), transform=transform)
    return nn.Sequential(OrderedDict(transformer=transformer, cnn=_network(size, first=ThinConv2d)))


def st_cnn_affine(size: int) -> nn.Module:
    """The CNN behind an affine spatial transformer."""
    return st_cnn(size, transform="affine")


def cnn_blur(size: int) -> nn.Module:
    """The CNN with pools that blur before they subsample (Zhang 2019)."""
    return _network(size, pooled=_blurred)


def cnn_gap(size: int) -> nn.Module:
    """The CNN with global average pooling instead of its second pool."""
    return _global(size, nn.AdaptiveAvgPool2d(1))


def cnn_gmp(size: int) -> nn.Module:
    """The CNN with global max pooling instead of its second pool."""
    return _global(size, nn.AdaptiveMaxPool2d(1))


def c4_cnn(size: int, *, layer: str | None = None, place: str = "orientation", first: str | None = None) -> nn.Module:
    """Both convolutions equivariant to quarter turns (Cohen and Welling 2016), then the maximum over orientations.

    `layer` names another layer: `orient` replaces the maximum over orientations, so that the classifier sees them all;
    others come after the second pool or at the input (`place`). `first` is one more at the input, such as `align`;
    behind one that cuts, as `align:size=28`, the network is made for the smaller image.
    """
    if place not in GROUP_PLACES:
        raise ValueError(f"place ({place!r}) must be one of {', '.join(GROUP_PLACES)}")
    at_input: dict[str, nn.Module] = {}
    if first is not None:
        at_input["first"], _, size = inserted_layer(
            first, side=size, place="input", before_convolutions=True, any_side=True
        )
        _check_size(first, size)
    end = _sides(size)[1]
    parts: dict[str, dict[str, nn.Module]] = {
        "orientation": {"orientation": OrientationMax()},
        "pool": {},
        "input": at_input,
    }
    length = end * end  # values of each channel that go to the classifier
    if layer is not None and place == "orientation":
        inserted = create_layer(layer)
        if not isinstance(inserted, OrientationReorder) or inserted.options.orientations != ORIENTATIONS:
            raise ValueError(f"layer ({layer!r}) must be orient, of 4 orientations, at place orientation")
        parts["orientation"], length = {"orientation": inserted}, ORIENTATIONS * end * end
    elif layer is not None:
        early = place == "input"
        inserted, found, _ = inserted_layer(layer, side=size if early else end, place=place, before_convolutions=early)
        parts[place] = {**parts[place], "reorder": inserted}
        length = length if found is None else found

    def count(width: int) -> int:
        return 82 * width + (ORIENTATIONS * 49 * width + 1) * width + (length * width + 1) * CLASSES

    width = _nearest(count, size, multiple=4)  # 132 maps cost 1.6 times as much as 128
    layers = OrderedDict[str, nn.Module](
        **parts["input"],
        conv1=GroupLift2d(1, width, 9),
        pool1=_pool(),
        relu1=nn.ReLU(),
        conv2=GroupConv2d(width, width, 7),
        **parts["orientation"],
        pool2=_pool(),
        relu2=nn.ReLU(),
        **parts["pool"],
        flatten=nn.Flatten(),
        classifier=nn.Linear(width * length, CLASSES),
    )
    return nn.Sequential(layers)


def unrolled_cnn(size: int, *, layer: str | None = None, any_turn: bool = False, halve: bool = True) -> nn.Module:
    """The CNN on the unrolled image, with circular padding and one classifier for all rotations.

    `layer` sets how to unroll (see `Unroll`): by default in 22 rings of 48 directions about the middle, or on a larger
    canvas about the centroid. `any_turn` makes the classifier blind to rotations (see `RotationClassifier`). The second
    pool halves the directions only; with halve=False there is none, so that the classifier tells twice as many
    rotations apart, with 7,800 parameters more.
    """
    layer = layer or (UNROLLED if size == SIZES["mnist"] else f"{UNROLLED},about=centroid")
    unroll = create_layer(layer)
    if not isinstance(unroll, Unroll):
        raise ValueError(f"layer ({layer!r}) must be unroll, such as {UNROLLED}")
    radii, angles, _ = unroll.options.for_maps(size, size)
    rings, turns = (radii - 8 + 1) // 2 - 6, (angles + 1) // 2
    if rings < 1 or turns < 4:
        raise ValueError(f"layer ({layer!r}) gives {radii}x{angles}, the CNN needs 21 radii and 7 angles or more")
    pool: dict[str, nn.Module] = {}
    if halve:
        turns, pool["pool2"] = (turns + 1) // 2, nn.MaxPool2d((1, 2), (1, 2), ceil_mode=True)
    return nn.Sequential(
        OrderedDict(
            reorder=unroll,
            wrap1=CircularPad(4),
            conv1=nn.Conv2d(1, FILTERS, 9),
            **_pooled(1),
            wrap2=CircularPad(3),
            conv2=nn.Conv2d(FILTERS, FILTERS, 7),
            **pool,
            relu2=nn.ReLU(),
            classifier=RotationClassifier(FILTERS * rings, turns, classes=CLASSES, any_turn=any_turn),
        )
    )


MODELS: Mapping[str, Callable[..., nn.Module]] = {
    "fcn": fcn,
    "cnn": cnn,
    "si_cnn": si_cnn,
    "st_cnn": st_cnn,
    "st_cnn_affine": st_cnn_affine,
    "pr_cnn": pr_cnn,
    "pr_cnn_fine": pr_cnn_fine,
    "cnn_gap": cnn_gap,
    "cnn_gmp": cnn_gmp,
    "cnn_blur": cnn_blur,
    "c4_cnn": c4_cnn,
    "unrolled_cnn": unrolled_cnn,
}


def _network(
    size: int,
    *,
    first: Callable[[int, int, int], nn.Module] = nn.Conv2d,
    second: Callable[[int, int, int], nn.Module] = nn.Conv2d,
    pooled: Callable[[int], Mapping[str, nn.Module]] | None = None,
    after: Mapping[str, nn.Module] | None = None,
    length: int | None = None,
) -> nn.Sequential:
    """The CNN with other convolutions, other pools, or other layers between second convolution and classifier.

    `length` is the number of values of each filter that they give; by default a map as large as after the second pool.
    """
    pooled = pooled or _pooled
    length = _sides(size)[1] ** 2 if length is None else length
    return nn.Sequential(
        OrderedDict(
            conv1=first(1, FILTERS, 9),
            **pooled(1),
            conv2=second(FILTERS, FILTERS, 7),
            **(after or pooled(2)),
            flatten=nn.Flatten(),
            classifier=nn.Linear(FILTERS * length, CLASSES),
        )
    )


def _global(size: int, pool: nn.Module) -> nn.Module:
    def count(width: int) -> int:
        return 82 * FILTERS + (49 * FILTERS + 1) * width + (width + 1) * CLASSES

    width = _nearest(count, size)
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, FILTERS, 9),
            pool1=_pool(),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(FILTERS, width, 7),
            relu2=nn.ReLU(),
            pool2=pool,
            flatten=nn.Flatten(),
            classifier=nn.Linear(width, CLASSES),
        )
    )


def _check_size(layer: str | None, side: int) -> None:
    if side < SMALLEST:
        raise ValueError(f"layer ({layer!r}) leaves {side}x{side} pixels, the CNN needs {SMALLEST}x{SMALLEST}")


def _pooled(number: int) -> Mapping[str, nn.Module]:
    return {f"pool{number}": _pool(), f"relu{number}": nn.ReLU()}


def _blurred(number: int) -> Mapping[str, nn.Module]:
    # ReLU first: it does not commute with averages, as it does with the maximum.
    return {f"relu{number}": nn.ReLU(), f"pool{number}": MaxBlurPool2d()}


def _pool() -> nn.Module:
    return nn.MaxPool2d(2, 2, ceil_mode=True)


def _sides(size: int) -> tuple[int, int]:
    """Sides of the maps after the first and the second pool."""
    first = (size - 8 + 1) // 2
    return first, (first - 6 + 1) // 2


def _nearest(count: Callable[[int], int], size: int, multiple: int = 1) -> int:
    """The width whose parameter count comes nearest to that of the CNN for images of this size."""
    wanted = 82 * FILTERS + (49 * FILTERS + 1) * FILTERS + (FILTERS * _sides(size)[1] ** 2 + 1) * CLASSES
    return min(range(multiple, 513, multiple), key=lambda width: abs(count(width) - wanted))
