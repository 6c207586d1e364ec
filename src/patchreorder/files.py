"""Atomic writes, locks between processes, and digests of settings. Standard library only."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically: after a crash it has the old content or the new one, never a part."""
    with open_whole(path) as file:
        file.write(content)


@contextlib.contextmanager
def open_whole(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file for writing and reading; at the end of the block it replaces `path` atomically.

    A process that is killed leaves its temporary file; the next one that writes `path` removes it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(path)
    temporary = path
    try:
        temporary, file = _create_temporary(path)
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if os.name != "nt":
                os.replace(temporary, path)  # while it is locked
        if os.name == "nt":  # which cannot rename an open file
            os.replace(temporary, path)
    except BaseException as error:
        if temporary != path:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    sync_folder(path.parent)


def _create_temporary(path: Path) -> tuple[Path, IO[bytes]]:
    """A new file beside `path`, locked until it is closed, so that nobody takes it for abandoned."""
    while True:
        temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
        file = open(temporary, "x+b")  # noqa: SIM115
        _flock(file.fileno(), wait=True)
        with contextlib.suppress(FileNotFoundError):  # removed before it was locked: again
            os.stat(temporary)
            return temporary, file
        file.close()


def remove_abandoned(path: Path) -> None:
    """Remove temporary files of `path` that killed processes left; where there are no locks, they stay."""
    ours = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}")
    with contextlib.suppress(OSError), os.scandir(path.parent) as entries:
        found = [entry.path for entry in entries if ours.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)]
        for name in found:
            with contextlib.suppress(OSError):  # it has just got its final name, or is not ours to read
                handle = os.open(name, os.O_RDONLY)
                try:
                    if _flock(handle, wait=False):
                        os.unlink(name)
                finally:
                    os.close(handle)


def _flock(handle: int, *, wait: bool) -> bool:
    """Lock an open file until it is closed; False if another process holds the lock or there are no locks."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except (ImportError, OSError):  # Windows, some network file systems
        return False
    return True


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to the disk, such as the names of new files."""
    with contextlib.suppress(OSError):  # some systems cannot sync a folder
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def locked(handle: int) -> Iterator[None]:
    """Hold an exclusive lock on an open file; where the file system has no locks, do without."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX)
    except (ImportError, OSError):  # Windows, some network file systems
        yield
        return
    try:
        yield
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)


def try_lock(path: Path, *, shared: bool = False) -> int | None:
    """Lock a file until the returned handle is closed; None if another process holds the lock.

    Any number of processes can hold a shared lock, if none holds one that is not shared.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        import fcntl

        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    except (ImportError, OSError):  # no locks here
        pass
    return handle


def differing(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults; dataclasses inside likewise.

    A digest of these stays the same when a field is added.

    >>> point = dataclasses.make_dataclass("Point", [("x", int), ("y", int, 0), ("z", int, 0)])
    >>> differing(point(x=1, z=2))
    {'x': 1, 'z': 2}
    """
    found: dict[str, Any] = {}
    for each in dataclasses.fields(value):
        own = getattr(value, each.name)
        usual = each.default_factory() if each.default_factory is not dataclasses.MISSING else each.default
        if own != usual:
            found[each.name] = differing(own) if dataclasses.is_dataclass(own) else own
    return found


def digest(settings: Any) -> str:
    """Eight hexadecimal digits that identify settings (JSON values), whatever the order of their keys."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
