"""Random cases for a time, each known by a seed and a number, so that it can be repeated.

`make test` gives each defence a few seconds and always the same seed; `make test-all` a minute and `make soak` an
hour for all, with a new seed. A failure prints the command that repeats its case.
"""

import os
import random
import time
from collections.abc import Iterator

SECONDS = float(os.environ.get("PATCHREORDER_DEFENCE_SECONDS", "8"))  # for each defence
SEED = "PATCHREORDER_DEFENCE_SEED"  # tests/conftest.py chooses one and prints it
ONLY = "PATCHREORDER_DEFENCE_CASE"


def cases(name: str, *, seconds: float = SECONDS) -> Iterator[random.Random]:
    """Sources of chance for one case after the other, at least one, until the time is over."""
    seed, only = os.environ.get(SEED, "0"), os.environ.get(ONLY)
    end, number = time.monotonic() + seconds, 0
    while not number or (only is None and time.monotonic() < end):
        at = number if only is None else int(only)
        # pytest shows what a failing test printed.
        print(f"{name}: {SEED}={seed} {ONLY}={at} repeats this case", flush=True)
        yield random.Random(f"{name} {seed} {at}")
        number += 1
    print(f"{name}: {number} cases in {time.monotonic() - end + seconds:.0f} s")
