"""torchvision and timm beside a torch that they were not built for."""

import subprocess
import sys

import pytest

from patchreorder.models import packages

# A torchvision as PyPI's is beside a CPU build of torch: its import needs an operator that nothing has registered.
BROKEN = "import torch; torch.library.register_fake('torchvision::nms')(lambda dets, scores, iou_threshold: dets)\n"
PROGRAM = "from patchreorder.models.packages import import_package, remark; "


def run(folder, program: str) -> str:
    """In a process: operators cannot be removed from torch."""
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r}); {PROGRAM}{program}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def write(folder, **sources: str) -> None:
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)


def test_missing_operators_are_declared(tmp_path):
    write(tmp_path, torchvision=BROKEN + "models = 7", timm="import torchvision; data = 8")
    assert run(tmp_path, "print(import_package('timm').data, import_package('torchvision').models)") == "8 7"
    assert run(tmp_path, "print(repr(remark('timm')))") == "''"
    assert "networks that classify work, those that detect do not" in run(tmp_path, "print(remark('torchvision'))")


def test_a_working_package_has_no_remark(tmp_path):
    write(tmp_path, torchvision="")
    assert run(tmp_path, "print(repr(remark('torchvision')))") == "''"


@pytest.mark.parametrize("error", ["RuntimeError('other')", "ImportError('libcudart.so: cannot open')"])
def test_other_failures_are_named_with_what_works(tmp_path, error):
    write(tmp_path, torchvision=f"raise {error}")
    said = run(tmp_path, "print(remark('torchvision'))")
    assert "torchvision is installed, but does not work with torch" in said
    assert error.split("'")[1] in said
    assert "or name a network of ours" in said


def test_a_missing_package_is_to_be_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ImportError, match=r"pip install 'patchreorder\[vision\]'"):
        packages.import_package("torchvision")
