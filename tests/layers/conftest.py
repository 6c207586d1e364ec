"""Fixtures of the tests of layers."""

import pytest

from tests.forms import RUNNABLE


@pytest.fixture(params=["torch", RUNNABLE[-1]])
def either(request, use_form):
    """Run the test with plain torch and with the best build of the kernel."""
    use_form(request.param)
    return request.param
