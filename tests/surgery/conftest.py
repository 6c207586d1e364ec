"""Fixtures of the tests of surgery."""

from collections.abc import Callable

import pytest
from torch import Tensor, nn

from patchreorder import patch_reorder


@pytest.fixture
def reorder_by_hand() -> Callable[[nn.Module, str, Tensor], Tensor]:
    """The expected output of a model with pixels reordered after a module, without `insert_after`."""

    def run(model: nn.Module, name: str, x: Tensor) -> Tensor:
        target = model.get_submodule(name)
        plain = target.forward
        target.forward = lambda y: patch_reorder(plain(y), grid="pixels")
        try:
            return model(x)
        finally:
            del target.forward

    return run
