"""Descriptors of images: a network by name with its trained weights, and what it says about a data set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from patchreorder.data import weights as trained
from patchreorder.engine import checkpoint
from patchreorder.engine.distributed import World
from patchreorder.engine.predict import predict, ready
from patchreorder.engine.train import Dataset
from patchreorder.measuring.packages import PACKAGES, of_package
from patchreorder.models.alexnet import Normalise

from .descriptors import (
    DESCRIPTORS,
    LAYERS_BY_NAME,
    SIZE,
    Descriptor,
    Layer,
    Layers,
    backbone_of,
    create_descriptor,
    is_descriptor,
    layer_descriptor,
    layer_names,
)

_ALONE = World()
BATCH = 32  # images that are computed together


def open_descriptor(
    name: str, *, weights: Path | None = None, say: Callable[[str], None] = lambda message: None
) -> Descriptor:
    """A network that describes images, with trained weights, ready to answer.

    Args:
        name: one of `patchreorder.models.descriptors.DESCRIPTORS`, or a backbone of theirs and a layer of the family by
            name, such as `alexnet/ranked:quantiles=16`; or `timm:NAME` or `torchvision:NAME`, one of that package's
            networks: what goes into its last fully connected layer, or with `@LAYER` what that module says, and with
            `@LAYER/POOL` a pool of it, such as `torchvision:resnet18@layer4/ranked`. `@LAYER+LAYER/POOL` pools several
            layers, such as `alexnet@conv1+conv3+conv5/gap`: see `patchreorder.models.descriptors.Layers`.
        weights: file with the weights (.safetensors, .pt, .pth; AlexNet's by torchvision's names), read without running
            code. Without it they are fetched: ours once, pinned by SHA-256; a package's by that package.
        say: gets a line about what is fetched.

    Raises:
        ValueError: for an unknown name, or weights that do not fit.
        ImportError: the package is not installed, or does not work with this torch.
        OSError: the weights cannot be opened or fetched.
    """
    package, colon, model = name.partition(":")
    if colon and package in PACKAGES:
        found = _of_package(package, model, weights)
    elif is_descriptor(name):
        found = create_descriptor(name)
        ours = trained.alexnet_convolutions if backbone_of(name) == "alexnet" else trained.efficientnet_lite0
        found.load(ours(file=weights, say=say))
    else:
        others = " or ".join(f"{package}:NAME[@LAYER[/POOL]]" for package in PACKAGES)
        others += ", of several layers @LAYER+LAYER/POOL"
        raise ValueError(f"model ({name!r}) must be one of {', '.join(DESCRIPTORS)}, or {LAYERS_BY_NAME}, or {others}")
    return ready(found)


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
    """What a classifier of timm or torchvision says before its last layer, or in layers that are named."""
    name, _, place = asked.partition("@")
    layer, _, pool = place.partition("/")
    model, mean, std, size = of_package(package, name, weights)
    parts: list[nn.Module] = [Normalise(mean, std)]
    if size != SIZE:
        parts.append(nn.Upsample((size, size), mode="bilinear"))
    if "+" in layer:  # each is pooled by itself
        several = Layers(model, {each: each for each in layer_names(layer)}, pool=pool)
        return layer_descriptor(f"{package}:{asked}", nn.Sequential(*parts, several))
    parts.append(Layer(model, layer) if layer else Layer(model, _last_connected(model), given=True))
    return layer_descriptor(f"{package}:{asked}", nn.Sequential(*parts), pool=pool or "flatten")


def _last_connected(model: nn.Module) -> str:
    names = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    if not names:
        raise ValueError(f"{type(model).__name__} has no fully connected layer to take the features of: name a @LAYER")
    return names[-1]
