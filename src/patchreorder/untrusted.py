"""Values from files that anybody may have written: checks of numbers, text that is safe to show."""

from __future__ import annotations

import unicodedata
from typing import Any


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
