"""One measured cell as a JSON row, and files of rows that survive a crash. Standard library only.

A folder of results holds, for every recipe, `RECIPE.jsonl` (the rows, one a line, in the order they ended),
`RECIPE.json` (what a reader needs to know about the table: titles, the paper's cells) and perhaps `pictures/`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from patchreorder.files import digest, locked, sync_folder
from patchreorder.untrusted import is_count, is_number

LONGEST_NAME = 200  # bytes; file systems have 255, with endings
LONGEST_TEXT = 1000  # characters of a field


class Cell(NamedTuple):
    """What a cell is known by; `settings` is a hash of everything that could change its value."""

    recipe: str
    row: str
    column: str
    setting: str
    split: str
    seed: int
    settings: str

    @property
    def folder(self) -> str:
        """A name for files about this cell; what a --change names may not lead to another folder, nor be too long."""
        name = f"{self.row}.{self.column}.{self.setting}.{self.split}.{self.seed}.{self.settings}"
        name = re.sub(r"[^\w.,=+-]", "_", name)
        short = name.encode()[:LONGEST_NAME].decode(errors="ignore")
        return name if short == name else f"{short}.{digest(self)}"


@dataclass(frozen=True, kw_only=True)
class Result:
    """One measured cell.

    `errors` are the dataset indices of the wrong answers and `answers` what was said instead, so that two rows can be
    compared pairwise later. `curves` are named lists of (x, y) pairs. `seconds` is the time of training, `cpu_seconds`
    the processor time of it over all threads of all processes.
    """

    recipe: str
    row: str
    column: str
    setting: str
    split: str
    seed: int
    settings: str
    metric: str
    value: float
    n: int
    steps: int
    seconds: float
    cpu_seconds: float
    parameters: int
    commit: str
    versions: Mapping[str, str]
    machine: str
    finished: str
    errors: list[int] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    curves: Mapping[str, list[list[float]]] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cell(self) -> Cell:
        return Cell(*(getattr(self, name) for name in Cell._fields))


class Rows(NamedTuple):
    """The rows of a file, and the numbers of lines that are none."""

    results: list[Result]
    damaged: list[int]


def append(folder: Path, result: Result) -> None:
    """Add a row to the recipe's file; it is on the disk when this returns, other processes may append too."""
    if not _is_sound(result):
        raise ValueError(f"result ({result.cell.folder}) has a field of the wrong kind: no reader would take the row")
    line = (json.dumps(dataclasses.asdict(result), allow_nan=False) + "\n").encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.recipe}.jsonl"
    # Without a buffer: what a full disk refuses must not be written after all when the file is closed.
    with open(path, "a+b", buffering=0) as file, locked(file.fileno()):
        end = file.seek(0, os.SEEK_END)
        if end:
            file.seek(end - 1)
            if file.read(1) != b"\n":  # a crash cut the last line: leave it, start a new one
                line = b"\n" + line
        try:
            while line:
                line = line[file.write(line) :]
            os.fsync(file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                file.truncate(end)  # no half a row
            raise OSError(error.errno, error.strerror, str(path)) from error
    if not end:
        sync_folder(folder)


def read(path: Path) -> Rows:
    """The rows of one file, the last one where a cell stands twice; a cut or foreign line is skipped and numbered."""
    found: dict[Cell, Result] = {}
    damaged = []
    names = {f.name for f in dataclasses.fields(Result)}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
            result = Result(**{name: value for name, value in values.items() if name in names})
        except (ValueError, TypeError, AttributeError, RecursionError):
            damaged.append(number)
            continue
        if not _is_sound(result):
            damaged.append(number)
            continue
        found.pop(result.cell, None)
        found[result.cell] = result
    return Rows(list(found.values()), damaged)


def _is_sound(result: Result) -> bool:
    """Whether every field is of its kind and size: a row that anybody may have written must not fail its readers."""
    texts = ("recipe", "row", "column", "setting", "split", "settings", "metric", "commit", "machine", "finished")
    return (
        all(isinstance(text := getattr(result, name), str) and len(text) <= LONGEST_TEXT for name in texts)
        and all(is_count(getattr(result, name)) for name in ("seed", "n", "steps", "parameters"))
        and result.n > 0
        and all(is_number(getattr(result, name)) for name in ("value", "seconds", "cpu_seconds"))
        and all(isinstance(list_, list) and all(map(is_count, list_)) for list_ in (result.errors, result.answers))
        and all(isinstance(getattr(result, name), dict) for name in ("versions", "curves", "details"))
    )
