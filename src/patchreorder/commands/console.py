"""Where commands print: tables have boxes on a terminal, and plain columns in a pipe or a file."""

from __future__ import annotations

import os
import sys
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

WIDTH_OF_A_PIPE = 160  # columns, unless COLUMNS says otherwise


class PlainInPipes(Console):
    """A console that draws no boxes unless it is a terminal."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does."""
        for table in objects:
            if isinstance(table, Table) and not self.is_terminal:
                table.box, table.pad_edge = None, False
        super().print(*objects, **options)


def print_plain(text: str) -> None:
    """Print text for other programs: UTF-8 whatever the locale, and nothing but the text."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()


def open_console(*, stderr: bool = False) -> Console:
    """A console for a command. FORCE_COLOR brings colours into a pipe, but no boxes and no progress bars."""
    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    colours: Literal["standard", "auto"] = "standard" if os.environ.get("FORCE_COLOR") and not terminal else "auto"
    console = PlainInPipes(highlight=False, stderr=stderr, force_terminal=terminal, color_system=colours)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH_OF_A_PIPE
    return console
