"""Where and with what a row is made: commit, versions, machine, date. Standard library only."""

from __future__ import annotations

import datetime
import functools
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from patchreorder import __version__


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
    source = Path(__file__).resolve().parent.parent
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
