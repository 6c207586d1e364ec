"""The command line: its help, what it imports, and how it fails."""

import re
import subprocess
import sys

import pytest

import patchreorder
from patchreorder import __main__
from patchreorder.__main__ import COMMANDS, main, summary


def test_version_and_help_do_not_import_torch():
    calls = [["--version"], ["--help"], *([name, "--help"] for name in COMMANDS)]
    lines = ["from patchreorder.__main__ import main"]
    for call in calls:
        lines += ["try:", f"    main({call})", "except SystemExit as end:", "    assert not end.code"]
    lines.append("import sys; print('loaded:', *sys.modules)")
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.rsplit("loaded:", 1)[1].split())
    assert "patchreorder.commands.demo" in loaded
    assert not {"torch", "matplotlib"} & loaded


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"patchreorder {patchreorder.__version__}\n"


def test_help_lists_every_command(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert not end.value.code
    printed = " ".join(re.sub(r"[│\s]+", " ", capsys.readouterr().out).split())
    for name in COMMANDS:
        assert f"{name} {summary(name)}" in printed


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name, capsys):
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert not end.value.code
    printed = " ".join(capsys.readouterr().out.split())
    assert f"usage: patchreorder {name}" in printed
    assert summary(name) in printed


def test_an_unknown_command_is_rejected(capsys):
    with pytest.raises(SystemExit) as end:
        main(["dmeo"])
    assert end.value.code == 2
    assert "dmeo" in capsys.readouterr().err


def raise_in_commands(monkeypatch, error: BaseException) -> None:
    """Make every command raise the error."""

    def load(name, *, listed):
        raise error

    monkeypatch.setattr(__main__, "_load", load)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("grid (1)\nmust be more"), "patchreorder: grid (1) must be more\n"),
        (FileExistsError(17, "File exists", "x/y"), "patchreorder: x/y: File exists\n"),
        (FileNotFoundError(2, "No such file", "\x1b[31m\x07"), "patchreorder:  [31m : No such file\n"),
        (ImportError("pip install it"), "patchreorder: pip install it\n"),
        (OSError(), "patchreorder: OSError\n"),
    ],
)
def test_expected_errors_are_one_line(monkeypatch, capsys, error, line):
    raise_in_commands(monkeypatch, error)
    assert main(["info"]) == 2
    assert capsys.readouterr() == ("", line)
    monkeypatch.setenv("PATCHREORDER_DEBUG", "1")
    with pytest.raises(type(error)):
        main(["info"])


def test_an_unexpected_error_keeps_its_traceback(monkeypatch):
    raise_in_commands(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        main(["info"])


def test_control_c(monkeypatch):
    raise_in_commands(monkeypatch, KeyboardInterrupt())
    assert main(["info"]) == 130


def test_public_names_are_loaded_when_they_are_used():
    code = "import sys, patchreorder; assert 'torch' not in sys.modules; print(patchreorder.create_layer.__module__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "patchreorder.layers.registry\n"
    for name in patchreorder.__all__:
        assert getattr(patchreorder, name).__name__ == name
    assert set(patchreorder.__all__) <= set(dir(patchreorder))
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        patchreorder.missing  # noqa: B018
