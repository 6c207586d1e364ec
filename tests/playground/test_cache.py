"""The cache of the most recently used values."""

import pytest

from patchreorder.playground.cache import Cache


def test_the_values_used_last_stay():
    cache = Cache(2)
    assert [cache.get(key, lambda key=key: key.upper()) for key in "abac"] == ["A", "B", "A", "C"]
    assert (cache["a"], cache["c"]) == ("A", "C")
    with pytest.raises(KeyError):
        cache["b"]
    assert cache.get("a", lambda: "other") == "A"


def test_reading_a_value_counts_as_use():
    cache = Cache(2)
    for key in "ab":
        cache.get(key, lambda key=key: key)
    assert cache["a"] == "a"
    cache.get("c", lambda: "c")
    assert cache["a"] == "a"
    with pytest.raises(KeyError):
        cache["b"]
