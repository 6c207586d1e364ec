"""Descriptors: one vector for an image, near the vectors of other images of the same thing in other poses.

A descriptor is a network up to a layer, a pool that makes vectors of its feature maps, the signed square root of every
value and unit length. `create_descriptor` makes one by name, `open_descriptor` gives it trained weights:

- "alexnet/gap": a backbone and one of the pools that it has.
- "efficientnet_lite0/symmetric": the average of the whole image, the same in the eight symmetries of a square.
- "alexnet/ranked:quantiles=16": a backbone and a layer of the family by name (`create_layer`).
- "alexnet@conv1+conv3+conv5/gap": inner layers of a backbone, each pooled, and their vectors joined (`PooledLayers`).
- "torchvision:resnet18" or "timm:resnet18", only with trained weights: the input of the last fully connected layer.
  "torchvision:resnet18@layer4" is the output of that module, "torchvision:resnet18@layer4/ranked" a pool of it, and
  "torchvision:resnet18@layer1+layer4/gap" pools several.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from patchreorder.data.backbone_weights import backbone_weights
from patchreorder.engine import checkpoint
from patchreorder.engine.batches import Dataset, model_input
from patchreorder.engine.distributed import ALONE, World
from patchreorder.engine.predict import for_inference, predict
from patchreorder.layers.patch_reorder import PatchReorder
from patchreorder.layers.registry import LAYER_TYPES
from patchreorder.models.backbones import BACKBONES, SIZE, load_backbone, load_network, truncated
from patchreorder.models.features import LayerActivation, PooledLayers
from patchreorder.models.inserted_layer import inserted_layer
from patchreorder.models.normalise import Normalise
from patchreorder.models.packages import PACKAGES
from patchreorder.models.pools import POOLS, check_pool_fits, create_pool, flattened

from .images import CONTENT, PREPROCESSING

BATCH = 32  # images in a forward pass


SYMMETRIC = "symmetric"
SYMMETRIC_SIZE = 160  # four of these have twice the pixels of one image of 224
TOGETHER = 4  # images whose four rotations are one batch: convolutions are fast from 16 on, and slower in larger ones


class Descriptor(nn.Module):
    """A network that describes images.

    Shape:
        images: (batch, 3, size, size) in [0, 1], size 224 unless `preprocessing` says otherwise; to
        (batch, dimensions), float32, of unit length. An image whose pooled values are all zero has the vector zero.

    Args:
        name: in manifests and tables.
        maps: images to feature maps, or to features.
        pool: feature maps to vectors.
        preprocessing: how images are shown to it.
    """

    def __init__(
        self,
        name: str,
        maps: nn.Module,
        pool: nn.Module,
        *,
        dimensions: int,
        preprocessing: Mapping[str, Any] = PREPROCESSING,
    ) -> None:
        super().__init__()
        self.name, self.dimensions, self.preprocessing = name, dimensions, dict(preprocessing)
        self.maps, self.pool = maps, pool

    def forward(self, images: Tensor) -> Tensor:
        return self.pooled(self.maps(images))

    def pooled(self, maps: Tensor) -> Tensor:
        """Descriptors of feature maps."""
        vectors = self.pool(maps).float()
        return F.normalize(vectors.sign() * vectors.abs().sqrt())

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy the backbone's weights from a dict that holds them all by name; raises ValueError before any copy."""
        backbone = self.maps.model if isinstance(self.maps, PooledLayers | SymmetricAverage) else self.maps
        load_backbone(self.name, backbone, tensors)

    def extra_repr(self) -> str:
        return f"name={self.name!r}, dimensions={self.dimensions}"


class SymmetricAverage(nn.Module):
    """The average feature of an image over all places, the same in the eight symmetries of a square.

    The image is mirrored if its handedness says so, then averaged over its four quarter rotations: half the work of
    eight symmetries, since features of a mirrored image hardly differ.

    Shape:
        images: (batch, 3, size, size) to (batch, channels, 1, 1).
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        images = torch.where((handedness(images) < 0).view(-1, 1, 1, 1), images.flip(3), images)
        return torch.cat([self._average(part) for part in images.split(TOGETHER)])

    def _average(self, images: Tensor) -> Tensor:
        poses = torch.cat([images.rot90(quarter, (2, 3)) for quarter in range(4)])
        means = self.model(poses).mean((2, 3), keepdim=True).unflatten(0, (4, len(images)))
        return means.sort(0).values.mean(0)  # sorted, so that every rotation gives the same sum


def handedness(images: Tensor) -> Tensor:
    """A number for each image that quarter rotations keep and a mirror turns to its negative.

    Shape:
        images: (batch, 3, size, size) to (batch,).
    """
    small = F.adaptive_avg_pool2d(images.double().mean(1, keepdim=True), 8)
    small = small - small.mean((2, 3), keepdim=True)
    pattern = torch.cos(torch.arange(64, dtype=torch.float64, device=images.device) ** 2).view(8, 8)  # no symmetry

    def cubes(shown: Tensor) -> Tensor:
        turned = [(shown.rot90(quarter, (2, 3)) * pattern).sum((1, 2, 3)) ** 3 for quarter in range(4)]
        return torch.stack(turned).sort(0).values.sum(0)

    return cubes(small) - cubes(small.flip(3))


# The pools of each backbone. AlexNet's flatten, pr... and ranked are those of Table 3, with its last pool, a MaxPool2d.
BACKBONE_POOLS: Mapping[str, Mapping[str, Callable[[], nn.Module]]] = {
    "alexnet": {
        "flatten": lambda: flattened(nn.MaxPool2d(3, 2)),
        "pr": lambda: flattened(PatchReorder(grid=2, levels=2), nn.MaxPool2d(3, 2)),
        "pr_grid4": lambda: flattened(PatchReorder(grid=4), nn.MaxPool2d(3, 2)),
        "pr_joint": lambda: flattened(PatchReorder(grid=2, levels=2, per_channel=False), nn.MaxPool2d(3, 2)),
        "ranked": lambda: flattened(nn.MaxPool2d(3, 2), PatchReorder(grid="pixels")),
        **{name: POOLS[name] for name in ("gap", "gem", "rmac", "weighted")},
    },
    **{
        backbone: {name: POOLS[name] for name in ("flatten", "ranked", "gap")}
        for backbone in BACKBONES
        if backbone != "alexnet"
    },
}
DESCRIPTORS = tuple(f"{backbone}/{pool}" for backbone, pools in BACKBONE_POOLS.items() for pool in (*pools, SYMMETRIC))


def backbone_of(name: str) -> str:
    """The backbone in a descriptor's name."""
    return name.partition("/")[0].partition("@")[0]


def open_descriptor(
    name: str, *, weights: Path | None = None, say: Callable[[str], None] = lambda message: None
) -> Descriptor:
    """A descriptor with trained weights, in evaluation mode.

    Args:
        name: see this module.
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
    else:
        found = create_descriptor(name)
        found.load(backbone_weights(backbone_of(name), file=weights, say=say))
    return for_inference(found)


def create_descriptor(name: str) -> Descriptor:
    """A descriptor of a backbone by name (see this module), with new weights.

    Raises:
        ValueError: for an unknown name, or a layer that does not fit the feature maps.

    >>> create_descriptor("alexnet/gap").dimensions, create_descriptor("alexnet/ranked:quantiles=4").dimensions
    (256, 1024)
    >>> create_descriptor("alexnet@conv1+conv5/gap").dimensions
    320
    """
    front, _, pool = name.partition("/")
    kind, at, layers = front.partition("@")
    if name not in DESCRIPTORS and not (kind in BACKBONES and (at or pool.partition(":")[0] in LAYER_TYPES)):
        others = " or ".join(f"{package}:NAME[@LAYER[/POOL]]" for package in PACKAGES)
        raise ValueError(
            f"model ({name!r}) must be one of {', '.join(DESCRIPTORS)}, or BACKBONE/LAYER, a layer by name such as "
            "ranked:quantiles=16, reorder:grid=2 or align, or a pool of several layers, such as "
            f"alexnet@conv1+conv3+conv5/gap, or {others} with trained weights, of several layers @LAYER+LAYER/POOL"
        )
    if name in DESCRIPTORS and pool == SYMMETRIC:
        return Descriptor(
            name,
            SymmetricAverage(BACKBONES[kind].create()),
            nn.Flatten(),
            dimensions=BACKBONES[kind].channels,
            preprocessing={"size": SYMMETRIC_SIZE, "view": CONTENT},
        ).eval()
    if at:
        model, modules = truncated(kind, _layer_names(layers))
        return layer_descriptor(name, PooledLayers(model, modules, pool=pool))
    backbone = BACKBONES[kind]
    if pool in BACKBONE_POOLS[kind]:
        made = BACKBONE_POOLS[kind][pool]()
    else:
        made = flattened(inserted_layer(pool, side=backbone.side, place=f"the maps of {kind}").layer)
    with torch.device("cpu"), torch.no_grad():
        dimensions = made(torch.zeros(1, backbone.channels, backbone.side, backbone.side)).shape[1]
    return Descriptor(name, backbone.create(), made, dimensions=dimensions).eval()


def _of_package(package: str, text: str, weights: Path | None) -> Descriptor:
    """A classifier of timm or torchvision up to its last fully connected layer, or up to the layers that are named."""
    network, _, rest = text.partition("@")
    layer, _, pool = rest.partition("/")
    model, mean, std, size = load_network(package, network, weights)
    parts: list[nn.Module] = [Normalise(mean, std)]
    if size != SIZE:
        parts.append(nn.Upsample((size, size), mode="bilinear"))
    if "+" in layer:
        parts.append(PooledLayers(model, {name: name for name in _layer_names(layer)}, pool=pool))
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


def _layer_names(text: str) -> list[str]:
    """The layers that + joins in a text."""
    names = text.split("+")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"layers ({text!r}) must differ: {name!r} is there {names.count(name)} times")
    return names


def layer_descriptor(name: str, maps: nn.Module, *, pool: str = "flatten") -> Descriptor:
    """Feature maps or features of any network as a descriptor.

    `maps` takes images (b, 3, 224, 224) in [0, 1] to feature maps (b, c, h, w) or features (b, d), as `LayerActivation`
    and `PooledLayers` do. For the pool see `create_pool`; features (b, d) need "flatten".
    """
    made = create_pool(pool)
    with torch.no_grad():
        seen = maps.eval()(torch.zeros(1, 3, SIZE, SIZE))
        check_pool_fits(pool, seen, source=name)
        dimensions = made(seen).shape[1]
    return Descriptor(name, maps, made, dimensions=dimensions).eval()


def describe(
    model: nn.Module,
    data: Dataset,
    *,
    world: World = ALONE,
    batch: int = BATCH,
    report: Callable[[int], None] = lambda more: None,
) -> Tensor:
    """The vectors (n, d) of all images in order, float32, on the CPU, the same in every process.

    The model is a descriptor, or any network that gives vectors, on the world's device. Images are decoded ahead by
    `data.workers` processes. `report` is called with the number of images of each batch of this process.
    """
    if batch < 1:
        raise ValueError(f"batch ({batch}) must be 1 or more")
    with model.register_forward_hook(lambda module, given, output: report(len(output))):
        return predict(model, data, world=world, batch=batch)[0]


@torch.inference_mode()
def describe_batch(model: Descriptor, images: Tensor) -> Tensor:
    """The vectors (b, dimensions) of a batch, float32, on the CPU; raises ValueError if the shape is another one."""
    if not len(images):
        return torch.empty(0, model.dimensions)
    first = next(model.parameters(), None)
    device = torch.device("cpu") if first is None else first.device
    vectors: Tensor = model.eval()(model_input(images, device)).float().cpu()
    if vectors.shape != (expected := (len(images), model.dimensions)):
        raise ValueError(f"the descriptor {model.name} gave {tuple(vectors.shape)}, expected {expected}")
    return vectors


def fault(vector: Tensor) -> str:
    """Why a vector cannot be compared, or "" if it can."""
    if not vector.isfinite().all():
        return "its features are not finite"
    return "" if vector.any() else "all its features are zero: a blank image"


def fingerprint(model: nn.Module) -> str:
    """Eight hexadecimal digits that change with any weight of the model."""
    return checkpoint.fingerprint({name: value.cpu() for name, value in model.state_dict().items()})
