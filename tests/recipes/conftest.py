"""The smoke setting of the recipe that a test file names, run once for the file."""

import errno
import socket

import pytest

from patchreorder import recipes
from patchreorder.data import sources
from patchreorder.laboratory.recipe import Recipe
from patchreorder.laboratory.rows import read
from patchreorder.laboratory.run import run
from tests.recipes.every import Smoke


@pytest.fixture
def recipe(request) -> Recipe:
    """`NAME` of the test file."""
    return recipes.load(request.module.NAME)


@pytest.fixture(scope="module")
def smoke(request, tmp_path_factory) -> Smoke:
    """`NAME` of the test file in its smoke setting, with no way to any network or cache."""

    def refuse(*args, **options):
        raise OSError(errno.ENETUNREACH, "a smoke run must not need the network")

    recipe, cache = recipes.load(request.module.NAME), tmp_path_factory.mktemp("cache")
    out = tmp_path_factory.mktemp(recipe.name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATCHREORDER_CACHE", str(cache))
        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(socket, "getaddrinfo", refuse)
        patch.setattr(sources, "fetch", refuse)
        outcome = run(recipe, out=out, setting="smoke")
    assert list(cache.iterdir()) == []
    return Smoke(recipe, out, outcome, read(out / f"{recipe.name}.jsonl").results)
