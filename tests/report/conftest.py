"""Fixtures of the report's tests."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from patchreorder.report import terminal
from patchreorder.report.folder import load
from tests.report_rows import example


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A whole table of made-up rows."""
    return example(tmp_path_factory.mktemp("report") / "rows")


@pytest.fixture(scope="session")
def shown():
    """A function that gives what the terminal shows of a folder."""

    def show(folder: Path) -> str:
        console = Console(file=io.StringIO(), width=200, highlight=False)
        terminal.show(load(folder), console)
        return console.file.getvalue()

    return show
