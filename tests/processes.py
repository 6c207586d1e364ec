"""Processes that tests start."""

import os


def environment(**others: str) -> dict[str, str]:
    """The environment of a process that computes with one thread."""
    return os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "100"} | others
