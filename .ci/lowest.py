"""Run the fast tests with the lowest versions of pyproject.toml, on every Python from 3.10 to 3.13 that is here.

python .ci/lowest.py             # make test-lowest
python .ci/lowest.py 3.10 3.13   # these only
python .ci/lowest.py 3.11 -- tests/operator tests/layers   # these tests, where there is torch

uv chooses the lowest versions that have wheels for a Python. torch is its CPU build, never gigabytes of CUDA: where no
index has one for a Python, the tests that need no torch run.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
WORK = ROOT / "build" / "lowest"
EXTRAS = [
    "report",
    "export",
    "tensorboard",
    "jpeg",
    "vision",
    "search",
    "duplicates",
    "heif",
    "qdrant",
    "postgres",
    "play",
]
CUDA = re.compile(r"(torch|triton|nvidia-|cuda-)")
TOOLS = ("pytest>=9", "pytest-xdist", "pytest-timeout", "hypothesis", "httpx2")
# Without torch neither tests/conftest.py nor what needs its fixtures.
REPORTS = [
    "comparison",
    "curves",
    "drawing",
    "fitted",
    "fitted_page",
    "line_chart",
    "mark_chart",
    "markdown",
    "measured",
    "measured_files",
]
WITHOUT_TORCH = [f"tests/report/test_{name}.py" for name in REPORTS]
WITHOUT_TORCH += ["tests/test_files.py", "tests/test_untrusted.py", "tests/test_architecture.py"]
WITHOUT_TORCH += ["tests/commands/test_help_text.py", "tests/data/test_formats.py", "tests/search/test_hashes.py"]


def run(*command: object, quiet: bool = False) -> bool:
    env = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    out = subprocess.DEVNULL if quiet else None
    return not subprocess.run([*map(str, command)], cwd=ROOT, env=env, stdout=out, stderr=out).returncode


def lowest(version: str, extras: list[str]) -> list[str]:
    """The lowest versions for a Python, without torch and what its CUDA build needs."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate"]
    command += ["--resolution", "lowest-direct", "--only-binary", ":all:", "--python-version", version]
    command += [word for extra in extras for word in ("--extra", extra)]
    found = subprocess.run([*command, "pyproject.toml"], cwd=ROOT, check=True, capture_output=True, text=True)
    # torchvision and timm would bring a torch that is built for CUDA; beside another torch they only warn.
    return [line for line in found.stdout.splitlines() if re.match(r"\w", line) and not CUDA.match(line)]


def test(version: str, tests: list[str]) -> str:
    """Test on one Python; return what came out in a few words. `tests` are all fast ones by default."""
    interpreter = shutil.which(f"python{version}")
    if not interpreter or not run(interpreter, "--version", quiet=True):
        return "not here"
    folder = WORK / version
    shutil.rmtree(folder, ignore_errors=True)
    pip = [folder / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    torch = re.findall(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))[0]
    build = f"torch=={torch}.0" + ("+cpu" if sys.platform == "linux" else "")
    if not run(interpreter, "-m", "venv", folder):
        return "no environment"
    has_torch = run(*pip, "--no-deps", build, quiet=True)
    chosen = lowest(version, EXTRAS if has_torch else ["report"])
    if not run(*pip, "--no-deps", "--only-binary=:all:", *chosen) or not run(*pip, *TOOLS):
        return "cannot be installed"
    # Old versions warn about newer ones that they use.
    pytest = [folder / "bin" / "python", "-m", "pytest", "-W", "ignore::DeprecationWarning"]
    options = ["-n", "2", "--dist", "loadfile", *tests] if has_torch else ["--noconftest", *WITHOUT_TORCH]
    passed = run(*pytest, *options)
    with_torch = f"with {build}" if has_torch else f"no {build} here; tests without torch"
    return f"{'passed' if passed else 'FAILED'} ({with_torch})"


if __name__ == "__main__":
    versions, tests = sys.argv[1:], []
    if "--" in versions:
        at = versions.index("--")
        versions, tests = versions[:at], versions[at + 1 :]
    results = {version: test(version, tests) for version in versions or ("3.10", "3.11", "3.12", "3.13")}
    for version, result in results.items():
        print(f"Python {version}: {result}")
    sys.exit(any("passed" not in result and result != "not here" for result in results.values()))
