"""What to do with copies: move them away, or replace them by hard links; logged first, and taken back on request.

A file is only touched if its content and that of the kept file are still those that were compared.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

from patchreorder.files import sync_folder
from patchreorder.untrusted import clean

from .duplicates import Found, Member
from .index import Index
from .keeping import KeepRule

LOGS = ".actions"  # in the folder of the index
MOVE, LINK = "move", "link"


def act(
    index: Index, found: Found, *, rule: KeepRule, move_to: Path | None = None, really: bool = False
) -> Iterator[str]:
    """Move the files that are not kept to a folder, or replace those with the same bytes by hard links.

    Args:
        rule: has the reference folders.
        move_to: the folder; None makes hard links.
        really: do it; without it only say what would be done.

    Yields:
        Lines that say what was done, or would be.
    """
    target = move_to.resolve() if move_to else None
    log = _Log(index.folder) if really else None
    done = left = 0
    for group in found.groups:
        kept = group[0]
        for member in group[1:]:
            if member.keep:
                continue
            if target is None and member.file.digest != kept.file.digest:
                left += 1
                continue
            reason = _refused(kept, member, rule, check=really)
            if reason:
                yield f"left alone: {clean(str(member.path))}: {reason}"
                continue
            goal = _free(target / member.file.name) if target else kept.path
            if log is not None:
                _do(log, member, kept, goal, moves=target is not None)
            done += 1
            said = "moved" if target else "linked"
            yield f"{said if really else 'would be ' + said}: {clean(str(member.path))} -> {clean(str(goal))}"
    if left:
        yield f"{left} copies have other bytes than the kept file: links are only for the same bytes"
    if not really:
        yield f"{done} files; nothing was changed. Next: the same with `--yes` does it, `--undo` takes it back."
    else:
        yield f"{done} files; `patchreorder duplicates {clean(str(index.folder))} --undo` takes it back."


def undo(folder: Path) -> Iterator[str]:
    """Take back the last call of `act`, in reverse; what cannot be taken back stays in the log.

    Raises:
        ValueError: there is nothing to take back.
    """
    logs = sorted((folder / LOGS).glob("*.jsonl")) if (folder / LOGS).is_dir() else []
    if not logs:
        raise ValueError(f"{clean(str(folder))} has no log of files that were moved or linked: nothing to undo")
    lines = [_parsed(line) for line in logs[-1].read_text(encoding="utf-8").splitlines()]
    failed = []
    for entry in reversed([line for line in lines if line]):
        try:
            said = _undone(entry)
            if said:
                yield said
        except OSError as error:
            failed.append(entry)
            yield f"cannot be taken back: {clean(entry['path'])}: {error.strerror or error}"
    if failed:
        logs[-1].write_text("".join(json.dumps(entry) + "\n" for entry in reversed(failed)), encoding="utf-8")
    else:
        logs[-1].unlink()


class _Log:
    """A file that gets a line before each change, on the disk."""

    def __init__(self, folder: Path) -> None:
        (folder / LOGS).mkdir(exist_ok=True)
        self.path = folder / LOGS / f"{time.time_ns()}.jsonl"

    def write(self, entry: dict[str, Any]) -> None:
        new = not self.path.exists()
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if new:
            sync_folder(self.path.parent)


def _refused(kept: Member, member: Member, rule: KeepRule, *, check: bool) -> str:
    """Why a file must not be touched, or ""."""
    if rule.is_reference(member.path):
        return "it is in a reference folder"
    if member.path.is_symlink():
        return "it is a link"
    try:
        if os.path.samefile(member.path, kept.path):
            return "it is the kept file by another name"
        if check and _digest(kept.path) != kept.file.digest:
            return f"{clean(str(kept.path))}, which is to be kept, has changed: run `patchreorder index` again"
        if check and _digest(member.path) != member.file.digest:
            return "it has changed: run `patchreorder index` again"
    except OSError as error:
        return f"{clean(str(error.filename))}: {error.strerror}"
    return ""


def _do(log: _Log, member: Member, kept: Member, goal: Path, *, moves: bool) -> None:
    stat = member.path.stat()
    entry = {"path": str(member.path), "digest": member.file.digest, "mtime": stat.st_mtime_ns, "mode": stat.st_mode}
    if moves:
        log.write({"kind": MOVE, "to": str(goal), **entry})
        _move(member.path, goal, member.file.digest)
        return
    log.write({"kind": LINK, "to": str(kept.path), **entry})
    temporary = member.path.with_name(f".{member.path.name}.{os.urandom(4).hex()}")
    os.link(kept.path, temporary)
    os.replace(temporary, member.path)


def _move(source: Path, goal: Path, digest: str) -> None:
    """Move a file without ever replacing another, also to another disk."""
    goal.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, goal, follow_symlinks=False)  # fails if the goal exists
    except FileExistsError:
        raise
    except OSError:  # another disk, or one without hard links
        with open(source, "rb") as old, open(goal, "xb") as new:
            shutil.copyfileobj(old, new)
            new.flush()
            os.fsync(new.fileno())
        shutil.copystat(source, goal)
        if _digest(goal) != digest:
            goal.unlink()
            raise OSError(f"{goal} was not written as it was read; {source} stays") from None
    sync_folder(goal.parent)
    source.unlink()


def _undone(entry: dict[str, Any]) -> str:
    """Take back one line of a log; "" if it was never done."""
    path, to = Path(entry["path"]), Path(entry["to"])
    if entry["kind"] == MOVE:
        if not to.exists() or (path.exists() and os.path.samefile(path, to)):
            with contextlib.suppress(FileNotFoundError):
                if path.exists():
                    to.unlink()
            if not path.exists():
                raise OSError(f"{to} is gone")
            return ""
        if path.exists():
            raise OSError("another file is there now")
        _move(to, path, entry["digest"])
        return f"moved back: {clean(str(path))}"
    if not os.path.samefile(path, to):
        return ""
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    shutil.copyfile(to, temporary)
    os.chmod(temporary, entry["mode"] & 0o7777)
    os.utime(temporary, ns=(entry["mtime"], entry["mtime"]))
    os.replace(temporary, path)
    return f"a file of its own again: {clean(str(path))}"


def _free(path: Path) -> Path:
    """The path, or one with a number if it is taken."""
    number, found = 1, path
    while os.path.lexists(found):
        found = path.with_stem(f"{path.stem}.{number}")
        number += 1
    return found


def _digest(path: Path) -> str:
    found = blake2b(digest_size=16)
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            found.update(part)
    return found.hexdigest()


def _parsed(line: str) -> dict[str, Any]:
    """A line of a log; nothing if it was cut off before its change was made."""
    with contextlib.suppress(ValueError):
        return json.loads(line)
    return {}
