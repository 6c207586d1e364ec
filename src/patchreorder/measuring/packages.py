"""Networks of torchvision and timm by name, where these are installed; the core never imports them."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from torch import nn

from patchreorder.data.weights import read_weights
from patchreorder.models.alexnet import MEAN, STD

PACKAGES = ("timm", "torchvision")  # whose networks can be asked for
SIZE = 224  # pixels a side, where a package does not say


class Packaged(NamedTuple):
    """A classifier, and the preprocessing that it was trained with, but for the crop."""

    model: nn.Module
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    size: int


def of_package(package: str, name: str, weights: Path | None) -> Packaged:
    """A classifier of timm or torchvision, with its own trained weights, or with those of a file.

    Raises:
        ValueError: the package has none of that name, or the weights do not fit.
        ImportError: the package is not installed, or does not work with this torch.
        OSError: the weights cannot be opened or fetched.
    """
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
    except OSError as error:
        raise OSError(
            f"the weights of {package}:{name} cannot be fetched: give a file with --weights ({error})"
        ) from None
    if weights is not None:
        load_weights(model, weights, f"{package}:{name}")
    return Packaged(model, mean, std, size)


def load_weights(model: nn.Module, file: Path, name: str) -> None:
    """Put the weights of a file into a model; a ValueError says what does not fit."""
    try:
        model.load_state_dict(read_weights(file))
    except RuntimeError as error:
        raise ValueError(f"{file} does not fit {name}: {' '.join(str(error).split())[:240]}") from None


def _imported(package: str) -> ModuleType | Any:
    try:
        return importlib.import_module(package)
    except (ImportError, RuntimeError) as error:  # built for another torch, it may raise either
        raise ImportError(
            f"networks of {package} need it, working with this torch ({error}): pip install 'patchreorder[vision]'"
        ) from None
