"""Fixtures of the tests of the engine."""

import pytest
import torch


@pytest.fixture
def double_precision():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
