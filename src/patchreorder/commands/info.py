"""`patchreorder info`: versions, devices, optional packages, and which form of the operator is in use."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from importlib import metadata

from rich.table import Table
from rich.text import Text

from patchreorder import __version__

from .console import open_console


def info() -> None:
    """Show versions, devices, optional packages, and which form of the operator is in use.

    Examples:
        patchreorder info
        PATCHREORDER_NATIVE=off patchreorder info
    """
    table = Table.grid(padding=(0, 2))
    for name, value in _facts():
        table.add_row(Text(name, style="bold"), Text(value))
    console = open_console()
    console.print(table)
    console.print("Next: `patchreorder demo` shows the operator at work.", markup=False, highlight=False)


def _facts() -> Iterator[tuple[str, str]]:
    import torch  # not at the top: `patchreorder info --help` does not need it

    from patchreorder.operator import native

    yield "patchreorder", __version__
    yield "Python", f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    cuda = f", cuda x{torch.cuda.device_count()}" if torch.cuda.is_available() else ""
    mps = ", mps" if torch.backends.mps.is_available() else ""
    yield "torch", f"{torch.__version__}, devices: cpu{cuda}{mps}"
    yield "threads", f"{torch.get_num_threads()} of {os.cpu_count()} processors (torch.get_num_threads())"
    kernel, found = native.KERNEL, ", ".join(native.builds()) or "none"
    if kernel.library is None:
        yield "operator", f"plain torch; the native kernel is {kernel.reason}"
    else:
        yield "operator", f"native kernel, build {kernel.build}: {kernel.reason}"
    yield "builds", f'{found} (PATCHREORDER_NATIVE chooses one by name, or "off")'
    for extra, packages in _extras().items():
        yield f"extra {extra}", _state(extra, packages)


def _extras() -> dict[str, list[str]]:
    """Return the packages of each optional extra, as the installed package declares them."""
    try:
        declared = metadata.requires("patchreorder") or []
    except metadata.PackageNotFoundError:  # run from the source folder
        return {}
    extras: dict[str, list[str]] = {}
    for line in declared:
        if match := re.match(r"([\w.-]+).*extra == ['\"]([\w-]+)['\"]", line):
            extras.setdefault(match[2], []).append(match[1])
    return extras


def _state(extra: str, packages: list[str]) -> str:
    from patchreorder.models.packages import PACKAGES, remark

    there, missing = [], []
    for package in packages:
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            missing.append(package)
            continue
        wrong = remark(package) if package in PACKAGES else ""  # others work where they are installed
        there.append(f"{package} {version}{f' ({wrong})' if wrong else ''}")
    advice = [f"missing {', '.join(missing)}: pip install 'patchreorder[{extra}]'"] if missing else []
    return "; ".join([*filter(None, [", ".join(there)]), *advice])
