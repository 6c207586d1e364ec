"""`patchreorder info`."""

import os
import re
import subprocess
import sys

import numpy as np

import patchreorder
from patchreorder.__main__ import main
from patchreorder.commands import info
from patchreorder.models import packages
from patchreorder.operator import native


def test_info_is_the_default_and_names_the_build(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(native, "KERNEL", native.Kernel(object(), "vax", "the best build for this processor"))
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert re.search(rf"^patchreorder +{re.escape(patchreorder.__version__)} ", printed, re.MULTILINE)
    assert "native kernel, build vax: the best build for this processor" in printed
    assert "patchreorder demo" in printed


def test_info_explains_why_there_is_no_kernel(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(native, "KERNEL", native.Kernel(None, "none", "switched off by PATCHREORDER_NATIVE=off"))
    assert main(["info"]) == 0
    assert "plain torch; the native kernel is switched off by PATCHREORDER_NATIVE=off" in capsys.readouterr().out


def test_an_unknown_build_is_an_error_of_one_line():
    command = [sys.executable, "-m", "patchreorder", "info"]  # in a process: the build is chosen by the first import
    environment = os.environ | {"PATCHREORDER_NATIVE": "vax"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"patchreorder: PATCHREORDER_NATIVE \('vax'\) is no build .*\n", done.stderr)


def test_info_lists_missing_packages(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(info, "_extras", lambda: {"moon": ["numpy", "moonshine"]})
    assert main(["info"]) == 0
    printed = capsys.readouterr().out
    assert f"numpy {np.__version__}; missing moonshine: pip install 'patchreorder[moon]'" in printed


def test_info_says_what_does_not_work_in_a_package(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(info, "_extras", lambda: {"vision": ["numpy"]})
    monkeypatch.setattr(packages, "PACKAGES", ("numpy",))
    monkeypatch.setattr(packages, "remark", lambda name: "built for another torch")
    assert main(["info"]) == 0
    assert f"numpy {np.__version__} (built for another torch)" in capsys.readouterr().out


def test_extras_are_those_of_the_package():
    extras = info._extras()
    assert "matplotlib" in extras["report"]
    assert not {"torch", "numpy"} & {package for packages in extras.values() for package in packages}
