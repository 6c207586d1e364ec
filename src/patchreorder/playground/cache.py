"""A cache of the most recently used values."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Cache(Generic[K, V]):
    """The `size` values used last, by key. Safe to use from several threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def __getitem__(self, key: K) -> V:
        with self._lock:
            self._values.move_to_end(key)
            return self._values[key]

    def get(self, key: K, make: Callable[[], V]) -> V:
        """Return the cached value, or call `make` and cache what it returns."""
        try:
            return self[key]
        except KeyError:
            value = make()  # without the lock: it may take seconds
        with self._lock:
            self._values[key] = value
            while len(self._values) > self._size:
                self._values.popitem(last=False)
        return value
