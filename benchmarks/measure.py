"""Speed of measure(): images a second of all measures together against bare forward passes of the same images.

    python benchmarks/measure.py [--data MNIST] [--out runs/bench] [--quick]

Contract: the shipped PR-CNN, 10,000 digits, 11 turns and 11 shifts along x (22 transforms), one thread, CPU time of the
process. Whenever measure() has put a batch in one pose through the network and measured it, the same images, already
transformed, go through a copy of the network that nobody watches, so that noise hits both; what measure() takes for
everything else (reading, transforming, thresholds, the numbers in the end) counts on its side. The ratio is of the sums
over the run; its quartiles are over parts of the run with 22 batches each. That no image is put into a pose twice is
counted here too.
"""

from __future__ import annotations

import sys

sys.path.pop(0)  # this folder, where operator.py would pass for the standard library's

import argparse
import copy
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from patchreorder.data.datasets import Digits, mnist
from patchreorder.data.generated import generate_digits
from patchreorder.data.poses import rotations, translations
from patchreorder.engine.memory import keep_freed_memory
from patchreorder.laboratory import provenance
from patchreorder.measuring import image_set
from patchreorder.measuring import measure as engine
from patchreorder.measuring.networks import open_network

WANTED = 0.85
TRANSFORMS = 22


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with MNIST's files; fetched once and cached without it")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--count", type=int, default=10_000, help="digits")
    parser.add_argument("--batch", type=int, help="images that are computed together, if not as measure() chooses")
    parser.add_argument("--quick", action="store_true", help="500 generated images: does it run at all")
    args = parser.parse_args()
    console = Console(highlight=False)
    keep_freed_memory()
    torch.set_num_threads(1)
    data = generate_digits("mnist", count=500) if args.quick else mnist("mnist", split="test", folder=args.data)
    row = compare(data.first(args.count), batch=args.batch)
    row["reached"] = row["ratio"] >= WANTED
    console.print(
        f"measure {row['measure']:.0f} images/s, bare forward {row['bare']:.0f} images/s: ratio {row['ratio']:.3f} "
        f"({row['quartiles'][0]:.3f} to {row['quartiles'][1]:.3f}), wanted {WANTED}; each of {row['images']} images "
        f"was put into each of {row['poses']} poses {row['posed']:g} times"
    )
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "measure.json"
    path.write_text(json.dumps({**provenance.provenance(), "wanted": WANTED, "row": row}, indent=1))
    console.print(f"written to {path}")


def compare(data: Digits, *, batch: int | None) -> dict[str, Any]:
    """Both rates, over one run of measure()."""
    network = open_network("pr_cnn", dataset="mnist").network
    assert isinstance(network, nn.Module)
    transforms = {"rotate": rotations(), "translate": translations(axes=["x"])}
    turns = Turns(copy.deepcopy(network))
    network.register_forward_pre_hook(lambda model, given: turns.see(given[0]))
    apply_pose, moved = image_set.apply_pose, [0]

    def counted(images: Tensor, *args: Any, **options: Any) -> Tensor:
        moved[0] += len(images)
        return apply_pose(images, *args, **options)

    setattr(image_set, "apply_pose", counted)  # noqa: B010
    with torch.inference_mode():  # the first passes of either are slower
        for _ in range(3):
            turns.model(data.batch(torch.arange(min(250, len(data))))[0])
    begun = turns.since = time.process_time()
    found = engine.measure(network, data, transforms=transforms, batch=batch, report=turns.report)
    total = time.process_time() - begun - sum(turns.bare)
    poses = len(found.poses)
    return {
        "images": len(data),
        "transforms": TRANSFORMS,
        "poses": poses,  # the unposed image belongs to both transforms
        "forwards": found.forwards,
        "layers": list(found.layers),
        "measure": found.forwards / total,
        "bare": found.forwards / sum(turns.bare),
        "ratio": sum(turns.bare) / total,
        "quartiles": quartiles(turns.own, turns.bare),
        "posed": moved[0] / (len(data) * poses),
    }


class Turns:
    """Runs the bare network after each step of measure(), and keeps the times of both."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.images = torch.empty(0)
        self.own: list[float] = []
        self.bare: list[float] = []
        self.since = 0.0

    def see(self, images: Tensor) -> None:
        self.images = images

    def report(self, count: int) -> None:
        now = time.process_time()
        self.own.append(now - self.since)
        self.model(self.images)
        self.since = time.process_time()
        self.bare.append(self.since - now)


def quartiles(own: Sequence[float], bare: Sequence[float]) -> tuple[float, float]:
    parts = [slice(start, start + TRANSFORMS) for start in range(0, len(own), TRANSFORMS)]
    ratios = [sum(bare[part]) / sum(own[part]) for part in parts]
    if len(ratios) < 2:
        return ratios[0], ratios[0]
    low, _, high = statistics.quantiles(ratios, n=4)
    return low, high


if __name__ == "__main__":
    main()
