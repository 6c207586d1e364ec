"""torchvision and timm, imported when a network of theirs is named; also where torchvision does not fit torch.

PyPI's torchvision is built for torch with CUDA. Beside a CPU build of torch its compiled operators cannot be loaded,
and its import fails, though no classifier needs them. timm imports torchvision and fails with it.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import torch

PACKAGES = ("timm", "torchvision")  # the core never imports them
MISSING = "operator torchvision::nms does not exist"
# Declared without a computation: detection fails when it calls them, everything else works.
_OPERATORS = ("nms", "qnms")
_declared: list[torch.library.Library] = []  # they exist as long as this object does


def import_package(name: str) -> ModuleType:
    """The package, also if torchvision's operators are missing: these are declared then.

    Raises:
        ImportError: it is not installed, or does not work with this torch; the message says what to do.

    >>> import_package("math")  # doctest: +ELLIPSIS
    <module 'math' ...>
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ImportError(f"networks of {name} need it ({error}): pip install 'patchreorder[vision]'") from None
    except (ImportError, RuntimeError) as error:
        raise _unusable(name, error) from None


def import_module(name: str) -> ModuleType:
    """Any module, also one that imports torchvision where its operators are missing: these are declared then."""
    try:
        return importlib.import_module(name)
    except RuntimeError as error:
        if MISSING not in str(error) or _declared:
            raise
    sys.modules.pop(name, None)
    _declare_operators()
    return importlib.import_module(name)


def remark(name: str) -> str:
    """What does not work in an installed package; empty if all does."""
    try:
        import_package(name)
    except ImportError as error:
        return str(error)
    if _declared and name == "torchvision":
        return "built for another torch: networks that classify work, those that detect do not"
    return ""


def _declare_operators() -> None:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in _OPERATORS:
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(library)
    for module in [module for module in sys.modules if module.partition(".")[0] in PACKAGES]:
        del sys.modules[module]  # half-imported ones would be taken as they are


def _unusable(name: str, error: Exception) -> ImportError:
    return ImportError(
        f"{name} is installed, but does not work with torch {torch.__version__} ({error}): install the build that fits "
        "it (https://pytorch.org/get-started/locally), or name a network of ours, a MODULE:FUNCTION or an .onnx file"
    )
