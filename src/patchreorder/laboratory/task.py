"""What measures the cells of a recipe; one object for a run owns what its cells share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .recipe import Column, Plan, Row
from .rows import Result

if TYPE_CHECKING:
    from .cells import Job


class Task:
    """Measures one cell after the other; owns the data sets, listings and networks that cells share."""

    changeable: Sequence[str] = ()  # fields of the plan that `--change` may set, beside those of its training

    def measure(self, job: Job) -> Result:
        """Train if need be, and evaluate; every process of the world calls this."""
        raise NotImplementedError

    def identify(self, data: Path | None, plan: Plan, split: str) -> str:
        """A digest of which images of the folder a cell is about; "" if other facts identify them."""
        return ""

    @classmethod
    def count_parameters(cls, row: Row, column: Column) -> int | None:
        """Parameters of the row's network; None if they depend on the images."""
        return None
