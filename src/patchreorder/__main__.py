"""The command line: `patchreorder COMMAND`, the same as `python -m patchreorder COMMAND`.

Only the command that runs is imported, so that help and version need no torch.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import functools
import io
import os
import shutil
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import tyro

from patchreorder import __version__
from patchreorder.untrusted import clean

from .commands import help_text

# A command is the function NAME in commands/NAME.py.
GROUPS = {
    "your photographs": ("fit", "predict", "export"),
    "your folders of images": ("index", "search", "duplicates"),
    "your network": ("measure",),
    "the paper": ("run", "report", "shard"),
    "this package": ("info", "demo", "play"),
}
COMMANDS = tuple(name for names in GROUPS.values() for name in names)
ABOUT = (
    "Classify, find and measure images whatever their pose, by sorting the patches of feature maps. `patchreorder` "
    "alone is `patchreorder info`."
)
EXAMPLES = ["patchreorder fit --data photographs", "patchreorder index photos --out photos.index"]
OPTIONS = ("--version", "--help", "--completion")  # without a command
SHELLS = ("bash", "zsh", "fish")


def main(args: list[str] | None = None) -> int:
    """Run one command; return the exit status: 0, 2 after an error, 130 after Ctrl-C, 141 without a reader."""
    args = sys.argv[1:] if args is None else args
    name, *rest = args or ["info"]
    try:
        if name in ("-V", "--version"):
            print(f"patchreorder {__version__}")
        elif name in ("-h", "--help"):
            print(overview(width=_width()))
        elif name == "--completion":
            print(_completion(*rest[:1]))
        elif name not in COMMANDS:
            raise ValueError(_unknown(name))
        elif {"-h", "--help"} & set(rest):
            print(explain(name, rest, width=_width()))
        else:
            _parse(name, _load(name), rest)()
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (ValueError, OSError, ImportError) as error:
        if os.environ.get("PATCHREORDER_DEBUG") == "1":
            raise
        text = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, OSError) and error.strerror and error.filename is not None:
            text = f"{error.filename}: {error.strerror}"
        print(f"patchreorder: {clean(text)}", file=sys.stderr)
        return 2
    return 0


def overview(*, width: int) -> str:
    """The help of the program."""
    groups = {title: {name: summary(name) for name in names} for title, names in GROUPS.items()}
    return help_text.overview(groups, about=ABOUT, examples=EXAMPLES, width=width)


def explain(name: str, args: list[str], *, width: int) -> str:
    """The help of a command; `args` are what stands beside --help."""
    function = _load(name)
    more = getattr(import_module(function.__module__), "help_sections", None)
    return help_text.command_help(name, function, width=width, sections=more(args) if more else None)


def summary(name: str) -> str:
    """Return the first line of a command's docstring, without importing the command."""
    source = Path(__file__).with_name("commands") / f"{name}.py"
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return (ast.get_docstring(node) or "").partition("\n")[0]
    raise ImportError(f"{source} has no function {name}")


def _load(name: str) -> Callable[..., None]:
    return getattr(import_module(f"patchreorder.commands.{name}"), name)


def _parse(name: str, function: Callable[..., None], args: list[str]) -> Callable[[], None]:
    """Return a call of the command with the arguments that the user gave.

    Raises:
        ValueError: an argument is missing, unknown or of the wrong type.
    """

    @functools.wraps(function)
    def later(*values: Any, **options: Any) -> Callable[[], None]:
        return functools.partial(function, *values, **options)

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(later, prog=f"patchreorder {name}", args=args)
    except SystemExit:
        raise ValueError(f"{_without_box(said.getvalue())}; `patchreorder {name} --help` explains it") from None


def _without_box(text: str) -> str:
    """What a box of tyro says, but for its title and its last part, which names --help."""
    lines = [line.strip().strip("│|").strip() for line in text.splitlines()[1:]]
    parts = "\n".join("" if not line.strip("─-+╭╮╰╯") else line for line in lines).split("\n\n")
    said = [" ".join(part.split()).rstrip(".") for part in parts if not part.startswith("For full helptext")]
    return "; ".join(filter(None, said))


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, (*COMMANDS, *OPTIONS), n=1, cutoff=0.5)
    meant = f"did you mean `patchreorder {near[0]}`?" if near else f"there are {', '.join(COMMANDS)}"
    return f"{name} is no command; {meant}"


def _completion(shell: str = "") -> str:
    """A script that completes commands and options in a shell."""
    if shell not in SHELLS:
        raise ValueError(f"--completion ({shell}) must name a shell: {', '.join(SHELLS)}")
    functions = {name: _load(name) for name in COMMANDS}
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        tyro.extras.subcommand_cli_from_dict(
            functions, prog="patchreorder", args=["--tyro-write-completion", shell, "-"]
        )
    return said.getvalue().rstrip()


def _width() -> int:
    """Columns of the terminal, but at most 100: longer lines are hard to read."""
    return min(shutil.get_terminal_size((100, 24)).columns, 100) - 1


if __name__ == "__main__":
    sys.exit(main())
