"""Settings of the process that make training on CPUs faster; called by commands, never on import."""

from __future__ import annotations

import contextlib
import ctypes

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # of glibc's malloc.h


def keep_freed_memory() -> None:
    """Have glibc keep what is freed: else every large tensor is mapped, cleared and unmapped again at each step."""
    with contextlib.suppress(OSError, AttributeError):  # another C library: nothing to set
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 2**30)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_M_TOP_PAD, 2**28)
