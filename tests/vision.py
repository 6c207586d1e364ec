"""torchvision and timm for tests, which are skipped if they are not installed."""

from types import ModuleType

import pytest

from patchreorder.models.packages import import_package


def torchvision() -> ModuleType:
    return _imported("torchvision")


def timm() -> ModuleType:
    return _imported("timm")


def _imported(name: str) -> ModuleType:
    try:
        return import_package(name)
    except ImportError as error:
        pytest.skip(str(error), allow_module_level=True)
