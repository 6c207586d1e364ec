"""Speed of measure(): images a second with all measures, against bare forward passes of the same images.

    python benchmarks/measure.py [--data MNIST] [--out runs/bench] [--quick]

Contract: 11 rotations and 11 shifts along x (22 transforms), one thread, CPU time of the process. `row`: the shipped
PR-CNN, 10,000 digits. `photographs`: alexnet_pr with random weights, 200 generated JPEG files of 500x375; `few`: 40 of
them, where the derivatives, which take four photographs or more, weigh five times as much. After measure() has passed a
batch in one pose through the network and measured it, the same posed images pass through a copy of the network without
hooks, so that noise affects both. Everything else that measure() does (reading, decoding, posing, thresholds, final
numbers) counts on its side. The ratio is of sums over the run; its quartiles are over parts of the run with 22 batches
each.
"""

from __future__ import annotations

import sys

sys.path.pop(0)  # this folder, whose operator.py would hide the standard library's

import argparse
import copy
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from patchreorder.data.datasets import mnist
from patchreorder.data.generated import generate_digits, write_photos
from patchreorder.data.poses import rotations, translations
from patchreorder.engine.batches import Dataset
from patchreorder.engine.memory import keep_freed_memory
from patchreorder.engine.predict import for_inference
from patchreorder.laboratory import provenance
from patchreorder.measuring.image_set import open_folder
from patchreorder.measuring.measure import measure
from patchreorder.measuring.networks import CROP, open_network
from patchreorder.models import create_model

WANTED = 0.85
TRANSFORMS = 22


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with MNIST's files; downloaded once and cached without it")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--count", type=int, default=10_000, help="digits")
    parser.add_argument("--batch", type=int, help="images per batch; by default as measure() chooses")
    parser.add_argument(
        "--quick", action="store_true", help="500 generated digits and 8 photographs: does it run at all"
    )
    args = parser.parse_args()
    console = Console(highlight=False)
    keep_freed_memory()
    torch.set_num_threads(1)
    digits = generate_digits("mnist", count=500) if args.quick else mnist("mnist", split="test", folder=args.data)
    network = open_network("pr_cnn", dataset="mnist").network
    assert isinstance(network, nn.Module)
    found = {"row": compare(network, digits.first(args.count), batch=args.batch)}
    with tempfile.TemporaryDirectory() as folder:
        root = write_photos(Path(folder), classes=4, images=2 if args.quick else 50, size=(500, 375))
        for name, count in (("photographs", 0), ("few", 4 if args.quick else 40)):
            photos = open_folder(root, crop=CROP, labels=False, count=count).data
            alexnet = for_inference(create_model("alexnet_pr", dataset="imagenet"))
            found[name] = compare(alexnet, photos, batch=args.batch)
    for name, row in found.items():
        row["reached"] = row["ratio"] >= WANTED
        console.print(
            f"{name}: measure {row['measure']:.1f} images/s, bare forward {row['bare']:.1f} images/s: ratio "
            f"{row['ratio']:.3f} ({row['quartiles'][0]:.3f} to {row['quartiles'][1]:.3f}), wanted {WANTED}"
        )
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "measure.json"
    path.write_text(json.dumps({**provenance.provenance(), "wanted": WANTED, **found}, indent=1))
    console.print(f"written to {path}")


def compare(network: nn.Module, data: Dataset, *, batch: int | None) -> dict[str, Any]:
    """Both rates, over one run of measure()."""
    transforms = {"rotate": rotations(), "translate": translations(axes=["x"])}
    clock = Clock(copy.deepcopy(network))
    network.register_forward_pre_hook(lambda model, args: clock.see(args[0]))
    # The first passes are slower.
    measure(clock.bare_network, data, transforms={"rotate": rotations(most=9)}, layers=[], similarity=False)
    begun = clock.since = time.process_time()
    found = measure(network, data, transforms=transforms, batch=batch, report=clock.report)
    total = time.process_time() - begun - sum(clock.bare)
    return {
        "images": len(data),
        "transforms": TRANSFORMS,
        "poses": len(found.poses),  # the unposed image belongs to both transforms
        "forwards": found.forwards,
        "layers": list(found.layers),
        "measure": found.forwards / total,
        "bare": found.forwards / sum(clock.bare),
        "ratio": sum(clock.bare) / total,
        "quartiles": quartiles(clock.measured, clock.bare),
    }


class Clock:
    """Runs the bare network after each step of measure(), and keeps the times of both."""

    def __init__(self, bare_network: nn.Module) -> None:
        self.bare_network = bare_network
        self.images = torch.empty(0)
        self.measured: list[float] = []
        self.bare: list[float] = []
        self.since = 0.0

    def see(self, images: Tensor) -> None:
        self.images = images

    def report(self, count: int) -> None:
        now = time.process_time()
        self.measured.append(now - self.since)
        self.bare_network(self.images)
        self.since = time.process_time()
        self.bare.append(self.since - now)


def quartiles(measured: Sequence[float], bare: Sequence[float]) -> tuple[float, float]:
    parts = [slice(start, start + TRANSFORMS) for start in range(0, len(measured), TRANSFORMS)]
    ratios = [sum(bare[part]) / sum(measured[part]) for part in parts]
    if len(ratios) < 2:
        return ratios[0], ratios[0]
    low, _, high = statistics.quantiles(ratios, n=4)
    return low, high


if __name__ == "__main__":
    main()
