"""Networks of torchvision and timm by name, if the package is installed; the core never imports them."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from patchreorder.data.images import MEAN
from patchreorder.data.weights import read_weights
from patchreorder.models.normalise import STD

PACKAGES = ("timm", "torchvision")
SIZE = 224  # pixels a side, if the package does not say


class PackageNetwork(NamedTuple):
    """A classifier with the normalisation and image size that it was trained with."""

    model: nn.Module
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    size: int


def load_network(package: str, name: str, weights: Path | None) -> PackageNetwork:
    """A classifier of timm or torchvision, with the package's trained weights or with those of a file.

    Raises:
        ValueError: the package has no network of that name, or the weights do not fit.
        ImportError: the package is not installed, or does not work with this torch.
        OSError: the weights cannot be opened or downloaded.
    """
    try:
        module: Any = importlib.import_module(package)
    except (ImportError, RuntimeError) as error:  # a package built for another torch raises either
        raise ImportError(
            f"networks of {package} need it, working with this torch ({error}): pip install 'patchreorder[vision]'"
        ) from None
    mean, std, size = MEAN, STD, SIZE
    try:
        if package == "timm":
            model = module.create_model(name, pretrained=weights is None)
            config = module.data.resolve_model_data_config(model)
            mean, std, size = tuple(config["mean"]), tuple(config["std"]), config["input_size"][-1]
        else:
            model = module.models.get_model(name, weights="DEFAULT" if weights is None else None)
    except (RuntimeError, KeyError) as error:
        raise ValueError(f"model ({package}:{name}) cannot be created by {package}: {error}") from None
    except OSError as error:
        raise OSError(
            f"the weights of {package}:{name} cannot be downloaded: give a file with --weights ({error})"
        ) from None
    if weights is not None:
        load_weights(model, weights, f"{package}:{name}")
    return PackageNetwork(model, mean, std, size)


def load_weights(model: nn.Module, file: Path, name: str) -> None:
    """Load the weights of a file into a model; raises ValueError if they do not fit."""
    try:
        model.load_state_dict(read_weights(file))
    except RuntimeError as error:
        raise ValueError(f"{file} does not fit {name}: {' '.join(str(error).split())[:240]}") from None
