"""Descriptors with trained weights, and the vectors they give for data sets and batches of images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from patchreorder.engine import checkpoint
from patchreorder.engine.batches import Dataset, model_input
from patchreorder.engine.distributed import ALONE, World
from patchreorder.engine.predict import for_inference, predict
from patchreorder.measuring.packages import PACKAGES, load_network
from patchreorder.models.backbones import BACKBONES, SIZE
from patchreorder.models.features import LayerActivation, PooledLayers
from patchreorder.models.normalise import Normalise

from .descriptors import (
    DESCRIPTORS,
    LAYERS_BY_NAME,
    Descriptor,
    backbone_of,
    create_descriptor,
    is_descriptor,
    layer_descriptor,
    layer_names,
)

BATCH = 32  # images in a forward pass


def open_descriptor(
    name: str, *, weights: Path | None = None, say: Callable[[str], None] = lambda message: None
) -> Descriptor:
    """A descriptor with trained weights, in evaluation mode.

    Args:
        name: see `patchreorder.search.descriptors`. Or a network of timm or torchvision: `torchvision:resnet18` is the
            input of its last fully connected layer, `torchvision:resnet18@layer4` the output of that module,
            `torchvision:resnet18@layer4/ranked` a pool of it, and `torchvision:resnet18@layer1+layer4/gap` pools
            several modules (see `PooledLayers`).
        weights: file with the weights (.safetensors, .pt, .pth; AlexNet's by torchvision's names), read without running
            code. Without it they are downloaded: ours once, pinned by SHA-256; a package's by that package.
        say: called with a line about each download.

    Raises:
        ValueError: for an unknown name, or weights that do not fit.
        ImportError: the package is not installed, or does not work with this torch.
        OSError: the weights cannot be opened or downloaded.
    """
    package, colon, network = name.partition(":")
    if colon and package in PACKAGES:
        found = _of_package(package, network, weights)
    elif is_descriptor(name):
        found = create_descriptor(name)
        found.load(BACKBONES[backbone_of(name)].weights(file=weights, say=say))
    else:
        others = " or ".join(f"{package}:NAME[@LAYER[/POOL]]" for package in PACKAGES)
        others += ", of several layers @LAYER+LAYER/POOL"
        raise ValueError(f"model ({name!r}) must be one of {', '.join(DESCRIPTORS)}, or {LAYERS_BY_NAME}, or {others}")
    return for_inference(found)


def describe(
    model: nn.Module,
    data: Dataset,
    *,
    world: World = ALONE,
    batch: int = BATCH,
    report: Callable[[int], None] = lambda more: None,
) -> Tensor:
    """The vectors (n, d) of all images in order, float32, on the CPU, the same in every process.

    Images are decoded ahead by `data.workers` processes. NaN stays NaN.

    Args:
        model: a descriptor, or any network that gives vectors, on the world's device.
        data: images (b, 3, 224, 224) in [0, 1], or bytes.
        world: from `distributed.join()`.
        batch: images in a forward pass.
        report: called with the number of images of each batch of this process.
    """
    if batch < 1:
        raise ValueError(f"batch ({batch}) must be 1 or more")
    handle = model.register_forward_hook(lambda module, given, output: report(len(output)))
    try:
        return predict(model, data, world=world, batch=batch)[0]
    finally:
        handle.remove()


@torch.inference_mode()
def describe_batch(model: Descriptor, images: Tensor) -> Tensor:
    """The vectors (b, dimensions) of a batch, float32, on the CPU; raises ValueError if the shape is another one."""
    if not len(images):
        return torch.empty(0, model.dimensions)
    first = next(iter(model.parameters()), None)
    device = torch.device("cpu") if first is None else first.device
    vectors: Tensor = model.eval()(model_input(images, device)).float().cpu()
    if vectors.shape != (len(images), model.dimensions):
        raise ValueError(
            f"the descriptor {model.name} gave {tuple(vectors.shape)}, expected {(len(images), model.dimensions)}"
        )
    return vectors


def fault(vector: Tensor) -> str:
    """Why a vector cannot be compared, or "" if it can."""
    if not vector.isfinite().all():
        return "its features are not finite"
    return "" if vector.any() else "all its features are zero: a blank image"


def fingerprint(model: nn.Module) -> str:
    """Eight hexadecimal digits that change with any weight of the model."""
    return checkpoint.fingerprint({name: value.cpu() for name, value in model.state_dict().items()})


def _of_package(package: str, text: str, weights: Path | None) -> Descriptor:
    """A classifier of timm or torchvision up to its last fully connected layer, or up to the layers that are named."""
    network, _, rest = text.partition("@")
    layer, _, pool = rest.partition("/")
    model, mean, std, size = load_network(package, network, weights)
    parts: list[nn.Module] = [Normalise(mean, std)]
    if size != SIZE:
        parts.append(nn.Upsample((size, size), mode="bilinear"))
    if "+" in layer:
        parts.append(PooledLayers(model, {name: name for name in layer_names(layer)}, pool=pool))
        pool = ""
    elif layer:
        parts.append(LayerActivation(model, layer))
    else:
        connected = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
        if not connected:
            kind = type(model).__name__
            raise ValueError(f"{kind} has no fully connected layer to take the features of: name a @LAYER")
        parts.append(LayerActivation(model, connected[-1], inputs=True))
    return layer_descriptor(f"{package}:{text}", nn.Sequential(*parts), pool=pool or "flatten")
