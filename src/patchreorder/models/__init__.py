"""The networks of the laboratory: `create_model(name, dataset=...)`."""

from __future__ import annotations

from typing import Any

from torch import nn

from . import mnist, shipped

MODELS = tuple(mnist.MODELS)


def create_model(name: str, *, dataset: str = "mnist-r", pretrained: bool = False, **options: Any) -> nn.Module:
    """A network by name, made for a data set, with new weights from torch's generator or with the trained ones we ship.

    Args:
        name: one of `MODELS`.
        dataset: mnist, mnist-r, mnist-t or mnist-rts; decides the size of the images.
        pretrained: load the weights that come with the package (`patchreorder.models.shipped`).
        **options: of that network, see `patchreorder.models.mnist`.

    Raises:
        ValueError: for an unknown name, data set or option, or if no trained weights are shipped for them.

    Example:
        >>> count_parameters(create_model("pr_cnn", dataset="mnist-r"))
        208586
    """
    if name not in MODELS:
        raise ValueError(f"name ({name!r}) must be one of {', '.join(MODELS)}")
    model = mnist.create(name, dataset=dataset, **options)
    if pretrained:
        if options:
            raise ValueError(f"pretrained=True has no weights for other options ({', '.join(options)}): leave them out")
        shipped.load(model, name, dataset)
    return model


def count_parameters(model: nn.Module) -> int:
    """How many numbers a model learns."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
