"""Fixtures of all tests."""

import os
import random
import sys

import pytest
import torch
from PIL import Image

from patchreorder.operator import native
from tests.defences import chance
from tests.forms import RUNNABLE


def pytest_configure(config):
    """Choose the seed of the defences; the processes of xdist inherit it."""
    os.environ.setdefault(chance.SEED, str(random.SystemRandom().randrange(10**6)))


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"The seed of tests/defences: {chance.SEED}={os.environ[chance.SEED]}")


SECONDS_OF_SEARCH, SECONDS_OF_BROWSER = 150, 120  # under the limit of all tests, which is in pyproject.toml


def pytest_collection_modifyitems(items):
    """Give tests that search for examples, and those with a browser, a time limit of their own.

    hypothesis has none, and makes a failing example smaller for up to five minutes.
    """
    for item in items:
        if hasattr(getattr(item, "obj", None), "hypothesis"):
            item.add_marker(pytest.mark.timeout(SECONDS_OF_SEARCH))
        elif "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(SECONDS_OF_BROWSER))


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def one_thread():
    """Run with one thread, for `pytestmark = pytest.mark.usefixtures("one_thread")`.

    Processes that tests start have one thread too; with as many here, their results are equal bit for bit.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def use_form(monkeypatch):
    """Call it with "torch" or the name of a build to use that form of the operator in the rest of the test."""
    builds = native.builds()
    loaded = {name: native.load(builds[name]) for name in RUNNABLE}

    def use(name: str) -> None:
        monkeypatch.setattr(native, "KERNEL", native.Kernel(loaded.get(name), name, "chosen by a test"))

    return use


@pytest.fixture(params=["torch", *RUNNABLE])
def form(request, use_form):
    use_form(request.param)
    return request.param


NETWORKS = """
from torch import nn
def build():
    return nn.Sequential(nn.Conv2d(3, 4, 5, stride=3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 10 * 10, 2))
def grey():
    return nn.Sequential(nn.Conv2d(1, 4, 5, stride=3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 10 * 10, 2))
def needy(size):
    return build()
text = lambda: "no network"
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a Python module in the current folder, which builds networks for images of 32x32."""
    (tmp_path / "mine_to_measure.py").write_text(NETWORKS)
    monkeypatch.chdir(tmp_path)
    yield "mine_to_measure"
    sys.modules.pop("mine_to_measure", None)


@pytest.fixture
def class_folders(tmp_path):
    """Two classes of six images, a coloured square on grey; names of classes and files hold HTML."""
    for number in range(6):
        for name, colour in (
            (f"<b>cat/<script>alert({number})<script>.png", (200, 20 * number, 30)),
            (f"dog & co/{number}.png", (20, 40, 40 * number)),
        ):
            image = Image.new("RGB", (40, 32), (90, 90, 90))
            image.paste(colour, (12, 10, 24, 22))
            file = tmp_path / "images" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            image.save(file)
    return tmp_path / "images"
