"""The package: its metadata and workflows are valid, and what is built of it installs and works elsewhere."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import patchreorder

ROOT = Path(__file__).parent.parent
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def run(*command: object, **options) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    assert not done.returncode, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_version_is_written_once():
    assert 'dynamic = ["version"]' in PYPROJECT
    assert 'attr = "patchreorder.__version__"' in PYPROJECT
    for name in ("pyproject.toml", "setup.py", "CITATION.cff"):
        assert patchreorder.__version__ not in (ROOT / name).read_text(encoding="utf-8"), name


def test_every_dependency_is_pinned():
    named = PYPROJECT.split("\ndependencies = [")[1].split("[project.urls]")[0]
    needed = {name.lower() for name in re.findall(r'"([\w-]+)(?:\[\w+\])?>=\d', named)}
    assert {"torch", "twine", "faiss-cpu"} <= needed
    pinned = re.findall(r"^([\w-]+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert not needed - {name.lower() for name in pinned}


@pytest.mark.parametrize("file", [ROOT / "CITATION.cff", *WORKFLOWS], ids=lambda file: file.name)
def test_what_others_read_is_valid(file):
    schema = "github-workflows" if file in WORKFLOWS else "citation-file-format"
    run(sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", file)


def test_the_workflows_call_what_is_here():
    text = "".join(file.read_text(encoding="utf-8") for file in WORKFLOWS)
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    called = re.findall(r"- run: make ([a-z-]+)", text)
    assert "test" in called
    assert set(called) <= set(targets)
    assert re.findall(r"\{project\}/(\S+)", PYPROJECT) == [".ci/smoke.py"]
    assert (ROOT / ".ci" / "smoke.py").exists()
    assert all(re.fullmatch(r"[0-9a-f]{40}", commit) for commit in re.findall(r"uses: \S+@(\S+)", text))


def test_the_hooks_are_valid():
    run(sys.executable, "-m", "pre_commit", "validate-config", ROOT / ".pre-commit-config.yaml")


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the source distribution and the wheel that is built of it."""
    folder = tmp_path_factory.mktemp("dist")
    source = folder / "source"
    kept = ("src", "LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "MANIFEST.in", "pyproject.toml", "setup.py")
    for name in kept:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        source.mkdir(exist_ok=True)
        copy(ROOT / name, source / name)
    for kernel in source.rglob("_kernel_*"):
        kernel.unlink()  # else a failed build would go unnoticed
    run(sys.executable, "-m", "build", "--outdir", folder, source, env=os.environ | {"PYTHONPATH": ""})
    return folder


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory) -> Path:
    """The Python of a new environment."""
    folder = tmp_path_factory.mktemp("elsewhere")
    run(sys.executable, "-m", "venv", folder)
    return folder / "bin" / "python"


def install(python: Path, what: Path, *options: str, **env: str) -> None:
    constraints = ["-c", ROOT / "constraints.txt"]
    run(python, "-m", "pip", "install", "--quiet", *constraints, *options, what, env=os.environ | env)


def smoke(python: Path, option: str) -> str:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return run(python, ROOT / ".ci" / "smoke.py", option, cwd=python.parent, env=env)


@pytest.mark.slow
def test_the_distributions_are_complete(built):
    (sdist,), (wheel,) = built.glob("*.tar.gz"), built.glob("*.whl")
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
    with tarfile.open(sdist) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    assert {"CHANGELOG.md", "CITATION.cff", "src/patchreorder/operator/native/energy.hpp"} <= names
    assert not [name for name in names if name.startswith("tests")]
    assert "-cp310-abi3-" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        files = {info.filename: info.file_size for info in archive.infolist()}
    kernels = [size for name, size in files.items() if "/_kernel_" in name]
    assert kernels, "no kernel in the wheel: is there a C++ compiler?"
    assert max(kernels) < 600_000, "not stripped"
    data = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*") if path.is_file()}
    data = {name for name in data if "__pycache__" not in name and "_kernel_" not in name and ".egg-info" not in name}
    assert not data - set(files)


@pytest.mark.slow
def test_the_wheel_works_in_a_new_environment(built, elsewhere):
    (wheel,) = built.glob("*.whl")
    install(elsewhere, wheel)
    assert "kernel: none" not in smoke(elsewhere, "--kernel")


@pytest.mark.slow
def test_the_source_works_without_a_compiler(built, elsewhere):
    (sdist,) = built.glob("*.tar.gz")
    install(elsewhere, sdist, "--force-reinstall", "--no-deps", "--no-cache-dir", CC="/bin/false", CXX="/bin/false")
    if "torch" not in run(elsewhere, "-m", "pip", "list"):  # if this test runs alone
        install(elsewhere, sdist, CC="/bin/false", CXX="/bin/false")
    assert "kernel: none" in smoke(elsewhere, "--no-kernel")
