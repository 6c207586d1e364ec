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
from patchreorder.untrusted import clean

# A command is the function NAME in commands/NAME.py.
COMMANDS = (
    "info", "run", "fit", "predict", "export", "measure", "report", "shard", "index", "search", "duplicates", "play",
    "demo",
)  # fmt: skip
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
        functions = {name: _load(name, listed=name != args[0]) for name in COMMANDS}
        subcommand_cli_from_dict(functions, prog="patchreorder", description=DESCRIPTION, args=args)
    except KeyboardInterrupt:
        return 130
    except (ValueError, OSError, ImportError) as error:
        if os.environ.get("PATCHREORDER_DEBUG") == "1":
            raise
        text = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, OSError) and error.strerror and error.filename is not None:
            text = f"{error.filename}: {error.strerror}"
        print(f"patchreorder: {clean(text)}", file=sys.stderr)
        return 2
    return 0


def summary(name: str) -> str:
    """Return the first line of a command's docstring, without importing the command."""
    source = Path(__file__).with_name("commands") / f"{name}.py"
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return (ast.get_docstring(node) or "").partition("\n")[0]
    raise ImportError(f"{source} has no function {name}")


def _load(name: str, *, listed: bool) -> Callable[..., None]:
    """Return the function of a command, or what stands for it in the list of all."""
    if not listed:
        return getattr(import_module(f"patchreorder.commands.{name}"), name)

    def entry() -> None: ...

    entry.__doc__ = summary(name)
    return entry


if __name__ == "__main__":
    sys.exit(main())
