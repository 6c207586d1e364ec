"""Rotation and translation invariance for convolutional networks by sorting the patches of a feature map by energy."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .advice import advise as advise
    from .alignment import ShiftAlign as ShiftAlign
    from .alignment import align_shift as align_shift
    from .functional import patch_reorder as patch_reorder
    from .functional import undo_reorder as undo_reorder
    from .models import create_model as create_model
    from .models.saved import load_classifier as load_classifier
    from .module import PatchReorder as PatchReorder
    from .named import create_layer as create_layer
    from .orientation import OrientationReorder as OrientationReorder
    from .orientation import reorder_orientations as reorder_orientations
    from .pooling import RankedPool as RankedPool
    from .pooling import ranked_pool as ranked_pool
    from .posing import PoseAlign as PoseAlign
    from .posing import align_pose as align_pose
    from .surgery import insert_after as insert_after
    from .surgery import remove_after as remove_after
    from .unrolling import Unroll as Unroll
    from .unrolling import unroll as unroll

_HOMES = {
    "patch_reorder": "functional",
    "undo_reorder": "functional",
    "OrientationReorder": "orientation",
    "PatchReorder": "module",
    "PoseAlign": "posing",
    "RankedPool": "pooling",
    "ShiftAlign": "alignment",
    "Unroll": "unrolling",
    "advise": "advice",
    "align_pose": "posing",
    "align_shift": "alignment",
    "create_layer": "named",
    "create_model": "models",
    "insert_after": "surgery",
    "load_classifier": "models.saved",
    "ranked_pool": "pooling",
    "remove_after": "surgery",
    "reorder_orientations": "orientation",
    "unroll": "unrolling",
}
__all__ = [
    "OrientationReorder",
    "PatchReorder",
    "PoseAlign",
    "RankedPool",
    "ShiftAlign",
    "Unroll",
    "advise",
    "align_pose",
    "align_shift",
    "create_layer",
    "create_model",
    "insert_after",
    "load_classifier",
    "patch_reorder",
    "ranked_pool",
    "remove_after",
    "reorder_orientations",
    "undo_reorder",
    "unroll",
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
