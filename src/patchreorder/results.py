"""One measured cell as a JSON row, and files of rows that survive a crash. Standard library only.

A folder of results holds, for every recipe, `RECIPE.jsonl` (the rows, one a line, in the order they ended),
`RECIPE.json` (what a reader needs to know about the table: titles, the paper's cells) and perhaps `pictures/`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from patchreorder import __version__


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
        """A name for files about this cell."""
        return f"{self.row}.{self.column}.{self.setting}.{self.split}.{self.seed}.{self.settings}"


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
    line = json.dumps(dataclasses.asdict(result), allow_nan=False) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.recipe}.jsonl"
    with open(path, "a+b") as file, locked(file.fileno()):
        end = file.seek(0, os.SEEK_END)
        if end:
            file.seek(end - 1)
            if file.read(1) != b"\n":  # a crash cut the last line: leave it, start a new one
                line = "\n" + line
        try:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                os.truncate(path, end)  # a full disk must not leave half a row
            raise OSError(error.errno, error.strerror, str(path)) from error


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
        except (ValueError, TypeError, AttributeError):
            damaged.append(number)
            continue
        found.pop(result.cell, None)
        found[result.cell] = result
    return Rows(list(found.values()), damaged)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a crash leaves the old one or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(name)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    with contextlib.suppress(OSError):  # not every system can sync a folder
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextlib.contextmanager
def locked(handle: int) -> Iterator[None]:
    """Hold an open file for this process alone; where the system has no such lock, go on without."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)


def try_lock(path: Path) -> int | None:
    """Take a lock file for as long as the returned handle is open, or None if another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:
        pass
    except OSError:
        os.close(handle)
        return None
    return handle


def digest(settings: Any) -> str:
    """Eight hexadecimal digits that change with anything in the settings (JSON values)."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]


def provenance() -> dict[str, Any]:
    """Where and with what a row is made: commit, versions, machine and date."""
    versions = {"patchreorder": __version__, "python": platform.python_version()}
    for name in ("torch", "numpy"):
        if name in sys.modules:
            versions[name] = str(sys.modules[name].__version__)
    return {
        "commit": commit(),
        "versions": versions,
        "machine": f"{processor()}, {os.cpu_count()} cores, {platform.system()}",
        "finished": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def commit() -> str:
    """The commit of the code at work, with + where files differ from it; the version outside a checkout."""
    source = Path(__file__).resolve().parent

    def git(*args: str) -> str:
        command = ["git", "-C", str(source), *args]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()

    try:
        top = Path(git("rev-parse", "--show-toplevel"))
        if (top / "src" / "patchreorder").resolve() != source:
            return __version__  # installed into somebody else's repository
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "-uno", "src") else "")
    except (OSError, subprocess.SubprocessError):
        return __version__


def processor() -> str:
    """The name of the processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
