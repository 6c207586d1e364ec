"""Fixtures of the tests of data."""

from pathlib import Path

import pytest


@pytest.fixture
def empty_cache(tmp_path, monkeypatch) -> Path:
    """The folder of an empty cache, without a mirror or a proxy."""
    monkeypatch.setenv("PATCHREORDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("PATCHREORDER_MIRROR", raising=False)
    return tmp_path / "cache"
