"""Where commands print: tables have boxes on a terminal, and plain columns in a pipe or a file."""

from __future__ import annotations

import os
from typing import Any

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


def open_console(*, stderr: bool = False) -> Console:
    """A console for a command."""
    console = PlainInPipes(highlight=False, stderr=stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH_OF_A_PIPE
    return console
