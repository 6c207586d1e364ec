"""`PhotoClassifier`: a backbone, pools of some of its layers, and a linear head; what `patchreorder fit` makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .familiarity import Familiarity
from .features import activations
from .pools import create_pool


class Block(NamedTuple):
    """One block of features: a layer of the backbone, its pool (see `create_pool`), and whether roots are taken.

    The signed square root of every value, for activations that are not negative, keeps a few strong ones from deciding.
    """

    layer: str
    pool: str = "gap"
    root: bool = False

    def __str__(self) -> str:
        return f"{self.layer}/{self.pool}" + (" root" if self.root else "")


def normalised(values: Tensor, *, root: bool) -> Tensor:
    """Vectors (..., values) of unit length, of the values or of their signed square roots.

    >>> normalised(torch.tensor([[9.0, -16.0]]), root=True)
    tensor([[ 0.6000, -0.8000]])
    """
    return F.normalize(values.sign() * values.abs().sqrt() if root else values, dim=-1)


class FeatureBlocks(nn.Module):
    """Pooled layers of a backbone, each of unit length for each image.

    Shape:
        images: what the backbone takes; to one (batch, values) for each block.

    Args:
        backbone: the network; it is not copied.
        layers: names of its layers -> modules, as in `named_modules`.
        blocks: what to pool.

    Raises:
        ValueError: there is no such layer or pool.

    >>> maps = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    >>> features = FeatureBlocks(maps, {"all": "0", "largest": "1"}, [Block("all"), Block("largest", "flatten")])
    >>> features(torch.tensor([[[[1.0, 3.0], [-5.0, 0.0]]]]))
    [tensor([[1.]]), tensor([[1.]])]
    """

    def __init__(self, backbone: nn.Module, layers: Mapping[str, str], blocks: Sequence[Block]) -> None:
        super().__init__()
        for block in blocks:
            if block.layer not in layers:
                raise ValueError(f"layer ({block.layer!r}) must be one of {', '.join(layers)}")
        self.backbone = backbone
        self.blocks = tuple(blocks)
        self.modules_of = {block.layer: layers[block.layer] for block in blocks}
        self.pools = nn.ModuleList(create_pool(block.pool) for block in blocks)
        chain = _chain(backbone)
        self.chain = chain if chain and {*self.modules_of.values()} <= {*chain} else None

    def forward(self, images: Tensor) -> list[Tensor]:
        pooled = self.pooled(images)
        return [normalised(values, root=block.root) for block, values in zip(self.blocks, pooled, strict=True)]

    def pooled(self, images: Tensor) -> list[Tensor]:
        """The pools before they are normalised."""
        maps = self.maps(images)
        return [
            (pool(maps[block.layer]) if maps[block.layer].dim() == 4 else maps[block.layer].flatten(1)).float()
            for block, pool in zip(self.blocks, self.pools, strict=True)
        ]

    def widths(self, size: int) -> list[int]:
        """The number of values of each block, for images of size x size pixels."""
        with torch.no_grad():
            return [values.shape[1] for values in self.pooled(torch.zeros(1, 3, size, size))]

    def maps(self, images: Tensor) -> dict[str, Tensor]:
        """The activations of the layers that the blocks need."""
        if self.chain is None:
            names = self.modules_of.values()
            return dict(zip(self.modules_of, activations(self.backbone, images, names=names), strict=True))
        wanted, found = {module: layer for layer, module in self.modules_of.items()}, {}
        for name in self.chain:
            images = self.backbone.get_submodule(name)(images)
            if name in wanted:
                found[wanted[name]] = images
                if len(found) == len(wanted):
                    break
        return found


def _chain(model: nn.Module, prefix: str = "") -> list[str] | None:
    """The names of the modules of nested sequences in the order of their calls; None if it is no sequence."""
    if type(model).forward is not nn.Sequential.forward:
        return None
    names: list[str] = []
    for name, child in model.named_children():
        inner = _chain(child, f"{prefix}{name}.")
        names += [f"{prefix}{name}"] if inner is None else inner
    return names


class PhotoClassifier(nn.Module):
    """Feature blocks, a linear head, and the distance of the last block to the classes.

    Shape:
        images: (batch, 3, size, size) in [0, 1]; to logits (batch, classes), whose softmax is calibrated.

    Args:
        features: what the head reads.
        widths: values of each block.
        classes: number of logits.
        directions: see `Familiarity`.
    """

    def __init__(self, features: FeatureBlocks, *, widths: Sequence[int], classes: int, directions: int) -> None:
        super().__init__()
        self.features = features
        self.head = nn.Linear(sum(widths), classes)
        self.familiarity = Familiarity(classes=classes, values=widths[-1], directions=directions)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.cat(self.features(images), 1))
        return logits

    def judge(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (batch, classes), and how unlike the training photographs the images are (batch,)."""
        blocks = self.features(images)
        return self.head(torch.cat(blocks, 1)), self.familiarity(blocks[-1])
