"""The command line: its help, what it imports, and how it fails."""

import inspect
import re
import shlex
import shutil
import subprocess
import sys

import pytest

import patchreorder
from patchreorder import __main__
from patchreorder.__main__ import COMMANDS, _load, _parse, main, summary
from patchreorder.commands import help_text


def test_version_and_help_do_not_import_torch():
    calls = [["--version"], ["--help"], *([name, "--help"] for name in COMMANDS)]
    lines = ["from patchreorder.__main__ import main", *(f"assert main({call}) == 0" for call in calls)]
    lines.append("import sys; print('loaded:', *sys.modules)")
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.rsplit("loaded:", 1)[1].split())
    assert "patchreorder.commands.demo" in loaded
    assert not {"torch", "matplotlib"} & loaded


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_version(capsys, option):
    assert main([option]) == 0
    assert capsys.readouterr().out == f"patchreorder {patchreorder.__version__}\n"


def test_help_lists_every_command(capsys):
    assert main(["--help"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for name in COMMANDS:
        assert f"{name} {summary(name)}" in printed


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name, capsys):
    assert main([name, "--help"]) == 0
    text = capsys.readouterr().out
    printed = " ".join(text.split())
    assert f"usage: patchreorder {name}" in printed
    assert summary(name) in printed
    assert max(map(len, text.splitlines())) <= 110
    for parameter in help_text.read_parameters(_load(name)):
        assert parameter.text, f"{parameter.names} is not explained"
        assert not re.search(r"\bPATH\b", parameter.names), f"{parameter.names}: a file or a folder?"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_two_examples_that_parse(name):
    examples = help_text.read_doc(inspect.getdoc(_load(name))).examples
    assert len(examples) == 2
    for example in examples:
        assert len(f"  {example}") <= 80, "wider than a terminal"
        words = shlex.split(example.rpartition("patchreorder ")[2].partition(" > ")[0])
        assert words[0] == name
        call = _parse(name, _load(name), words[1:])
        assert call.func is _load(name)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["dmeo"], "dmeo is no command; did you mean `patchreorder demo`?"),
        (["--versoin"], "--versoin is no command; did you mean `patchreorder --version`?"),
        (["xyzzy"], f"xyzzy is no command; there are {', '.join(COMMANDS)}"),
        (
            ["demo", "--sede", "1"],
            "Unrecognized options: --sede.*Perhaps you meant: --seed .*; `patchreorder demo --help`",
        ),
        (["demo", "--seed", "x"], "Error parsing --seed: .*'x'"),
        (["search", "a.index"], "Missing from patchreorder search: IMAGE an image, or a folder of images"),
        (["--completion", "sh"], r"--completion \(sh\) must name a shell: bash, zsh, fish"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_misspelt_gets_one_line_with_a_suggestion(capsys, args, said):
    assert main(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"patchreorder: .*\n", err)
    assert re.match(rf"patchreorder: {said}" if "(" in said or "*" in said else re.escape(f"patchreorder: {said}"), err)
    assert not set("│╭─╮╰╯") & set(err)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_completion_in_bash(capsys, tmp_path):
    assert main(["--completion", "bash"]) == 0
    script = tmp_path / "complete.sh"
    script.write_text(capsys.readouterr().out)
    code = (
        'source "$0"; f=$(complete -p patchreorder | sed "s/.*-F //; s/ .*//"); '
        'COMP_WORDS=(patchreorder du); COMP_CWORD=1; $f; echo "${COMPREPLY[@]}"; '
        'COMP_WORDS=(patchreorder search --ht); COMP_CWORD=2; $f; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", code, script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["duplicates", "--html"]


def raise_in_commands(monkeypatch, error: BaseException) -> None:
    """Make every command raise the error."""

    def load(name):
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


def test_a_reader_that_has_seen_enough_is_no_error():
    command = [sys.executable, "-m", "patchreorder", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_public_names_are_loaded_when_they_are_used():
    code = "import sys, patchreorder; assert 'torch' not in sys.modules; print(patchreorder.create_layer.__module__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "patchreorder.layers.registry\n"
    for name in patchreorder.__all__:
        assert getattr(patchreorder, name).__name__ == name
    assert set(patchreorder.__all__) <= set(dir(patchreorder))
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        patchreorder.missing  # noqa: B018
