"""Networks: those of the tables (`create_model`), their building blocks, and backbones by name.

May use layers, operator, surgery and data (augmentation, weights).
"""

from __future__ import annotations

from typing import Any

from torch import nn

from . import alexnet, cifar, mnist, shipped, tiny

FAMILIES = {"mnist-r": mnist, "imagenet": alexnet, "cifar10": cifar, "tiny": tiny}  # by their default data sets
MODELS = tuple(mnist.MODELS)  # of Table 1; the others are in alexnet, cifar and tiny


def create_model(name: str, *, dataset: str | None = None, pretrained: bool = False, **options: Any) -> nn.Module:
    """A network by name for the images of a data set, with new weights from torch's generator or with shipped ones.

    Args:
        name: one of `MODELS`, of `alexnet.MODELS`, of `cifar.MODELS` or of `tiny.MODELS`.
        dataset: decides the size of the images: mnist, mnist-r or mnist-t for the first; imagenet for
            alexnet...; cifar10 for cifar_...; tiny for tiny_...; by default mnist-r, imagenet, cifar10 or tiny.
        pretrained: load the weights that come with the package (`patchreorder.models.shipped`).
        **options: of that network, see `patchreorder.models.mnist`, `alexnet` (such as variant, classes and width),
            `cifar` and `tiny`. pr_cnn, alexnet_pr, cifar_pr, tiny_pr and c4_cnn take `layer="ranked:quantiles=16"` and
            `place`; networks of `mnist` take `augment="jitter=2,tilt=12"` (see `patchreorder.data.augmentation`).

    Raises:
        ValueError: for an unknown name, data set or option, or if no trained weights are shipped for them.

    >>> count_parameters(create_model("pr_cnn", dataset="mnist-r"))
    208586
    >>> create_model("pr_cnn", dataset="mnist-t", layer="ranked:quantiles=16", place="pool").classifier
    Linear(in_features=1024, out_features=10, bias=True)
    """
    found = [(default, family) for default, family in FAMILIES.items() if name in family.MODELS]
    if not found:
        names = [known for family in FAMILIES.values() for known in family.MODELS]
        raise ValueError(f"name ({name!r}) must be one of {', '.join(names)}")
    default, family = found[0]
    dataset = default if dataset is None else dataset
    model: nn.Module = family.create(name, dataset=dataset, **options)
    if pretrained:
        if options:
            raise ValueError(f"pretrained=True has no weights for other options ({', '.join(options)}): leave them out")
        shipped.load(model, name, dataset)
    return model


def count_parameters(model: nn.Module) -> int:
    """The number of trainable parameters."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
