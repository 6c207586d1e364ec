"""The forms of the operator that tests choose from: plain torch, and every build of the kernel this processor runs."""

import pytest
import torch

from patchreorder import native

BUILDS = native._builds()
LEVEL = native._open(BUILDS["x86_64"]).patchreorder_processor() if "x86_64" in BUILDS else 0
RUNNABLE = [name for name in native._BY_PROCESSOR[: LEVEL + 1] if name in BUILDS] or list(BUILDS)  # best last


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


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
