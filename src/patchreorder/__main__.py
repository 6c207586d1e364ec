"""The command line: `patchreorder COMMAND`, the same as `python -m patchreorder COMMAND`.

Only the command that is asked for is imported, so help and version answer at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module

from tyro.extras import subcommand_cli_from_dict

from patchreorder import __version__

# A command is a function in commands/NAME.py, and this line about it.
COMMANDS = {
    "info": "Say what is installed here and which form of the operator answers.",
    "run": "Train and measure the cells of a table; a finished cell is never trained again.",
    "fit": "Train a classifier on folders of photographs, and compare it with the same network without reordering.",
    "predict": "Name what is on images, with a classifier that `patchreorder fit` made.",
    "measure": "Measure how invariant a network is to rotations and shifts, layer by layer: tables, numbers, a page.",
    "report": "Print the tables of a folder of results and write them, with curves and mistakes, as one HTML page.",
    "shard": "Check the pictures of class folders and write them into shards, which are read faster than many files.",
    "index": "Make an index of the pictures in a folder, or bring it up to date; `search` and `duplicates` ask it.",
    "search": "Find the pictures of an index that are nearest to a picture, or to every picture of a folder.",
    "duplicates": "List groups of pictures that show the same thing, perhaps turned, shifted or from another side.",
    "play": "Open a page that shows reordering at work: digits to turn and shift, three networks, the layer, "
    "your photographs.",
    "demo": "Sort the feature maps of a drawn key, turned and shifted: pictures and numbers, no data needed.",
}
DESCRIPTION = (
    "Rotation and translation invariance for convolutional networks by sorting the patches of a feature map. "
    "`patchreorder COMMAND --help` explains a command; alone, `patchreorder` means `patchreorder info`; "
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
        functions = {name: _load(name) if name == args[0] else _name_only(name) for name in COMMANDS}
        subcommand_cli_from_dict(functions, prog="patchreorder", description=DESCRIPTION, args=args)
    except KeyboardInterrupt:
        return 130
    except (ValueError, OSError, ImportError) as error:
        if os.environ.get("PATCHREORDER_DEBUG") == "1":
            raise
        print(f"patchreorder: {_one_line(error)}", file=sys.stderr)
        return 2
    return 0


def _load(name: str) -> Callable[..., None]:
    return getattr(import_module(f"patchreorder.commands.{name}"), name)


def _name_only(name: str) -> Callable[[], None]:
    """What stands for a command in the list of all."""

    def listed() -> None: ...

    listed.__doc__ = COMMANDS[name]
    return listed


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
