"""All tests of measuring run with one thread, as in other processes that measure: results have equal bits."""

import pytest


@pytest.fixture(autouse=True)
def single_thread(one_thread):
    pass
