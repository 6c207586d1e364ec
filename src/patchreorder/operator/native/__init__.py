"""The native kernel: choose the build of `kernel.cpp` for this processor, and call it.

The builds are shared libraries with a C interface, one per instruction set, compiled by setup.py where there is a
compiler. The environment variable PATCHREORDER_NATIVE selects one by name ("avx2") or none ("off").
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

MOST_PATCHES = 16  # a side
_BY_PROCESSOR = ("x86_64", "avx2", "avx512")  # as patchreorder_processor() counts
_DTYPES = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2, torch.float64: 3}
_FAILURES = {
    1: MemoryError("patchreorder: out of memory"),
    2: RuntimeError("patchreorder: the kernel refused"),
}


class Kernel(NamedTuple):
    """The library in use or None, the name of its build, and why it was chosen."""

    library: ctypes.CDLL | None
    build: str
    reason: str


def choose(found: dict[str, Path], wanted: str = "") -> Kernel:
    """Load the wanted build, or the best one that this processor can run."""
    if wanted.lower() in ("0", "off", "no"):
        return Kernel(None, "none", f"switched off by PATCHREORDER_NATIVE={wanted}")
    if wanted and wanted not in found:
        there = ", ".join(found) or "none"
        raise ValueError(f"PATCHREORDER_NATIVE ({wanted!r}) is no build of the kernel; there are: {there}")
    if wanted in _BY_PROCESSOR and _BY_PROCESSOR.index(wanted) > _processor(found):
        raise ValueError(f"PATCHREORDER_NATIVE ({wanted!r}) needs more than this processor supports")
    if not found:
        return Kernel(None, "none", "not compiled when the package was installed (no C++ compiler?)")
    try:
        build = wanted or runnable(found)[-1]
        return Kernel(load(found[build]), build, "asked for" if wanted else "the best build for this processor")
    except OSError as error:
        return Kernel(None, "none", f"cannot be loaded: {error}")


def builds() -> dict[str, Path]:
    """The builds of the kernel that are installed, by name."""
    files = sorted(Path(__file__).parent.glob("_kernel_*"))
    return {
        file.name.split(".")[0].removeprefix("_kernel_"): file
        for file in files
        if file.name.endswith(tuple(EXTENSION_SUFFIXES))
    }


def runnable(found: dict[str, Path]) -> list[str]:
    """The names of the builds that this processor can run, the best last."""
    return [name for name in _BY_PROCESSOR[: _processor(found) + 1] if name in found] or list(found)


def _processor(found: dict[str, Path]) -> int:
    """The index in _BY_PROCESSOR of the best build for this processor; the x86_64 build asks it."""
    return ctypes.CDLL(str(found["x86_64"])).patchreorder_processor() if "x86_64" in found else 0


def load(path: Path) -> ctypes.CDLL:
    """Open a build and declare the arguments of its functions."""
    library = ctypes.CDLL(str(path))
    pointer, size, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    library.patchreorder_forward.argtypes = [pointer] * 3 + [number] + [size] * 4 + [number] * 8
    library.patchreorder_permute.argtypes = [pointer] * 3 + [number] + [size] * 4 + [number] * 6
    library.patchreorder_is_order.argtypes = [pointer, size, size]
    library.patchreorder_pose.argtypes = [pointer, size, size, pointer, size, size, pointer, pointer]
    return library


# Chosen once, on import, so that compilers that trace through `fits` see a constant.
KERNEL = choose(builds(), os.environ.get("PATCHREORDER_NATIVE", ""))


def fits(rows: int, columns: int) -> bool:
    """Whether a kernel is loaded and supports this many patches."""
    return rows <= MOST_PATCHES and columns <= MOST_PATCHES and KERNEL.library is not None


def reorder(
    x: Tensor, rows: int, columns: int, levels: int, energy: str, per_channel: bool, descending: bool
) -> tuple[Tensor, Tensor]:
    """Sort the patches of x, (b, c, h, w) on the CPU; return the result and the order."""
    x = _dense(x)
    z, order = empty_maps(x), empty_order(x, rows, columns, per_channel)
    _call(
        "patchreorder_forward", x.data_ptr(), z.data_ptr(), order.data_ptr(), _DTYPES[x.dtype], *x.shape,
        rows, columns, levels, energy == "l1", not per_channel, descending, _is_interleaved(x), torch.get_num_threads(),
    )  # fmt: skip
    return z, order


def is_permutation(order: Tensor) -> bool:
    """Whether the uint8 order of every map contains each patch exactly once."""
    order = order.contiguous()
    maps, patches = order.shape[0] * order.shape[1], order.shape[2] * order.shape[3]
    return KERNEL.library.patchreorder_is_order(order.data_ptr(), maps, patches) == 1  # type: ignore[union-attr]


def permute(x: Tensor, order: Tensor, inverse: bool) -> Tensor:
    """Move the patches of x by a uint8 order, which must be a permutation: the kernel does not check it."""
    x = _dense(x)
    z = empty_maps(x)
    interleaved, joint = _is_interleaved(x), order.shape[1] != x.shape[1]
    layout = torch.channels_last if interleaved and not joint else torch.contiguous_format
    order = order.contiguous(memory_format=layout)
    _call(
        "patchreorder_permute", x.data_ptr(), z.data_ptr(), order.data_ptr(), x.element_size(), *x.shape,
        *order.shape[2:], joint, inverse, interleaved, torch.get_num_threads(),
    )  # fmt: skip
    return z


def pose(image: bytes, size: Sequence[int], box: Sequence[int], matrix: Sequence[float], fill: Sequence[int]) -> bytes:
    """Pillow's `Image.transform` by an affine matrix, bilinear, bit for bit, with a `fill` outside the image.

    Args:
        image: its pixels, four bytes each.
        size, box: width and height, of the image and of the result.
        matrix: the six numbers that take a point of the result to one of the image.
        fill: four bytes.
    """
    posed = ctypes.create_string_buffer(4 * box[0] * box[1])
    _call(
        "patchreorder_pose", image, size[1], size[0], posed, box[1], box[0], (ctypes.c_double * 6)(*matrix), bytes(fill)
    )  # fmt: skip
    return posed.raw


def empty_maps(x: Tensor) -> Tensor:
    """Allocate a result of the kernel: channels_last if x is, else contiguous."""
    if x.is_contiguous() or _is_interleaved(x):
        return torch.empty_like(x)
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def empty_order(x: Tensor, rows: int, columns: int, per_channel: bool) -> Tensor:
    """Allocate the order of x, in the memory layout of x."""
    layout = torch.channels_last if per_channel and _is_interleaved(x) else torch.contiguous_format
    shape = (x.shape[0], x.shape[1] if per_channel else 1, rows, columns)
    return torch.empty(shape, dtype=torch.uint8, device=x.device, memory_format=layout)


def _dense(x: Tensor) -> Tensor:
    x = x.resolve_neg()
    return x if x.is_contiguous() or _is_interleaved(x) else x.contiguous()


def _is_interleaved(x: Tensor) -> bool:
    return not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)


def _call(name: str, *arguments: Any) -> None:
    status = getattr(KERNEL.library, name)(*arguments)
    if status:
        raise _FAILURES[status]
