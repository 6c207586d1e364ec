"""Backbones with their own ImageNet classifiers: accuracy, images a second of one core, size, licence.

    python benchmarks/backbones.py --data IMAGENET_VAL [--out runs/bench] [--count 2000]

IMAGENET_VAL holds a folder for each class, in the order of torchvision's class indices when sorted by name. The short
side is scaled to the network's size + 32 and the centre cropped; bilinear. Speed is CPU time of one thread in batches
of 16, each network in turn on the same photographs.
"""

from __future__ import annotations

import sys

sys.path.pop(0)  # this folder, whose operator.py would hide the standard library's

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from patchreorder.data.folders import list_images
from patchreorder.data.views import preprocess
from patchreorder.engine.predict import for_inference
from patchreorder.laboratory import provenance
from patchreorder.metrics.rate import rate
from patchreorder.models.backbones import BACKBONES, imagenet_classifier

BATCH = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of class folders")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--count", type=int, default=2000, help="photographs, spread over the classes")
    args = parser.parse_args()
    torch.set_num_threads(1)
    listing = list_images(args.data)
    step = max(1, len(listing) // args.count)
    chosen = list(range(0, len(listing), step))
    networks = {name: for_inference(imagenet_classifier(name)) for name, own in BACKBONES.items() if own.classes}
    right = {name: [0, 0] for name in networks}
    seconds = dict.fromkeys(networks, 0.0)
    for begin in range(0, len(chosen), BATCH):
        part = chosen[begin : begin + BATCH]
        labels = listing.labels[part]
        for name, network in networks.items():
            size = BACKBONES[name].size
            images = torch.stack(
                [preprocess(listing.read(i), name=listing.names[i], size=size, short=size + 32) for i in part]
            )
            images = images.float().div(255).contiguous(memory_format=torch.channels_last)
            with torch.inference_mode():
                start = time.thread_time()
                best = network(images).topk(5).indices
                seconds[name] += time.thread_time() - start
            right[name][0] += int((best[:, 0] == labels).sum())
            right[name][1] += int((best == labels[:, None]).any(1).sum())
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "top1": rate(right[name][0], len(chosen))._asdict(),
            "top5": rate(right[name][1], len(chosen))._asdict(),
            "images_per_second": len(chosen) / seconds[name],
            "size": BACKBONES[name].size,
            "parameters": sum(value.numel() for value in networks[name].parameters()),
            "licence": BACKBONES[name].licence,
        }
        for name in networks
    ]
    args.out.mkdir(parents=True, exist_ok=True)
    facts = {"benchmark": "backbones", "photographs": len(chosen), "rows": rows, **provenance.provenance()}
    (args.out / "benchmark_backbones.json").write_text(json.dumps(facts, indent=1))
    table = Table("backbone", "top-1 %", "top-5 %", "images/s of one core", "pixels", "million parameters", "licence")
    for row in rows:
        numbers = (f"{row['top1']['value']:.1f}", f"{row['top5']['value']:.1f}", f"{row['images_per_second']:.1f}")
        table.add_row(row["name"], *numbers, str(row["size"]), f"{row['parameters'] / 1e6:.1f}", row["licence"])
    Console().print(table)


if __name__ == "__main__":
    main()
