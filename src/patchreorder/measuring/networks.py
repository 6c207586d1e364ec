"""Classifiers by name, to be measured: ours, anybody's module, a package's, an ONNX file's."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from patchreorder.engine.predict import ready
from patchreorder.layers.patch_reorder import PatchReorder
from patchreorder.models import FAMILIES, cifar, create_model, mnist, shipped
from patchreorder.models.alexnet import Normalise
from patchreorder.models.saved import load_classifier
from patchreorder.surgery.insertion import insert_after

from .onnx_network import OnnxNetwork
from .packages import PACKAGES, load_weights, of_package

CROP = 256 / 224  # short side of a scaled photograph over the side of its crop, as ImageNet's classifiers are tested
FORMS = (
    "a network of ours (such as pr_cnn), a file that `patchreorder fit` made, MODULE:FUNCTION that builds an "
    "nn.Module, torchvision:NAME, timm:NAME, or an .onnx file"
)


@dataclass(frozen=True)
class Opened:
    """A classifier, and the images that it takes.

    Args:
        name: as it was asked for.
        network: gives logits for images in [0, 1].
        channels: of the images.
        side: pixels of them, None where the network does not say.
        crop: short side of a scaled picture over the side of the crop that is shown; 1 shows all of a square one.
        weights: where its weights are from, in words.
        classes: names of its answers, None where it does not say.
    """

    name: str
    network: nn.Module | OnnxNetwork
    channels: int
    side: int | None
    crop: float
    weights: str
    classes: list[str] | None = None

    @property
    def reorders(self) -> bool:
        """Whether it has reordering layers; in an ONNX file they cannot be told from others."""
        found = self.network.modules() if isinstance(self.network, nn.Module) else ()
        return any(isinstance(layer, PatchReorder) for layer in found)


def open_network(
    name: str,
    *,
    dataset: str | None = None,
    weights: Path | None = None,
    layer: str | None = None,
    place: str | None = None,
) -> Opened:
    """A classifier by name, ready to answer.

    Args:
        name: one of `FORMS`. A module is looked for in the current folder too; its function takes no argument.
        dataset: the images that it is for, such as mnist-t: which of our networks and weights fit them.
        weights: file with its weights (.safetensors, .pt, .pth), read without running code. Without it ours have the
            shipped ones, a package's those that the package fetches, a module's what its function gives them.
        layer: of the family by name, such as ranked:quantiles=16. Ours are made with it, and need weights that were
            trained with it; into others it is put after the module `place`, and what follows must take what it leaves.
        place: where; of ours a place as in `create_model`, of others a name as of `named_modules`.

    Raises:
        ValueError: the name or the weights do not fit.
        ImportError: the module or package is missing.
        OSError: a file cannot be opened, or weights cannot be fetched.
    """
    package, colon, rest = name.partition(":")
    asked = {what: value for what, value in (("layer", layer), ("place", place)) if value is not None}
    if asked and name.endswith((".onnx", ".safetensors")):
        raise ValueError(
            f"{', '.join(asked)} ({', '.join(asked.values())}): {name} holds a whole network, nothing is put into it"
        )
    if name.endswith(".onnx"):
        if weights is not None:
            raise ValueError(f"weights ({weights}) cannot be put into an ONNX file ({name}): it holds its own")
        return _of_file(name)
    if any(name in family.MODELS for family in FAMILIES.values()):
        return _called(_ours(name, dataset, weights, asked), asked)
    if len(asked) == 1:
        raise ValueError(f"layer ({layer}) and place ({place}): to put a layer into {name} both are needed")
    if colon and package in PACKAGES:
        return _called(_with(_packaged(package, rest, weights), layer, place), asked)
    if name.endswith(".safetensors"):
        if weights is not None:
            raise ValueError(f"weights ({weights}) are for networks without any: {name} holds its own")
        model, classes = load_classifier(name)
        return Opened(name, ready(model), 3, 224, CROP, "of the file", classes)
    if colon and all(part.isidentifier() for part in (*package.split("."), *rest.split("."))):
        return _called(_with(_of_module(package, rest, weights), layer, place), asked)
    names = ", ".join(known for family in FAMILIES.values() for known in family.MODELS)
    raise ValueError(f"model ({name!r}) must be {FORMS}; ours are {names}")


def _called(one: Opened, asked: dict[str, str]) -> Opened:
    """Named with what was put into it."""
    return replace(one, name=f"{one.name} ({' at '.join(asked.values())})") if asked else one


def _with(one: Opened, layer: str | None, place: str | None) -> Opened:
    """With a layer after a module, if one is asked for."""
    if layer is None or place is None:
        return one
    assert isinstance(one.network, nn.Module)
    try:
        return replace(one, network=ready(insert_after(one.network, place, layer)))
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(f"layer ({layer}) cannot be put after {place} of {one.name}: {error}") from None


def _ours(name: str, dataset: str | None, weights: Path | None, asked: dict[str, str]) -> Opened:
    usual, family = next((usual, family) for usual, family in FAMILIES.items() if name in family.MODELS)
    if family is mnist:
        # Digits as they are have no weights of their own: those for turned ones take images of their size.
        made_for = dataset if dataset in mnist.SIZES and dataset != "mnist" else usual
        size = mnist.SIZES[made_for]
    else:
        made_for, size = usual, cifar.SIZE if family is cifar else 224
    options: dict[str, Any] = dict(asked)
    model = create_model(name, dataset=made_for, **options)
    if asked and weights is None:
        raise ValueError(
            f"{', '.join(asked)} ({', '.join(asked.values())}) of {name} needs --weights FILE, trained with it: the "
            "shipped ones are of the network as it is"
        )
    if weights is not None:
        load_weights(model, weights, f"{name} for {made_for}")
    else:
        try:
            shipped.load(model, name, made_for)
        except ValueError as error:
            raise ValueError(f"{error}: give --weights FILE, or choose one of these") from None
    said = f"trained on {made_for}" if weights is None else weights.name
    return Opened(name, ready(model), 1 if family is mnist else 3, size, CROP if usual == "imagenet" else 1.0, said)


def _packaged(package: str, name: str, weights: Path | None) -> Opened:
    model, mean, std, size = of_package(package, name, weights)
    # By a hook and not by a layer before it, so that the names of its layers stay those of the package.
    model.register_forward_pre_hook(_Normalised(Normalise(mean, std)))
    said = f"of {package}" if weights is None else weights.name
    return Opened(f"{package}:{name}", ready(model), 3, size, CROP, said)


class _Normalised:
    def __init__(self, normalise: nn.Module) -> None:
        self.normalise = normalise

    def __call__(self, model: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (self.normalise.to(given[0].device)(given[0]), *given[1:])


def _of_file(name: str) -> Opened:
    network = OnnxNetwork(Path(name))
    _, channels, height, width = network.shape
    if height != width:
        raise ValueError(f"{name} takes images of {height}x{width}: only square ones can be turned about their centre")
    return Opened(name, network, channels or 3, height or None, 1.0, "of the file")


def _of_module(module: str, function: str, weights: Path | None) -> Opened:
    name = f"{module}:{function}"
    build: Any = _imported(module)
    try:
        for part in function.split("."):
            build = getattr(build, part)
    except AttributeError as error:
        raise ValueError(f"model ({name}): {error}") from None
    model = build() if callable(build) and not isinstance(build, nn.Module) else build
    if not isinstance(model, nn.Module):
        raise ValueError(f"model ({name}) must build an nn.Module, got {type(model).__name__}")
    if weights is not None:
        load_weights(model, weights, name)
    first = next((layer for layer in model.modules() if isinstance(layer, nn.Conv2d)), None)
    said = "as the function gives them" if weights is None else weights.name
    return Opened(name, ready(model), first.in_channels if first else 3, None, 1.0, said)


def _imported(module: str) -> Any:
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(f"model: there is no module {error.name!r} here or among those that are installed") from None
    finally:
        sys.path.remove(here)
