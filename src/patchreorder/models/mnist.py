"""The networks of Table 1, and what one would pick today, all with nearly the same number of parameters.

The paper's CNN: 9x9 convolution, 2x2 pool, 7x7 convolution, 2x2 pool, classifier; 64 filters each, no padding, pools
round up as Caffe's do (42x42 ends in 6x6). Everything else is a change of it:

- SI-CNN and BlurPool have exactly its parameters, PR-CNN as well: reordering has none.
- ST-CNN adds a localisation network of about 11,000 parameters (5 %) and leaves the CNN as it is.
- FCN, the global pools and the C4 network are of another shape: the width of their last hidden layers is chosen
  so that the count comes nearest to the CNN's on the same images.
- The unrolled CNN has the same filters on rings; its classifier sees as many directions as are left (2.5 % more
  parameters on R, 6 % without the second pool).
- Other layers of the family at a place of PR-CNN (`layer`) keep the convolutions; the classifier gets what they leave
  of a map, so `ranked:quantiles=16` after the pool has 12,800 parameters fewer on 42x42. In the C4 network
  the width follows.

Max-pooling comes before ReLU wherever nothing stands between them: the values are the same, and it is faster.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from patchreorder.data.augmentation import Augment, read_augmentation
from patchreorder.layers.layer import Layer
from patchreorder.layers.orientation_reorder import OrientationReorder
from patchreorder.layers.registry import create_layer
from patchreorder.layers.unroll import Unroll
from patchreorder.operator.functional import PatchReorderOptions

from .blur_pool import MaxBlurPool2d
from .group_conv import GroupConv2d, GroupLift2d, OrientationMax
from .placing import chosen, place_layer
from .rotation_conv import RotationConv2d
from .spatial_transformer import Localisation, SpatialTransformer
from .thin_conv import ThinConv2d
from .turns import TurnClassifier, Wrap

SIZES = {"mnist": 28, "mnist-r": 28, "mnist-t": 42, "mnist-c": 42, "mnist-cr": 42}
SIZES |= {"mnist-r-aug": 28, "mnist-t-aug": 42}
CLASSES = 10
SMALLEST = 21  # images: their second convolution still has a place
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
    size: int,
    *,
    place: str = "relu",
    layer: str | None = None,
    halve: bool = True,
    **reorder: Any,
) -> nn.Module:
    """The CNN with reordering at its second convolution: after the convolution, its ReLU, or the pool (`place`).

    `reorder` are options of `PatchReorder`.
    At "conv1" it stands after the ReLU of the first. `layer` puts another of the family there, or at the input, by name
    (see `create_layer`). Behind an input that is cut, as by `align:size=28`, the CNN is made for what is left. Where a
    layer leaves less than maps, as ranked does, the classifier gets what it leaves, and before the pool it stands
    instead of the pool. With halve=False, at the input only, there is no second pool.
    """
    first, end = _sides(size)
    sides = {"conv": first - 6, "relu": first - 6, "pool": end, "input": size, "conv1": size - 8}
    if place not in PLACES:
        raise ValueError(f"place ({place!r}) must be one of {', '.join(PLACES)}")
    before = place in ("input", "conv1")
    made, length, left = chosen(
        layer,
        PatchReorderOptions(**reorder),
        PatchReorderOptions(),
        side=sides[place],
        place=place,
        before_convolutions=before,
        any_side=place == "input",
    )
    if place == "input":
        _check_left(layer, left)
        fine = (_sides(left)[0] - 6) ** 2
        network = _network(left) if halve else _network(left, after={"relu2": nn.ReLU()}, length=fine)
        return nn.Sequential(OrderedDict([("reorder", made), *network.named_children()]))
    if not halve:
        raise ValueError(f"halve (False) needs place 'input', not {place!r}")
    if place == "conv1":
        first_pool = {"relu1": nn.ReLU(), "reorder": made, "pool1": _pool()}
        return _network(size, pooled=lambda number: first_pool if number == 1 else _pooled(number))
    after: dict[str, dict[str, nn.Module]] = {
        "conv": {"reorder": made, "pool2": _pool(), "relu2": nn.ReLU()},
        # The second ReLU changes no value. Without it the pool would get the classifier's gradient in another memory
        # layout than its maps have, and copy the maps' gradient twice: 2 % of a training step.
        "relu": {"relu2": nn.ReLU(), "reorder": made, "pool2": _pool(), "relu3": nn.ReLU()},
        "pool": {"pool2": _pool(), "relu2": nn.ReLU(), "reorder": made},
    }
    if length is not None:
        after["conv"] = {"reorder": made, "relu2": nn.ReLU()}
        after["relu"] = {"relu2": nn.ReLU(), "reorder": made}
    return _network(size, after=after[place], length=length)


def pr_cnn_fine(size: int, **options: Any) -> nn.Module:
    """The CNN with every pixel a patch, reordered after the second pool."""
    return pr_cnn(size, **{"grid": "pixels", "place": "pool", **options})


def si_cnn(size: int) -> nn.Module:
    """Both convolutions with six rotated copies of each filter, the strongest at every place."""
    return _network(size, first=RotationConv2d, second=RotationConv2d)


def st_cnn(size: int, *, transform: str = "projective") -> nn.Module:
    """The CNN behind a spatial transformer, by default the projective one that the paper compares with."""
    transformer = SpatialTransformer(Localisation(1, size), transform=transform)
    return nn.Sequential(OrderedDict(transformer=transformer, cnn=_network(size, first=ThinConv2d)))


def st_cnn_affine(size: int) -> nn.Module:
    """The CNN behind an affine spatial transformer."""
    return st_cnn(size, transform="affine")


def cnn_blur(size: int) -> nn.Module:
    """The CNN with pools that blur before they skip pixels (Zhang 2019)."""
    return _network(size, pooled=_blurred)


def cnn_gap(size: int) -> nn.Module:
    """The CNN with global average pooling instead of its second pool."""
    return _global(size, nn.AdaptiveAvgPool2d(1))


def cnn_gmp(size: int) -> nn.Module:
    """The CNN with global max pooling instead of its second pool."""
    return _global(size, nn.AdaptiveMaxPool2d(1))


def c4_cnn(size: int, *, layer: str | None = None, place: str = "orientation", first: str | None = None) -> nn.Module:
    """Both convolutions equivariant to quarter turns (Cohen and Welling 2016), the strongest orientation at the end.

    `layer` names one of the family: `orient` stands instead of the maximum over orientations, so that the classifier
    sees them all; the others stand after the second pool or at the input (`place`). `first` puts another one at the
    input as well, such as `align`; behind one that cuts, as `align:size=28`, the network is made for what is left.
    """
    return _turning(size, 4, layer, place, first)


def unrolled_cnn(size: int, *, layer: str | None = None, any_turn: bool = False, halve: bool = True) -> nn.Module:
    """The CNN on the unrolled image, with convolutions that wrap around, and one classifier for all turns.

    `layer` says how to unroll (see `Unroll`), by default in 22 rings of 48 directions about the middle, or on a canvas
    where digits are anywhere about the centroid; `any_turn` forgets how things lie altogether (see `TurnClassifier`).
    The second pool halves the directions only, or with halve=False nothing: twice as many turns are then told apart, by
    7,800 parameters more.
    """
    layer = layer or (UNROLLED if size == SIZES["mnist"] else f"{UNROLLED},about=centroid")
    made = create_layer(layer)
    if not isinstance(made, Unroll):
        raise ValueError(f"layer ({layer!r}) must be unroll, such as {UNROLLED}")
    radii, angles, _ = made.options.for_maps(size, size)
    rings, turns = (radii - 8 + 1) // 2 - 6, (angles + 1) // 2
    if rings < 1 or turns < 4:
        raise ValueError(f"layer ({layer!r}) leaves {radii}x{angles}, the CNN needs 21 radii and 7 angles or more")
    pool: dict[str, nn.Module] = {}
    if halve:
        turns, pool["pool2"] = (turns + 1) // 2, nn.MaxPool2d((1, 2), (1, 2), ceil_mode=True)
    return nn.Sequential(
        OrderedDict(
            reorder=made,
            wrap1=Wrap(4),
            conv1=nn.Conv2d(1, FILTERS, 9),
            **_pooled(1),
            wrap2=Wrap(3),
            conv2=nn.Conv2d(FILTERS, FILTERS, 7),
            **pool,
            relu2=nn.ReLU(),
            classifier=TurnClassifier(FILTERS * rings, turns, classes=CLASSES, any_turn=any_turn),
        )
    )


def _turning(size: int, orientations: int, layer: str | None, place: str, first: str | None) -> nn.Module:
    if place not in GROUP_PLACES:
        raise ValueError(f"place ({place!r}) must be one of {', '.join(GROUP_PLACES)}")
    before: dict[str, nn.Module] = {}
    if first is not None:
        before["first"], _, size = place_layer(first, side=size, place="input", before_convolutions=True, any_side=True)
        _check_left(first, size)
    end = _sides(size)[1]
    strongest = OrientationMax(orientations)
    parts: dict[str, dict[str, nn.Module]] = {"orientation": {"orientation": strongest}, "pool": {}, "input": before}
    numbers = end * end  # of each field that go to the classifier
    if layer is not None and place == "orientation":
        made = create_layer(layer)
        if not isinstance(made, OrientationReorder) or made.orientations != orientations:
            raise ValueError(f"layer ({layer!r}) must be orient, of {orientations} orientations, at place orientation")
        parts["orientation"], numbers = {"orientation": made}, orientations * end * end
    elif layer is not None:
        early = place == "input"
        made, length, _ = place_layer(layer, side=size if early else end, place=place, before_convolutions=early)
        parts[place] = {**parts[place], "reorder": made}
        numbers = numbers if length is None else length

    def count(width: int) -> int:
        return 82 * width + (orientations * 49 * width + 1) * width + (numbers * width + 1) * CLASSES

    width = _nearest(count, size, multiple=16 // orientations)  # 132 maps cost 1.6 times as much as 128
    layers = OrderedDict[str, nn.Module](
        **parts["input"],
        conv1=GroupLift2d(1, width, 9, orientations=orientations),
        pool1=_pool(),
        relu1=nn.ReLU(),
        conv2=GroupConv2d(width, width, 7, orientations=orientations),
        **parts["orientation"],
        pool2=_pool(),
        relu2=nn.ReLU(),
        **parts["pool"],
        flatten=nn.Flatten(),
        classifier=nn.Linear(width * numbers, CLASSES),
    )
    return nn.Sequential(layers)


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

    They leave `length` numbers of each filter; without it a map as large as after the second pool.
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


def _check_left(layer: str | None, left: int) -> None:
    if left < SMALLEST:
        raise ValueError(f"layer ({layer!r}) leaves {left}x{left} pixels, the CNN needs {SMALLEST}x{SMALLEST}")


def _pooled(number: int) -> Mapping[str, nn.Module]:
    return {f"pool{number}": _pool(), f"relu{number}": nn.ReLU()}


def _blurred(number: int) -> Mapping[str, nn.Module]:
    """Here ReLU comes first: an average of what it lets through is not what it lets through of an average."""
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
