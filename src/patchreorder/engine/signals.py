"""Requests to stop: Ctrl-C and SIGTERM are noted, so that a run can save before it ends."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether Ctrl-C or SIGTERM came; a second Ctrl-C raises KeyboardInterrupt at once."""
    received: list[int] = []
    old: dict[signal.Signals, Any] = {}

    def note(number: int, frame: object) -> None:
        received.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    with contextlib.suppress(ValueError):  # only the main thread may set handlers
        old = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in old.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set by Python
