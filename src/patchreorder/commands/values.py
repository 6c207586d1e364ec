"""What options stand for in help: a folder, a file, and which options are advanced."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Shown:
    """The name of a value in help."""

    name: str


ADVANCED = "advanced"
Advanced = Annotated[T, ADVANCED]  # listed last

File = Annotated[Path, Shown("FILE")]
Folder = Annotated[Path, Shown("FOLDER")]
