"""The suite itself always ends, and names the test that kept it waiting."""

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import pytest_collection_modifyitems
from tests.operator import test_functional
from tests.processes import kill_family, run_within, running

CONFIGURATION = Path(__file__).parents[1] / "pyproject.toml"
HANGS = """
import os, signal, time
import pytest

def test_before(): pass

def test_dies():
    os._exit(1)

def test_cannot_be_stopped():
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass

@pytest.fixture(scope="module")
def stuck():
    yield
    test_cannot_be_stopped()

def test_whose_fixture_is_stuck(stuck): pass
"""


def suite(folder: Path, name: str) -> str:
    """What pytest prints about one of the tests above, in a worker process as in `make test`."""
    (folder / "test_hangs.py").write_text(HANGS)
    limits = ["--timeout", "2", "-o", "faulthandler_timeout=4"]
    command = [sys.executable, "-m", "pytest", "-c", str(CONFIGURATION), "--rootdir", str(folder), *limits]
    command += ["-n", "1", "--dist", "loadfile", "-p", "no:cacheprovider", "-k", f"before or {name}", str(folder)]
    with running(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder) as process:
        printed = process.communicate(timeout=100)[0]
        assert process.returncode == 1, printed
    return printed


@pytest.mark.parametrize(
    "name",
    [  # each takes xdist half a minute
        "whose_fixture_is_stuck",
        pytest.param("cannot_be_stopped", marks=pytest.mark.slow),
        pytest.param("dies", marks=pytest.mark.slow),
    ],
)
def test_a_test_that_ends_its_worker_ends_the_suite_and_is_named(tmp_path, name):
    assert f"crashed while running 'test_hangs.py::test_{name}'" in suite(tmp_path, name)


def test_examples_and_browsers_have_limits_of_their_own():
    given, marks = [], {}
    for test, fixtures in (
        (test_functional.test_every_form_equals_the_oracle, ()),
        (len, ("visit", "browser")),
        (len, ("tmp_path",)),
    ):
        marks[len(given)] = []
        given.append(SimpleNamespace(obj=test, fixturenames=fixtures, add_marker=marks[len(given)].append))
    pytest_collection_modifyitems(given)
    assert [[mark.args for mark in own] for own in marks.values()] == [[(150,)], [(120,)], []]


FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(100)
"""


def test_what_a_command_started_ends_with_it(tmp_path):
    with running([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, text=True) as process:
        child = int(process.stdout.readline())
        assert not ends(child, within=0.1)
    assert ends(child, within=10)
    with pytest.raises(AssertionError, match="took longer than 1 seconds"):
        run_within([sys.executable, "-c", "import time; time.sleep(50)"], seconds=1)
    kill_family(child)  # that it is gone is no error


def ends(pid: int, *, within: float) -> bool:
    """Whether a process ends; a zombie has, but its new parent has not asked for it yet."""
    until = time.monotonic() + within
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False
