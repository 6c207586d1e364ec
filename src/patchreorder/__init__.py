"""Rotation and translation invariance for convolutional networks by sorting the patches of a feature map by energy.

The public names are imported when they are first used, so that `import patchreorder` is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .classifier.classifier import load_classifier as load_classifier
    from .layers.orientation_reorder import OrientationReorder as OrientationReorder
    from .layers.orientation_reorder import reorder_orientations as reorder_orientations
    from .layers.patch_reorder import PatchReorder as PatchReorder
    from .layers.pose_align import PoseAlign as PoseAlign
    from .layers.pose_align import align_pose as align_pose
    from .layers.ranked_pool import RankedPool as RankedPool
    from .layers.ranked_pool import ranked_pool as ranked_pool
    from .layers.registry import create_layer as create_layer
    from .layers.shift_align import ShiftAlign as ShiftAlign
    from .layers.shift_align import align_shift as align_shift
    from .layers.unroll import Unroll as Unroll
    from .layers.unroll import unroll as unroll
    from .models import create_model as create_model
    from .operator.functional import patch_reorder as patch_reorder
    from .operator.functional import undo_reorder as undo_reorder
    from .surgery.advice import advise as advise
    from .surgery.insertion import insert_after as insert_after
    from .surgery.insertion import remove_after as remove_after

_MODULES = {
    name: module
    for module, names in {
        "layers.orientation_reorder": ("OrientationReorder", "reorder_orientations"),
        "layers.patch_reorder": ("PatchReorder",),
        "layers.pose_align": ("PoseAlign", "align_pose"),
        "layers.ranked_pool": ("RankedPool", "ranked_pool"),
        "layers.registry": ("create_layer",),
        "layers.shift_align": ("ShiftAlign", "align_shift"),
        "layers.unroll": ("Unroll", "unroll"),
        "models": ("create_model",),
        "classifier.classifier": ("load_classifier",),
        "operator.functional": ("patch_reorder", "undo_reorder"),
        "surgery.advice": ("advise",),
        "surgery.insertion": ("insert_after", "remove_after"),
    }.items()
    for name in names
}
__all__ = sorted(_MODULES)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
