"""One measured cell as a JSON row, and files of rows that survive a crash. Standard library only.

A folder of results holds, for every recipe, `RECIPE.jsonl` (the rows, one a line, in the order they ended),
`RECIPE.json` (what a reader needs to know about the table: titles, the paper's cells) and perhaps `pictures/`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import unicodedata
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
        """A name for files about this cell; what a --change names may not lead to another folder."""
        name = f"{self.row}.{self.column}.{self.setting}.{self.split}.{self.seed}.{self.settings}"
        return re.sub(r"[^\w.,=+-]", "_", name)


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
    """Whether every field is of its kind: a row that anybody may have written must not fail its readers later."""
    texts = ("recipe", "row", "column", "setting", "split", "settings", "metric", "commit", "machine", "finished")
    return (
        all(isinstance(getattr(result, name), str) for name in texts)
        and all(is_count(getattr(result, name)) for name in ("seed", "n", "steps", "parameters"))
        and result.n > 0
        and all(is_number(getattr(result, name)) for name in ("value", "seconds", "cpu_seconds"))
        and all(isinstance(list_, list) and all(map(is_count, list_)) for list_ in (result.errors, result.answers))
        and all(isinstance(getattr(result, name), dict) for name in ("versions", "curves", "details"))
    )


def is_count(value: Any) -> bool:
    """Whether a JSON value is a whole number from 0 on that any reader can hold."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def is_number(value: Any) -> bool:
    """Whether a JSON value is a number that any reader can calculate with."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e100 < value < 1e100


def clean(value: Any) -> Any:
    """JSON values whose texts keep no control characters, no invisible ones and no half characters."""
    if isinstance(value, str):
        return "".join(" " if unicodedata.category(letter) in ("Cc", "Cf", "Cs") else letter for letter in value)
    if isinstance(value, dict):
        return {clean(key): clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clean(item) for item in value]
    return value


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a crash leaves the old one or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Have the names of new files on the disk."""
    with contextlib.suppress(OSError):  # not every system can sync a folder
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def locked(handle: int) -> Iterator[None]:
    """Hold an open file for this process alone; where the system has no such lock, go on without."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX)
    except (ImportError, OSError):  # not every system, not every network's disk
        yield
        return
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
    except BlockingIOError:
        os.close(handle)
        return None
    except (ImportError, OSError):  # there are no locks here: nobody has it
        pass
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


@functools.cache
def commit() -> str:
    """The commit of the code at work, with + where files differ from it; the version outside a checkout.

    The answer stays that of the first call: a checkout may move on while the code that was loaded is at work.
    """
    source = Path(__file__).resolve().parent
    hooked = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")  # set where a hook of another repository calls us
    plain = {name: value for name, value in os.environ.items() if name not in hooked}

    def git(*args: str) -> str:
        command = ["git", "--no-optional-locks", "-C", str(source), *args]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20, env=plain)
        return done.stdout.strip()

    try:
        top = Path(git("rev-parse", "--show-toplevel"))
        if (top / "src" / "patchreorder").resolve() != source:
            return __version__  # installed into somebody else's repository
        differs = git("status", "--porcelain", "--untracked-files=normal", "--", ".")
        return git("rev-parse", "--short=12", "HEAD") + ("+" if differs else "")
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
