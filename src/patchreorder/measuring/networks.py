"""Classifiers opened by name: of this package, a Python function, torchvision, timm, or an ONNX file."""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from patchreorder.engine.predict import for_inference
from patchreorder.layers.patch_reorder import PatchReorder
from patchreorder.models import FAMILIES, cifar, create_model, mnist, shipped
from patchreorder.models.backbones import BACKBONES, imagenet_classifier, load_network, load_weights
from patchreorder.models.normalise import Normalise
from patchreorder.models.packages import PACKAGES, import_module
from patchreorder.models.saved import read_classifier
from patchreorder.surgery.insertion import insert_after

from .onnx_network import OnnxNetwork

CROP = 256 / 224  # short side of the scaled photograph over the side of its crop, as usual for ImageNet classifiers
FORMS = (
    "a network of ours (such as pr_cnn), a backbone with its ImageNet classifier (efficientnet_lite0), a file that "
    "`patchreorder fit` made, MODULE:FUNCTION that builds an nn.Module, torchvision:NAME, timm:NAME, or an .onnx file"
)


@dataclass(frozen=True)
class OpenedNetwork:
    """A classifier, and the images that it takes."""

    name: str  # as requested
    network: nn.Module | OnnxNetwork  # maps images in [0, 1] to logits
    channels: int  # of the images
    side: int | None  # pixels of the images, None if the network does not say
    crop: float  # short side of the scaled photograph over the side of its crop
    weights: str  # where they come from
    classes: list[str] | None = None  # names of the outputs, None if unknown

    @property
    def reorders(self) -> bool:
        """Whether it has a `PatchReorder` layer; always False for ONNX files, whose graph does not say."""
        layers = self.network.modules() if isinstance(self.network, nn.Module) else ()
        return any(isinstance(layer, PatchReorder) for layer in layers)


def open_network(
    name: str,
    *,
    dataset: str | None = None,
    weights: Path | None = None,
    layer: str | None = None,
    place: str | None = None,
) -> OpenedNetwork:
    """A classifier by name, in eval mode.

    Args:
        name: one of `FORMS`. A module may be in the current folder; its function takes no argument.
        dataset: the images to measure on, such as mnist-t; selects the network and weights of ours that fit them.
        weights: file with weights (.safetensors, .pt, .pth), read without running code. By default ours have the
            shipped weights, a package's network those that the package downloads, a function's those that it sets.
        layer: a reordering layer by name, such as ranked:quantiles=16. A network of ours is created with it and needs
            weights that were trained with it; into other networks it is inserted after the module `place`.
        place: for ours a place as in `create_model`, for others a name as in `named_modules`.

    Raises:
        ValueError: the name or the weights do not fit.
        ImportError: the module or package is missing.
        OSError: a file cannot be opened, or weights cannot be downloaded.
    """
    package, colon, rest = name.partition(":")
    options = {what: value for what, value in (("layer", layer), ("place", place)) if value is not None}
    if name.endswith((".onnx", ".safetensors")):
        if options:
            given = f"{', '.join(options)} ({', '.join(options.values())})"
            raise ValueError(f"{given}: {name} holds a whole network, no layer can be inserted")
        if weights is not None:
            raise ValueError(f"weights ({weights}) cannot be loaded into {name}, which holds its own: leave them out")
        if name.endswith(".onnx"):
            return _open_onnx(name)
        classifier, facts = read_classifier(name)
        crop = facts.short / facts.size
        return OpenedNetwork(name, for_inference(classifier), 3, facts.size, crop, "of the file", list(facts.classes))
    if name in BACKBONES and BACKBONES[name].classes and dataset is None:
        size = BACKBONES[name].size
        model = imagenet_classifier(name, weights=weights)
        origin = "trained on ImageNet" if weights is None else weights.name
        opened = OpenedNetwork(name, for_inference(model), 3, size, (size + 32) / size, origin)
    elif name in BACKBONES and BACKBONES[name].classes:
        raise ValueError(f"model ({name}) classifies photographs as ImageNet's classes: give a folder, not {dataset}")
    elif any(name in family.MODELS for family in FAMILIES.values()):
        opened = _open_ours(name, dataset, weights, options)
    else:
        if len(options) == 1:
            raise ValueError(f"layer ({layer}) and place ({place}): to insert a layer into {name} both are needed")
        if colon and package in PACKAGES:
            opened = _open_package(package, rest, weights)
        elif colon and all(part.isidentifier() for part in (*package.split("."), *rest.split("."))):
            opened = _open_function(package, rest, weights)
        else:
            names = ", ".join(known for family in FAMILIES.values() for known in family.MODELS)
            raise ValueError(f"model ({name!r}) must be {FORMS}; ours are {names}")
        if layer is not None and place is not None:
            assert isinstance(opened.network, nn.Module)
            try:
                opened = replace(opened, network=for_inference(insert_after(opened.network, place, layer)))
            except (TypeError, ValueError, KeyError) as error:
                raise ValueError(f"layer ({layer}) cannot be inserted after {place} of {name}: {error}") from None
    return replace(opened, name=f"{opened.name} ({' at '.join(options.values())})") if options else opened


def distinct_names(opened: Sequence[OpenedNetwork]) -> list[OpenedNetwork]:
    """The networks; those that share a name are told apart by their weights, and those that share these by a number."""
    names = [network.name for network in opened]
    full = [
        f"{network.name} ({network.weights})" if names.count(network.name) > 1 else network.name for network in opened
    ]
    counts = [full[:place].count(name) for place, name in enumerate(full)]
    return [
        replace(network, name=f"{name}, {count + 1}" if count else name)
        for network, name, count in zip(opened, full, counts, strict=True)
    ]


def common_classes(opened: Sequence[OpenedNetwork]) -> list[str] | None:
    """The names of the outputs of all networks that know them; None if none does.

    Raises:
        ValueError: two networks have other classes, or others in another order.
    """
    known = [network for network in opened if network.classes is not None]
    for network in known[1:]:
        if network.classes != known[0].classes:
            raise ValueError(
                f"{known[0].name} and {network.name} have other classes, so that labels cannot fit both: measure them "
                "one at a time, or with --no-labels"
            )
    return known[0].classes if known else None


def _open_ours(name: str, dataset: str | None, weights: Path | None, options: dict[str, Any]) -> OpenedNetwork:
    if options and weights is None:
        raise ValueError(
            f"{', '.join(options)} ({', '.join(options.values())}) of {name} needs --weights FILE, trained with it: "
            "the shipped weights are for the network without it"
        )
    made_for, family = next((usual, family) for usual, family in FAMILIES.items() if name in family.MODELS)
    crop = CROP if made_for == "imagenet" else 1.0
    if family is mnist and dataset in mnist.SIZES and dataset != "mnist":  # plain digits have no weights of their own
        made_for = dataset
    size = mnist.SIZES[made_for] if family is mnist else cifar.SIZE if family is cifar else 224
    model = create_model(name, dataset=made_for, **options)
    if weights is not None:
        load_weights(model, weights, f"{name} for {made_for}")
    else:
        try:
            shipped.load(model, name, made_for)
        except ValueError as error:
            raise ValueError(f"{error}: give --weights FILE, or choose one of these") from None
    origin = f"trained on {made_for}" if weights is None else weights.name
    return OpenedNetwork(name, for_inference(model), 1 if family is mnist else 3, size, crop, origin)


def _open_package(package: str, name: str, weights: Path | None) -> OpenedNetwork:
    model, mean, std, size = load_network(package, name, weights)
    normalise = Normalise(mean, std)

    def hook(model: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (normalise.to(args[0].device)(args[0]), *args[1:])

    model.register_forward_pre_hook(hook)  # a layer in front would change the names of the package's layers
    origin = f"of {package}" if weights is None else weights.name
    return OpenedNetwork(f"{package}:{name}", for_inference(model), 3, size, CROP, origin)


def _open_onnx(name: str) -> OpenedNetwork:
    network = OnnxNetwork(Path(name))
    _, channels, height, width = network.shape
    if height != width:
        raise ValueError(f"{name} takes images of {height}x{width}: only square images can be measured")
    return OpenedNetwork(name, network, channels or 3, height or None, 1.0, "of the file")


def _open_function(module: str, function: str, weights: Path | None) -> OpenedNetwork:
    name = f"{module}:{function}"
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        build: Any = import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(f"model: module {error.name!r} is neither in this folder nor installed") from None
    finally:
        sys.path.remove(here)
    try:
        build = operator.attrgetter(function)(build)
    except AttributeError as error:
        raise ValueError(f"model ({name}): {error}") from None
    try:
        model = build() if callable(build) and not isinstance(build, nn.Module) else build
    except Exception as error:
        raise ValueError(f"model ({name}) is called without arguments, and raises {error!r}") from error
    if not isinstance(model, nn.Module):
        raise ValueError(f"model ({name}) must build an nn.Module, got {type(model).__name__}")
    if weights is not None:
        load_weights(model, weights, name)
    first = next((layer for layer in model.modules() if isinstance(layer, nn.Conv2d)), None)
    origin = "set by the function" if weights is None else weights.name
    return OpenedNetwork(name, for_inference(model), first.in_channels if first else 3, None, 1.0, origin)
