"""The largest tensor that some code makes, and the most memory that its objects need."""

import contextlib
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class LargestTensor(TorchDispatchMode):
    """Inside its block, `values` is the number of values of the largest tensor that was made in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.values = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.device.type != "meta":
            self.values = max(self.values, made.numel())
        return made


@contextlib.contextmanager
def most_memory() -> Iterator[Callable[[], int]]:
    """After its block, the function that it gives returns the most bytes of Python objects, without tensors."""
    peak = 0
    tracemalloc.start()
    try:
        yield lambda: peak
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
