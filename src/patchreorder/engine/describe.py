"""Descriptors of images: a network by name with its trained weights, and what it says about a data set."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from patchreorder.data import weights as trained
from patchreorder.models.alexnet import MEAN, STD, Normalise
from patchreorder.models.descriptors import (
    DESCRIPTORS,
    LAYERS_BY_NAME,
    SIZE,
    Descriptor,
    Layer,
    create_descriptor,
    is_descriptor,
    layer_descriptor,
)

from . import checkpoint
from .distributed import World
from .predict import predict
from .train import Dataset

_ALONE = World()
BATCH = 32  # images that are computed together
OTHERS = ("timm", "torchvision")  # packages whose networks can be asked for


def open_descriptor(
    name: str, *, weights: Path | None = None, say: Callable[[str], None] = lambda message: None
) -> Descriptor:
    """A network that describes images, with trained weights, ready to answer.

    Args:
        name: one of `patchreorder.models.descriptors.DESCRIPTORS`, or a backbone of theirs and a layer of the family by
            name, such as `alexnet/ranked:quantiles=16`; or `timm:NAME` or `torchvision:NAME`, one of that package's
            networks: what goes into its last fully connected layer, or with `@LAYER` what that module says, and with
            `@LAYER/POOL` a pool of it, such as `torchvision:resnet18@layer4/ranked`.
        weights: file with the weights (.safetensors, .pt, .pth; AlexNet's by torchvision's names), read without running
            code. Without it they are fetched: ours once, pinned by SHA-256; a package's by that package.
        say: gets a line about what is fetched.

    Raises:
        ValueError: for an unknown name, or weights that do not fit.
        ImportError: the package is not installed, or does not work with this torch.
        OSError: the weights cannot be opened or fetched.
    """
    package, colon, model = name.partition(":")
    if colon and package in OTHERS:
        found = _of_package(package, model, weights)
    elif is_descriptor(name):
        found = create_descriptor(name)
        ours = trained.alexnet_convolutions if name.startswith("alexnet/") else trained.efficientnet_lite0
        found.load(ours(file=weights, say=say))
    else:
        others = " or ".join(f"{package}:NAME[@LAYER[/POOL]]" for package in OTHERS)
        raise ValueError(f"model ({name!r}) must be one of {', '.join(DESCRIPTORS)}, or {LAYERS_BY_NAME}, or {others}")
    return ready(found)


def ready(model: Descriptor) -> Descriptor:
    """The descriptor for answers only, its kernels in the layout that is fastest."""
    model.requires_grad_(False).eval()
    for tensor in model.parameters():
        if tensor.dim() == 4:
            tensor.data = tensor.data.to(memory_format=torch.channels_last)
    return model


def describe(
    model: Descriptor,
    data: Dataset,
    *,
    world: World = _ALONE,
    batch: int = BATCH,
    report: Callable[[int], None] = lambda more: None,
) -> Tensor:
    """The descriptors (n, d) of all images in order, float32, on the CPU, the same in every process.

    Images are made ahead by `data.workers` processes. What a network says of an image is kept as it is, NaN too.

    Args:
        model: on the world's device.
        data: images (b, 3, 224, 224) from 0 to 1, or bytes.
        world: from `distributed.join()`.
        batch: images that are computed together.
        report: gets how many images more are done by this process.
    """
    if not len(data):
        return torch.empty(0, model.dimensions)
    return answers(model, data, world=world, batch=batch, report=report)


def answers(
    model: nn.Module,
    data: Dataset,
    *,
    world: World = _ALONE,
    batch: int = BATCH,
    report: Callable[[int], None] = lambda more: None,
) -> Tensor:
    """What any network says of all images in order, (n, d); see `describe`."""
    if batch < 1:
        raise ValueError(f"batch ({batch}) must be 1 or more")
    watch = model.register_forward_hook(lambda module, given, answer: report(len(answer)))
    try:
        return predict(model, data, world=world, batch=batch)[0]
    finally:
        watch.remove()


def fingerprint(model: nn.Module) -> str:
    """Eight hexadecimal digits that change with any weight of the model."""
    return checkpoint.fingerprint({name: value.cpu() for name, value in model.state_dict().items()})


# ---- networks of other packages --------------------------------------------------------------------


def _of_package(package: str, asked: str, weights: Path | None) -> Descriptor:
    """A classifier of timm or torchvision, with the preprocessing that it was trained with, but for the crop."""
    name, _, place = asked.partition("@")
    layer, _, pool = place.partition("/")
    module = _imported(package)
    mean, std, size = MEAN, STD, SIZE
    try:
        if package == "timm":
            model = module.create_model(name, pretrained=weights is None)
            config = module.data.resolve_model_data_config(model)
            mean, std, size = tuple(config["mean"]), tuple(config["std"]), config["input_size"][-1]
        else:
            model = module.models.get_model(name, weights="DEFAULT" if weights is None else None)
    except (RuntimeError, KeyError) as error:
        raise ValueError(f"model ({package}:{name}) is none that {package} can make: {error}") from None
    if weights is not None:
        try:
            model.load_state_dict(trained.read_weights(weights))
        except RuntimeError as error:
            raise ValueError(f"{weights} does not fit {package}:{name}: {' '.join(str(error).split())[:240]}") from None
    parts: list[nn.Module] = [Normalise(mean, std)]
    if size != SIZE:
        parts.append(nn.Upsample((size, size), mode="bilinear"))
    parts.append(Layer(model, layer) if layer else Layer(model, _last_connected(model), given=True))
    return layer_descriptor(f"{package}:{asked}", nn.Sequential(*parts), pool=pool or "flatten")


def _last_connected(model: nn.Module) -> str:
    names = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    if not names:
        raise ValueError(f"{type(model).__name__} has no fully connected layer to take the features of: name a @LAYER")
    return names[-1]


def _imported(package: str) -> ModuleType | Any:
    try:
        return importlib.import_module(package)
    except (ImportError, RuntimeError) as error:  # built for another torch, it may raise either
        raise ImportError(
            f"networks of {package} need it, working with this torch ({error}): pip install 'patchreorder[vision]'"
        ) from None
