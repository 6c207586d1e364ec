"""Tables of commands: boxes on a terminal, columns in a pipe."""

import io

from rich.table import Table

from patchreorder.commands.console import PlainInPipes, open_console


def printed(**options) -> str:
    file = io.StringIO()
    table = Table("file", "distance")
    table.add_row("a.jpg", "0.1")
    PlainInPipes(file=file, width=40, **options).print(table)
    return file.getvalue()


def test_a_table_has_a_box_on_a_terminal_only():
    assert [line.rstrip() for line in printed().splitlines()] == ["file   distance", "a.jpg  0.1"]
    assert "┃" in printed(force_terminal=True)


def test_a_pipe_is_wide(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert open_console().width == 160
    monkeypatch.setenv("COLUMNS", "70")
    assert open_console().width == 70


def test_forced_colours_bring_no_boxes_into_a_pipe(monkeypatch, capsys):
    table = Table("file", "distance")
    table.add_row("[red]a.jpg[/]", "0.1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    open_console().print(table)
    printed = capsys.readouterr().out
    assert "┃" not in printed
    assert "\x1b[31m" in printed
