"""The C library keeps freed memory."""

import ctypes
from types import SimpleNamespace

from patchreorder.engine.memory import keep_freed_memory


def test_sets_three_options_of_glibc(monkeypatch):
    set_ = {}
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=set_.__setitem__))
    keep_freed_memory()
    assert set_ == {-3: 2**30, -1: 2**31 - 1, -2: 2**28}  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_TOP_PAD


def test_another_c_library_is_left_alone(monkeypatch):
    opened = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: opened.append(name) or SimpleNamespace())
    keep_freed_memory()
    assert opened == [None]
