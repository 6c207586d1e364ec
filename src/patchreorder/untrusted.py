"""Check and clean values from untrusted files. Standard library only."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

_ODD = ("Cc", "Cf", "Cs", "Zl", "Zp")
_JOINERS = "\u200c\u200d"


def is_count(value: Any) -> bool:
    """Whether a JSON value is a non-negative integer below 2**63."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def is_number(value: Any) -> bool:
    """Whether a JSON value is a finite number below 1e100 in magnitude."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e100 < value < 1e100


def clean_lines(text: str) -> str:
    """`clean` for text that may have several lines."""
    return "\n".join(map(clean, text.split("\n")))


def quoted(name: str) -> str:
    """A name for one line of plain text: as it is, or as a JSON string if it could break the line or fool a terminal.

    These are names with control or invisible characters, line separators, or bytes that are no UTF-8, and names that
    begin with a quotation mark. The two joiners that scripts and emoji need are no reason. `json.loads` gives the name.

    >>> print(quoted("naïve, 日本.jpg"), quoted("two\\nlines.jpg"))
    naïve, 日本.jpg "two\\nlines.jpg"
    """
    odd = any(unicodedata.category(letter) in _ODD and letter not in _JOINERS for letter in name)
    return json.dumps(name) if odd or name.startswith('"') else name


def clean(value: Any) -> Any:
    """Replace control, invisible and unpaired surrogate characters in all strings of a JSON value by spaces."""
    if isinstance(value, str):
        return "".join(" " if unicodedata.category(letter) in ("Cc", "Cf", "Cs") else letter for letter in value)
    if isinstance(value, dict):
        return {clean(key): clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clean(item) for item in value]
    return value
