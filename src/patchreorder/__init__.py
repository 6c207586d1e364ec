"""Rotation and translation invariance for convolutional networks by sorting the patches of a feature map by energy."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .advice import advise as advise
    from .functional import patch_reorder as patch_reorder
    from .functional import undo_reorder as undo_reorder
    from .models import create_model as create_model
    from .models.saved import load_classifier as load_classifier
    from .module import PatchReorder as PatchReorder
    from .surgery import insert_after as insert_after
    from .surgery import remove_after as remove_after

_HOMES = {
    "patch_reorder": "functional",
    "undo_reorder": "functional",
    "PatchReorder": "module",
    "advise": "advice",
    "create_model": "models",
    "insert_after": "surgery",
    "load_classifier": "models.saved",
    "remove_after": "surgery",
}
__all__ = [
    "PatchReorder",
    "advise",
    "create_model",
    "insert_after",
    "load_classifier",
    "patch_reorder",
    "remove_after",
    "undo_reorder",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
