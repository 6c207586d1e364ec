"""Fixtures of all tests."""

import pytest
import torch

from patchreorder.operator import native
from tests.forms import BUILDS, RUNNABLE


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def one_thread():
    """As in the processes that tests start, and so equal bits: `pytestmark = pytest.mark.usefixtures("one_thread")`."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def use_form(monkeypatch):
    """Call it with "torch" or the name of a build to have that form answer in the rest of the test."""
    opened = {name: native._open(BUILDS[name]) for name in RUNNABLE}

    def use(name: str) -> None:
        monkeypatch.setattr(native, "KERNEL", native.Kernel(opened.get(name), name, "chosen by a test"))

    return use


@pytest.fixture(params=["torch", *RUNNABLE])
def form(request, use_form):
    use_form(request.param)
    return request.param
