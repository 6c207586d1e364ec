"""The command line: `patchreorder COMMAND`, the same as `python -m patchreorder COMMAND`.

Only the command that runs is imported, so that help and version need no torch.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from tyro.extras import subcommand_cli_from_dict

from patchreorder import __version__

# A command is the function NAME in commands/NAME.py.
COMMANDS = (
    "info",
    "run",
    "fit",
    "predict",
    "measure",
    "report",
    "shard",
    "index",
    "search",
    "duplicates",
    "play",
    "demo",
)
DESCRIPTION = (
    "Rotation and translation invariance for convolutional networks by sorting the patches of a feature map. "
    "`patchreorder COMMAND --help` explains a command; `patchreorder` alone is `patchreorder info`; "
    "--version prints the version."
)


def main(args: list[str] | None = None) -> int:
    """Run one command; return the exit status: 0, 2 after an error, 130 after Ctrl-C."""
    args = sys.argv[1:] if args is None else args
    if args == ["--version"]:
        print(f"patchreorder {__version__}")
        return 0
    args = args or ["info"]
    try:
        functions = {name: _load(name) if name == args[0] else _placeholder(name) for name in COMMANDS}
        subcommand_cli_from_dict(functions, prog="patchreorder", description=DESCRIPTION, args=args)
    except KeyboardInterrupt:
        return 130
    except (ValueError, OSError, ImportError) as error:
        if os.environ.get("PATCHREORDER_DEBUG") == "1":
            raise
        print(f"patchreorder: {_one_line(error)}", file=sys.stderr)
        return 2
    return 0


def summary(name: str) -> str:
    """Return the first line of a command's docstring, without importing the command."""
    source = Path(__file__).with_name("commands") / f"{name}.py"
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return (ast.get_docstring(node) or "").partition("\n")[0]
    raise ImportError(f"{source} has no function {name}")


def _load(name: str) -> Callable[..., None]:
    return getattr(import_module(f"patchreorder.commands.{name}"), name)


def _placeholder(name: str) -> Callable[[], None]:
    """Return what stands for a command in the list of all."""

    def listed() -> None: ...

    listed.__doc__ = summary(name)
    return listed


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
