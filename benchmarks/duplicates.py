"""Which threshold should `patchreorder duplicates` have? Pairs of UK-Bench that thresholds link, right and wrong.

    python benchmarks/duplicates.py --data UKBENCH [--weights ALEXNET] [--out runs/bench]

Contract: all pairs of images are compared; a pair is right if both images are of one group of UK-Bench. For thresholds
that are parts of the median distance of 2,000 pairs, as in `duplicates`: the share of linked pairs that are right, the
share of right pairs that are linked, and the share of images in a found group that holds images of one group only.
"""

from __future__ import annotations

import sys

sys.path.pop(0)  # this folder, whose operator.py would hide the standard library's

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from patchreorder.data.ukbench import GROUP
from patchreorder.engine.memory import keep_freed_memory
from patchreorder.engine.progress import Terminal
from patchreorder.laboratory import provenance
from patchreorder.search.descriptors import open_descriptor
from patchreorder.search.duplicates import RELATIVE, find_groups, median_distance
from patchreorder.search.index import Index
from patchreorder.search.update import update

MODELS = ("alexnet/ranked", "alexnet/gap", "efficientnet_lite0/gap", "efficientnet_lite0/ranked")
PARTS = (0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with UK-Bench's files, numbered without gaps")
    parser.add_argument("--weights", type=Path, help="file with AlexNet's weights; by default downloaded")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    args = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    console = Console()
    found = {name: measure(name, args.data, args.weights, console) for name in MODELS}
    for name, rows in found.items():
        table = Table("part of the median distance", "right", "found", "in right groups", title=name)
        for row in rows:
            table.add_row(*(f"{row[key]:.3f}" for key in ("part", "right", "found", "grouped")))
        console.print(table)
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "duplicates.json"
    path.write_text(json.dumps({**provenance.provenance(), "default": RELATIVE, "models": found}, indent=1))
    console.print(f"written to {path}")


def measure(name: str, data: Path, weights: Path | None, console: Console) -> list[dict[str, Any]]:
    screen = Terminal(console)
    model = open_descriptor(name, weights=weights if name.startswith("alexnet/") else None, say=screen.say)
    with tempfile.TemporaryDirectory() as folder:
        update(data, Path(folder), model, workers=1, screen=screen)
        screen.close()
        index = Index(Path(folder))
        vectors = torch.cat(index.vectors.blocks).double()[torch.tensor(index.manifest.slots)]
        of = torch.tensor([int(Path(file.name).stem.removeprefix("ukbench")) // GROUP for file in index.manifest.files])
        distances = torch.cdist(vectors, vectors, compute_mode="use_mm_for_euclid_dist")
        first, second = torch.triu_indices(len(of), len(of), 1)
        same, apart = of[first] == of[second], distances[first, second]
        median = median_distance(index)
        rows = []
        for part in PARTS:
            linked = apart <= part * median
            joined = [
                [int(Path(hit.name).stem.removeprefix("ukbench")) // GROUP for hit in group]
                for group in find_groups(index, threshold=part * median)
            ]
            clean = sum(len(group) for group in joined if len(set(group)) == 1)
            rows.append(
                {
                    "part": part,
                    "right": float(same[linked].double().mean()) if linked.any() else 1.0,
                    "found": float(linked[same].double().mean()),
                    "grouped": clean / len(of),
                }
            )
        return rows


if __name__ == "__main__":
    main()
