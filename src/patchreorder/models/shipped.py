"""The small trained weights that come with the package, and their measured rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import nn

FOLDER = Path(__file__).parent.parent / "weights"


def load(model: nn.Module, name: str, dataset: str) -> None:
    """Load the shipped weights into the model."""
    path = FOLDER / f"{name}.{dataset}.safetensors"
    if not path.is_file():
        known = ", ".join(" for ".join(file.name.split(".")[:2]) for file in sorted(FOLDER.glob("*.safetensors")))
        raise ValueError(f"no trained weights of {name} for {dataset} are shipped; there are {known or 'none'}")
    model.load_state_dict(load_file(path))


def row(name: str, dataset: str) -> dict[str, Any]:
    """The measured row of the shipped weights, as in `results/table1.jsonl`."""
    for line in (FOLDER / "rows.jsonl").read_text().splitlines():
        found = json.loads(line)
        if (found["row"], found["details"]["dataset"]) == (name, dataset):
            return found
    raise ValueError(f"no row of {name} for {dataset} is shipped")
